// cuMemAlloc memory: size-class chunks and granule runs over one address area.
#include "tests/sim/device_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>

namespace cusim {
namespace {

constexpr std::size_t kUnitBytes = 512;
constexpr std::size_t kLargestSlotBytes = kGranuleBytes / 2;

/// Eight classes per doubling, in units of 512 bytes: at most 1/8 of a slot is lost to rounding.
std::uint32_t class_of(std::size_t units) {
  if (units <= 16) return static_cast<std::uint32_t>(units - 1);
  const int shift = static_cast<int>(std::bit_width(units - 1)) - 4;
  const std::size_t step = (units - 1) >> shift;  // 8..15
  return static_cast<std::uint32_t>(static_cast<std::size_t>(shift) * 8 + step);
}

std::uint32_t slot_bytes_of(std::uint32_t size_class) {
  if (size_class < 16) return static_cast<std::uint32_t>((size_class + 1) * kUnitBytes);
  const std::uint32_t shift = size_class / 8 - 1;
  const std::uint32_t step = size_class % 8 + 8;
  return static_cast<std::uint32_t>(((step + 1) << shift) * kUnitBytes);
}

}  // namespace

std::uint64_t next_buffer_id() {
  static std::uint64_t last = 0;  // guarded by the simulator's lock
  return ++last;
}

int create_sparse_file(const char* name, std::uint64_t bytes) {
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    std::perror("cusim: memfd");
    std::abort();
  }
  return fd;
}

DeviceMemory::DeviceMemory(int device, CUdeviceptr area, std::uint64_t area_bytes, std::uint64_t capacity_bytes)
    : device_(device), area_(area), area_bytes_(area_bytes), capacity_bytes_(capacity_bytes) {}

DeviceMemory::~DeviceMemory() {
  std::sort(chunk_at_.begin(), chunk_at_.end());
  chunk_at_.erase(std::unique(chunk_at_.begin(), chunk_at_.end()), chunk_at_.end());
  for (const Chunk* chunk : chunk_at_) {
    const bool is_spare = std::any_of(spare_.begin(), spare_.end(), [&](const auto& s) { return s.get() == chunk; });
    if (!is_spare) delete chunk;
  }
  if (fd_ >= 0) close(fd_);
}

int DeviceMemory::fd() {
  if (fd_ < 0) fd_ = create_sparse_file("cusim-device", area_bytes_);
  return fd_;
}

Allocation* DeviceMemory::allocate(std::size_t bytes) {
  if (bytes > capacity_bytes_) return nullptr;
  return bytes <= kLargestSlotBytes ? take_slot(bytes) : take_granules(bytes);
}

Allocation* DeviceMemory::take_slot(std::size_t bytes) {
  const std::uint32_t size_class = class_of((bytes + kUnitBytes - 1) / kUnitBytes);
  if (open_[size_class].empty() && open_chunk(size_class, slot_bytes_of(size_class)) == nullptr) return nullptr;
  Chunk* chunk = open_[size_class].back();
  const std::uint32_t slot = chunk->vacant.back();
  chunk->vacant.pop_back();
  if (chunk->vacant.empty()) unlist(chunk);
  Allocation* allocation = &chunk->slots[slot];
  start(allocation, area_ + chunk->index * kGranuleBytes + std::uint64_t{slot} * chunk->slot_bytes, bytes);
  return allocation;
}

DeviceMemory::Chunk* DeviceMemory::open_chunk(std::uint32_t size_class, std::uint32_t slot_bytes) {
  if (!charge(kGranuleBytes)) return nullptr;
  if (spare_[size_class] != nullptr) {
    Chunk* chunk = spare_[size_class].release();
    list(chunk);
    return chunk;
  }
  auto* chunk = new Chunk;
  chunk->index = take_run(1);
  chunk->slot_bytes = slot_bytes;
  chunk->size_class = size_class;
  const auto count = static_cast<std::uint32_t>(kGranuleBytes / slot_bytes);
  chunk->slots.resize(count);
  for (std::uint32_t slot = count; slot-- > 0;) chunk->vacant.push_back(slot);
  chunk_at_[chunk->index] = chunk;
  list(chunk);
  return chunk;
}

Allocation* DeviceMemory::take_granules(std::size_t bytes) {
  const std::uint64_t granules = whole_granules(bytes) / kGranuleBytes;
  if (!charge(granules * kGranuleBytes)) return nullptr;
  auto* chunk = new Chunk;
  chunk->granules = static_cast<std::uint32_t>(granules);
  chunk->index = take_run(chunk->granules);
  chunk->slots.resize(1);
  std::fill_n(chunk_at_.begin() + chunk->index, chunk->granules, chunk);
  start(&chunk->slots[0], area_ + chunk->index * kGranuleBytes, bytes);
  return &chunk->slots[0];
}

