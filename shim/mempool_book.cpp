// See mempool_book.hpp. The driver is asked for the default and the current pool of a device once, when the book first meets the device.
#include "shim/mempool_book.hpp"

#include <algorithm>

#include "shim/memory_location.hpp"
#include "shim/newer_api.hpp"

namespace cupool::shim {
namespace {

struct KnownPool {
  std::uint64_t version;
  CUmemoryPool handle;
  Mempool mempool;
};

constexpr std::size_t kKnownPools = 8;
thread_local KnownPool t_known_pools[kKnownPools];
constinit std::atomic<std::uint64_t> g_books{0};

/// What the properties of a pool say of its memory.
MempoolBook::Made facts(const CUmemLocation& location, CUmemAllocationType type, std::uint64_t max_bytes) {
  if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) return {MempoolMemory::managed, MempoolBook::kNoDevice, max_bytes};
  const std::optional<int> device = device_of(location);
  if (!device) return {MempoolMemory::host, MempoolBook::kNoDevice, max_bytes};
  return {MempoolMemory::device, *device, max_bytes};
}

KnownPool& place_of(CUmemoryPool handle) {
  return t_known_pools[(reinterpret_cast<std::uintptr_t>(handle) * 0x9E3779B97F4A7C15U >> 32) % kKnownPools];
}

}  // namespace

MempoolBook::MempoolBook(const DriverApi& api) : api_(api), version_((g_books.fetch_add(1, std::memory_order_relaxed) + 1) << 32) {}

bool MempoolBook::is_plain(const CUmemPoolProps& properties) {
  const auto is_zero = [](unsigned char byte) { return byte == 0; };
  return properties.allocType == CU_MEM_ALLOCATION_TYPE_PINNED && properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE &&
         properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE && properties.win32SecurityAttributes == nullptr && properties.maxSize == 0 &&
         properties.usage == 0 && std::all_of(std::begin(properties.reserved), std::end(properties.reserved), is_zero);
}

void MempoolBook::learn(int device) {
  CUmemoryPool standard = nullptr;
  CUmemoryPool now = nullptr;
  const bool is_told = api_.cuDeviceGetDefaultMemPool != nullptr;
  const bool knows = is_told && api_.cuDeviceGetDefaultMemPool(&standard, device) == CUDA_SUCCESS;
  if (is_told && !knows) return;  // asked again at the next call; until then the driver serves the device's pools
  if (api_.cuDeviceGetMemPool == nullptr || api_.cuDeviceGetMemPool(&now, device) != CUDA_SUCCESS) now = standard;
  const std::lock_guard lock(mutex_);
  std::atomic<std::uint8_t>& current = current_[static_cast<std::size_t>(device)];
  if (current.load(std::memory_order_relaxed) != 0) return;
  if (knows) {
    std::erase_if(served_, [&](const auto& one) { return one.second.device == device && one.second.index == kDefault; });
    served_[standard] = {device, kDefault};
    made_.erase(standard);  // the entry was of an earlier pool with this handle, which the driver ended itself
    changed();
  }
  const auto found = knows ? served_.find(now) : served_.end();
  const std::uint8_t index = found != served_.end() && found->second.device == device ? found->second.index : 0;
  current.store(static_cast<std::uint8_t>(index + 1), std::memory_order_release);
}

std::uint8_t MempoolBook::current(int device) {
  if (device < 0 || static_cast<std::size_t>(device) >= current_.size()) return 0;
  std::atomic<std::uint8_t>& current = current_[static_cast<std::size_t>(device)];
  if (current.load(std::memory_order_acquire) == 0) learn(device);
  const std::uint8_t index = current.load(std::memory_order_acquire);
  return index != 0 ? static_cast<std::uint8_t>(index - 1) : std::uint8_t{0};
}

std::optional<Mempool> MempoolBook::find(CUmemoryPool handle) {
  if (handle == nullptr) return std::nullopt;
  const KnownPool& known = place_of(handle);
  if (known.handle == handle && known.version == version_.load(std::memory_order_acquire)) return known.mempool;
  if (const std::optional<Mempool> found = look_up(handle)) return found;
  int devices = 0;
  if (api_.cuDeviceGetCount == nullptr || api_.cuDeviceGetCount(&devices) != CUDA_SUCCESS) return std::nullopt;
  for (int device = 0; device < devices; ++device) current(device);  // it may be the default pool of a device that the book has not met
  return look_up(handle);
}

std::optional<Mempool> MempoolBook::look_up(CUmemoryPool handle) {
  const std::lock_guard lock(mutex_);
  const auto found = served_.find(handle);
  if (found == served_.end()) return std::nullopt;
  place_of(handle) = {version_.load(std::memory_order_relaxed), handle, found->second};
  return found->second;
}

