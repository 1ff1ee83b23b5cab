// The machinery of a walk: choosing, calling, printing; and the rules of a correct program.
#include "walk.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>

namespace walks {

const std::vector<Walk::Row>& Walk::rows() {
  static const std::vector<Row> all = {
      {6, "set current", &Walk::set_current},
      {3, "push", &Walk::push_context},
      {3, "pop", &Walk::pop_context},
      {2, "create context", &Walk::create_context},
      {1, "destroy context", &Walk::destroy_context},
      {2, "retain primary", &Walk::retain_primary},
      {2, "release primary", &Walk::release_primary},
      {1, "reset primary", &Walk::reset_primary},
      {1, "create green", &Walk::create_green},
      {6, "create stream", &Walk::create_stream},
      {3, "destroy stream", &Walk::destroy_stream},
      {3, "create event", &Walk::create_event},
      {2, "destroy event", &Walk::destroy_event},
      {8, "cross streams", &Walk::cross_streams},
      {5, "synchronise", &Walk::synchronise},
      {4, "peer access", &Walk::enable_peer},
      {20, "allocate", &Walk::allocate_plain},
      {3, "allocate pitched", &Walk::allocate_pitched},
      {16, "allocate ordered", &Walk::allocate_ordered},
      {6, "allocate from pool", &Walk::allocate_from_pool},
      {2, "allocate managed", &Walk::allocate_managed},
      {2, "map", &Walk::map_own},
      {32, "free", &Walk::free_block},
      {2, "free many", &Walk::free_many},
      {3, "free wrongly", &Walk::free_wrongly},
      {3, "create pool", &Walk::create_pool},
      {2, "destroy pool", &Walk::destroy_pool},
      {2, "set pool", &Walk::set_pool},
      {2, "trim pool", &Walk::trim_pool},
      {3, "share pool", &Walk::share_pool},
      {4, "ask pool", &Walk::ask_pool},
      {8, "ask block", &Walk::ask_block},
      {3, "ask device", &Walk::ask_device},
      {24, "fill", &Walk::fill},
      {6, "fill now", &Walk::fill_now},
      {10, "copy", &Walk::copy},
      {6, "copy rows", &Walk::copy_rows},
      {6, "copy between", &Walk::copy_between},
      {16, "read", &Walk::read_back},
      {12, "spin", &Walk::spin},
      {4, "begin capture", &Walk::begin_capture},
      {6, "end capture", &Walk::end_capture},
      {2, "node memory", &Walk::node_memory},
      {6, "launch graph", &Walk::launch_graph},
      {2, "destroy graph", &Walk::destroy_graph},
      {1, "trim graphs", &Walk::trim_graphs},
      {1, "array", &Walk::array},
      {2, "host memory", &Walk::host_memory},
      {1, "registered memory", &Walk::registered_memory},
      {3, "module", &Walk::module},
      {1, "fork", &Walk::fork_child},
      {2, "mark synchronous", &Walk::mark_synchronous},
  };
  return all;
}

std::size_t Walk::draw_bytes() {
  // As jobs have them: many small ones, some large ones; multiples of 512, because pools count in them.
  const std::uint64_t kind = below(10);
  if (kind < 4) return 512 * (1 + below(64));
  if (kind < 7) return 512 * (1 + below(2048));
  if (kind < 9) return 512 * (1 + below(8192));
  return 512 * (1 + below(65536));
}

int Walk::draw_idle_stream() {
  return draw(streams_, [this](const Stream& stream) { return is_usable(stream) && stream.capture == kNone; });
}

bool Walk::answered(const char* what, CUresult result) {
  say(std::string(what) + "->" + std::to_string(result));
  return result == CUDA_SUCCESS;
}

std::string Walk::label(CUcontext context) const {
  if (context == nullptr) return "none";
  for (std::size_t i = contexts_.size(); i-- > 0;) {
    if (contexts_[i].handle == context && contexts_[i].is_alive) return "c" + std::to_string(i);
  }
  return "unknown";
}

std::string Walk::label(CUmemoryPool pool) const {
  if (pool == nullptr) return "none";
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].handle == pool) return "p" + std::to_string(i);
  }
  return "unknown";
}

