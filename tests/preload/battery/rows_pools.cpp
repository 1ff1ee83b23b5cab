// Memory pools.
#include <cstring>

#include "rows.hpp"

namespace battery {
namespace {

constexpr std::pair<const char*, CUmemPool_attribute> kAttributes[] = {{"follow", CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES},
                                                                       {"opportunistic", CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC},
                                                                       {"internal", CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES},
                                                                       {"threshold", CU_MEMPOOL_ATTR_RELEASE_THRESHOLD},
                                                                       {"reserved", CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT},
                                                                       {"reserved high", CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH},
                                                                       {"used", CU_MEMPOOL_ATTR_USED_MEM_CURRENT},
                                                                       {"used high", CU_MEMPOOL_ATTR_USED_MEM_HIGH},
                                                                       {"unknown", static_cast<CUmemPool_attribute>(99)}};

bool is_reserved(CUmemPool_attribute attribute) {
  return attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT || attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
}

/// What the pool says of itself, or why it does not. How much a pool keeps for reuse is its own affair: only that it is no less than what is used.
Line& say(Line& line, const char* name, CUmemoryPool pool, CUmemPool_attribute attribute) {
  std::uint64_t value = kUntouched, used = 0;
  const CUresult result = cuMemPoolGetAttribute(pool, attribute, &value);
  line.code(result);
  if (result != CUDA_SUCCESS || !is_reserved(attribute)) return line.number(name, value);
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) return line;  // of when a mark was reset
  static_cast<void>(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  return line.text(name, value >= used ? "enough" : "less than is used");
}

void say_all(Line& line, CUmemoryPool pool) {
  for (const auto& [name, attribute] : kAttributes) say(line, name, pool, attribute);
}

CUmemPoolProps usual_pool_properties(const World& w) {
  CUmemPoolProps properties;
  std::memset(&properties, 0, sizeof properties);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = w.device;
  return properties;
}

/// Creates a pool with what `change` makes of the usual properties, and allocates from it.
void add_creation(Cases& cases, const char* name, void (*change)(CUmemPoolProps&)) {
  cases.add(name, [change](World& w, Line& line) {
    CUmemPoolProps properties = usual_pool_properties(w);
    change(properties);
    CUmemoryPool out = reinterpret_cast<CUmemoryPool>(kUntouched);
    const CUresult result = cuMemPoolCreate(&out, &properties);
    line.code(result).handle("out", out);
    if (result != CUDA_SUCCESS) return;
    say_all(line, out);
    CUdeviceptr block = kUntouched;
    line.code(cuMemAllocFromPoolAsync(&block, kMiB, out, w.stream)).memory("block", block);
    say(line, "used", out, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    line.code(cuMemPoolDestroy(out));
  });
}

/// A pool is made current; what a plain stream-ordered allocation then comes from.
template <class Set> void current_pool_cases(Cases& cases, Set set) {
  for (const PoolKind& kind : pool_kinds()) {
    cases.add(kind.name, [set, &kind](World& w, Line& line) {
      line.code(set(w.device, kind.of(w)));
      CUmemoryPool now = nullptr;
      CUdeviceptr block = kUntouched;
      line.code(cuDeviceGetMemPool(&now, w.device)).handle("now", now);
      line.code(cuMemAllocAsync(&block, kMiB, w.stream)).memory("block", block);
      line.code(cuMemFreeAsync(block, w.stream));
      line.code(cuDeviceSetMemPool(w.device, w.default_pool));
    });
  }
  for (CUdevice device : {-1, 2, 1'000'000}) {
    cases.add("device " + std::to_string(device), [set, device](World& w, Line& line) { line.code(set(device, w.default_pool)); });
  }
  cases.add("pool of this device for the other", [set](World& w, Line& line) { line.code(set(w.other_device, w.plain_pool)); });
}

void add_access(Cases& cases, const char* name, CUmemLocationType type, int device_step, CUmemAccess_flags flags) {
  for (const PoolKind& kind : pool_kinds()) {
    cases.add(std::string(name) + ", " + kind.name, [=, &kind](World& w, Line& line) {
      CUmemAccessDesc access;
      access.location.type = type;
      access.location.id = device_step == 1 ? w.other_device : w.device + device_step;
      access.flags = flags;
      line.code(cuMemPoolSetAccess(kind.of(w), &access, 1));
      CUmemAccess_flags got = static_cast<CUmemAccess_flags>(kUntouched);
      line.code(cuMemPoolGetAccess(&got, kind.of(w), &access.location)).number("access", got);
    });
  }
}

}  // namespace

void cases_cuMemPoolCreate(Cases& cases) {
  add_creation(cases, "usual", [](CUmemPoolProps&) {});
  add_creation(cases, "exportable", [](CUmemPoolProps& p) { p.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; });
  add_creation(cases, "limited", [](CUmemPoolProps& p) { p.maxSize = 4 * kMiB; });
  add_creation(cases, "limited below the block", [](CUmemPoolProps& p) { p.maxSize = kMiB / 2; });
  add_creation(cases, "of no type", [](CUmemPoolProps& p) { p.allocType = CU_MEM_ALLOCATION_TYPE_INVALID; });
  add_creation(cases, "nowhere", [](CUmemPoolProps& p) { p.location.type = CU_MEM_LOCATION_TYPE_INVALID; });
  add_creation(cases, "on the host", [](CUmemPoolProps& p) { p.location.type = CU_MEM_LOCATION_TYPE_HOST; });
  add_creation(cases, "on a node of the host", [](CUmemPoolProps& p) { p.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA; });
  add_creation(cases, "managed", [](CUmemPoolProps& p) { p.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED; });
  add_creation(cases, "on device -1", [](CUmemPoolProps& p) { p.location.id = -1; });
  add_creation(cases, "on device 9", [](CUmemPoolProps& p) { p.location.id = 9; });
  add_creation(cases, "on the other device", [](CUmemPoolProps& p) { p.location.id = 1 - p.location.id; });
  add_creation(cases, "unknown handle type", [](CUmemPoolProps& p) { p.handleTypes = static_cast<CUmemAllocationHandleType>(0x40); });
  add_creation(cases, "reserved bytes set", [](CUmemPoolProps& p) { p.reserved[0] = 1; });
  cases.add("null output", [](World& w, Line& line) {
    const CUmemPoolProps properties = usual_pool_properties(w);
    line.code(cuMemPoolCreate(nullptr, &properties));
  });
  cases.add("null properties", [](World&, Line& line) {
    CUmemoryPool out = reinterpret_cast<CUmemoryPool>(kUntouched);
    line.code(cuMemPoolCreate(&out, nullptr)).handle("out", out);
  });
  cases.add("a hundred", [](World& w, Line& line) {
    const CUmemPoolProps properties = usual_pool_properties(w);
    CUmemoryPool pools[100] = {};
    CUdeviceptr blocks[100] = {};
    int failed = 0;
    for (int i = 0; i < 100; ++i) {
      failed += cuMemPoolCreate(&pools[i], &properties) != CUDA_SUCCESS;
      failed += cuMemAllocFromPoolAsync(&blocks[i], 512, pools[i], w.stream) != CUDA_SUCCESS;
      line.got(blocks[i]);
    }
    line.number("failed", static_cast<std::uint64_t>(failed));
    for (CUmemoryPool pool : {pools[0], pools[50], pools[99]}) say(line, "used", pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    for (int i = 0; i < 100; ++i) static_cast<void>(cuMemPoolDestroy(pools[i]));
  });
}

void cases_cuMemPoolDestroy(Cases& cases) {
  for (const PoolKind& kind : pool_kinds()) {
    cases.add(kind.name, [&kind](World& w, Line& line) { line.code(cuMemPoolDestroy(kind.of(w))); });
  }
  cases.add("twice", [](World& w, Line& line) { line.code(cuMemPoolDestroy(w.plain_pool)).code(cuMemPoolDestroy(w.plain_pool)); });
  cases.add("while current", [](World& w, Line& line) {
    CUmemoryPool now = nullptr;
    line.code(cuDeviceSetMemPool(w.device, w.plain_pool))
        .code(cuMemPoolDestroy(w.plain_pool))
        .code(cuDeviceGetMemPool(&now, w.device))
        .handle("now", now);
  });
  cases.add("while its block lives", [](World& w, Line& line) {
    line.code(cuMemPoolDestroy(w.plain_pool)).memory("block", w.plain_pool_block).code(cuMemFreeAsync(w.plain_pool_block, w.stream));
    CUdeviceptr out = kUntouched;
    line.code(cuMemAllocFromPoolAsync(&out, kMiB, w.plain_pool, w.stream)).address("out", out);
  });
}

ROW(cuDeviceSetMemPool, current_pool_cases)
void cases_cuMemSetMemPool(Cases& cases) {
  current_pool_cases(cases, [](CUdevice device, CUmemoryPool pool) {
    CUmemLocation location;
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = device;
    return cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_PINNED, pool);
  });
  cases.add("null location", [](World& w, Line& line) { line.code(cuMemSetMemPool(nullptr, CU_MEM_ALLOCATION_TYPE_PINNED, w.default_pool)); });
  cases.add("wrong type", [](World& w, Line& line) {
    CUmemLocation location;
    location.type = CU_MEM_LOCATION_TYPE_INVALID;
    location.id = w.device;
    line.code(cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_PINNED, w.default_pool));
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    line.code(cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_INVALID, w.default_pool));
  });
}

