// See stream_book.hpp.
#include "shim/stream_book.hpp"

namespace cupool::shim {

struct StreamBook::KnownStream {
  std::uint64_t generation;
  CUcontext context;
  CUstream stream;
  int device;
  BlockLife life;
  enum class Waits : std::uint8_t { unasked, for_legacy, for_nobody } waits;
};

namespace {

constexpr std::size_t kKnownStreams = 16;
thread_local StreamBook::KnownStream t_known_streams[kKnownStreams];
thread_local std::uint64_t t_thread_number = 0;
constinit std::atomic<std::uint64_t> g_threads{0};

}  // namespace

std::uint64_t StreamBook::thread_number() {
  if (t_thread_number == 0) t_thread_number = g_threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return t_thread_number;
}

std::uint64_t StreamBook::identity_of(CUstream stream) {
  if (stream == CU_STREAM_LEGACY) return 1;
  if (stream == CU_STREAM_PER_THREAD) return thread_number() << 1 | 1;
  return reinterpret_cast<std::uintptr_t>(stream);
}

/// What this thread knows of `stream`; nullptr: it is none of `context`'s. A green context has default streams of its own, which are not its
/// primary's (CU_GREEN_CTX_DEFAULT_STREAM); [?] how those are ordered among each other.
StreamBook::KnownStream* StreamBook::find(CUcontext context, CUstream stream) const {
  const bool is_special = is_default_stream(stream);
  CUcontext current = nullptr;
  if (is_special && contexts_.has_aliases() && (api_.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != context)) return nullptr;
  const std::uint64_t generation = generation_.load(std::memory_order_acquire);
  // A stream has two places, of which the first is the one used last: two streams with the same hash do not push each other out.
  const std::uint64_t mixed = (reinterpret_cast<std::uintptr_t>(stream) ^ reinterpret_cast<std::uintptr_t>(context) << 1) * 0x9E3779B97F4A7C15U;
  KnownStream* const pair = &t_known_streams[(mixed >> 32) % (kKnownStreams / 2) * 2];
  const auto is_it = [&](const KnownStream& one) { return one.generation == generation && one.context == context && one.stream == stream; };
  KnownStream& known = is_it(pair[1]) ? pair[1] : pair[0];
  if (!is_it(known)) {
    pair[1] = pair[0];
    CUcontext owner = nullptr;
    if (!is_special && (api_.cuStreamGetCtx == nullptr || api_.cuStreamGetCtx(stream, &owner) != CUDA_SUCCESS || contexts_.owner(owner) != context))
      return nullptr;
    CUdevice device = pools_.device_of(context).value_or(-1);
    if (device == -1 && api_.cuCtxGetDevice(&device) != CUDA_SUCCESS) return nullptr;
    known = {generation, context, stream, device, contexts_.life_in(context, device), KnownStream::Waits::unasked};
  }
  return &known;
}

std::optional<StreamBook::Named> StreamBook::name(CUcontext context, CUstream stream) const {
  const KnownStream* known = find(context, stream);
  if (known == nullptr) return std::nullopt;
  return Named{{stream, identity_of(stream)}, known->device, known->life};
}

bool StreamBook::is_non_blocking(CUcontext context, CUstream stream) const {
  if (is_default_stream(stream)) return false;
  KnownStream* known = find(context, stream);
  if (known == nullptr) return false;
  if (known->waits == KnownStream::Waits::unasked) {
    unsigned flags = 0;
    const bool is_told = api_.cuStreamGetFlags != nullptr && api_.cuStreamGetFlags(stream, &flags) == CUDA_SUCCESS;
    known->waits = is_told && (flags & CU_STREAM_NON_BLOCKING) != 0 ? KnownStream::Waits::for_nobody : KnownStream::Waits::for_legacy;
  }
  return known->waits == KnownStream::Waits::for_nobody;
}

}  // namespace cupool::shim
