// Memory outside the pool: managed, pinned and registered host memory, arrays, virtual memory management, external memory.
#include <unistd.h>

#include <cstring>

#include "rows.hpp"

namespace battery {
namespace {

alignas(4096) unsigned char pages[64 * kKiB];

template <class Call> void host_allocation_cases(Cases& cases, Call allocate, const std::string& note = "") {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kMiB, std::size_t{0xffffffff}}) {
    cases.add(std::to_string(bytes) + " bytes" + note, [=](World&, Line& line) {
      void* out = reinterpret_cast<void*>(kUntouched);
      const CUresult result = allocate(&out, bytes);
      line.code(result);
      if (result != CUDA_SUCCESS) return line.handle("out", out), void();
      line.memory("out", reinterpret_cast<CUdeviceptr>(out)).code(cuMemFreeHost(out)).code(cuMemFreeHost(out));
    });
  }
  cases.add("null output" + note, [=](World&, Line& line) { line.code(allocate(nullptr, kMiB)); });
}

template <class Call> void host_end_cases(Cases& cases, Call end) {
  for (const AddressKind& kind : address_kinds()) {
    cases.add(kind.name, [=, &kind](World& w, Line& line) {
      void* address = reinterpret_cast<void*>(kind.of(w));
      line.code(end(address)).code(end(address));
    });
  }
}

template <class Call> void registration_cases(Cases& cases, Call call) {
  for (const unsigned flags :
       {0U, static_cast<unsigned>(CU_MEMHOSTREGISTER_PORTABLE), static_cast<unsigned>(CU_MEMHOSTREGISTER_READ_ONLY), 0x4000U}) {
    cases.add("flags " + std::to_string(flags), [=](World&, Line& line) {
      line.code(call(pages, sizeof pages, flags)).memory("page", reinterpret_cast<CUdeviceptr>(pages)).code(call(pages, sizeof pages, flags));
      line.code(cuMemHostUnregister(pages)).code(cuMemHostUnregister(pages));
    });
  }
  cases.add("null", [=](World&, Line& line) { line.code(call(nullptr, 4096, 0)); });
  cases.add("0 bytes", [=](World&, Line& line) { line.code(call(pages, 0, 0)); });
  cases.add("a block of the device", [=](World& w, Line& line) { line.code(call(reinterpret_cast<void*>(w.block), 4096, 0)); });
}

struct Shape {
  const char* name;
  std::size_t width, height, depth;
  CUarray_format format;
  unsigned channels;
};
constexpr Shape kShapes[] = {
    {"usual", 64, 64, 0, CU_AD_FORMAT_FLOAT, 4},          {"a line", 100, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1},
    {"a cube", 16, 16, 16, CU_AD_FORMAT_HALF, 2},         {"no width", 0, 64, 0, CU_AD_FORMAT_FLOAT, 1},
    {"three channels", 64, 64, 0, CU_AD_FORMAT_FLOAT, 3}, {"unknown format", 64, 64, 0, static_cast<CUarray_format>(0x7777), 1},
    {"too much", 65536, 65536, 0, CU_AD_FORMAT_FLOAT, 1}};

CUDA_ARRAY3D_DESCRIPTOR describe(const Shape& shape) {
  CUDA_ARRAY3D_DESCRIPTOR description;
  std::memset(&description, 0, sizeof description);
  description.Width = shape.width;
  description.Height = shape.height;
  description.Depth = shape.depth;
  description.Format = shape.format;
  description.NumChannels = shape.channels;
  return description;
}

template <class Create> void array_cases(Cases& cases, Create create) {
  for (const Shape& shape : kShapes) {
    cases.add(shape.name, [=, &shape](World&, Line& line) {
      CUarray out = reinterpret_cast<CUarray>(kUntouched);
      const CUresult result = create(&out, shape);
      line.code(result).handle("out", out);
      if (result == CUDA_SUCCESS) line.code(cuArrayDestroy(out)).code(cuArrayDestroy(out));
    });
  }
  cases.add("null output", [=](World&, Line& line) { line.code(create(nullptr, kShapes[0])); });
}

CUmemAllocationProp usual_properties(const World& w) {
  CUmemAllocationProp properties;
  std::memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = w.device;
  return properties;
}

