// Operations on streams, events and time, and how work is put in order before an operation that needs it.
#include <algorithm>

#include "cusim.h"
#include "interleave.hpp"
#include "program.hpp"

namespace explorer {
namespace {

constexpr int kContextEvents = 12050;  ///< cuCtxRecordEvent, cuCtxWaitEvent

}  // namespace

/// An event of the family `owner`, made anew when it is of another.
CUevent Program::event_in(Event& event, std::size_t owner) {
  if (event.handle != nullptr && event.owner == owner) return event.handle;
  if (event.handle != nullptr) must(cuEventDestroy(event.handle), "cuEventDestroy");
  event = Event{};
  event.owner = owner;
  enter(owner, actor_);  // not in a green one: it would end before its streams' family does
  must(cuEventCreate(&event.handle, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  return event.handle;
}

/// Puts the stream behind `access`: by an event of its stream, or of its whole context where the stream cannot be named.
bool Program::order(const Access& access, const View& to) {
  if (clocks_.is_before(access, to.timeline)) return true;
  const auto context = static_cast<std::size_t>(clocks_.at(access.timeline).context);
  Context& home = contexts_[context];
  if (!home.live) return false;
  const std::size_t owner = home.owner;
  if (contexts_[owner].scratch[actor_] == nullptr) {
    enter(owner, actor_);
    must(cuEventCreate(&contexts_[owner].scratch[actor_], CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  }
  CUevent event = contexts_[owner].scratch[actor_];
  CUstream from = nullptr;
  bool captures = false;
  for (const Stream& stream : streams_)
    if (stream.live && stream.timeline == access.timeline) from = stream.handle, captures = stream.capture >= 0;
  const Stream& own = home.threads_own[actor_];
  if (own.timeline == access.timeline) from = CU_STREAM_PER_THREAD, captures = own.capture >= 0;
  if (home.legacy == access.timeline && may_use_legacy(context)) from = CU_STREAM_LEGACY;
  Clock behind;
  if (from != nullptr && !captures) {
    enter(context, actor_);
    must(cuEventRecord(event, from), "cuEventRecord");
    clocks_.submit(access.timeline);
    behind = clocks_.at(access.timeline).clock;
  } else if (!captures_in(owner) && settings_.driver_version >= kContextEvents) {
    enter(owner, actor_);
    must(cuCtxRecordEvent(contexts_[owner].handle, event), "cuCtxRecordEvent");
    behind = clock_of(owner);
  } else {
    return false;
  }
  ++totals_.own_records;
  enter(to.context, actor_);
  must(cuStreamWaitEvent(to.handle, event, 0), "cuStreamWaitEvent");
  say("order: the stream waits for an event behind timeline %d", access.timeline);
  clocks_.at(to.timeline).clock.join(behind);
  clocks_.may_follow(to.timeline);
  return true;
}

bool Program::order_all(const Block& block, const View& to) {
  if (!order(block.write, to)) return false;
  return std::all_of(block.reads.begin(), block.reads.end(), [&](const Access& access) { return order(access, to); });
}

/// Lets go of what waits for this program among the work that it is about to wait for.
void Program::release_held(const Clock& target) {
  std::erase_if(holds_, [&](const Hold& hold) {
    const bool is_waited_for = !hold.elsewhere && (target.held & hold.bit) != 0;
    if (is_waited_for) {
      *hold.flag = 1;
      say("*flag = 1  // before a wait");
    }
    return is_waited_for;
  });
}

bool Program::wait_for_context(std::size_t slot, std::size_t thread) {
  if (!may_call_unsafe(thread) || captures_in(slot)) return false;
  const Clock all = clock_of(slot);
  release_held(all);
  enter(slot, thread);
  say("cuCtxSynchronize()  // c%zu", slot);
  if (must(cuCtxSynchronize(), "cuCtxSynchronize")) clocks_.saw(all);
  return true;
}

/// Work on the block in contexts that a free does not wait for is waited for now: of memory from cuMemAllocAsync all.
bool Program::wait_for_contexts_of(const Block& block, std::size_t thread) {
  std::vector<Access> accesses = block.reads;
  accesses.push_back(block.write);
  for (const Access& access : accesses) {
    if (clocks_.is_over(access)) continue;
    const auto context = static_cast<std::size_t>(clocks_.at(access.timeline).context);
    if (block.plain && in_family(context, block.owner)) continue;
    if (!contexts_[context].live || !wait_for_context(context, thread)) return false;
  }
  return true;
}

bool Program::record(const Op& op) {
  const View on = view(op.args[1], op);
  if (op.args[0] >= kEvents || !on.usable || on.capture >= 0) return false;
  Event& event = events_[op.args[0]];
  CUevent handle = event_in(event, contexts_[on.context].owner);
  enter(on.context, op.thread);
  must(cuEventRecord(handle, on.handle), "cuEventRecord");
  say("cuEventRecord(e%u, s%u)", op.args[0], op.args[1]);
  ++totals_.own_records;
  clocks_.submit(on.timeline);
  event.recorded = true;
  event.clock = clocks_.at(on.timeline).clock;
  return true;
}

bool Program::wait(const Op& op) {
  const View on = view(op.args[1], op);
  if (op.args[0] >= kEvents || !events_[op.args[0]].recorded || !on.usable || on.capture >= 0) return false;
  enter(on.context, op.thread);
  must(cuStreamWaitEvent(on.handle, events_[op.args[0]].handle, 0), "cuStreamWaitEvent");
  say("cuStreamWaitEvent(s%u, e%u)", op.args[1], op.args[0]);
  clocks_.at(on.timeline).clock.join(events_[op.args[0]].clock);
  clocks_.may_follow(on.timeline);
  return true;
}

bool Program::query(const Op& op) {
  if (op.args[0] >= kEvents || !events_[op.args[0]].recorded || !may_call_unsafe(op.thread)) return false;
  const CUresult result = cuEventQuery(events_[op.args[0]].handle);
  say("cuEventQuery(e%u) = %d", op.args[0], result);
  ++totals_.own_queries;
  if (result == CUDA_ERROR_NOT_READY) return true;
  if (must(result, "cuEventQuery")) clocks_.saw(events_[op.args[0]].clock);
  return true;
}

bool Program::sync_event(const Op& op) {
  if (op.args[0] >= kEvents || !events_[op.args[0]].recorded || !may_call_unsafe(op.thread)) return false;
  release_held(events_[op.args[0]].clock);
  say("cuEventSynchronize(e%u)", op.args[0]);
  if (must(cuEventSynchronize(events_[op.args[0]].handle), "cuEventSynchronize")) clocks_.saw(events_[op.args[0]].clock);
  return true;
}

bool Program::query_stream(const Op& op) {
  const View on = view(op.args[0], op);
  if (!on.usable || on.capture >= 0 || !may_call_unsafe(op.thread)) return false;
  enter(on.context, op.thread);
  const CUresult result = cuStreamQuery(on.handle);
  say("cuStreamQuery(s%u) = %d", op.args[0], result);
  if (result == CUDA_ERROR_NOT_READY) return true;
  if (must(result, "cuStreamQuery")) clocks_.saw(clocks_.at(on.timeline).clock);
  return true;
}

bool Program::sync_stream(const Op& op) {
  const View on = view(op.args[0], op);
  if (!on.usable || on.capture >= 0 || !may_call_unsafe(op.thread)) return false;
  enter(on.context, op.thread);
  release_held(clock_of(contexts_[on.context].owner));  // the legacy stream waits for others, and they for it
  release_held(clock_of(on.context));
  release_held(clocks_.at(on.timeline).clock);
  say("cuStreamSynchronize(s%u)", op.args[0]);
  if (must(cuStreamSynchronize(on.handle), "cuStreamSynchronize")) clocks_.saw(clocks_.at(on.timeline).clock);
  return true;
}

bool Program::sync_context(const Op& op) { return contexts_[op.context].live && wait_for_context(op.context, op.thread); }

bool Program::record_context(const Op& op) {
  if (op.args[0] >= kEvents || !contexts_[op.context].live || captures_in(op.context)) return false;
  if (settings_.driver_version < kContextEvents) return false;
  Event& event = events_[op.args[0]];
  CUevent handle = event_in(event, contexts_[op.context].owner);
  enter(op.context, op.thread);
  must(cuCtxRecordEvent(contexts_[op.context].handle, handle), "cuCtxRecordEvent");
  say("cuCtxRecordEvent(c%d, e%u)", op.context, op.args[0]);
  ++totals_.own_records;
  event.recorded = true;
  event.clock = clock_of(op.context);
  return true;
}

bool Program::wait_context(const Op& op) {
  if (op.args[0] >= kEvents || !events_[op.args[0]].recorded || !contexts_[op.context].live || captures_in(op.context)) return false;
  if (settings_.driver_version < kContextEvents) return false;
  enter(op.context, op.thread);
  must(cuCtxWaitEvent(contexts_[op.context].handle, events_[op.args[0]].handle), "cuCtxWaitEvent");
  say("cuCtxWaitEvent(c%d, e%u)", op.context, op.args[0]);
  contexts_[op.context].gate_held |= events_[op.args[0]].clock.held;
  for (int i = 0; i < kTimelines; ++i) {
    Timeline& line = clocks_.at(i);
    if (line.used && !line.retired && line.context == op.context) line.clock.join(events_[op.args[0]].clock);
  }
  return true;
}

bool Program::advance(const Op& op) {
  say("%u ns pass", op.args[0]);
  cusim_advance_ns(op.args[0]);
  return true;
}

bool Program::spin(const Op& op) {
  const View on = view(op.args[0], op);
  if (!on.usable || on.capture >= 0) return false;
  enter(on.context, op.thread);
  say("spin<<<s%u, %u ns>>>()", op.args[0], op.args[1]);
  must(cusim_launch_spin(on.handle, op.args[1]), "the launch of a kernel");
  clocks_.submit(on.timeline);
  return true;
}

bool Program::hold(const Op& op) {
  const View on = view(op.args[0], op);
  if (!on.usable || on.capture >= 0 || holds_.size() >= 4) return false;
  enter(on.context, op.thread);
  flags_.push_back(0);
  say("wait_host<<<s%u>>>()  // %s", op.args[0], op.args[2] != 0 ? "let go of by another thread" : "let go of by this program");
  must(cusim_launch_wait_host(on.handle, &flags_.back()), "the launch of a kernel");
  clocks_.submit(on.timeline);
  const std::uint64_t bit = std::uint64_t{1} << (flags_.size() % 64);  // one that comes again is only taken for too much
  clocks_.at(on.timeline).clock.held |= bit;
  holds_.push_back({&flags_.back(), bit, op.args[2] != 0});
  return true;
}

bool Program::release(const Op& op) {
  if (op.args[0] >= holds_.size()) return false;
  *holds_[op.args[0]].flag = 1;
  say("*flag = 1");
  holds_.erase(holds_.begin() + op.args[0]);
  return true;
}

bool Program::stream_create(const Op& op) {
  Context& context = contexts_[op.context];
  if (op.args[0] >= kStreams || streams_[op.args[0]].live || !context.live) return false;
  const bool blocking = op.args[1] != 0 && !context.green;
  const auto timeline = clocks_.open(op.context, blocking, context.legacy);
  if (!timeline) return false;
  enter(op.context, op.thread);
  CUstream handle = nullptr;
  if (context.green) must(cuGreenCtxStreamCreate(&handle, context.green_handle, CU_STREAM_NON_BLOCKING, 0), "cuGreenCtxStreamCreate");
  else must(cuStreamCreate(&handle, blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  say("s%u = %s stream of c%d", op.args[0], blocking ? "blocking" : "non-blocking", op.context);
  clocks_.at(*timeline).clock.held |= context.gate_held;
  streams_[op.args[0]] = {true, handle, op.context, *timeline, -1};
  return true;
}

bool Program::stream_destroy(const Op& op) {
  if (op.args[0] >= kStreams || !streams_[op.args[0]].live || streams_[op.args[0]].capture >= 0) return false;
  Stream& stream = streams_[op.args[0]];
  enter(stream.context, op.thread);
  must(interruptible([&] { return cuStreamDestroy(stream.handle); }), "cuStreamDestroy");
  say("cuStreamDestroy(s%u)", op.args[0]);
  clocks_.at(stream.timeline).retired = true;
  stream = Stream{};
  return true;
}

bool Program::thread_mode(const Op& op) {
  CUstreamCaptureMode mode = static_cast<CUstreamCaptureMode>(op.args[0] % 3);
  const CUstreamCaptureMode wanted = mode;
  must(cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
  say("cuThreadExchangeStreamCaptureMode(%d)", wanted);
  if (mode != modes_[op.thread]) hit("the thread's capture mode was changed");
  modes_[op.thread] = wanted;
  return true;
}

}  // namespace explorer
