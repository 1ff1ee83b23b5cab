// Contexts, streams, events, captures, graphs.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "walk.hpp"

extern "C" CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device);  // every driver has it; <cuda.h> names a newer one

namespace walks {

void Walk::begin() {
  int version = 0;
  if (cuInit(0) != CUDA_SUCCESS || cuDriverGetVersion(&version) != CUDA_SUCCESS) std::printf("no driver\n");
  has_green_contexts_ = version >= 12050;  // with streams of their own
  for (int device = 0; device < devices_; ++device) {
    Pool pool;
    pool.device = device;
    static_cast<void>(cuDeviceGetDefaultMemPool(&pool.handle, device));
    pools_.push_back(pool);
  }
}

void Walk::set_current() {
  const int context = one_in(12) ? kNone : draw(contexts_);
  auto& stack = current_[thread_];
  say(named('c', context));
  if (!answered("", on_thread([&] { return cuCtxSetCurrent(handle_of(context)); }))) return;
  if (!stack.empty()) stack.pop_back();
  if (context != kNone) stack.push_back(context);
}

void Walk::push_context() {
  const int context = draw(contexts_);
  if (context == kNone || current_[thread_].size() > 4) return;
  say(named('c', context));
  if (answered("", on_thread([&] { return cuCtxPushCurrent(handle_of(context)); }))) current_[thread_].push_back(context);
}

void Walk::pop_context() {
  CUcontext popped = nullptr;
  if (current_[thread_].empty()) return;
  if (answered("", on_thread([&] { return cuCtxPopCurrent(&popped); }))) current_[thread_].pop_back();
  say(label(popped));
}

void Walk::create_context() {
  if (is_captured(kNone) || std::count_if(contexts_.begin(), contexts_.end(), [](const Context& c) { return c.is_alive; }) > 5) return;
  Context context;
  context.kind = Context::created;
  context.device = static_cast<int>(below(static_cast<std::uint64_t>(devices_)));
  say("device", static_cast<std::uint64_t>(context.device));
  if (!answered("", on_thread([&] { return cuCtxCreate_v2(&context.handle, 0, context.device); }))) return;
  contexts_.push_back(context);
  const int index = static_cast<int>(contexts_.size()) - 1;
  current_[thread_].push_back(index);
  add_default_streams(index);
}

void Walk::destroy_context() {
  if (is_captured(kNone)) return;
  const int context = draw(contexts_, [](const Context& c) { return c.is_alive && c.kind != Context::primary; });
  if (context == kNone) return;
  for (const auto& stack : current_) {
    if (std::find(stack.begin(), stack.end(), context) != stack.end() && &stack != &current_[thread_]) return;  // a destroyed context stays current there
  }
  auto& stack = current_[thread_];
  const bool is_top = !stack.empty() && stack.back() == context;
  if (std::count(stack.begin(), stack.end(), context) > (is_top ? 1 : 0)) return;
  say(named('c', context));
  const Context& dying = contexts_[static_cast<std::size_t>(context)];
  if (dying.kind == Context::green) {
    if (is_top) return;
    const bool has_memory = std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& b) { return b.is_alive && b.context == context; });
    if (has_memory) return line_.clear();
    if (answered("green", on_thread([&] { return cuGreenCtxDestroy(dying.green_handle); }))) lose(context);
    return;
  }
  if (!answered("", on_thread([&] { return cuCtxDestroy(dying.handle); }))) return;
  if (is_top) stack.pop_back();
  lose(context);
}

void Walk::retain_primary() {
  if (is_captured(kNone)) return;
  const int device = static_cast<int>(below(static_cast<std::uint64_t>(devices_)));
  int& holders = holders_[static_cast<std::size_t>(device)];
  if (holders > 2) return;
  Context context;
  context.device = device;
  say("device", static_cast<std::uint64_t>(device));
  if (!answered("", on_thread([&] { return cuDevicePrimaryCtxRetain(&context.handle, device); }))) return;
  ++holders;
  if (draw(contexts_, [&](const Context& c) { return c.is_alive && c.kind == Context::primary && c.device == device; }) != kNone) return;
  contexts_.push_back(context);
  add_default_streams(static_cast<int>(contexts_.size()) - 1);
}

