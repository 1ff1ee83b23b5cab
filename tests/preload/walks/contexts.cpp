// Contexts; children and the end.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

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
    // A destroyed context stays current there
    if (std::find(stack.begin(), stack.end(), context) != stack.end() && &stack != &current_[thread_]) return;
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
  answered(is_end ? "disable" : "enable",
           on_thread([&] { return is_end ? cuCtxDisablePeerAccess(handle_of(to)) : cuCtxEnablePeerAccess(handle_of(to), 0); }));
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
  // Whether a later graph got an earlier one's memory depends on when work was over; nothing runs now.
  for (int device = 0; device < devices_; ++device) answered("trim", on_thread([&] { return cuDeviceGraphMemTrim(device); }));
  for (std::size_t i = static_cast<std::size_t>(devices_); i < pools_.size(); ++i) {
    if (pools_[i].is_alive) answered("pool", on_thread([&] { return cuMemPoolDestroy(pools_[i].handle); }));
  }
  for (thread_ = 0; thread_ < kThreads; ++thread_) {
    CUcontext popped = nullptr;
    while (on_thread([&] { return cuCtxPopCurrent(&popped); }) == CUDA_SUCCESS) {}
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
