// Memory pools: what their figures say and when, what trimming does while work is pending, and the codes for pools,
// access and limits that cannot be.
#include "tests/gpu/probes/busy.hpp"

namespace probe {
namespace {

constexpr CUmemPool_attribute kUsed = CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
constexpr CUmemPool_attribute kReserved = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;

CUmemPoolProps properties_of(CUdevice device) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return properties;
}

class Pool {
 public:
  explicit Pool(const CUmemPoolProps& properties) { prepare(CU(cuMemPoolCreate)(&pool_, &properties), "cuMemPoolCreate"); }
  ~Pool() { static_cast<void>(CU(cuMemPoolDestroy)(pool_)); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  operator CUmemoryPool() const { return pool_; }

 private:
  CUmemoryPool pool_ = nullptr;
};

void ask_start(CUdevice device) {
  const CUmemoryPool pool = default_pool(device);
  CUmemoryPool current = nullptr;
  prepare(CU(cuDeviceGetMemPool)(&current, device), "cuDeviceGetMemPool");
  answer("at the start the current pool is the default one", current == pool, true);
  answer("at the start: RELEASE_THRESHOLD", figure(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
  for (const auto& [attribute, name] : {std::pair{kUsed, "USED_MEM_CURRENT"}, std::pair{kReserved, "RESERVED_MEM_CURRENT"}})
    answer(std::string("at the start: ") + name, figure(pool, attribute), 0);
}

/// Sizes as the pool counts them: asked, rounded, or in granules.
void ask_rounding(CUdevice device) {
  const CUmemoryPool pool = default_pool(device);
  const Stream stream;
  keep_freed_bytes(pool, ~std::uint64_t{0});
  for (const std::size_t asked :
       {std::size_t{1}, std::size_t{512}, std::size_t{513}, std::size_t{1000003}, std::size_t{2} << 20, (std::size_t{2} << 20) + 1}) {
    const std::uint64_t before = figure(pool, kUsed);
    const CUdeviceptr block = take_async(asked, stream);
    answer("USED_MEM_CURRENT for a block of " + std::to_string(asked) + " bytes", figure(pool, kUsed) - before);
    prepare(CU(cuMemFreeAsync)(block, stream), "cuMemFreeAsync");
    stream.synchronize();
  }
  answer("RESERVED_MEM_CURRENT after blocks of at most 2 MiB", figure(pool, kReserved));
  answer("RESERVED_MEM_CURRENT is a multiple of 2 MiB", figure(pool, kReserved) % (2u << 20) == 0);
}

/// What the figures say between a free and the work that it waits for. `threshold`: of the pool.
void ask_after_free(CUdevice device, const char* kept, std::uint64_t threshold) {
  const Spin spin;
  const CUmemoryPool pool = default_pool(device);
  const Stream stream;
  const std::string words = std::string(", ") + kept;
  prepare(CU(cuMemPoolTrimTo)(pool, 0), "cuMemPoolTrimTo");
  keep_freed_bytes(pool, threshold);
  const std::uint64_t used = figure(pool, kUsed), reserved = figure(pool, kReserved);
  const CUdeviceptr block = take_async(64 << 20, stream);
  spin.launch(stream, kWork_ns);
  prepare(CU(cuMemFreeAsync)(block, stream), "cuMemFreeAsync");
  answer("freed behind running work" + words + ": of 64 MiB are used", figure(pool, kUsed) - used);
  const std::uint64_t held = figure(pool, kReserved);
  answer("freed behind running work" + words + ": 64 MiB are still reserved", held >= reserved + (std::uint64_t{64} << 20));
  stream.synchronize();
  answer("the work is done and synchronised" + words + ": of 64 MiB are used", figure(pool, kUsed) - used, 0);
  answer("the work is done and synchronised" + words + ": 64 MiB are still reserved",
         figure(pool, kReserved) >= reserved + (std::uint64_t{64} << 20));
}

/// Does a free count when the call returns, or when the device has got to it? On a stream that has nothing else to do.
void ask_after_idle_free(CUdevice device) {
  const CUmemoryPool pool = default_pool(device);
  const Stream stream;
  keep_freed_bytes(pool, ~std::uint64_t{0});
  const std::uint64_t used = figure(pool, kUsed);
  const CUdeviceptr block = take_async(64 << 20, stream);
  stream.synchronize();
  prepare(CU(cuMemFreeAsync)(block, stream), "cuMemFreeAsync");
  answer("freed on an idle stream, at once: of 64 MiB are used", figure(pool, kUsed) - used);
  stream.synchronize();
  answer("freed on an idle stream, synchronised: of 64 MiB are used", figure(pool, kUsed) - used, 0);
}

void ask_trim(CUdevice device) {
  const Spin spin;
  const CUmemoryPool pool = default_pool(device);
  const Stream stream;
  keep_freed_bytes(pool, ~std::uint64_t{0});
  const CUdeviceptr block = take_async(64 << 20, stream);
  spin.launch(stream, kWork_ns);
  prepare(CU(cuMemFreeAsync)(block, stream), "cuMemFreeAsync");
  const std::uint64_t before = figure(pool, kReserved);
  answer("cuMemPoolTrimTo(0), a free waits for running work", CU(cuMemPoolTrimTo)(pool, 0), CUDA_SUCCESS);
  answer("cuMemPoolTrimTo(0), a free waits for running work: it waited for the work", CU(cuStreamQuery)(stream) == CUDA_SUCCESS);
  answer("cuMemPoolTrimTo(0), a free waits for running work: 64 MiB were given back", figure(pool, kReserved) + (std::uint64_t{64} << 20) <= before);
  stream.synchronize();
  prepare(CU(cuMemPoolTrimTo)(pool, 0), "cuMemPoolTrimTo");
  answer("cuMemPoolTrimTo(0) after the work: 64 MiB were given back", figure(pool, kReserved) + (std::uint64_t{64} << 20) <= before, true);
}

void ask_marks(CUdevice device) {
  const CUmemoryPool pool = default_pool(device);
  const Stream stream;
  const CUdeviceptr block = take_async(8 << 20, stream);
  const std::uint64_t used = figure(pool, kUsed), reserved = figure(pool, kReserved);
  const auto set = [&](CUmemPool_attribute attribute, std::uint64_t value) { return CU(cuMemPoolSetAttribute)(pool, attribute, &value); };
  answer("USED_MEM_HIGH set to 0", set(CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0), CUDA_SUCCESS);
  answer("USED_MEM_HIGH after it was set to 0 is what is used", figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == used, true);
  answer("RESERVED_MEM_HIGH set to 0", set(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0), CUDA_SUCCESS);
  answer("RESERVED_MEM_HIGH after it was set to 0 is what is reserved", figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == reserved, true);
  answer("USED_MEM_HIGH set to 1", set(CU_MEMPOOL_ATTR_USED_MEM_HIGH, 1));
  answer("USED_MEM_CURRENT set to 0", set(kUsed, 0));
  prepare(CU(cuMemFreeAsync)(block, stream), "cuMemFreeAsync");
  stream.synchronize();
}

void ask_access(CUdevice device) {
  const Pool pool(properties_of(device));
  int devices = 0;
  prepare(CU(cuDeviceGetCount)(&devices), "cuDeviceGetCount");
  const auto set = [&](int where, CUmemAccess_flags flags) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, where}, flags};
    return CU(cuMemPoolSetAccess)(pool, &access, 1);
  };
  answer("cuMemPoolSetAccess: its own device, read and write", set(device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
  answer("cuMemPoolSetAccess: its own device, none", set(device, CU_MEM_ACCESS_FLAGS_PROT_NONE));
  answer("cuMemPoolSetAccess: its own device, read", set(device, CU_MEM_ACCESS_FLAGS_PROT_READ));
  answer("cuMemPoolSetAccess: a device that is not there", set(devices + 7, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  CUmemAccess_flags flags{};
  CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, 0};
  answer("cuMemPoolGetAccess of the host", CU(cuMemPoolGetAccess)(&flags, pool, &host));
  if (devices < 2) leave_out("cuMemPoolSetAccess for another device, and taking it away", "there is one device");
}

void ask_handle_types(CUdevice device) {
  const auto create = [&](const char* name, CUmemAllocationHandleType type) {
    CUmemPoolProps properties = properties_of(device);
    properties.handleTypes = type;
    CUmemoryPool pool = nullptr;
    answer(std::string("cuMemPoolCreate with handle type ") + name, CU(cuMemPoolCreate)(&pool, &properties));
    if (pool != nullptr) static_cast<void>(CU(cuMemPoolDestroy)(pool));
  };
  create("POSIX_FILE_DESCRIPTOR", CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  create("WIN32", CU_MEM_HANDLE_TYPE_WIN32);
  create("FABRIC", CU_MEM_HANDLE_TYPE_FABRIC);
  CUmemPoolProps decompressing = properties_of(device);
  decompressing.usage = CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS;
  CUmemoryPool decompressing_pool = nullptr;
  answer("cuMemPoolCreate for decompression by hardware", CU(cuMemPoolCreate)(&decompressing_pool, &decompressing));
  if (decompressing_pool != nullptr) static_cast<void>(CU(cuMemPoolDestroy)(decompressing_pool));
  CUmemPoolProps elsewhere = properties_of(device);
  elsewhere.location.id = 99;
  CUmemoryPool pool = nullptr;
  answer("cuMemPoolCreate on a device that is not there", CU(cuMemPoolCreate)(&pool, &elsewhere));
  const Stream stream;
  const CUdeviceptr block = take_async(1 << 20, stream);
  CUmemPoolPtrExportData data{};
  answer("cuMemPoolExportPointer of a block of the default pool", CU(cuMemPoolExportPointer)(&data, block));
  prepare(CU(cuMemFreeAsync)(block, stream), "cuMemFreeAsync");
}

/// Whether `maxSize` limits what is used or what is reserved: 32 MiB stay reserved while 48 more are wanted, of 64.
void ask_limit(CUdevice device) {
  CUmemPoolProps properties = properties_of(device);
  properties.maxSize = 64 << 20;
  const Pool pool(properties);
  const Stream stream;
  const auto take = [&](std::size_t bytes, CUdeviceptr* out) { return CU(cuMemAllocFromPoolAsync)(out, bytes, pool, stream); };
  keep_freed_bytes(pool, ~std::uint64_t{0});
  CUdeviceptr first = 0, second = 0;
  prepare(take(32 << 20, &first), "cuMemAllocFromPoolAsync");
  prepare(CU(cuMemFreeAsync)(first, stream), "cuMemFreeAsync");
  const CUresult more = take(48 << 20, &second);
  answer("a pool of at most 64 MiB that keeps 32 free: 48 MiB", more);
  if (more == CUDA_SUCCESS) static_cast<void>(CU(cuMemFreeAsync)(second, stream));
  stream.synchronize();
  answer("a pool of at most 64 MiB: 65 MiB", take(65 << 20, &second), CUDA_ERROR_OUT_OF_MEMORY);
}

/// Who gets what a pool keeps for reuse, half of the device, without a trim: three quarters are wanted by each way.
void ask_pressure(CUdevice device) {
  std::size_t all = 0, total = 0;
  prepare(CU(cuMemGetInfo_v2)(&all, &total), "cuMemGetInfo");
  constexpr std::size_t kGranule = 2 << 20;
  const std::size_t wanted = all / 4 * 3 / kGranule * kGranule;
  CUmemPoolProps properties = properties_of(device);
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;  // a pool that is the driver's under the pool as well
  const Pool pool(properties);
  const Stream stream;
  keep_freed_bytes(pool, ~std::uint64_t{0});
  const auto keep_half = [&] {
    CUdeviceptr block = 0;
    prepare(CU(cuMemAllocFromPoolAsync)(&block, all / 2, pool, stream), "cuMemAllocFromPoolAsync");
    prepare(CU(cuMemFreeAsync)(block, stream), "cuMemFreeAsync");
    stream.synchronize();
  };
  keep_half();
  CUmemAllocationProp memory{};
  memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  CUmemGenericAllocationHandle handle = 0;
  const CUresult created = CU(cuMemCreate)(&handle, wanted, &memory, 0);
  answer("half of the device is kept by a pool: cuMemCreate of three quarters", created);
  if (created == CUDA_SUCCESS) prepare(CU(cuMemRelease)(handle), "cuMemRelease");
  if (created == CUDA_SUCCESS) keep_half();
  CUdeviceptr plain = 0;
  const CUresult allocated = CU(cuMemAlloc_v2)(&plain, wanted);
  answer("half of the device is kept by a pool: cuMemAlloc of three quarters", allocated, CUDA_SUCCESS);
  if (allocated == CUDA_SUCCESS) prepare(CU(cuMemFree_v2)(plain), "cuMemFree");
}

void ask_current_pool(CUdevice device) {
  const Stream stream;
  CUmemoryPool found = nullptr, current = nullptr;
  {
    const Pool pool(properties_of(device));
    prepare(CU(cuDeviceSetMemPool)(device, pool), "cuDeviceSetMemPool");
    const CUdeviceptr block = take_async(1 << 20, stream);
    prepare(CU(cuPointerGetAttribute)(&found, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block), "MEMPOOL_HANDLE");
    answer("cuMemAllocAsync takes from the pool that was made current", found == pool, true);
    prepare(CU(cuMemFreeAsync)(block, stream), "cuMemFreeAsync");
    stream.synchronize();
  }
  prepare(CU(cuDeviceGetMemPool)(&current, device), "cuDeviceGetMemPool");
  answer("the current pool is destroyed: the default one is current", current == default_pool(device), true);
  answer("cuMemPoolDestroy of the default pool", CU(cuMemPoolDestroy)(default_pool(device)));
  answer("cuDeviceSetMemPool of NULL", CU(cuDeviceSetMemPool)(device, nullptr));
}

/// Pools of the host and of managed memory: which there are, what is said of their memory, and that it is no device's.
void ask_place(CUdevice device, const char* name, CUmemLocation place, CUmemAllocationType type) {
  const std::string words = std::string(name) + ": ";
  CUmemoryPool pool = nullptr;
  const CUresult found = CU(cuMemGetDefaultMemPool)(&pool, &place, type);
  answer(words + "cuMemGetDefaultMemPool", found);
  if (found != CUDA_SUCCESS) return;
  const Stream stream;
  std::size_t before = 0, after = 0, total = 0;
  prepare(CU(cuMemGetInfo_v2)(&before, &total), "cuMemGetInfo");
  CUdeviceptr block = 0;
  const CUresult taken = CU(cuMemAllocFromPoolAsync)(&block, std::size_t{64} << 20, pool, stream);
  answer(words + "64 MiB", taken, CUDA_SUCCESS);
  if (taken != CUDA_SUCCESS) return;
  prepare(CU(cuMemGetInfo_v2)(&after, &total), "cuMemGetInfo");
  answer(words + "cuMemGetInfo has 64 MiB less", after + (std::size_t{64} << 20) <= before, false);
  unsigned kind = 0, is_managed = 0;
  CUcontext context = nullptr;
  int ordinal = -3;
  answer(words + "MEMORY_TYPE can be asked", CU(cuPointerGetAttribute)(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block), CUDA_SUCCESS);
  const bool wants_managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
  answer(words + "MEMORY_TYPE", kind, wants_managed ? unsigned{CU_MEMORYTYPE_DEVICE} : unsigned{CU_MEMORYTYPE_HOST});
  static_cast<void>(CU(cuPointerGetAttribute)(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, block));
  answer(words + "IS_MANAGED", is_managed, wants_managed ? 1u : 0u);
  static_cast<void>(CU(cuPointerGetAttribute)(&context, CU_POINTER_ATTRIBUTE_CONTEXT, block));
  answer(words + "CONTEXT is null", context == nullptr, true);
  static_cast<void>(CU(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block));
  answer(words + "DEVICE_ORDINAL is the stream's device", ordinal == device, true);
  CUmemAccess_flags flags{};
  CUmemLocation where{CU_MEM_LOCATION_TYPE_DEVICE, device};
  answer(words + "cuMemPoolGetAccess of the device", CU(cuMemPoolGetAccess)(&flags, pool, &where), CUDA_SUCCESS);
  answer(words + "access of the device", flags);
  const CUdeviceptr beside = take_async(1 << 20, stream);
  answer(words + "a copy from a device that has no access", CU(cuMemcpyDtoDAsync_v2)(block, beside, 1 << 20, stream), CUDA_SUCCESS);
  prepare(CU(cuMemFreeAsync)(beside, stream), "cuMemFreeAsync");
  answer(words + "cuMemFreeAsync", CU(cuMemFreeAsync)(block, stream), CUDA_SUCCESS);
  stream.synchronize();
  answer(words + "cuMemPoolDestroy of the default pool", CU(cuMemPoolDestroy)(pool), CUDA_ERROR_INVALID_VALUE);
}

void ask_places(CUdevice device) {
  ask_place(device, "pool of the host", {CU_MEM_LOCATION_TYPE_HOST, 0}, CU_MEM_ALLOCATION_TYPE_PINNED);
  ask_place(device, "pool of a node of the host", {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}, CU_MEM_ALLOCATION_TYPE_PINNED);
  ask_place(device, "managed pool of the device", {CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ALLOCATION_TYPE_MANAGED);
  ask_place(device, "managed pool of no place", {CU_MEM_LOCATION_TYPE_INVALID, 0}, CU_MEM_ALLOCATION_TYPE_MANAGED);
  CUmemLocation node{CU_MEM_LOCATION_TYPE_HOST_NUMA, 99};
  CUmemoryPool pool = nullptr;
  answer("cuMemGetDefaultMemPool of a NUMA node that is not there", CU(cuMemGetDefaultMemPool)(&pool, &node, CU_MEM_ALLOCATION_TYPE_PINNED),
         CUDA_ERROR_INVALID_VALUE);
}

}  // namespace

void ask_mempools(Session& session) {
  const CUdevice device = session.device;
  group("at the start", [&] { ask_start(device); });
  group("rounding", [&] { ask_rounding(device); });
  group("after a free, nothing kept", [&] { ask_after_free(device, "threshold 0", 0); });
  group("after a free, all kept", [&] { ask_after_free(device, "threshold unlimited", ~std::uint64_t{0}); });
  group("after a free on an idle stream", [&] { ask_after_idle_free(device); });
  group("trim", [&] { ask_trim(device); });
  group("high-water marks", [&] { ask_marks(device); });
  group("access", [&] { ask_access(device); });
  group("handle types", [&] { ask_handle_types(device); });
  group("size limit", [&] { ask_limit(device); });
  group("current pool", [&] { ask_current_pool(device); });
  group("places", [&] { ask_places(device); });
  group("under pressure", [&] { ask_pressure(device); });
}

}  // namespace probe
