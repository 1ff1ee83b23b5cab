// DeviceMemory: the capacity of one device, and its cuMemAlloc memory.
//
// Small requests (<= 1 MiB) share 2 MiB chunks of one size class; larger ones take whole 2 MiB granules. The device is charged for
// chunks and granules, so that used bytes are always a multiple of 2 MiB (as an H100's, driver 580). Constant time per pair at a million blocks.
// Bases are aligned to 512. Never: knows contexts beyond storing them. Thread rule: guarded by the simulator's lock.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "tests/sim/allocation.hpp"

namespace cusim {

inline constexpr std::uint64_t kGranuleBytes = 2ULL << 20;
/// `bytes` rounded up to whole granules.
constexpr std::uint64_t whole_granules(std::uint64_t bytes) { return (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes; }

class DeviceMemory {
 public:
  DeviceMemory(int device, CUdeviceptr area, std::uint64_t area_bytes, std::uint64_t capacity_bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// A live allocation of `bytes` > 0, or null when the capacity does not hold it.
  Allocation* allocate(std::size_t bytes);
  void release(Allocation* allocation);
  /// The live allocation that contains `address`, or null.
  Allocation* find(CUdeviceptr address);

  /// Takes capacity for something else (VMM handles, arrays, contexts); false when it is not there.
  bool charge(std::uint64_t bytes);
  void uncharge(std::uint64_t bytes);

  std::uint64_t capacity_bytes() const { return capacity_bytes_; }
  std::uint64_t used_bytes() const { return used_bytes_; }
  std::uint64_t allocation_count() const { return allocation_count_; }
  /// The memfd that holds the bytes; file offset = address - area.
  int fd();

 private:
  static constexpr std::size_t kClassCount = 80;

  struct Chunk {
    std::uint32_t index = 0;  ///< of its first granule
    std::uint32_t granules = 1;
    std::uint32_t slot_bytes = 0;  ///< 0: one large allocation
    std::uint32_t size_class = 0;
    std::vector<Allocation> slots;
    std::vector<std::uint32_t> vacant;
    std::size_t list_position = 0;
    bool listed = false;
  };

  Allocation* take_slot(std::size_t bytes);
  Allocation* take_granules(std::size_t bytes);
  Chunk* open_chunk(std::uint32_t size_class, std::uint32_t slot_bytes);
  void list(Chunk* chunk);
  void unlist(Chunk* chunk);
  std::uint32_t take_run(std::uint32_t granules);
  void give_run(std::uint32_t index, std::uint32_t granules);
  void start(Allocation* allocation, CUdeviceptr base, std::size_t bytes);

  int device_;
  CUdeviceptr area_;
  std::uint64_t area_bytes_;
  std::uint64_t capacity_bytes_;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t allocation_count_ = 0;
  int fd_ = -1;
  std::vector<Chunk*> chunk_at_;                           ///< by granule
  std::array<std::vector<Chunk*>, kClassCount> open_;      ///< chunks with a vacant slot and a live one
  std::array<std::unique_ptr<Chunk>, kClassCount> spare_;  ///< one empty chunk per class, not charged
  std::map<std::uint32_t, std::uint32_t> free_runs_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> free_by_size_;
  std::uint32_t end_granule_ = 0;
};

/// Never 0, never the same twice in a process. Under the simulator's lock.
std::uint64_t next_buffer_id();

/// A memfd with room for `bytes`, sparse; aborts when there is none to be had.
int create_sparse_file(const char* name, std::uint64_t bytes);

}  // namespace cusim
