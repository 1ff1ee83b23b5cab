// What programs ask about memory, lookups, and memory shared between processes.
#include <cstring>

#include "rows.hpp"

namespace battery {
namespace {

/// Whether free memory falls and comes back with a block of `bytes`: figures themselves depend on how a driver rounds.
void say_info(Line& line) {
  std::size_t free_bytes = kUntouched, total_bytes = kUntouched;
  line.code(cuMemGetInfo_v2(&free_bytes, &total_bytes)).number("total", total_bytes);
  if (total_bytes == kUntouched) return line.number("free", free_bytes), void();
  line.number("free within total", free_bytes <= total_bytes).number("free GiB/8", free_bytes / (kGiB / 8));
}

constexpr CUpointer_attribute kLastAttribute = CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE;

/// Values that differ between any two runs become words.
std::string plain(const World& w, int attribute, std::uint64_t value, CUdeviceptr address) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return w.label(reinterpret_cast<const void*>(value));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return value == address ? "itself" : w.label(static_cast<CUdeviceptr>(value));
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return value == kUntouched ? "untouched" : value == 0 ? "none" : "some";
    default: return value == kUntouched ? "untouched" : std::to_string(value);
  }
}

void one_by_one(World& w, Line& line, CUdeviceptr address) {
  for (int attribute = 0; attribute <= kLastAttribute + 1; ++attribute) {
    std::uint64_t value = kUntouched;
    const CUresult result = cuPointerGetAttribute(&value, static_cast<CUpointer_attribute>(attribute), address);
    line.text(std::to_string(attribute).c_str(), std::to_string(result) + ":" + plain(w, attribute, value, address));
  }
}

void all_at_once(World& w, Line& line, CUdeviceptr address) {
  std::vector<CUpointer_attribute> wanted;
  for (int attribute = CU_POINTER_ATTRIBUTE_CONTEXT; attribute <= kLastAttribute; ++attribute) {
    if (attribute != CU_POINTER_ATTRIBUTE_P2P_TOKENS) wanted.push_back(static_cast<CUpointer_attribute>(attribute));
  }
  std::vector<std::uint64_t> values(wanted.size(), 0);
  std::vector<void*> outputs;
  for (std::uint64_t& value : values) outputs.push_back(&value);
  line.code(cuPointerGetAttributes(static_cast<unsigned>(wanted.size()), wanted.data(), outputs.data(), address));
  for (std::size_t i = 0; i < wanted.size(); ++i) line.text(std::to_string(wanted[i]).c_str(), plain(w, wanted[i], values[i], address));
}

template <class Call> void lookup_cases(Cases& cases, Call look_up) {
  for (const char* name : {"cuMemAlloc", "cuMemAlloc_v2", "cuMemFreeAsync", "cuInit", "cuGetProcAddress", "cuNoSuchFunction", ""}) {
    for (const int version : {0, 3020, 12000, 99000, -1}) {
      for (const cuuint64_t flags : {0, 1, 2, 3, 64}) {
        if (flags != 0 && version != 12000) continue;
        cases.add(std::string(name) + " " + std::to_string(version) + " " + std::to_string(flags), [=](World&, Line& line) {
          void* function = reinterpret_cast<void*>(kUntouched);
          look_up(line, name, &function, version, flags);
          line.text("function", function == nullptr ? "null" : reinterpret_cast<CUdeviceptr>(function) == kUntouched ? "untouched" : "some");
        });
      }
    }
  }
  cases.add("null name", [=](World&, Line& line) {
    void* function = reinterpret_cast<void*>(kUntouched);
    look_up(line, nullptr, &function, 12000, 0);
    line.handle("function", function);
  });
  cases.add("null output", [=](World&, Line& line) { look_up(line, "cuMemAlloc", nullptr, 12000, 0); });
}

