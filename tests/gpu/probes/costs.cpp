// Host time of the calls that the pool makes or saves: plain and stream-ordered allocation by size, events, and virtual
// memory by handle size. At most 1 GiB is held at any moment.
#include "tests/gpu/probes/physical.hpp"
#include "tests/gpu/probes/timing.hpp"

namespace probe {
namespace {

std::string in_units(std::size_t bytes) {
  if (bytes >= (1u << 20)) return std::to_string(bytes >> 20) + " MiB";
  return bytes >= 1024 ? std::to_string(bytes >> 10) + " KiB" : std::to_string(bytes) + " B";
}

void ask_plain(std::size_t bytes, int repetitions) {
  auto* allocate = CU(cuMemAlloc_v2);
  auto* release = CU(cuMemFree_v2);
  Samples taken, given;
  for (int i = 0; i < repetitions; ++i) {
    CUdeviceptr address = 0;
    taken.time("cuMemAlloc", [&] { return allocate(&address, bytes); });
    given.time("cuMemFree", [&] { return release(address); });
  }
  answer("cost of cuMemAlloc of " + in_units(bytes), taken.json());
  answer("cost of cuMemFree of " + in_units(bytes), given.json());
}

void keep_freed_memory(CUdevice device) {
  CUmemoryPool pool = nullptr;
  cuuint64_t everything = ~cuuint64_t{0};
  prepare(CU(cuDeviceGetDefaultMemPool)(&pool, device), "cuDeviceGetDefaultMemPool");
  prepare(CU(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything), "cuMemPoolSetAttribute");
}

void ask_stream_ordered(std::size_t bytes, CUstream stream) {
  auto* allocate = CU(cuMemAllocAsync);
  auto* release = CU(cuMemFreeAsync);
  Samples taken, given;
  for (int i = 0; i < 500; ++i) {
    CUdeviceptr address = 0;
    taken.time("cuMemAllocAsync", [&] { return allocate(&address, bytes, stream); });
    given.time("cuMemFreeAsync", [&] { return release(address, stream); });
  }
  prepare(CU(cuStreamSynchronize)(stream), "cuStreamSynchronize");
  answer("cost of cuMemAllocAsync of " + in_units(bytes) + ", memory kept", taken.json());
  answer("cost of cuMemFreeAsync of " + in_units(bytes) + ", memory kept", given.json());
}

template <class Ask> void tell_cost(const char* name, Ask&& ask) {
  Samples asked;
  for (int i = 0; i < 2000; ++i) asked.time(name, ask);
  answer(std::string("cost of ") + name, asked.json());
}

/// What the `async` policy asks of the driver's pool (two of these, once in 32 stream-ordered calls), and what is asked after launches of graphs with
/// allocation nodes.
void ask_figures(CUdevice device) {
  CUmemoryPool pool = nullptr;
  cuuint64_t bytes = 0;
  prepare(CU(cuDeviceGetDefaultMemPool)(&pool, device), "cuDeviceGetDefaultMemPool");
  tell_cost("cuMemPoolGetAttribute", [&, get = CU(cuMemPoolGetAttribute)] { return get(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes); });
  tell_cost("cuDeviceGetGraphMemAttribute",
            [&, get = CU(cuDeviceGetGraphMemAttribute)] { return get(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes); });
}

void ask_events(const Session& session) {
  constexpr int kRepetitions = 2000;
  CUevent event = nullptr;
  prepare(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  auto* record = CU(cuEventRecord);
  auto* query = CU(cuEventQuery);
  Samples recorded, queried, of_context;
  for (int i = 0; i < kRepetitions; ++i) recorded.time("cuEventRecord", [&] { return record(event, nullptr); });
  prepare(CU(cuCtxSynchronize)(), "cuCtxSynchronize");
  for (int i = 0; i < kRepetitions; ++i) queried.time("cuEventQuery", [&] { return query(event); });
  answer("cost of cuEventRecord", recorded.json());
  answer("cost of cuEventQuery of a completed event", queried.json());
  auto* record_context = CU(cuCtxRecordEvent);
  for (int i = 0; i < kRepetitions; ++i) of_context.time("cuCtxRecordEvent", [&] { return record_context(session.context, event); });
  answer("cost of cuCtxRecordEvent, one stream", of_context.json());
  Samples with_streams;
  for (int i = 0; i < 32; ++i) {
    CUstream stream = nullptr;
    prepare(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  for (int i = 0; i < kRepetitions; ++i) with_streams.time("cuCtxRecordEvent", [&] { return record_context(session.context, event); });
  prepare(CU(cuCtxSynchronize)(), "cuCtxSynchronize");
  answer("cost of cuCtxRecordEvent, 33 streams", with_streams.json());
}

struct VirtualCosts {
  Samples create, map, access, unmap, release;
};

/// `count` handles, all alive at once, mapped side by side: no handle comes out of a cache of the driver's.
void time_handles(CUdevice device, std::size_t bytes, std::size_t count, VirtualCosts& costs) {
  const CUmemAllocationProp properties = physical_properties(device);
  CUdeviceptr base = 0;
  prepare(CU(cuMemAddressReserve)(&base, bytes * count, 0, 0, 0), "cuMemAddressReserve");
  std::vector<CUmemGenericAllocationHandle> handles(count);
  for (auto& handle : handles) costs.create.time("cuMemCreate", [&] { return CU(cuMemCreate)(&handle, bytes, &properties, 0); });
  for (std::size_t i = 0; i < count; ++i) costs.map.time("cuMemMap", [&] { return CU(cuMemMap)(base + i * bytes, bytes, 0, handles[i], 0); });
  for (std::size_t i = 0; i < count; ++i) costs.access.time("cuMemSetAccess", [&] { return grant(base + i * bytes, bytes, device); });
  for (std::size_t i = 0; i < count; ++i) costs.unmap.time("cuMemUnmap", [&] { return CU(cuMemUnmap)(base + i * bytes, bytes); });
  for (const auto handle : handles) costs.release.time("cuMemRelease", [&] { return CU(cuMemRelease)(handle); });
  prepare(CU(cuMemAddressFree)(base, bytes * count), "cuMemAddressFree");
}

void ask_handles(CUdevice device, std::size_t bytes, std::size_t count) {
  VirtualCosts costs;
  for (int round = 0; round < 5; ++round) time_handles(device, bytes, count, costs);
  const std::string size = in_units(bytes) + " handles";
  answer("cost of cuMemCreate, " + size, costs.create.json());
  answer("cost of cuMemMap, " + size, costs.map.json());
  answer("cost of cuMemSetAccess of one, " + size, costs.access.json());
  answer("cost of cuMemUnmap of one, " + size, costs.unmap.json());
  answer("cost of cuMemRelease, " + size, costs.release.json());
}

/// One cuMemSetAccess and one cuMemUnmap over a run of 2 MiB handles, as the remapper makes them.
void ask_runs(CUdevice device, std::size_t pieces) {
  Samples access, unmap;
  for (int round = 0; round < 10; ++round) {
    Mapping mapping(device, pieces * (2u << 20), pieces);
    access.time("cuMemSetAccess", [&] { return grant(mapping.address(), mapping.bytes(), device); });
    unmap.time("cuMemUnmap", [&] { return mapping.unmap(); });
  }
  answer("cost of one cuMemSetAccess over " + std::to_string(pieces) + " handles of 2 MiB", access.json());
  answer("cost of one cuMemUnmap over " + std::to_string(pieces) + " handles of 2 MiB", unmap.json());
}

}  // namespace

void ask_costs(Session& session) {
  group("cuMemAlloc", [] {
    for (const std::size_t bytes : {512u, 1u << 20}) ask_plain(bytes, 300);
    for (const std::size_t bytes : {2u << 20, 32u << 20, 256u << 20, 1u << 30}) ask_plain(bytes, 50);
  });
  group("events", [&] { ask_events(session); });
  group("cuMemAllocAsync", [&] {
    CUstream stream = nullptr;
    prepare(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    keep_freed_memory(session.device);
    for (const std::size_t bytes : {512u, 2u << 20, 256u << 20}) ask_stream_ordered(bytes, stream);
    ask_figures(session.device);
  });
}

void ask_costs_vmm(Session& session) {
  const CUmemAllocationProp properties = physical_properties(session.device);
  std::size_t granularity = 0;
  prepare(CU(cuMemGetAllocationGranularity)(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "cuMemGetAllocationGranularity");
  answer("granularity of cuMemCreate", granularity, 2 << 20);
  group("2 MiB handles", [&] { ask_handles(session.device, 2u << 20, 32); });
  group("32 MiB handles", [&] { ask_handles(session.device, 32u << 20, 16); });
  group("256 MiB handles", [&] { ask_handles(session.device, 256u << 20, 4); });
  group("runs", [&] {
    for (const std::size_t pieces : {1u, 16u, 128u}) ask_runs(session.device, pieces);
  });
}

}  // namespace probe