void Walk::release_primary() {
  const int device = static_cast<int>(below(static_cast<std::uint64_t>(devices_)));
  int& holders = holders_[static_cast<std::size_t>(device)];
  const int primary = draw(contexts_, [&](const Context& c) { return c.is_alive && c.kind == Context::primary && c.device == device; });
  if (primary == kNone || is_captured(kNone)) return;
  const bool is_last = holders == 1;
  if (is_last) {
    if (!one_in(4)) return;
    for (const auto& stack : current_) {
      if (std::find(stack.begin(), stack.end(), primary) != stack.end()) return;
    }
    if (draw(contexts_, [&](const Context& c) { return c.is_alive && c.kind == Context::green && c.device == device; }) != kNone) return;
  }
  say("device", static_cast<std::uint64_t>(device));
  if (!answered("", on_thread([&] { return cuDevicePrimaryCtxRelease(device); }))) return;
  if (--holders == 0) lose(primary);
}

void Walk::reset_primary() {
  const int device = static_cast<int>(below(static_cast<std::uint64_t>(devices_)));
  const int primary = draw(contexts_, [&](const Context& c) { return c.is_alive && c.kind == Context::primary && c.device == device; });
  if (primary == kNone || is_captured(kNone) || !one_in(4)) return;
  if (draw(contexts_, [&](const Context& c) { return c.is_alive && c.kind == Context::green && c.device == device; }) != kNone) return;
  for (const auto& stack : current_) {
    if (std::find(stack.begin(), stack.end(), primary) != stack.end()) return;
  }
  say("device", static_cast<std::uint64_t>(device));
  if (!answered("", on_thread([&] { return cuDevicePrimaryCtxReset(device); }))) return;
  lose(primary);
  while (holders_[static_cast<std::size_t>(device)] > 0 && answered("release", on_thread([&] { return cuDevicePrimaryCtxRelease(device); }))) {
    --holders_[static_cast<std::size_t>(device)];
  }
}

void Walk::create_green() {
  const int primary = draw(contexts_, [](const Context& c) { return c.is_alive && c.kind == Context::primary; });
  if (primary == kNone || is_captured(kNone) || !has_green_contexts_) return;
  Context context;
  context.kind = Context::green;
  context.device = contexts_[static_cast<std::size_t>(primary)].device;
  say("device", static_cast<std::uint64_t>(context.device));
  const CUresult result = on_thread([&] {
    CUdevResource resource;
    CUdevResourceDesc description = nullptr;
    CUresult made = cuDeviceGetDevResource(context.device, &resource, CU_DEV_RESOURCE_TYPE_SM);
    if (made == CUDA_SUCCESS) made = cuDevResourceGenerateDesc(&description, &resource, 1);
    if (made == CUDA_SUCCESS) made = cuGreenCtxCreate(&context.green_handle, description, context.device, CU_GREEN_CTX_DEFAULT_STREAM);
    return made != CUDA_SUCCESS ? made : cuCtxFromGreenCtx(&context.handle, context.green_handle);
  });
  if (answered("", result)) contexts_.push_back(context);
}

void Walk::create_stream() {
  const int context = draw(contexts_);
  if (context == kNone || is_captured(kNone) || streams_.size() > 400) return;
  Stream stream;
  stream.context = context;
  const unsigned flags = one_in(3) ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
  const Context& owner = contexts_[static_cast<std::size_t>(context)];
  if (!use(context)) return;
  say("flags", flags);
  const bool is_green = owner.kind == Context::green;
  if (answered("", on_thread([&] {
        return is_green ? cuGreenCtxStreamCreate(&stream.handle, owner.green_handle, CU_STREAM_NON_BLOCKING, 0) : cuStreamCreate(&stream.handle, flags);
      }))) {
    streams_.push_back(stream);
  }
}

void Walk::destroy_stream() {
  const int index = draw(streams_, [&](const Stream& s) { return is_usable(s) && s.capture == kNone && !is_default(s); });
  if (index == kNone || is_captured(kNone)) return;
  Stream& stream = streams_[static_cast<std::size_t>(index)];
  if (!one_in(4) && !use(stream.context)) return;
  say(named('s', index));
  if (!answered("", on_thread([&] { return cuStreamDestroy(stream.handle); }))) return;
  stream.is_alive = false;
  for (Executable& executable : executables_) {
    if (executable.stream == index) executable.writes.emplace_back(kNone, 0);  // never launched again
  }
}

