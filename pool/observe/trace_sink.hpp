// TraceSink: where mapped pieces of the trace file wait for the devices' writers, and full ones for the file's owner.
//
// The writers stand under a device's lock, so their side is a few atomic instructions: no system call, no allocation, no wait.
// The owner (shim/trace_file) fills the empty places outside every lock. Thread rule: take, retire and lose by any number of
// writers; offer, take_retired and withdraw by one owner at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cupool::observe {

/// A mapped piece of the file, with its header. Never freed while the process lives: pointers to it are compared.
struct TraceChunk {
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
  std::uint32_t index = 0;
  TraceChunk* next = nullptr;  ///< in the list of full ones
};

class TraceSink {
 public:
  /// Chunks kept ready, so that a device finds one even if the thread that makes them has not run yet.
  static constexpr std::size_t kSpares = 2;

  // --- the writers
  /// The spare that lies first in the file; nullptr when none is ready.
  TraceChunk* take() noexcept;
  /// `chunk` is full: nobody writes into it any more.
  void retire(TraceChunk* chunk) noexcept;
  /// Counts an event that found no room, once there is a file.
  void lose() noexcept {
    if (std::atomic<std::uint64_t>* dropped = dropped_.load(std::memory_order_acquire)) dropped->fetch_add(1, std::memory_order_relaxed);
  }

  // --- the owner
  /// Was something taken or retired since the last clear_work()? Asked after every call.
  bool has_work() const noexcept { return has_work_.load(std::memory_order_relaxed); }
  void clear_work() noexcept { has_work_.store(false, std::memory_order_relaxed); }
  bool has_room() const noexcept;
  /// Precondition: has_room(). Chunks come in the file's order.
  void offer(TraceChunk* chunk) noexcept;
  TraceChunk* take_retired() noexcept { return retired_.exchange(nullptr, std::memory_order_acquire); }
  /// A spare that no writer has taken, and none can take any more; nullptr when there is none.
  TraceChunk* withdraw() noexcept;
  /// Tells lose() where to count: the header of a file that exists from now on.
  void count_in(std::atomic<std::uint64_t>& dropped) noexcept { dropped_.store(&dropped, std::memory_order_release); }
  std::uint64_t dropped() const noexcept {
    const std::atomic<std::uint64_t>* dropped = dropped_.load(std::memory_order_acquire);
    return dropped != nullptr ? dropped->load(std::memory_order_relaxed) : 0;
  }

 private:
  std::array<std::atomic<TraceChunk*>, kSpares> spares_{};
  std::atomic<TraceChunk*> retired_{nullptr};
  std::atomic<std::atomic<std::uint64_t>*> dropped_{nullptr};
  std::atomic<bool> has_work_{false};
};

}  // namespace cupool::observe