void add_creation(Cases& cases, const char* name, std::size_t bytes, unsigned long long flags, void (*change)(CUmemAllocationProp&)) {
  cases.add(name, [=](World& w, Line& line) {
    CUmemAllocationProp properties = usual_properties(w);
    change(properties);
    CUmemGenericAllocationHandle out = kUntouched;
    const CUresult result = cuMemCreate(&out, bytes, &properties, flags);
    line.code(result);
    if (result != CUDA_SUCCESS) return line.number("out", out), void();
    line.code(cuMemRelease(out)).code(cuMemRelease(out));
  });
}

}  // namespace

void cases_cuMemAllocManaged(Cases& cases) {
  for (const unsigned flags : {0U, static_cast<unsigned>(CU_MEM_ATTACH_GLOBAL), static_cast<unsigned>(CU_MEM_ATTACH_HOST),
                               static_cast<unsigned>(CU_MEM_ATTACH_SINGLE), 99U}) {
    for (const std::size_t bytes : {std::size_t{0}, kMiB}) {
      cases.add(std::to_string(bytes) + " bytes, flags " + std::to_string(flags), [=](World&, Line& line) {
        CUdeviceptr out = kUntouched;
        const CUresult result = cuMemAllocManaged(&out, bytes, flags);
        line.code(result).memory("out", out);
        if (result == CUDA_SUCCESS) line.code(cuMemFree_v2(out)).code(cuMemFree_v2(out));
      });
    }
  }
  cases.add("null output", [](World&, Line& line) { line.code(cuMemAllocManaged(nullptr, kMiB, CU_MEM_ATTACH_GLOBAL)); });
}

void cases_cuMemHostAlloc(Cases& cases) {
  for (const unsigned flags : {0U, static_cast<unsigned>(CU_MEMHOSTALLOC_PORTABLE), 0x4000U}) {
    host_allocation_cases(
        cases, [flags](void** out, std::size_t bytes) { return cuMemHostAlloc(out, bytes, flags); }, ", flags " + std::to_string(flags));
  }
}
ROW(cuMemAllocHost_v2, host_allocation_cases)
void cases_cuMemAllocHost(Cases& cases) {
  host_allocation_cases(cases, [](void** out, std::size_t bytes) { return cuMemAllocHost(out, static_cast<unsigned>(bytes)); });
}
ROW(cuMemFreeHost, host_end_cases)
ROW(cuMemHostUnregister, host_end_cases)
ROW(cuMemHostRegister_v2, registration_cases)
ROW(cuMemHostRegister, registration_cases)

void cases_cuArrayCreate_v2(Cases& cases) {
  array_cases(cases, [](CUarray* out, const Shape& shape) {
    CUDA_ARRAY_DESCRIPTOR description;
    std::memset(&description, 0, sizeof description);
    description.Width = shape.width;
    description.Height = shape.height;
    description.Format = shape.format;
    description.NumChannels = shape.channels;
    return cuArrayCreate_v2(out, &description);
  });
}
void cases_cuArray3DCreate_v2(Cases& cases) {
  array_cases(cases, [](CUarray* out, const Shape& shape) {
    const CUDA_ARRAY3D_DESCRIPTOR description = describe(shape);
    return cuArray3DCreate_v2(out, &description);
  });
}
void cases_cuArrayDestroy(Cases& cases) {
  cases.add("null", [](World&, Line& line) { line.code(cuArrayDestroy(nullptr)); });
  cases.add("array", [](World& w, Line& line) { line.code(cuArrayDestroy(w.array)).code(cuArrayDestroy(w.array)); });
  cases.add("mipmap", [](World& w, Line& line) { line.code(cuArrayDestroy(reinterpret_cast<CUarray>(w.mipmap))); });
}
void cases_cuMipmappedArrayCreate(Cases& cases) {
  for (const unsigned levels : {0U, 1U, 3U, 99U}) {
    for (const Shape& shape : kShapes) {
      cases.add(std::string(shape.name) + ", levels " + std::to_string(levels), [=, &shape](World&, Line& line) {
        const CUDA_ARRAY3D_DESCRIPTOR description = describe(shape);
        CUmipmappedArray out = reinterpret_cast<CUmipmappedArray>(kUntouched);
        const CUresult result = cuMipmappedArrayCreate(&out, &description, levels);
        line.code(result).handle("out", out);
        if (result == CUDA_SUCCESS) line.code(cuMipmappedArrayDestroy(out)).code(cuMipmappedArrayDestroy(out));
      });
    }
  }
}
void cases_cuMipmappedArrayDestroy(Cases& cases) {
  cases.add("null", [](World&, Line& line) { line.code(cuMipmappedArrayDestroy(nullptr)); });
  cases.add("mipmap", [](World& w, Line& line) { line.code(cuMipmappedArrayDestroy(w.mipmap)).code(cuMipmappedArrayDestroy(w.mipmap)); });
  cases.add("array", [](World& w, Line& line) { line.code(cuMipmappedArrayDestroy(reinterpret_cast<CUmipmappedArray>(w.array))); });
}