void Walk::create_event() {
  const int context = draw(contexts_);
  if (context == kNone || !use(context)) return;
  Event event;
  event.context = context;
  if (answered("", on_thread([&] { return cuEventCreate(&event.handle, one_in(2) ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING); }))) events_.push_back(event);
}

void Walk::destroy_event() {
  const int index = draw(events_);
  if (index == kNone || is_captured(kNone)) return;
  Event& event = events_[static_cast<std::size_t>(index)];
  say(named('e', index));
  if (answered("", on_thread([&] { return cuEventDestroy(event.handle); }))) event.is_alive = false;
}

/// One stream waits for another; where that one captures, it joins.
void Walk::cross_streams() {
  const int from = draw(streams_, [&](const Stream& s) { return is_usable(s) && s.handle != CU_STREAM_LEGACY; });
  if (from == kNone) return;
  Stream& first = streams_[static_cast<std::size_t>(from)];
  const int to = draw(streams_, [&](const Stream& s) {
    if (!is_usable(s) || s.handle == CU_STREAM_LEGACY || &s == &first) return false;
    if (is_default(s) && (s.context != first.context || (first.thread != kNone && first.thread != s.thread))) return false;
    if (first.capture != kNone && s.capture == kNone) return s.context == first.context;
    return s.capture == first.capture;
  });
  const int index = draw(events_, [&](const Event& e) { return e.is_alive && e.context == first.context; });
  if (to == kNone || index == kNone) return;
  if (streams_[static_cast<std::size_t>(to)].thread != kNone) thread_ = streams_[static_cast<std::size_t>(to)].thread;
  if (!reach(first, true)) return;
  const CUevent event = events_[static_cast<std::size_t>(index)].handle;
  Stream& second = streams_[static_cast<std::size_t>(to)];
  say(named('s', from) + " " + named('s', to));
  if (!answered("record", on_thread([&] { return cuEventRecord(event, first.handle); }))) return;
  if (!answered("wait", on_thread([&] { return cuStreamWaitEvent(second.handle, event, 0); }))) return;
  second.capture = first.capture;
}

void Walk::synchronise() {
  const int index = draw_idle_stream();
  if (index == kNone || is_forbidden()) return;
  const Stream& stream = streams_[static_cast<std::size_t>(index)];
  if (is_captured(stream.context) || !reach(stream, true)) return;
  if (one_in(3)) answered("all", on_thread([] { return cuCtxSynchronize(); }));
  else answered(named('s', index).c_str(), on_thread([&] { return cuStreamSynchronize(stream.handle); }));
}

void Walk::enable_peer() {
  const int from = draw(contexts_), to = draw(contexts_);
  if (from == kNone || from == to || is_captured(kNone) || !use(from)) return;
  const bool is_end = one_in(4);
  if (is_end) {
    // Without peer access no work of one may be on the other's memory.
    for (int context : {from, to}) {
      if (!use(context) || !answered("synchronise", on_thread([] { return cuCtxSynchronize(); }))) return;
    }
    if (!use(from)) return;
  }
  say(named('c', from) + " " + named('c', to));
  answered(is_end ? "disable" : "enable", on_thread([&] { return is_end ? cuCtxDisablePeerAccess(handle_of(to)) : cuCtxEnablePeerAccess(handle_of(to), 0); }));
}

void Walk::spin() {
  using Launch = CUresult (*)(CUstream, std::uint64_t);
  static const Launch launch = reinterpret_cast<Launch>(dlsym(RTLD_DEFAULT, "cusim_launch_spin"));
  const int index = draw(streams_, [&](const Stream& s) { return is_usable(s); });
  if (index == kNone) return;
  const Stream& stream = streams_[static_cast<std::size_t>(index)];
  if (stream.handle == CU_STREAM_LEGACY && is_captured(kNone)) return;
  if (!reach(stream, true)) return;
  say(named('s', index));
  answered("", on_thread([&] { return launch(stream.handle, 1 + below(1'000'000)); }));
}