bool Walk::is_forbidden() const {
  return std::any_of(captures_.begin(), captures_.end(), [this](const Capture& capture) {
    if (!capture.is_running || capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    return capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL || capture.thread == thread_;
  });
}

bool Walk::is_captured(int context) const {
  return std::any_of(streams_.begin(), streams_.end(), [context](const Stream& stream) {
    return stream.is_alive && stream.capture != kNone && (context == kNone || stream.context == context);
  });
}

bool Walk::use(int context) {
  if (current() == context) return true;
  auto& stack = current_[thread_];
  const CUresult result = on_thread([&] { return cuCtxSetCurrent(handle_of(context)); });
  say("current=c" + std::to_string(context));
  if (!answered("", result)) return false;
  if (!stack.empty()) stack.pop_back();
  stack.push_back(context);
  return true;
}

bool Walk::reach(const Stream& stream, bool always) {
  if (stream.thread != kNone) thread_ = stream.thread;
  return is_default(stream) || always || !one_in(8) ? use(stream.context) : true;
}

void Walk::add_default_streams(int context) {
  streams_.push_back({CU_STREAM_LEGACY, context});
  for (int thread = 0; thread < kThreads; ++thread) streams_.push_back({CU_STREAM_PER_THREAD, context, thread});
}

bool Walk::settle(Block& block) {
  if (block.stream == kNone) return true;
  const Stream& stream = streams_[static_cast<std::size_t>(block.stream)];
  if (stream.capture != kNone || is_forbidden() || is_captured(stream.context)) return false;
  if (!reach(stream, true)) return false;
  const bool is_done = stream.is_alive ? answered("synchronise", on_thread([&] { return cuStreamSynchronize(stream.handle); }))
                                       : answered("synchronise all", on_thread([] { return cuCtxSynchronize(); }));
  if (is_done && !stream.is_alive) block.stream = kNone;
  return is_done;
}

/// A block that has outlived its context is used in another one of its device.
void Walk::adopt(Block& block) {
  if (block.has_outlived && block.context == kNone)
    block.context = draw(contexts_, [&](const Context& c) { return c.is_alive && c.device == block.device; });
}

/// What a context takes with it. Memory of pools only the primary (CUDA Driver API 13.0, cuCtxDestroy), and what was in flight there is over.
void Walk::lose(int context) {
  const bool takes_pools = contexts_[static_cast<std::size_t>(context)].kind != Context::created;
  contexts_[static_cast<std::size_t>(context)].is_alive = false;
  for (Stream& stream : streams_) {
    if (stream.context == context) stream.is_alive = false;
  }
  for (Block& block : blocks_) {
    if (block.context != context || block.kind == Block::mapped) continue;
    block.has_outlived = block.has_outlived || (block.kind == Block::ordered && !takes_pools);
    if (block.has_outlived) block.context = block.stream = kNone;
    else block.is_alive = false;
  }
  for (Event& event : events_) {
    if (event.context == context) event.is_alive = false;
  }
  for (auto& [module, owner] : modules_) {
    if (owner == context) module = nullptr;
  }
  for (Executable& executable : executables_) {
    if (streams_[static_cast<std::size_t>(executable.stream)].context == context) executable.is_alive = false;
  }
}

void Walk::step(std::uint64_t number) {
  random_.seed(seed_ * 1'000'003 + number);
  thread_ = one_in(3) ? static_cast<int>(below(kThreads)) : 0;
  int total = 0;
  for (const Row& row : rows()) total += row.weight;
  int left = static_cast<int>(below(static_cast<std::uint64_t>(total)));
  const Row* chosen = rows().data();
  while (left >= chosen->weight) left -= (chosen++)->weight;
  line_.clear();
  (this->*chosen->operation)();
  using Figure = std::size_t (*)(int);
  static const Figure used = reinterpret_cast<Figure>(dlsym(RTLD_DEFAULT, "cusim_used_bytes"));
  for (int device = 0; device < devices_; ++device)
    peaks_[static_cast<std::size_t>(device)] = std::max(peaks_[static_cast<std::size_t>(device)], used(device));
  if (!line_.empty()) std::printf("%llu t%d %s:%s\n", static_cast<unsigned long long>(number), thread_, chosen->name, line_.c_str());
}

}  // namespace walks

int main(int count, char** arguments) {
  if (count < 5) {
    std::fprintf(stderr, "walks SEED STEPS DEVICES TIGHT [FIRST-LAST...]: TIGHT is 0 or 1; the steps that are left out\n");
    return 2;
  }
  const auto number = [](const char* text, char** end = nullptr) { return std::strtoull(text, end, 10); };
  std::vector<std::pair<std::uint64_t, std::uint64_t>> left_out;
  for (int i = 5; i < count; ++i) {
    char* end = nullptr;
    const std::uint64_t first = number(arguments[i], &end);
    left_out.emplace_back(first, *end == '-' ? number(end + 1) : first);
  }
  walks::Walk walk(number(arguments[1]), static_cast<int>(number(arguments[3])), number(arguments[4]) != 0);
  walk.begin();
  for (std::uint64_t step = 0; step < number(arguments[2]); ++step) {
    const bool is_out =
        std::any_of(left_out.begin(), left_out.end(), [step](const auto& range) { return range.first <= step && step <= range.second; });
    if (!is_out) walk.step(step);
  }
  walk.end();
  std::fflush(stdout);
  return 0;
}
