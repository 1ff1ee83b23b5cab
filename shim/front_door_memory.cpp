// Allocation and free. CUDA Driver API 13.0 §6.14 (memory management).
#include "pool/core/bytes.hpp"
#include "shim/front_door.hpp"
#include "shim/lifecycle.hpp"

namespace cupool::shim::front_door {
namespace {

/// What cuMemAllocPitch rounds a row up to. Tried for rows of 1 to 1,000,000 bytes and every element size, on an H100 and an H200 (driver 580).
constexpr std::size_t kPitchAlignment_bytes = 512;

CUresult serve(Process& own, CUcontext context, std::size_t bytes, const char* symbol, CUdeviceptr* out) {
  begin_call(own);
  own.before_allocation();
  return answer(own, own.pools.allocate(context, bytes, symbol), out);
}

/// Whether the thread's current context, which has ended, has begun again past us. (The driver also tells the device of a primary context that was
/// reset and not retained since.)
bool lives_again(const Process& own, CUcontext current) {
  CUdevice device = 0;
  if (own.api.cuCtxGetDevice(&device) != CUDA_SUCCESS) return false;
  return own.contexts.primary(device) != current || !is_primary_inactive(own, device);
}

/// The pool refuses more than any device has without a driver call; but the driver may have another reason, which must be the answer.
bool is_refused_unasked(CUresult result, std::size_t bytes) { return result == CUDA_ERROR_OUT_OF_MEMORY && bytes > kMostDevice_bytes; }

/// Notes which stream-ordered frees that the driver served a wait covers: those on the stream or in the context that is waited for.
void note_frees_at_driver(const Awaited& awaited, WaitBegun& begun) {
  const bool is_of_one = awaited.what == Awaited::What::stream;
  if (is_of_one && (awaited.stream == nullptr || is_default_stream(awaited.stream))) return;  // which default stream it is cannot be told here
  begun.freed_at_driver = process().pools.freed_at_driver();
  if (is_of_one) begun.at_driver = StreamBook::identity_of(awaited.stream);
}

}  // namespace

CUcontext current_owner(const Process& own) {
  const CUcontext current = current_context(own);
  if (own.contexts.has_ended(current) && !lives_again(own, own.contexts.owner(current))) return nullptr;
  return own.contexts.owner(current);
}

CUcontext living_owner(const Process& own) {
  const CUcontext current = current_context(own);
  return own.contexts.has_ended(current) ? nullptr : own.contexts.owner(current);
}

CUresult no_context_error(const Process& own) {
  CUdevice device = 0;
  const CUresult code = own.api.cuCtxGetDevice(&device);
  const CUcontext current = current_context(own);
  const bool is_gone = code == CUDA_SUCCESS && own.contexts.has_ended(current) && !lives_again(own, own.contexts.owner(current));
  return is_gone ? CUDA_ERROR_CONTEXT_IS_DESTROYED : code;
}

WaitBegun before_wait(const Awaited& awaited) {
  Process& own = process();
  if (awaited.what == Awaited::What::unknown || (own.pools.freed_at_driver() == 0 && !own.pools.has_lanes())) return {};
  const CUcontext context = awaited.context != nullptr ? awaited.context : current_context(own);
  if (context == nullptr || own.contexts.has_ended(context)) return {};
  WaitBegun begun;
  begun.owner = own.contexts.owner(context);
  if (awaited.what == Awaited::What::context && begun.owner != context) return {};  // a green context's work is not all of its primary's
  note_frees_at_driver(awaited, begun);
  if (!own.pools.has_lanes()) return begun;
  if (awaited.what == Awaited::What::stream) {
    // Not of the legacy stream, nor of one that is ordered with it: the wait need not cover the legacy work before a free (is_non_blocking).
    if (awaited.stream == nullptr || !own.streams.is_non_blocking(begun.owner, awaited.stream)) return begun;
    begun.identity = StreamBook::identity_of(awaited.stream);
  }
  begun.lane_fills = own.pools.lane_fills(begun.owner);
  return begun;
}

void after_wait(const WaitBegun& begun) {
  Process& own = process();
  if (begun.lane_fills != 0) own.pools.after_stream_wait(begun.owner, begun.identity, begun.lane_fills);
  if (begun.freed_at_driver != 0) own.pools.after_wait_at_driver(begun.owner, begun.at_driver, begun.freed_at_driver);
  const CUcontext context = living_owner(own);
  if (context != nullptr && own.pools.much_waits(context)) own.pools.after_wait(context);
}

void begin_call(Process& own) {
  if (own.late_frees.empty()) return;
  own.late_frees.drain([&own](CUdeviceptr address) {
    const FreeResult result = free_pooled(own, address, [&] { return own.pools.free(address); });
    // The address only looked like one of ours.
    if (result.outcome == FreeOutcome::unknown) free_of_driver(address, 0, [&own](CUdeviceptr at) { return own.api.cuMemFree_v2(at); });
  });
}

CUresult answer(Process& own, const Result<CUdeviceptr>& block, CUdeviceptr* out) {
  if (block.ok()) *out = block.value();
  else own.reporter.after_oom();
  own.reporter.pass_messages();
  return block.code();
}

CUresult allocate(const Real<CUresult(CUdeviceptr*, std::size_t)>& real, CUdeviceptr* out, std::size_t bytes) {
  Process& own = process();
  CUcontext context = nullptr;
  if (out == nullptr || bytes == 0 || (context = current_owner(own)) == nullptr) return with_room(real, out, bytes);
  const CUresult result = serve(own, context, bytes, real.symbol(), out);
  if (is_refused_unasked(result, bytes)) return real(out, bytes);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) *out = 0;  // as an H100 does, driver 580
  return result;
}