void Walk::begin_capture() {
  const int index = draw(streams_, [&](const Stream& s) { return is_usable(s) && s.capture == kNone && s.handle != CU_STREAM_LEGACY; });
  if (index == kNone || !captures_streams_ || (is_captured(kNone) && !one_in(4))) return;
  Stream& stream = streams_[static_cast<std::size_t>(index)];
  Capture capture;
  if (stream.thread != kNone) thread_ = stream.thread;
  capture.stream = index;
  capture.thread = thread_;
  capture.mode = static_cast<CUstreamCaptureMode>(below(3));
  if (!use(stream.context)) return;
  say(named('s', index));
  say("mode", static_cast<std::uint64_t>(capture.mode));
  if (!answered("", on_thread([&] { return cuStreamBeginCapture(stream.handle, capture.mode); }))) return;
  stream.capture = static_cast<int>(captures_.size());
  captures_.push_back(capture);
}

void Walk::end_capture() {
  const int index = draw(captures_, [](const Capture& c) { return c.is_running; });
  if (index == kNone) return;
  Capture& capture = captures_[static_cast<std::size_t>(index)];
  Stream& origin = streams_[static_cast<std::size_t>(capture.stream)];
  thread_ = capture.thread;
  if (!use(origin.context)) return;
  say(named('s', capture.stream));
  for (Stream& stream : streams_) {  // whoever joined comes back
    if (stream.capture != index || &stream == &origin) continue;
    thread_ = stream.thread != kNone ? stream.thread : capture.thread;
    const bool is_there = use(origin.context);
    static_cast<void>(is_there);
    CUevent event = nullptr;
    const bool is_back = answered("event", on_thread([&] { return cuEventCreate(&event, CU_EVENT_DISABLE_TIMING); })) &&
                         answered("record", on_thread([&] { return cuEventRecord(event, stream.handle); })) &&
                         answered("wait", on_thread([&] { return cuStreamWaitEvent(origin.handle, event, 0); }));
    static_cast<void>(is_back);
    stream.capture = kNone;
    answered("destroy", on_thread([&] { return cuEventDestroy(event); }));
  }
  thread_ = capture.thread;
  if (!use(origin.context)) return;
  CUgraph graph = nullptr;
  const bool is_ended = answered("", on_thread([&] { return cuStreamEndCapture(origin.handle, &graph); }));
  origin.capture = kNone;
  capture.is_running = false;
  if (!is_ended) return;
  Executable executable;
  executable.stream = capture.stream;
  executable.writes = capture.writes;
  if (answered("instantiate", on_thread([&] { return cuGraphInstantiateWithFlags(&executable.handle, graph, 0); }))) executables_.push_back(executable);
  answered("destroy", on_thread([&] { return cuGraphDestroy(graph); }));
}

void Walk::launch_graph() {
  const int index = draw(executables_);
  if (index == kNone) return;
  Executable& executable = executables_[static_cast<std::size_t>(index)];
  const Stream& stream = streams_[static_cast<std::size_t>(executable.stream)];
  if (!is_usable(stream) || stream.capture != kNone) return;
  for (const auto& [block, value] : executable.writes) {
    if (block == kNone || !blocks_[static_cast<std::size_t>(block)].is_alive || blocks_[static_cast<std::size_t>(block)].stream != executable.stream) return;
  }
  if (!reach(stream, true)) return;
  say(named('g', index));
  if (!answered("", on_thread([&] { return cuGraphLaunch(executable.handle, stream.handle); }))) return;
  for (const auto& [block, value] : executable.writes) blocks_[static_cast<std::size_t>(block)].value = value;
}

void Walk::destroy_graph() {
  const int index = draw(executables_);
  if (index == kNone || is_captured(kNone)) return;
  Executable& executable = executables_[static_cast<std::size_t>(index)];
  say(named('g', index));
  if (answered("", on_thread([&] { return cuGraphExecDestroy(executable.handle); }))) executable.is_alive = false;
}