template <class Call> void open_cases(Cases& cases, Call open) {
  cases.add("zeros", [open](World&, Line& line) {
    CUdeviceptr out = kUntouched;
    line.code(open(&out, CUipcMemHandle{}, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)).address("out", out);
  });
  for (const AddressKind& kind : address_kinds()) {
    cases.add(std::string("one's own: ") + kind.name, [open, &kind](World& w, Line& line) {
      CUipcMemHandle handle;
      std::memset(&handle, 0, sizeof handle);
      CUdeviceptr out = kUntouched;
      line.code(cuIpcGetMemHandle(&handle, kind.of(w)));
      line.code(open(&out, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)).address("out", out);
    });
  }
  cases.add("wrong flags", [open](World& w, Line& line) {
    CUipcMemHandle handle;
    std::memset(&handle, 0, sizeof handle);
    CUdeviceptr out = kUntouched;
    line.code(cuIpcGetMemHandle(&handle, w.block)).code(open(&out, handle, 0)).code(open(&out, handle, 77)).address("out", out);
  });
  cases.add("null output", [open](World& w, Line& line) {
    CUipcMemHandle handle;
    std::memset(&handle, 0, sizeof handle);
    line.code(cuIpcGetMemHandle(&handle, w.block)).code(open(nullptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  });
  cases.add("of what is freed", [open](World& w, Line& line) {
    CUipcMemHandle handle;
    std::memset(&handle, 0, sizeof handle);
    CUdeviceptr out = kUntouched;
    line.code(cuIpcGetMemHandle(&handle, w.block)).code(cuMemFree_v2(w.block));
    line.code(open(&out, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)).address("out", out);
  });
}

}  // namespace

void cases_cuMemGetInfo_v2(Cases& cases) {
  cases.add("both", [](World&, Line& line) { say_info(line); });
  cases.add("null free", [](World&, Line& line) {
    std::size_t total = kUntouched;
    line.code(cuMemGetInfo_v2(nullptr, &total)).number("total", total);
  });
  cases.add("null total", [](World&, Line& line) {
    std::size_t free_bytes = kUntouched;
    line.code(cuMemGetInfo_v2(&free_bytes, nullptr)).text("free", free_bytes == kUntouched ? "untouched" : "some");
  });
  cases.add("nulls", [](World&, Line& line) { line.code(cuMemGetInfo_v2(nullptr, nullptr)); });
  cases.add("around 64 MiB", [](World&, Line& line) {
    CUdeviceptr block = 0;
    std::size_t figures[3] = {}, total = 0;
    line.code(cuMemGetInfo_v2(&figures[0], &total)).code(cuMemAlloc_v2(&block, 64 * kMiB)).code(cuMemGetInfo_v2(&figures[1], &total));
    line.code(cuMemFree_v2(block)).code(cuMemGetInfo_v2(&figures[2], &total));
    line.number("taken", figures[0] - figures[1]).number("back", figures[2] - figures[1]);
  });
  cases.add("around a stream-ordered 64 MiB", [](World& w, Line& line) {
    CUdeviceptr block = 0;
    std::size_t figures[3] = {}, total = 0;
    line.code(cuMemGetInfo_v2(&figures[0], &total)).code(cuMemAllocAsync(&block, 64 * kMiB, w.stream)).code(cuMemGetInfo_v2(&figures[1], &total));
    line.code(cuMemFreeAsync(block, w.stream))
        .code(cuStreamSynchronize(w.stream))
        .code(cuMemPoolTrimTo(w.default_pool, 0))
        .code(cuMemGetInfo_v2(&figures[2], &total));
    line.number("taken", figures[0] - figures[1]).number("back", figures[2] - figures[1]);
  });
}

void cases_cuDeviceTotalMem_v2(Cases& cases) {
  for (CUdevice device : {0, 1, 2, -1}) {
    cases.add("device " + std::to_string(device), [device](World&, Line& line) {
      std::size_t bytes = kUntouched;
      line.code(cuDeviceTotalMem_v2(&bytes, device)).number("bytes", bytes);
    });
    cases.add("device " + std::to_string(device) + ", null", [device](World&, Line& line) { line.code(cuDeviceTotalMem_v2(nullptr, device)); });
  }
}

void cases_cuMemGetAddressRange_v2(Cases& cases) {
  for (const AddressKind& kind : address_kinds()) {
    cases.add(kind.name, [&kind](World& w, Line& line) {
      CUdeviceptr base = kUntouched;
      std::size_t bytes = kUntouched;
      line.code(cuMemGetAddressRange_v2(&base, &bytes, kind.of(w))).address("base", base).number("bytes", bytes);
    });
    cases.add(std::string(kind.name) + ", null base", [&kind](World& w, Line& line) {
      std::size_t bytes = kUntouched;
      line.code(cuMemGetAddressRange_v2(nullptr, &bytes, kind.of(w))).number("bytes", bytes);
    });
    cases.add(std::string(kind.name) + ", null bytes", [&kind](World& w, Line& line) {
      CUdeviceptr base = kUntouched;
      line.code(cuMemGetAddressRange_v2(&base, nullptr, kind.of(w))).address("base", base);
    });
    cases.add(std::string(kind.name) + ", nulls",
              [&kind](World& w, Line& line) { line.code(cuMemGetAddressRange_v2(nullptr, nullptr, kind.of(w))); });
  }
}

void cases_cuPointerGetAttribute(Cases& cases) {
  for (const AddressKind& kind : address_kinds()) {
    cases.add(kind.name, [&kind](World& w, Line& line) { one_by_one(w, line, kind.of(w)); });
    cases.add(std::string(kind.name) + ", null output",
              [&kind](World& w, Line& line) { line.code(cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_CONTEXT, kind.of(w))); });
  }
  cases.add("ids differ", [](World& w, Line& line) {
    std::uint64_t ids[3] = {};
    line.code(cuPointerGetAttribute(&ids[0], CU_POINTER_ATTRIBUTE_BUFFER_ID, w.block))
        .code(cuPointerGetAttribute(&ids[1], CU_POINTER_ATTRIBUTE_BUFFER_ID, w.small));
    line.code(cuPointerGetAttribute(&ids[2], CU_POINTER_ATTRIBUTE_BUFFER_ID, w.interior()));
    line.number("same", ids[0] == ids[1]).number("inside", ids[0] == ids[2]);
  });
}