void DeviceMemory::start(Allocation* allocation, CUdeviceptr base, std::size_t bytes) {
  *allocation = Allocation{};
  allocation->base = base;
  allocation->bytes = bytes;
  allocation->live = true;
  allocation->device = device_;
  allocation->file_offset = base - area_;
  allocation->buffer_id = next_buffer_id();
  ++allocation_count_;
}

void DeviceMemory::release(Allocation* allocation) {
  if (allocation->touched) {
    fallocate(fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(allocation->file_offset), static_cast<off_t>(allocation->bytes));
  }
  allocation->live = false;
  --allocation_count_;
  const std::uint64_t granule = (allocation->base - area_) / kGranuleBytes;
  Chunk* chunk = chunk_at_[granule];
  if (chunk->slot_bytes == 0) {
    uncharge(chunk->granules * kGranuleBytes);
    std::fill_n(chunk_at_.begin() + chunk->index, chunk->granules, nullptr);
    give_run(chunk->index, chunk->granules);
    delete chunk;
    return;
  }
  chunk->vacant.push_back(static_cast<std::uint32_t>(allocation - chunk->slots.data()));
  if (!chunk->listed) list(chunk);
  if (chunk->vacant.size() < chunk->slots.size()) return;
  unlist(chunk);
  uncharge(kGranuleBytes);
  if (spare_[chunk->size_class] == nullptr) {
    spare_[chunk->size_class].reset(chunk);
    return;
  }
  chunk_at_[chunk->index] = nullptr;
  give_run(chunk->index, 1);
  delete chunk;
}

Allocation* DeviceMemory::find(CUdeviceptr address) {
  if (address < area_ || address >= area_ + area_bytes_) return nullptr;
  const std::uint64_t granule = (address - area_) / kGranuleBytes;
  if (granule >= chunk_at_.size() || chunk_at_[granule] == nullptr) return nullptr;
  Chunk* chunk = chunk_at_[granule];
  const std::uint64_t offset = address - area_ - chunk->index * kGranuleBytes;
  const std::size_t slot = chunk->slot_bytes == 0 ? 0 : offset / chunk->slot_bytes;
  if (slot >= chunk->slots.size()) return nullptr;
  Allocation* allocation = &chunk->slots[slot];
  return allocation->live && address - allocation->base < allocation->bytes ? allocation : nullptr;
}

bool DeviceMemory::charge(std::uint64_t bytes) {
  if (bytes > capacity_bytes_ - used_bytes_) return false;
  used_bytes_ += bytes;
  return true;
}

void DeviceMemory::uncharge(std::uint64_t bytes) { used_bytes_ -= bytes; }

void DeviceMemory::list(Chunk* chunk) {
  auto& open = open_[chunk->size_class];
  chunk->list_position = open.size();
  chunk->listed = true;
  open.push_back(chunk);
}

void DeviceMemory::unlist(Chunk* chunk) {
  auto& open = open_[chunk->size_class];
  open.back()->list_position = chunk->list_position;
  std::swap(open[chunk->list_position], open.back());
  open.pop_back();
  chunk->listed = false;
}

/// Address space is not memory: the device's pages need not be contiguous, so a run is found as long as the area has one.
std::uint32_t DeviceMemory::take_run(std::uint32_t granules) {
  const auto fit = free_by_size_.lower_bound({granules, 0});
  if (fit == free_by_size_.end()) {
    const std::uint32_t index = end_granule_;
    end_granule_ += granules;
    if (end_granule_ * kGranuleBytes > area_bytes_) {
      std::fprintf(stderr, "cusim: the address area of device %d is used up\n", device_);
      std::abort();
    }
    chunk_at_.resize(end_granule_, nullptr);
    return index;
  }
  const auto [size, index] = *fit;
  free_by_size_.erase(fit);
  free_runs_.erase(index);
  if (size > granules) {
    free_runs_[index + granules] = size - granules;
    free_by_size_.emplace(size - granules, index + granules);
  }
  return index;
}

void DeviceMemory::give_run(std::uint32_t index, std::uint32_t granules) {
  auto next = free_runs_.lower_bound(index);
  if (next != free_runs_.end() && next->first == index + granules) {
    granules += next->second;
    free_by_size_.erase({next->second, next->first});
    next = free_runs_.erase(next);
  }
  if (next != free_runs_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == index) {
      index = before->first;
      granules += before->second;
      free_by_size_.erase({before->second, before->first});
      free_runs_.erase(before);
    }
  }
  free_runs_[index] = granules;
  free_by_size_.emplace(granules, index);
}

}  // namespace cusim