void cases_cuMemCreate(Cases& cases) {
  constexpr auto kSame = [](CUmemAllocationProp&) {};
  add_creation(cases, "usual", 2 * kMiB, 0, kSame);
  add_creation(cases, "0 bytes", 0, 0, kSame);
  add_creation(cases, "1 byte", 1, 0, kSame);
  add_creation(cases, "too much", 2 * kGiB, 0, kSame);
  add_creation(cases, "all but all ones", ~std::size_t{0} - 2 * kMiB + 1, 0, kSame);
  add_creation(cases, "flags", 2 * kMiB, 1, kSame);
  add_creation(cases, "of no type", 2 * kMiB, 0, [](CUmemAllocationProp& p) { p.type = CU_MEM_ALLOCATION_TYPE_INVALID; });
  add_creation(cases, "on the host", 2 * kMiB, 0, [](CUmemAllocationProp& p) { p.location.type = CU_MEM_LOCATION_TYPE_HOST; });
  add_creation(cases, "on device 9", 2 * kMiB, 0, [](CUmemAllocationProp& p) { p.location.id = 9; });
  add_creation(cases, "on device -1", 2 * kMiB, 0, [](CUmemAllocationProp& p) { p.location.id = -1; });
  add_creation(cases, "on the other device", 2 * kMiB, 0, [](CUmemAllocationProp& p) { p.location.id = 1 - p.location.id; });
  cases.add("nulls", [](World& w, Line& line) {
    const CUmemAllocationProp properties = usual_properties(w);
    CUmemGenericAllocationHandle out = kUntouched;
    line.code(cuMemCreate(nullptr, 2 * kMiB, &properties, 0)).code(cuMemCreate(&out, 2 * kMiB, nullptr, 0)).number("out", out);
  });
}

void cases_cuMemRelease(Cases& cases) {
  cases.add("zero", [](World&, Line& line) { line.code(cuMemRelease(0)); });
  cases.add("unknown", [](World&, Line& line) { line.code(cuMemRelease(kNeverAllocated)); });
  cases.add("mapped", [](World& w, Line& line) { line.code(cuMemRelease(w.physical)).code(cuMemRelease(w.physical)).memory("mapped", w.mapped); });
}