void cases_cuPointerGetAttributes(Cases& cases) {
  for (const AddressKind& kind : address_kinds()) {
    cases.add(kind.name, [&kind](World& w, Line& line) { all_at_once(w, line, kind.of(w)); });
  }
  cases.add("none", [](World& w, Line& line) {
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_CONTEXT;
    void* output = nullptr;
    line.code(cuPointerGetAttributes(0, &attribute, &output, w.block)).code(cuPointerGetAttributes(1, nullptr, &output, w.block));
    line.code(cuPointerGetAttributes(1, &attribute, nullptr, w.block)).code(cuPointerGetAttributes(1, &attribute, &output, w.block));
  });
  cases.add("one unknown", [](World& w, Line& line) {
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_RANGE_SIZE, static_cast<CUpointer_attribute>(99)};
    std::uint64_t values[2] = {kUntouched, kUntouched};
    void* outputs[] = {&values[0], &values[1]};
    line.code(cuPointerGetAttributes(2, attributes, outputs, w.block)).number("bytes", values[0]).number("unknown", values[1]);
  });
}

void cases_cuPointerSetAttribute(Cases& cases) {
  for (const AddressKind& kind : address_kinds()) {
    cases.add(kind.name, [&kind](World& w, Line& line) {
      unsigned on = 1, off = 0, got = static_cast<unsigned>(kUntouched);
      for (const unsigned* value : {&on, &off}) {
        line.code(cuPointerSetAttribute(value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, kind.of(w)));
        line.code(cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, kind.of(w))).number("sync", got);
      }
    });
    cases.add(std::string(kind.name) + ", null value",
              [&kind](World& w, Line& line) { line.code(cuPointerSetAttribute(nullptr, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, kind.of(w))); });
    cases.add(std::string(kind.name) + ", cannot be set", [&kind](World& w, Line& line) {
      std::uint64_t value = 1;
      line.code(cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_RANGE_SIZE, kind.of(w)))
          .code(cuPointerSetAttribute(&value, static_cast<CUpointer_attribute>(99), kind.of(w)));
    });
  }
  cases.add("of one block only", [](World& w, Line& line) {
    unsigned on = 1, got = 0;
    line.code(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, w.interior()));
    for (CUdeviceptr address : {w.block, w.small, w.stream_block}) {
      line.code(cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address)).number("sync", got);
    }
  });
}

void cases_cuIpcGetMemHandle(Cases& cases) {
  for (const AddressKind& kind : address_kinds()) {
    cases.add(kind.name, [&kind](World& w, Line& line) {
      CUipcMemHandle handle, zeros, again;
      std::memset(&handle, 0, sizeof handle);
      std::memset(&zeros, 0, sizeof zeros);
      std::memset(&again, 0, sizeof again);
      line.code(cuIpcGetMemHandle(&handle, kind.of(w))).number("empty", std::memcmp(&handle, &zeros, sizeof zeros) == 0);
      line.code(cuIpcGetMemHandle(&again, kind.of(w))).number("same", std::memcmp(&handle, &again, sizeof again) == 0);
    });
    cases.add(std::string(kind.name) + ", null output", [&kind](World& w, Line& line) { line.code(cuIpcGetMemHandle(nullptr, kind.of(w))); });
  }
}

ROW(cuIpcOpenMemHandle, open_cases)
ROW(cuIpcOpenMemHandle_v2, open_cases)

void cases_cuIpcCloseMemHandle(Cases& cases) {
  for (const AddressKind& kind : address_kinds()) {
    cases.add(kind.name, [&kind](World& w, Line& line) { line.code(cuIpcCloseMemHandle(kind.of(w))).memory("block", w.block); });
  }
}

void cases_cuGetProcAddress(Cases& cases) {
  lookup_cases(
      cases, [](Line& line, const char* name, void** out, int version, cuuint64_t flags) { line.code(cuGetProcAddress(name, out, version, flags)); });
}

void cases_cuGetProcAddress_v2(Cases& cases) {
  lookup_cases(cases, [](Line& line, const char* name, void** out, int version, cuuint64_t flags) {
    auto status = static_cast<CUdriverProcAddressQueryResult>(kUntouched);
    line.code(cuGetProcAddress_v2(name, out, version, flags, &status)).number("status", status);
  });
  cases.add("null status", [](World&, Line& line) {
    void* function = nullptr;
    line.code(cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, nullptr)).number("found", function != nullptr);
  });
}

}  // namespace battery