/// The pool of each place; what comes from it where nobody made it (of a device's own the other rows tell).
template <class Get> void place_cases(Cases& cases, Get get) {
  struct Place {
    const char* name;
    CUmemLocationType where;
    int id;
  };
  constexpr Place kPlaces[] = {{"a device", CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               {"device 9", CU_MEM_LOCATION_TYPE_DEVICE, 9},
                               {"the host", CU_MEM_LOCATION_TYPE_HOST, 0},
                               {"a node of the host", CU_MEM_LOCATION_TYPE_HOST_NUMA, 0},
                               {"no node", CU_MEM_LOCATION_TYPE_HOST_NUMA, 9},
                               {"nowhere", CU_MEM_LOCATION_TYPE_INVALID, 0},
                               {"the thread's node", CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0}};
  for (const auto& [kind, type] : {std::pair{"", CU_MEM_ALLOCATION_TYPE_PINNED}, std::pair{", managed", CU_MEM_ALLOCATION_TYPE_MANAGED},
                                   std::pair{", of no type", CU_MEM_ALLOCATION_TYPE_INVALID}}) {
    for (const Place& place : kPlaces) {
      cases.add(std::string(place.name) + kind, [get, place, type = type](World& w, Line& line) {
        CUmemLocation location;
        location.type = place.where;
        location.id = place.id;
        CUmemoryPool out = reinterpret_cast<CUmemoryPool>(kUntouched);
        const CUresult result = get(&out, &location, type);
        line.code(result).handle("out", out);
        if (result != CUDA_SUCCESS || (place.where == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED)) return;
        CUdeviceptr block = kUntouched;
        line.code(cuMemAllocFromPoolAsync(&block, kMiB, out, w.stream)).memory("block", block);
        say(line, "used", out, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
        line.code(cuMemFreeAsync(block, w.stream)).code(cuMemPoolDestroy(out));
      });
    }
  }
  cases.add("null location", [get](World&, Line& line) {
    CUmemoryPool out = reinterpret_cast<CUmemoryPool>(kUntouched);
    line.code(get(&out, nullptr, CU_MEM_ALLOCATION_TYPE_PINNED)).handle("out", out);
  });
  cases.add("null output", [get](World&, Line& line) {
    CUmemLocation location;
    location.type = CU_MEM_LOCATION_TYPE_HOST;
    location.id = 0;
    line.code(get(nullptr, &location, CU_MEM_ALLOCATION_TYPE_PINNED));
  });
}
ROW(cuMemGetDefaultMemPool, place_cases)
ROW(cuMemGetMemPool, place_cases)

void cases_cuMemPoolGetAttribute(Cases& cases) {
  for (const PoolKind& kind : pool_kinds()) {
    cases.add(kind.name, [&kind](World& w, Line& line) { say_all(line, kind.of(w)); });
    cases.add(std::string(kind.name) + ", null value",
              [&kind](World& w, Line& line) { line.code(cuMemPoolGetAttribute(kind.of(w), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, nullptr)); });
  }
  cases.add("as blocks come and go", [](World& w, Line& line) {
    CUdeviceptr block = kUntouched;
    line.code(cuMemAllocFromPoolAsync(&block, 3000, w.plain_pool, w.stream));
    say_all(line, w.plain_pool);
    line.code(cuMemFreeAsync(block, w.stream));
    say_all(line, w.plain_pool);
    line.code(cuMemFree_v2(w.plain_pool_block));
    say_all(line, w.plain_pool);
  });
}

void cases_cuMemPoolSetAttribute(Cases& cases) {
  for (const auto& [name, attribute] : kAttributes) {
    for (const std::uint64_t wanted : {std::uint64_t{0}, std::uint64_t{1}, 5 * kMiB, ~std::uint64_t{0}}) {
      for (const PoolKind& kind : pool_kinds()) {
        if (wanted != 0 && std::strcmp(kind.name, "plain pool") != 0) continue;
        cases.add(std::string(name) + " to " + std::to_string(wanted) + ", " + kind.name,
                  [=, attribute = attribute, name = name, &kind](World& w, Line& line) {
                    std::uint64_t value = wanted;
                    line.code(cuMemPoolSetAttribute(kind.of(w), attribute, &value));
                    say(line, name, kind.of(w), attribute);
                  });
      }
    }
    cases.add(std::string(name) + ", null value",
              [attribute = attribute](World& w, Line& line) { line.code(cuMemPoolSetAttribute(w.plain_pool, attribute, nullptr)); });
  }
  cases.add("marks reset after a free", [](World& w, Line& line) {
    std::uint64_t zero = 0;
    line.code(cuMemFreeAsync(w.plain_pool_block, w.stream));
    line.code(cuMemPoolSetAttribute(w.plain_pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero))
        .code(cuMemPoolSetAttribute(w.plain_pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
    say_all(line, w.plain_pool);
  });
}

void cases_cuMemPoolTrimTo(Cases& cases) {
  for (const PoolKind& kind : pool_kinds()) {
    for (const std::size_t keep_bytes : {std::size_t{0}, kMiB, ~std::size_t{0}}) {
      cases.add(std::string(kind.name) + ", keep " + std::to_string(keep_bytes), [keep_bytes, &kind](World& w, Line& line) {
        line.code(cuMemPoolTrimTo(kind.of(w), keep_bytes)).memory("stream block", w.stream_block).memory("block", w.block);
      });
    }
  }
}

void cases_cuMemPoolSetAccess(Cases& cases) {
  add_access(cases, "other device reads and writes", CU_MEM_LOCATION_TYPE_DEVICE, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  add_access(cases, "other device reads", CU_MEM_LOCATION_TYPE_DEVICE, 1, CU_MEM_ACCESS_FLAGS_PROT_READ);
  add_access(cases, "other device nothing", CU_MEM_LOCATION_TYPE_DEVICE, 1, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  add_access(cases, "own device reads and writes", CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  add_access(cases, "own device nothing", CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  add_access(cases, "a device that is not there", CU_MEM_LOCATION_TYPE_DEVICE, 7, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  add_access(cases, "unknown flags", CU_MEM_LOCATION_TYPE_DEVICE, 1, static_cast<CUmemAccess_flags>(64));
  add_access(cases, "the host", CU_MEM_LOCATION_TYPE_HOST, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  cases.add("null, one", [](World& w, Line& line) { line.code(cuMemPoolSetAccess(w.plain_pool, nullptr, 1)); });
  cases.add("null, none", [](World& w, Line& line) { line.code(cuMemPoolSetAccess(w.plain_pool, nullptr, 0)); });
  cases.add("peer access by the program too", [](World& w, Line& line) {
    CUmemAccessDesc access;
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = w.other_device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUcontext popped = nullptr;
    line.code(cuMemPoolSetAccess(w.default_pool, &access, 1)).code(cuCtxPushCurrent_v2(w.elsewhere));
    line.code(cuCtxDisablePeerAccess(w.current)).code(cuCtxEnablePeerAccess(w.current, 0)).code(cuCtxEnablePeerAccess(w.current, 0));
    line.code(cuCtxDisablePeerAccess(w.current)).code(cuCtxDisablePeerAccess(w.current)).code(cuCtxPopCurrent_v2(&popped));
  });
}

void cases_cuMemPoolExportPointer(Cases& cases) {
  for (const AddressKind& kind : address_kinds()) {
    cases.add(kind.name, [&kind](World& w, Line& line) {
      CUmemPoolPtrExportData out;
      line.code(cuMemPoolExportPointer(&out, kind.of(w)));
    });
    cases.add(std::string(kind.name) + ", null output", [&kind](World& w, Line& line) { line.code(cuMemPoolExportPointer(nullptr, kind.of(w))); });
  }
}

void cases_cuMemPoolImportPointer(Cases& cases) {
  for (const PoolKind& kind : pool_kinds()) {
    cases.add(kind.name, [&kind](World& w, Line& line) {
      CUdeviceptr out = kUntouched;
      CUmemPoolPtrExportData data;
      std::memset(&data, 0, sizeof data);
      line.code(cuMemPoolImportPointer(&out, kind.of(w), &data)).address("out", out);
    });
  }
  cases.add("nulls", [](World& w, Line& line) { line.code(cuMemPoolImportPointer(nullptr, w.plain_pool, nullptr)); });
}

}  // namespace battery