std::optional<MempoolBook::Made> MempoolBook::facts_of(CUmemoryPool handle) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = made_.find(handle); found != made_.end()) return found->second;
  }
  const std::optional<Mempool> mempool = find(handle);  // it may be a device's default pool, which nobody creates
  return mempool ? std::optional(Made{MempoolMemory::device, mempool->device, 0}) : std::nullopt;
}

void MempoolBook::made(CUmemoryPool handle, const CUmemPoolProps& properties) {
  const std::lock_guard lock(mutex_);
  made_[handle] = facts(properties.location, properties.allocType, properties.maxSize);
}

void MempoolBook::given(CUmemoryPool handle, const CUmemLocation& location, CUmemAllocationType type) {
  const Made known = facts(location, type, 0);
  if (known.memory == MempoolMemory::device && location.type == CU_MEM_LOCATION_TYPE_DEVICE) return;
  const std::lock_guard lock(mutex_);
  if (served_.find(handle) == served_.end()) made_.try_emplace(handle, known);
}

MempoolBounds MempoolBook::bounds(CUmemoryPool handle) {
  MempoolBounds bounds;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = made_.find(handle); found != made_.end()) bounds.max_bytes = found->second.max_bytes;
  }
  cuuint64_t used_bytes = 0;
  const DriverApi& api = api_;
  const bool is_told = bounds.max_bytes != 0 && api.cuMemPoolGetAttribute != nullptr &&
                       api.cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used_bytes) == CUDA_SUCCESS;
  if (is_told) bounds.used_bytes = used_bytes;
  return bounds;
}

MempoolBounds MempoolBook::bounds_of_current(int device) {
  CUmemoryPool now = nullptr;
  return api_.cuDeviceGetMemPool != nullptr && api_.cuDeviceGetMemPool(&now, device) == CUDA_SUCCESS ? bounds(now) : MempoolBounds{};
}

std::optional<MempoolBook::Made> MempoolBook::leave(CUmemoryPool handle) {
  const std::lock_guard lock(mutex_);
  const auto node = made_.extract(handle);
  return node.empty() ? std::nullopt : std::optional(node.mapped());
}

void MempoolBook::kept(CUmemoryPool handle, const std::optional<Made>& made) {
  const std::lock_guard lock(mutex_);
  if (made) made_[handle] = *made;
}

CUmemoryPool MempoolBook::handle(Mempool mempool) {
  const std::lock_guard lock(mutex_);
  for (const auto& [handle, one] : served_)
    if (one.device == mempool.device && one.index == mempool.index) return handle;
  for (const auto& [handle, one] : retired_)
    if (one.device == mempool.device && one.index == mempool.index) return handle;
  return nullptr;
}

void MempoolBook::set_current(int device, CUmemoryPool handle) {
  if (device < 0 || static_cast<std::size_t>(device) >= current_.size()) return;
  static_cast<void>(current(device));  // meets the default pool, which may be current again later
  const std::optional<Mempool> served = find(handle);
  // It may be the default one, which the driver does not tell
  if (!served && current_[static_cast<std::size_t>(device)].load(std::memory_order_acquire) == 0) return;
  const std::uint8_t index = served && served->device == device ? served->index : 0;
  current_[static_cast<std::size_t>(device)].store(static_cast<std::uint8_t>(index + 1), std::memory_order_release);
}

void MempoolBook::device_reset(int device) {
  if (device >= 0 && static_cast<std::size_t>(device) < current_.size())
    current_[static_cast<std::size_t>(device)].store(0, std::memory_order_release);
}

std::optional<Mempool> MempoolBook::known(CUmemoryPool handle) {
  const std::lock_guard lock(mutex_);
  const auto found = served_.find(handle);
  return found != served_.end() ? std::optional(found->second) : std::nullopt;
}

void MempoolBook::destroyed(CUmemoryPool handle, std::optional<Mempool> was) {
  const std::lock_guard lock(mutex_);
  if (was && was->index != kDefault) {
    std::atomic<std::uint8_t>& current = current_[static_cast<std::size_t>(was->device)];
    // The driver falls back to the default pool (CUDA Driver API 13.0, cuMemPoolDestroy).
    if (current.load(std::memory_order_relaxed) == was->index + 1) current.store(kDefault + 1, std::memory_order_release);
    const auto found = served_.find(handle);
    if (found == served_.end() || found->second.device != was->device || found->second.index != was->index) return;  // a new pool's
    retired_.emplace_back(handle, *was);
    served_.erase(found);
    changed();
    return;
  }
  // It was the driver's, and may have been the current pool of any device: the driver is asked again.
  for (std::atomic<std::uint8_t>& current : current_)
    if (current.load(std::memory_order_relaxed) == 1) current.store(0, std::memory_order_release);
}

}  // namespace cupool::shim