CUresult allocate_pitch(const Real<CUresult(CUdeviceptr*, std::size_t*, std::size_t, std::size_t, unsigned)>& real, CUdeviceptr* out,
                        std::size_t* pitch_bytes, std::size_t width_bytes, std::size_t height, unsigned element_bytes) {
  Process& own = process();
  const bool is_element_valid = element_bytes == 4 || element_bytes == 8 || element_bytes == 16;
  const std::size_t pitch = add_overflows(width_bytes, kPitchAlignment_bytes - 1) ? 0 : align_up(width_bytes, kPitchAlignment_bytes);
  std::size_t bytes = 0;
  const bool is_servable =
      out != nullptr && pitch_bytes != nullptr && is_element_valid && pitch != 0 && height != 0 && !__builtin_mul_overflow(pitch, height, &bytes);
  CUcontext context = nullptr;
  if (!is_servable || (context = current_owner(own)) == nullptr) return with_room(real, out, pitch_bytes, width_bytes, height, element_bytes);
  const CUresult result = serve(own, context, bytes, real.symbol(), out);
  if (is_refused_unasked(result, bytes)) return real(out, pitch_bytes, width_bytes, height, element_bytes);
  if (result == CUDA_SUCCESS) *pitch_bytes = pitch;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) *out = 0;
  return result;
}

CUresult free_plain(const Real<CUresult(CUdeviceptr)>& real, CUdeviceptr address) {
  Process& own = process();
  begin_call(own);
  if (current_owner(own) == nullptr) {
    if (!own.pools.owns(address)) return free_of_driver(address, 0, real);
    // Natively a live block is freed without a current context, too, but not while one that has ended is current (H100, driver 580).
    const CUresult refused = current_context(own) != nullptr ? no_context_error(own) : CUDA_SUCCESS;
    if (refused != CUDA_SUCCESS) return refused;
  }
  return answer_free(free_pooled(own, address, [&] { return own.pools.free(address); }), address, real);
}

bool keep_from_driver(CUdeviceptr address) {
  Process* own = find_process();
  if (own == nullptr || address == 0) return false;
  switch (lifecycle::phase()) {
    case lifecycle::Phase::exiting: return own->pools.free_while_exiting(address) || unless_opened(address) != address;
    case lifecycle::Phase::live:
      if (!own->pools.owns(address)) return unless_opened(address) != address;
      own->late_frees.push(address);
      return true;
    default: return false;  // a forked child, in which the driver refuses every call
  }
}

}  // namespace cupool::shim::front_door
