// See trace_sink.hpp. The pointer of a chunk that was taken never comes back, so a compare-exchange cannot be fooled.
#include "pool/observe/trace_sink.hpp"

namespace cupool::observe {

TraceChunk* TraceSink::take() noexcept {
  for (;;) {
    std::atomic<TraceChunk*>* place = nullptr;
    TraceChunk* lowest = nullptr;
    for (std::atomic<TraceChunk*>& spare : spares_) {
      TraceChunk* chunk = spare.load(std::memory_order_acquire);
      if (chunk == nullptr || (lowest != nullptr && chunk->index > lowest->index)) continue;
      place = &spare;
      lowest = chunk;
    }
    if (place == nullptr) return nullptr;
    if (!place->compare_exchange_strong(lowest, nullptr, std::memory_order_acq_rel)) continue;  // another device was faster
    has_work_.store(true, std::memory_order_relaxed);
    return lowest;
  }
}

void TraceSink::retire(TraceChunk* chunk) noexcept {
  chunk->next = retired_.load(std::memory_order_relaxed);
  while (!retired_.compare_exchange_weak(chunk->next, chunk, std::memory_order_release, std::memory_order_relaxed)) {}
  has_work_.store(true, std::memory_order_relaxed);
}

bool TraceSink::has_room() const noexcept {
  for (const std::atomic<TraceChunk*>& spare : spares_)
    if (spare.load(std::memory_order_relaxed) == nullptr) return true;
  return false;
}

void TraceSink::offer(TraceChunk* chunk) noexcept {
  for (std::atomic<TraceChunk*>& spare : spares_) {
    if (spare.load(std::memory_order_relaxed) != nullptr) continue;
    spare.store(chunk, std::memory_order_release);
    return;
  }
}

TraceChunk* TraceSink::withdraw() noexcept {
  for (std::atomic<TraceChunk*>& spare : spares_)
    if (TraceChunk* chunk = spare.exchange(nullptr, std::memory_order_acq_rel)) return chunk;
  return nullptr;
}

}  // namespace cupool::observe
