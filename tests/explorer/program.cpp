// What every operation needs: the current context, what captures forbid, and the verdict after each step.
#include "program.hpp"

#include <cstdarg>
#include <cstdio>

#include "cusim.h"

namespace explorer {

/// The operations by kind.
struct Table {
  using Member = bool (Program::*)(const Op&);
  static constexpr Member kMembers[kKinds] = {
#define ROW(name, ...) &Program::name,
      EXPLORER_OPERATIONS(ROW)
#undef ROW
  };
};

thread_local std::size_t Program::actor_ = 0;

Program::Program(const Settings& settings) : settings_(settings) { current_.fill(kNoContext); }

void Program::start() {
  must(cuInit(0), "cuInit");
  must(cuDriverGetVersion(&settings_.driver_version), "cuDriverGetVersion");
  for (std::size_t slot = 0; slot < kContexts; ++slot) {
    Context& context = contexts_[slot];
    context.primary = slot < kDevices;
    context.green = slot == kGreen;
    context.device = static_cast<int>(slot < kDevices ? slot : (slot - kDevices) % settings_.devices);
    if (context.green) context.device = 0;
    context.owner = context.green ? 0 : slot;
    if (slot < settings_.devices) open_context(slot);
  }
}

bool Program::act(const Op& op) {
  actor_ = op.thread % kThreads;
  if (op.context >= kContexts || op.thread >= kThreads) return false;
  const bool done = (this->*Table::kMembers[static_cast<std::size_t>(op.kind)])(op);
  auto& counters = done ? totals_.done : totals_.left_out;
  ++counters[static_cast<std::size_t>(op.kind)];
  look();
  return done;
}

void Program::look() {
  if (is_hit()) return;
  if (const std::uint64_t bytes = cusim_mismatched_bytes(); bytes != 0)
    hit(std::to_string(bytes) + " bytes were changed by somebody who does not own them");
  if (cusim_violation_count() != 0) hit(std::string("the driver saw: ") + cusim_violation(0));
}

void Program::hit(const std::string& what) {
  if (hit_.empty()) hit_ = what;
}

bool Program::must(CUresult result, const char* call) {
  totals_.digest = (totals_.digest ^ static_cast<std::uint64_t>(result)) * 1099511628211ULL;
  if (result == CUDA_SUCCESS) return true;
  hit(std::string(call) + " gave " + std::to_string(result));
  return false;
}

void Program::say(const char* format, ...) {
  if (!settings_.print) return;
  std::printf("  [thread %zu] ", actor_);
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::printf("\n");
}

void Program::enter(std::size_t context, std::size_t thread) {
  if (current_[thread] == context) return;
  must(cuCtxSetCurrent(contexts_[context].handle), "cuCtxSetCurrent");
  say("cuCtxSetCurrent(c%zu)", context);
  current_[thread] = context;
}

View Program::view(std::uint32_t name, const Op& op) {
  if (name < kStreams) {
    const Stream& stream = streams_[name];
    return {stream.live, stream.handle, stream.context, stream.timeline, stream.capture, false};
  }
  Context& context = contexts_[op.context];
  if (!context.live) return {};
  if (name == kLegacyStream) return {may_use_legacy(op.context), CU_STREAM_LEGACY, op.context, context.legacy, -1, true};
  Stream& own = context.threads_own[op.thread];
  if (own.timeline < 0) {
    const auto timeline = clocks_.open(static_cast<int>(op.context), true, context.legacy);
    if (!timeline) return {};
    clocks_.at(*timeline).clock.held |= context.gate_held;
    own = {true, CU_STREAM_PER_THREAD, op.context, *timeline, -1};
  }
  return {true, CU_STREAM_PER_THREAD, op.context, own.timeline, own.capture, false};
}

/// cuThreadExchangeStreamCaptureMode: may this thread make a potentially unsafe call now?
bool Program::may_call_unsafe(std::size_t thread) const {
  if (modes_[thread] == CU_STREAM_CAPTURE_MODE_RELAXED) return true;
  for (const Capture& capture : captures_) {
    if (!capture.live) continue;
    const bool own = capture.thread == thread && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool global = capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL && modes_[thread] == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (own || global) return false;
  }
  return true;
}

/// Not while a blocking stream of the family captures.
bool Program::may_use_legacy(std::size_t context) const {
  const auto forbids = [&](std::size_t where, int timeline, int capture) {
    return capture >= 0 && contexts_[where].owner == contexts_[context].owner && clocks_.at(timeline).blocking;
  };
  for (const Stream& stream : streams_)
    if (stream.live && forbids(stream.context, stream.timeline, stream.capture)) return false;
  for (std::size_t slot = 0; slot < kContexts; ++slot)
    for (const Stream& own : contexts_[slot].threads_own)
      if (own.live && forbids(slot, own.timeline, own.capture)) return false;
  return true;
}

bool Program::any_capture() const {
  for (const Capture& capture : captures_)
    if (capture.live) return true;
  return false;
}

/// Does a stream capture in the context or, for a primary, in a green one of it?
bool Program::captures_in(std::size_t context) const {
  for (const Stream& stream : streams_)
    if (stream.live && stream.capture >= 0 && contexts_[stream.context].owner == contexts_[context].owner) return true;
  for (const Capture& capture : captures_)
    if (capture.live && contexts_[capture.context].owner == contexts_[context].owner) return true;
  return false;
}

bool Program::in_family(std::size_t member, std::size_t of) const {
  return member == of || (contexts_[member].green && contexts_[of].primary && contexts_[member].owner == of);
}

Clock Program::clock_of(std::size_t context) const {
  return clocks_.of_contexts([&](int member) { return member >= 0 && in_family(static_cast<std::size_t>(member), context); });
}

bool Program::release_for_driver() {
  bool others = false;
  for (Hold& hold : holds_) others = others || hold.elsewhere;
  for (Hold& hold : holds_)
    if (hold.elsewhere || !others) *hold.flag = 1;
  std::erase_if(holds_, [](const Hold& hold) { return *hold.flag != 0; });
  return others;
}

void Program::release_elsewhere() {
  for (Hold& hold : holds_)
    if (hold.elsewhere) *hold.flag = 1;
  std::erase_if(holds_, [](const Hold& hold) { return *hold.flag != 0; });
}

void Program::wind_up(std::size_t thread) {
  actor_ = thread;
  for (std::size_t slot = 0; slot < kCaptures && !is_hit(); ++slot) {
    if (!captures_[slot].live || captures_[slot].thread != thread) continue;
    Op op;
    op.thread = static_cast<std::uint8_t>(thread);
    op.context = static_cast<std::uint8_t>(captures_[slot].context);
    end_capture(slot, kGraphs, op);
    look();
  }
}

void Program::finish() {
  actor_ = 0;
  for (const Hold& hold : holds_) *hold.flag = 1;
  holds_.clear();
  for (std::size_t slot = 0; slot < kContexts && !is_hit(); ++slot)
    if (contexts_[slot].live) wait_for_context(slot, 0);
  for (std::size_t slot = 0; slot < kBlocks && !is_hit(); ++slot) {
    const Block& block = blocks_[slot];
    if (!block.live) continue;
    if (!contexts_[block.owner].live) open_context(block.owner);
    Op op;
    op.context = static_cast<std::uint8_t>(block.owner);
    op.args = {static_cast<std::uint32_t>(slot), kThreadsStream, 100, 0};
    if (block.written) read(op);
    if (slot % 2 == 0) free_plain(op);
    else free_ordered(op);
    look();
  }
  for (std::size_t slot = kContexts; slot-- > 0 && !is_hit();)
    if (contexts_[slot].live) end_context(slot, 0);
  look();
  for (std::size_t device = 0; device < settings_.devices && !is_hit(); ++device) {
    const auto ordinal = static_cast<int>(device);
    must(cuDeviceGraphMemTrim(ordinal), "cuDeviceGraphMemTrim");
    if (cusim_used_bytes(ordinal) != 0 || cusim_allocation_count(ordinal) != 0)
      hit("device " + std::to_string(device) + " still holds " + std::to_string(cusim_used_bytes(ordinal)) + " bytes when every context has ended");
  }
}

}  // namespace explorer