void cases_cuMemSetAccess(Cases& cases) {
  CUmemAccessDesc own{};
  own.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  own.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  for (const AddressKind& kind : address_kinds()) {
    cases.add(kind.name, [&kind, own](World& w, Line& line) { line.code(cuMemSetAccess(kind.of(w), 2 * kMiB, &own, 1)).memory("block", w.block); });
  }
  for (const std::size_t bytes : {std::size_t{0}, kMiB, 4 * kMiB}) {
    cases.add("mapped, " + std::to_string(bytes) + " bytes",
              [bytes, own](World& w, Line& line) { line.code(cuMemSetAccess(w.mapped, bytes, &own, 1)); });
  }
  cases.add("for the other device", [own](World& w, Line& line) {
    CUmemAccessDesc other = own;
    other.location.id = 1;
    line.code(cuMemSetAccess(w.mapped, 2 * kMiB, &other, 1));
    other.location.id = 7;
    line.code(cuMemSetAccess(w.mapped, 2 * kMiB, &other, 1));
    line.code(cuMemSetAccess(w.mapped, 2 * kMiB, nullptr, 1)).code(cuMemSetAccess(w.mapped, 2 * kMiB, &own, 0));
  });
}
void cases_cuMemGetAccess(Cases& cases) {
  for (const AddressKind& kind : address_kinds()) {
    for (const int device : {0, 1, 7}) {
      cases.add(std::string(kind.name) + ", device " + std::to_string(device), [&kind, device](World& w, Line& line) {
        unsigned long long flags = kUntouched;
        const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device};
        line.code(cuMemGetAccess(&flags, &location, kind.of(w))).number("flags", flags);
      });
    }
  }
  cases.add("nulls", [](World& w, Line& line) {
    unsigned long long flags = kUntouched;
    const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, 0};
    line.code(cuMemGetAccess(nullptr, &location, w.mapped)).code(cuMemGetAccess(&flags, nullptr, w.mapped)).number("flags", flags);
  });
}
void cases_cuMemAddressFree(Cases& cases) {
  for (const AddressKind& kind : address_kinds()) {
    cases.add(kind.name, [&kind](World& w, Line& line) { line.code(cuMemAddressFree(kind.of(w), 2 * kMiB)).memory("block", w.block); });
  }
  cases.add("reserved, unmapped first", [](World& w, Line& line) {
    line.code(cuMemUnmap(w.mapped, 2 * kMiB)).code(cuMemAddressFree(w.reserved, 4 * kMiB)).code(cuMemAddressFree(w.reserved, 4 * kMiB));
  });
}
void cases_cuMemGetHandleForAddressRange(Cases& cases) {
  const auto ask = [](Line& line, CUdeviceptr address, std::size_t bytes, int type, unsigned long long flags) {
    int descriptor = -1;
    line.code(cuMemGetHandleForAddressRange(&descriptor, address, bytes, static_cast<CUmemRangeHandleType>(type), flags));
    line.text("descriptor", descriptor >= 0 ? "some" : "none");
    if (descriptor >= 0) close(descriptor);
  };
  for (const AddressKind& kind : address_kinds()) {
    for (const std::size_t bytes : {std::size_t{4096}, kMiB, 8 * kMiB}) {
      cases.add(std::string(kind.name) + ", " + std::to_string(bytes),
                [&kind, bytes, ask](World& w, Line& line) { ask(line, kind.of(w), bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0); });
    }
  }
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}}) {
    cases.add("block, " + std::to_string(bytes),
              [bytes, ask](World& w, Line& line) { ask(line, w.block, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0); });
  }
  cases.add("block, other kinds of handle", [ask](World& w, Line& line) {
    ask(line, w.block, kMiB, 77, 0);
    ask(line, w.block, kMiB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE);
    ask(line, w.block, kMiB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 64);
    line.code(cuMemGetHandleForAddressRange(nullptr, w.block, kMiB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
  });
}
void cases_cuMemRetainAllocationHandle(Cases& cases) {
  for (const AddressKind& kind : address_kinds()) {
    cases.add(kind.name, [&kind](World& w, Line& line) {
      CUmemGenericAllocationHandle out = kUntouched;
      const CUresult result = cuMemRetainAllocationHandle(&out, reinterpret_cast<void*>(kind.of(w)));
      line.code(result).text("out", out == kUntouched ? "untouched" : out == w.physical ? "physical" : "other");
      if (result == CUDA_SUCCESS) line.code(cuMemRelease(out));
      line.code(cuMemRetainAllocationHandle(nullptr, reinterpret_cast<void*>(kind.of(w))));
    });
  }
}

void cases_cuMemMap(Cases& cases) {
  struct Where {
    const char* name;
    CUdeviceptr (*address)(const World&);
    std::size_t bytes, offset;
    unsigned long long flags;
  };
  constexpr auto kVacant = [](const World& w) -> CUdeviceptr { return w.reserved + 2 * kMiB; };
  for (const Where& where :
       {Where{"usual", kVacant, 2 * kMiB, 0, 0}, Where{"over what is mapped", [](const World& w) { return w.mapped; }, 2 * kMiB, 0, 0},
        Where{"0 bytes", kVacant, 0, 0, 0}, Where{"half", kVacant, kMiB, 0, 0}, Where{"offset", kVacant, 2 * kMiB, 2 * kMiB, 0},
        Where{"flags", kVacant, 2 * kMiB, 0, 1}, Where{"over the end", kVacant, 4 * kMiB, 0, 0},
        Where{"over a block", [](const World& w) { return w.block / (2 * kMiB) * (2 * kMiB); }, 2 * kMiB, 0, 0},
        Where{"nowhere", [](const World&) -> CUdeviceptr { return 0; }, 2 * kMiB, 0, 0}}) {
    cases.add(where.name, [where](World& w, Line& line) {
      const CUdeviceptr address = where.address(w);
      const CUresult result = cuMemMap(address, where.bytes, where.offset, w.physical, where.flags);
      line.code(result);
      if (result == CUDA_SUCCESS) line.code(cuMemUnmap(address, where.bytes)).code(cuMemUnmap(address, where.bytes));
    });
  }
  cases.add("unknown handle", [](World& w, Line& line) { line.code(cuMemMap(w.reserved + 2 * kMiB, 2 * kMiB, 0, kNeverAllocated, 0)); });
}

void cases_cuMemUnmap(Cases& cases) {
  for (const AddressKind& kind : address_kinds()) {
    cases.add(kind.name, [&kind](World& w, Line& line) { line.code(cuMemUnmap(kind.of(w), 2 * kMiB)).memory("block", w.block); });
  }
  for (const std::size_t bytes : {std::size_t{0}, kMiB, 4 * kMiB}) {
    cases.add("mapped, " + std::to_string(bytes) + " bytes", [bytes](World& w, Line& line) { line.code(cuMemUnmap(w.mapped, bytes)); });
  }
}

void cases_cuImportExternalMemory(Cases& cases) {
  for (const auto type :
       {CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32, static_cast<CUexternalMemoryHandleType>(99)}) {
    for (const unsigned long long bytes : {0ULL, 1ULL << 20}) {
      cases.add("type " + std::to_string(type) + ", " + std::to_string(bytes) + " bytes", [=](World&, Line& line) {
        CUDA_EXTERNAL_MEMORY_HANDLE_DESC description;
        std::memset(&description, 0, sizeof description);
        description.type = type;
        description.handle.fd = -1;
        description.size = bytes;
        CUexternalMemory out = reinterpret_cast<CUexternalMemory>(kUntouched);
        line.code(cuImportExternalMemory(&out, &description)).handle("out", out);
      });
    }
  }
  cases.add("nulls", [](World&, Line& line) { line.code(cuImportExternalMemory(nullptr, nullptr)); });
}

void cases_cuMemImportFromShareableHandle(Cases& cases) {
  for (const auto type : {CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_HANDLE_TYPE_WIN32, CU_MEM_HANDLE_TYPE_NONE}) {
    cases.add("no descriptor, type " + std::to_string(type), [=](World&, Line& line) {
      CUmemGenericAllocationHandle out = kUntouched;
      line.code(cuMemImportFromShareableHandle(&out, reinterpret_cast<void*>(~std::uintptr_t{0}), type)).number("out", out);
    });
  }
  cases.add("what was exported", [](World& w, Line& line) {
    CUmemAllocationProp properties = usual_properties(w);
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle = 0, out = kUntouched;
    int descriptor = -1;
    line.code(cuMemCreate(&handle, 2 * kMiB, &properties, 0))
        .code(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    line.code(cuMemImportFromShareableHandle(&out, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    line.code(cuMemRelease(out)).code(cuMemRelease(handle));
    if (descriptor >= 0) close(descriptor);
  });
  cases.add("null output",
            [](World&, Line& line) { line.code(cuMemImportFromShareableHandle(nullptr, nullptr, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)); });
}

namespace {
/// A tile pool is mapped into a sparse array and, after its release, unmapped.
template <class Map> void array_mapping_cases(Cases& cases, Map map) {
  for (const unsigned flags : {unsigned{CUDA_ARRAY3D_SPARSE}, unsigned{CUDA_ARRAY3D_DEFERRED_MAPPING}, 0U}) {
    cases.add("array with flags " + std::to_string(flags), [=](World& w, Line& line) {
      CUmemAllocationProp properties = usual_properties(w);
      properties.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
      CUDA_ARRAY3D_DESCRIPTOR shape = describe(kShapes[0]);
      shape.Flags = flags;
      CUarrayMapInfo change;
      std::memset(&change, 0, sizeof change);
      change.resourceType = CU_RESOURCE_TYPE_ARRAY;
      change.subresource.sparseLevel.extentWidth = change.subresource.sparseLevel.extentHeight = 64;
      change.subresource.sparseLevel.extentDepth = 1;
      change.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
      change.deviceBitMask = 1U << w.device;
      line.code(cuArray3DCreate_v2(&change.resource.array, &shape));
      line.code(cuMemCreate(&change.memHandle.memHandle, 2 * kMiB, &properties, 0));
      line.code(map(&change, 1, w.stream)).code(cuMemRelease(change.memHandle.memHandle));
      change.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
      change.memHandle.memHandle = 0;
      line.code(map(&change, 1, w.stream)).code(cuArrayDestroy(change.resource.array)).code(map(&change, 1, w.stream));
    });
  }
  cases.add("nulls", [=](World&, Line& line) { line.code(map(nullptr, 0, nullptr)).code(map(nullptr, 1, nullptr)); });
}
}  // namespace
ROW(cuMemMapArrayAsync, array_mapping_cases)
ROW(cuMemMapArrayAsync_ptsz, array_mapping_cases)

}  // namespace battery
