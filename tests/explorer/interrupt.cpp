// Which operations another thread of a correct program may do in the middle of one, whatever the order in which the driver then sees both.
#include "program.hpp"

namespace explorer {
namespace {

bool is_interruptible(Kind kind) {
  switch (kind) {
    case Kind::alloc_plain:
    case Kind::alloc_pitch:
    case Kind::alloc_ordered:
    case Kind::alloc_pool:
    case Kind::free_plain:
    case Kind::free_ordered:
    case Kind::info:
    case Kind::begin:
    case Kind::end:
    case Kind::stream_destroy:
    case Kind::trim: return true;
    default: return false;
  }
}

bool may_be_inside(Kind kind) {
  switch (kind) {
    case Kind::write:
    case Kind::read:
    case Kind::ask:
    case Kind::record:
    case Kind::query:
    case Kind::query_stream:
    case Kind::advance:
    case Kind::spin:
    case Kind::stream_create: return true;
    default: return is_interruptible(kind);
  }
}

/// Potentially unsafe while somebody captures (cuThreadExchangeStreamCaptureMode).
bool is_unsafe(Kind kind) {
  switch (kind) {
    case Kind::alloc_plain:
    case Kind::alloc_pitch:
    case Kind::alloc_ordered:
    case Kind::alloc_pool:
    case Kind::free_plain:
    case Kind::free_ordered:
    case Kind::end:  // instantiates
    case Kind::trim:
    case Kind::query:
    case Kind::query_stream: return true;
    default: return false;
  }
}

std::uint32_t stream_bit(std::uint32_t name) { return name < kStreams ? 1U << name : 0; }

/// The name of the stream of an operation; kStreamNames: none.
std::uint32_t stream_of(const Op& op) {
  switch (op.kind) {
    case Kind::alloc_ordered:
    case Kind::alloc_pool: return op.args[2];
    case Kind::write:
    case Kind::read:
    case Kind::free_ordered:
    case Kind::record: return op.args[1];
    case Kind::query_stream:
    case Kind::spin:
    case Kind::stream_create:
    case Kind::stream_destroy:
    case Kind::begin: return op.args[0];
    default: return kStreamNames;
  }
}

bool is_clash(const Op& begins, CUstreamCaptureMode others_mode, const Op& other) {
  if (begins.kind != Kind::begin) return false;
  const bool is_global = begins.args[2] % 3 == CU_STREAM_CAPTURE_MODE_GLOBAL;
  return is_global && is_unsafe(other.kind) && others_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

}  // namespace

Busy busy_of(const Op& op) {
  Busy busy;
  busy.streams = stream_bit(stream_of(op));
  switch (op.kind) {
    case Kind::alloc_pool: busy.pools = 1U << op.args[3] % 32; [[fallthrough]];
    case Kind::alloc_plain:
    case Kind::alloc_pitch:
    case Kind::alloc_ordered:
    case Kind::write:
    case Kind::read:
    case Kind::ask:
    case Kind::free_plain:
    case Kind::free_ordered: busy.blocks = std::uint64_t{1} << op.args[0] % 64; break;
    case Kind::record:
    case Kind::query: busy.events = 1U << op.args[0] % 32; break;
    case Kind::begin: busy.captures = 1U << op.args[1] % 32; break;
    case Kind::end: busy.captures = 1U << op.args[0] % 32, busy.graphs = 1U << op.args[1] % 32; break;
    default: break;
  }
  return busy;
}

bool Program::may_interrupt(const Op& parent, const Op& child) const {
  if (parent.thread == child.thread || child.thread >= kThreads || parent.thread >= kThreads) return false;
  if (!is_interruptible(parent.kind) || !may_be_inside(child.kind) || busy_of(parent).meets(busy_of(child))) return false;
  if (is_clash(parent, modes_[child.thread], child) || is_clash(child, modes_[parent.thread], parent)) return false;
  const bool child_is_legacy = stream_of(child) == kLegacyStream, parent_is_legacy = stream_of(parent) == kLegacyStream;
  if (child_is_legacy || (parent_is_legacy && child.kind == Kind::begin)) return false;
  // Streams that joined a capture are its own; one that is ended must not be worked on meanwhile.
  const std::uint32_t name = stream_of(child);
  const int capture = name < kStreams && streams_[name].live ? streams_[name].capture : -1;
  if (parent.kind == Kind::end && capture >= 0 && capture == static_cast<int>(parent.args[0])) return false;
  return !(child.kind == Kind::end && parent.kind == Kind::stream_destroy);
}

}  // namespace explorer
