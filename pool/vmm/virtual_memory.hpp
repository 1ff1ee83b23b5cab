// VirtualMemory: the driver's virtual memory management of one device, with the properties that its memory needs.
//
// A physical handle is mapped whole and from offset 0, and nothing may touch it before cuMemSetAccess. Handles ask for POSIX descriptors and for
// GPUDirect RDMA where the device has them: UCX and NCCL fall back to host copies silently without. And for decompression by hardware, as cuMemAlloc
// memory has it (cuMemBatchDecompressAsync).
// Sources: CUDA Driver API 13.0, Virtual Memory Management; design, section 5. Never: locks, books.
// Thread rule: thread-safe; the calls that may block are made with no lock held.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "pool/core/clock.hpp"
#include "pool/core/mutex.hpp"
#include "pool/driver/driver_api.hpp"

namespace cupool::vmm {

class VirtualMemory {
 public:
  /// Asks the device. Calls that do not block: also under the lock.
  VirtualMemory(const Driver& driver, int ordinal, Clock& clock);

  /// False: the device or its driver has none, or a granularity that blocks cannot share.
  bool available() const { return granularity_bytes_ != 0; }
  /// What sizes and addresses are multiples of; a power of two.
  std::uint64_t granularity_bytes() const { return granularity_bytes_; }

  CUresult reserve(std::uint64_t bytes, CUdeviceptr* address);
  CUresult free_addresses(CUdeviceptr address, std::uint64_t bytes);
  /// One physical handle. Properties that the driver turns out to refuse are given up: decompression first, then descriptors, then RDMA.
  CUresult create(std::uint64_t bytes, CUmemGenericAllocationHandle* handle);
  CUresult release(CUmemGenericAllocationHandle handle);
  CUresult map(CUdeviceptr address, std::uint64_t bytes, CUmemGenericAllocationHandle handle);
  CUresult unmap(CUdeviceptr address, std::uint64_t bytes);
  /// Reading and writing for this device and for every one that allow() named.
  CUresult set_access(CUdeviceptr address, std::uint64_t bytes);

  /// Has anything ever been opened?
  bool has_opened() const { return has_opened_.load(std::memory_order_relaxed); }
  /// Nothing has, and the driver answered `code` to handles that were created as asked: what is created from now on asks for less than that. False:
  /// it is not about that, or nothing is left to be given up.
  bool ask_less(CUresult code);

  /// From now on `ordinal` reaches what set_access opens. False: it does already. Throws std::bad_alloc with nothing changed.
  bool allow(int ordinal) CUPOOL_EXCLUDES(access_lock_);
  /// As if the last allow() that was true had not been; what is open stays so.
  void disallow() noexcept CUPOOL_EXCLUDES(access_lock_);

  /// Calls made since the last time, and how long they took.
  struct Spent {
    std::uint64_t calls, ns;
  };
  /// When the last call began, of whichever thread: what has gone on since is one call, or none.
  std::uint64_t last_began_ns() const { return last_began_ns_.load(std::memory_order_relaxed); }
  Spent take_spent() { return {calls_.exchange(0, std::memory_order_relaxed), spent_ns_.exchange(0, std::memory_order_relaxed)}; }

 private:
  template <class Call> CUresult timed(Call&& call);
  bool has_calls() const;
  bool has_attribute(CUdevice_attribute attribute) const;

  /// What handles ask for beyond memory. Fewer are tried in the order of the number.
  static constexpr unsigned kDecompression = 1, kDescriptors = 2, kRdma = 4;
  CUmemAllocationProp properties_with(unsigned extras) const;
  bool ask_less_than(unsigned asked);

  const Driver driver_;
  const int ordinal_;
  Clock& clock_;
  CUmemAllocationProp properties_{};
  unsigned offered_ = 0;  ///< by the device
  std::atomic<unsigned> asked_{0};
  std::atomic<bool> has_opened_{false};
  std::uint64_t granularity_bytes_ = 0;
  Mutex access_lock_;
  /// Never changed, but replaced: whoever is in the driver with it needs no copy, for which host memory might be out.
  using Access = std::shared_ptr<const std::vector<CUmemAccessDesc>>;
  Access access_ CUPOOL_GUARDED_BY(access_lock_);
  Access access_before_ CUPOOL_GUARDED_BY(access_lock_);
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<std::uint64_t> spent_ns_{0};
  std::atomic<std::uint64_t> last_began_ns_{0};
};

}  // namespace cupool::vmm