/// A child may not use what its parent has; it is told so, and ends as it likes.
void Walk::fork_child() {
  const int index = draw(blocks_);
  if (!one_in(4)) return;
  std::fflush(stdout);
  const std::uint64_t way = below(3);
  int status = 0;
  const CUresult result = on_thread([&] {
    const pid_t child = fork();
    if (child == 0) {
      CUdeviceptr address = 0;
      std::size_t left = 0, total = 0;
      std::printf("child %d %d %d\n", static_cast<int>(cuMemAlloc(&address, 4096)), static_cast<int>(cuMemGetInfo(&left, &total)),
                  index == kNone ? -1 : static_cast<int>(cuMemFree(blocks_[static_cast<std::size_t>(index)].address)));
      std::fflush(stdout);
      if (way == 0) exit(5);
      if (way == 1) execl("/bin/true", "true", nullptr);
      _exit(6);
    }
    return child > 0 && waitpid(child, &status, 0) == child ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
  });
  say("status", static_cast<std::uint64_t>(status));
  answered("", result);
}

void Walk::end() {
  random_.seed(seed_);
  if (!one_in(3)) return give_all_back();
  thread_ = static_cast<int>(below(kThreads));
  line_.clear();
  for (const std::size_t peak : peaks_) say("peak", peak);
  std::printf("exit of t%d:%s\n", thread_, line_.c_str());
  std::fflush(stdout);
  static_cast<void>(on_thread([]() -> CUresult { exit(7); }));
}

void Walk::give_all_back() {
  using Figure = std::size_t (*)(int);
  const auto figure = [](const char* name, int device) { return reinterpret_cast<Figure>(dlsym(RTLD_DEFAULT, name))(device); };
  while (draw(captures_, [](const Capture& c) { return c.is_running; }) != kNone) {
    line_.clear();
    end_capture();
    std::printf("end capture:%s\n", line_.c_str());
  }
  thread_ = 0;
  line_.clear();
  for (std::size_t i = 0; i < contexts_.size(); ++i) {
    if (contexts_[i].is_alive && use(static_cast<int>(i))) answered("synchronise", on_thread([] { return cuCtxSynchronize(); }));
  }
  std::printf("end contexts:%s\n", line_.c_str());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (!blocks_[i].is_alive) continue;
    line_.clear();
    blocks_[i].stream = kNone;
    free_at(static_cast<int>(i));
    std::printf("end block:%s\n", line_.c_str());
  }
  line_.clear();
  for (std::size_t i = static_cast<std::size_t>(devices_); i < pools_.size(); ++i) {
    if (pools_[i].is_alive) answered("pool", on_thread([&] { return cuMemPoolDestroy(pools_[i].handle); }));
  }
  for (thread_ = 0; thread_ < kThreads; ++thread_) {
    CUcontext popped = nullptr;
    while (on_thread([&] { return cuCtxPopCurrent(&popped); }) == CUDA_SUCCESS) {
    }
  }
  thread_ = 0;
  for (const Context::Kind kind : {Context::green, Context::created}) {
    for (Context& context : contexts_) {
      if (!context.is_alive || context.kind != kind) continue;
      answered("destroy", on_thread([&] { return kind == Context::green ? cuGreenCtxDestroy(context.green_handle) : cuCtxDestroy(context.handle); }));
    }
  }
  for (int device = 0; device < devices_; ++device) {
    for (int& holders = holders_[static_cast<std::size_t>(device)]; holders > 0; --holders) {
      answered("release", on_thread([&] { return cuDevicePrimaryCtxRelease(device); }));
    }
    CUmemoryPool standard = pools_[static_cast<std::size_t>(device)].handle;
    static_cast<void>(cuMemPoolTrimTo(standard, 0));
    say("used", figure("cusim_used_bytes", device));
    say("peak", peaks_[static_cast<std::size_t>(device)]);
  }
  say("mismatches", figure("cusim_mismatched_bytes", 0));
  std::printf("end:%s\n", line_.c_str());
  using Sentence = const char* (*)(std::size_t);
  const auto sentence = reinterpret_cast<Sentence>(dlsym(RTLD_DEFAULT, "cusim_violation"));
  for (std::size_t i = 0; i < figure("cusim_violation_count", 0); ++i) std::printf("violation: %s\n", sentence(i));
}

}  // namespace walks
