// StreamBook: what a stream argument names. 0 and the special handles mean a default stream of the caller's; any other handle is
// believed only after the driver has said whose it is, and again after any stream or context has ended.
//
// Each thread remembers the few streams that it uses: no lock, no driver call on the second use. Thread-safe.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <optional>

#include "pool/device/block_life.hpp"
#include "pool/device/pool_set.hpp"
#include "pool/device/stream_name.hpp"
#include "pool/driver/driver_api.hpp"
#include "shim/context_book.hpp"

namespace cupool::shim {

/// 0 and the special handles as the two special handles.
inline CUstream plain_handle(CUstream stream, bool is_per_thread) {
  if (stream != nullptr) return stream;
  return is_per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

class StreamBook {
 public:
  struct KnownStream;
  struct Named {
    StreamName name;
    int device = -1;
    BlockLife life = BlockLife::pool;  ///< of what is allocated on it: cuCtxDestroy may end any context but the device's primary
  };

  /// `stream` (a plain_handle) as one of `context`, which is current and owns memory; nullopt when it is not: the driver must answer.
  std::optional<Named> name(const DriverApi& api, const ContextBook& contexts, const PoolSet& pools, CUcontext context, CUstream stream) const;
  /// Was `stream`, one of `context`, created with CU_STREAM_NON_BLOCKING? A stream that was not is ordered with the legacy stream only by what is put
  /// into it: waiting for it need not cover legacy work that a free on it came after. False where the driver does not tell.
  bool is_non_blocking(const DriverApi& api, const ContextBook& contexts, const PoolSet& pools, CUcontext context, CUstream stream) const;
  /// A number for the calling thread that no later one gets; not 0.
  static std::uint64_t thread_number();
  /// The identity that name() gives to a handle.
  static std::uint64_t identity_of(CUstream stream);
  /// A stream or a context has ended: its handle may come again.
  void something_ended() { generation_.fetch_add(1, std::memory_order_release); }

 private:
  KnownStream* find(const DriverApi& api, const ContextBook& contexts, const PoolSet& pools, CUcontext context, CUstream stream) const;

  std::atomic<std::uint64_t> generation_{1};
};

}  // namespace cupool::shim
