// StreamBook: which stream a stream argument names. 0 and the special handles mean a default stream of the calling thread or of its context. Of any
// other handle the driver is asked which context it belongs to, and asked again once any stream or context has ended, since handles come again.
//
// Each thread remembers the few streams that it uses, so that its second use of one takes no lock and no driver call. Thread-safe.
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

/// `stream`, with 0 replaced by the special handle that it means.
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
    BlockLife life = BlockLife::pool;  ///< of blocks that are allocated on it (ContextBook::life_in)
  };

  /// The referents outlive the book.
  StreamBook(const DriverApi& api, const ContextBook& contexts, const PoolSet& pools) : api_(api), contexts_(contexts), pools_(pools) {}

  /// `stream` (a plain_handle) as a stream of `context`, which is current and owns memory. nullopt: it is none of that context's, or the driver does
  /// not say; then the driver must answer the call.
  std::optional<Named> name(CUcontext context, CUstream stream) const;
  /// Was `stream`, one of `context`, created with CU_STREAM_NON_BLOCKING? False where the driver does not tell. Any other stream is ordered with the
  /// legacy stream, but only by work that is put into it, and a free of ours puts none: a wait for it need not cover the legacy work before such a
  /// free.
  bool is_non_blocking(CUcontext context, CUstream stream) const;
  /// A number for the calling thread, from 1, that no other thread of the process ever gets.
  static std::uint64_t thread_number();
  /// The identity that name() gives to a handle: 1 for the legacy stream, an odd number for a thread's own, the (even) handle for any other.
  static std::uint64_t identity_of(CUstream stream);
  /// A stream or a context has ended: its handle may come again.
  void something_ended() { generation_.fetch_add(1, std::memory_order_release); }

 private:
  KnownStream* find(CUcontext context, CUstream stream) const;

  const DriverApi& api_;
  const ContextBook& contexts_;
  const PoolSet& pools_;
  std::atomic<std::uint64_t> generation_{1};
};

}  // namespace cupool::shim
