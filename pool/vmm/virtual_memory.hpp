// VirtualMemory: the driver's virtual memory management of one device, with the properties that its memory needs.
//
// A physical handle is mapped whole, from offset 0, and nothing may touch it before cuMemSetAccess. Handles ask for what the device has of these
// properties: POSIX descriptors; GPUDirect RDMA, without which UCX and NCCL silently fall back to copies through the host; hardware decompression,
// which cuMemAlloc memory has (cuMemBatchDecompressAsync).
// Source: CUDA Driver API 13.0, Virtual Memory Management. Never: keeps books of what is where, takes the pool's locks.
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
  /// Asks the device what it has, by calls that do not block: also under the device's lock.
  VirtualMemory(const Driver& driver, int ordinal, Clock& clock);

  /// False: the device or its driver has no virtual memory management, or a granularity that is not a power of two or smaller than a block.
  bool available() const { return granularity_bytes_ != 0; }
  /// Sizes and addresses must be multiples of this; a power of two, 2 MiB on today's devices.
  std::uint64_t granularity_bytes() const { return granularity_bytes_; }

  // Each of the following calls the driver, which may block in unmap() and set_access(), and returns its answer.
  CUresult reserve(std::uint64_t bytes, CUdeviceptr* address);
  CUresult free_addresses(CUdeviceptr address, std::uint64_t bytes);
  /// One physical handle. Properties that the driver turns out to refuse are given up for good: decompression first, then descriptors, then RDMA.
  CUresult create(std::uint64_t bytes, CUmemGenericAllocationHandle* handle);
  CUresult release(CUmemGenericAllocationHandle handle);
  CUresult map(CUdeviceptr address, std::uint64_t bytes, CUmemGenericAllocationHandle handle);
  CUresult unmap(CUdeviceptr address, std::uint64_t bytes);
  /// Opens the range for reading and writing: for this device, and for every one that allow() named.
  CUresult set_access(CUdeviceptr address, std::uint64_t bytes);

  /// Has set_access() ever succeeded?
  bool has_opened() const { return has_opened_.load(std::memory_order_relaxed); }
  /// The driver has answered `code` when handles that had been created were to be opened. Where nothing has ever been opened, and `code` may be about
  /// their properties, handles ask for fewer from now on: true. False: it is about something else, or there is nothing left to give up.
  bool ask_less(CUresult code);

  /// From now on set_access() opens memory for device `ordinal` too. False: it does so already. Throws std::bad_alloc with nothing changed.
  bool allow(int ordinal) CUPOOL_EXCLUDES(access_lock_);
  /// Takes back the last allow() that returned true; what is open already stays open.
  void disallow() noexcept CUPOOL_EXCLUDES(access_lock_);

  /// The calls made since the last take_spent(), and the time that they took.
  struct Spent {
    std::uint64_t calls, ns;
  };
  /// When the last call of any thread began (Clock): since then there has been at most one.
  std::uint64_t last_began_ns() const { return last_began_ns_.load(std::memory_order_relaxed); }
  Spent take_spent() { return {calls_.exchange(0, std::memory_order_relaxed), spent_ns_.exchange(0, std::memory_order_relaxed)}; }

 private:
  template <class Call> CUresult timed(Call&& call);
  bool has_calls() const;
  bool has_attribute(CUdevice_attribute attribute) const;

  /// Properties that handles ask for, as bits. The set that is tried next is the next smaller number.
  static constexpr unsigned kDecompression = 1, kDescriptors = 2, kRdma = 4;
  CUmemAllocationProp properties_with(unsigned extras) const;
  bool ask_less_than(unsigned asked);

  const Driver driver_;
  const int ordinal_;
  Clock& clock_;
  CUmemAllocationProp properties_{};
  unsigned offered_ = 0;            ///< what the device has
  std::atomic<unsigned> asked_{0};  ///< what handles ask for now
  std::atomic<bool> has_opened_{false};
  std::uint64_t granularity_bytes_ = 0;
  Mutex access_lock_;
  /// Immutable, replaced as a whole: whoever is in the driver with one needs no copy of it, for which host memory might be out.
  using Access = std::shared_ptr<const std::vector<CUmemAccessDesc>>;
  Access access_ CUPOOL_GUARDED_BY(access_lock_);
  Access access_before_ CUPOOL_GUARDED_BY(access_lock_);
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<std::uint64_t> spent_ns_{0};
  std::atomic<std::uint64_t> last_began_ns_{0};
};

}  // namespace cupool::vmm
