// Calls that take device memory inside the driver: limits, streams, modules, graphs.
#include <cstring>

#include "rows.hpp"

namespace battery {
namespace {

constexpr char kThisProgram[] = "/proc/self/exe";

template <class Load> void file_cases(Cases& cases, Load load) {
  for (const char* path : {kThisProgram, "/nowhere/at/all", ""}) {
    cases.add(path, [=](World& w, Line& line) { load(w, line, path); });
  }
  cases.add("null path", [=](World& w, Line& line) { load(w, line, nullptr); });
}

template <class Load> void image_cases(Cases& cases, Load load) {
  cases.add("an image", [=](World& w, Line& line) { load(w, line, "no code"); });
  cases.add("null image", [=](World& w, Line& line) { load(w, line, nullptr); });
}

/// The device is full but for what cuMemAlloc would find: then the call, and again when `freed` of the blocks are.
template <class Call> void add_when_full(Cases& cases, const char* name, std::size_t freed, Call call) {
  cases.add(name, [=](World& w, Line& line) {
    std::vector<CUdeviceptr> blocks;
    CUdeviceptr block = 0;
    while (blocks.size() < 4096 && cuMemAlloc_v2(&block, 2 * kMiB) == CUDA_SUCCESS) blocks.push_back(block);
    call(w, line);
    for (std::size_t i = 0; i < freed && !blocks.empty(); ++i, blocks.pop_back()) static_cast<void>(cuMemFree_v2(blocks.back()));
    line.code(cuCtxSynchronize());
    call(w, line);
  });
}

template <class Handle> void say_loaded(Line& line, CUresult result, Handle* out) { line.code(result).handle("out", out); }

using Launch = CUresult (*)(CUgraphExec, CUstream);

void graph_stream_cases(Cases& cases, Launch call) {
  for (const StreamKind& kind : stream_kinds()) {
    cases.add(kind.name, [=, &kind](World& w, Line& line) { line.code(call(w.executable, kind.of(w))).code(call(w.executable, kind.of(w))); });
    cases.add(std::string(kind.name) + ", null graph", [=, &kind](World& w, Line& line) { line.code(call(nullptr, kind.of(w))); });
  }
  cases.add("destroyed graph", [=](World& w, Line& line) { line.code(cuGraphExecDestroy(w.executable)).code(call(w.executable, w.stream)); });
}

template <class Call> void instantiation_cases(Cases& cases, Call instantiate) {
  for (const unsigned long long flags : {0ULL, 1ULL, 2ULL, 1ULL << 40}) {
    cases.add("flags " + std::to_string(flags), [=](World& w, Line& line) {
      CUgraphExec out = reinterpret_cast<CUgraphExec>(kUntouched);
      const CUresult result = instantiate(&out, w.graph, flags, w.stream);
      line.code(result).handle("out", out);
      if (result == CUDA_SUCCESS) line.code(cuGraphLaunch(out, w.second_stream)).code(cuGraphExecDestroy(out));
    });
  }
  cases.add("null graph", [=](World& w, Line& line) {
    CUgraphExec out = reinterpret_cast<CUgraphExec>(kUntouched);
    line.code(instantiate(&out, nullptr, 0, w.stream)).handle("out", out);
  });
  cases.add("null output", [=](World& w, Line& line) { line.code(instantiate(nullptr, w.graph, 0, w.stream)); });
}

template <class Call> void params_cases(Cases& cases, Call call) {
  instantiation_cases(cases, [call](CUgraphExec* out, CUgraph graph, unsigned long long flags, CUstream stream) {
    CUDA_GRAPH_INSTANTIATE_PARAMS parameters;
    std::memset(&parameters, 0, sizeof parameters);
    parameters.flags = flags;
    parameters.hUploadStream = stream;
    return call(out, graph, &parameters);
  });
}

}  // namespace

void cases_cuCtxSetLimit(Cases& cases) {
  for (const int limit :
       {static_cast<int>(CU_LIMIT_STACK_SIZE), static_cast<int>(CU_LIMIT_MALLOC_HEAP_SIZE), static_cast<int>(CU_LIMIT_PRINTF_FIFO_SIZE), 99, -1}) {
    for (const std::size_t value : {std::size_t{0}, std::size_t{4096}, kMiB, ~std::size_t{0}}) {
      cases.add(std::to_string(limit) + " to " + std::to_string(value), [=](World&, Line& line) {
        std::size_t got = kUntouched;
        line.code(cuCtxSetLimit(static_cast<CUlimit>(limit), value)).code(cuCtxGetLimit(&got, static_cast<CUlimit>(limit))).number("now", got);
      });
    }
  }
}

void cases_cuStreamCreate(Cases& cases) {
  for (const unsigned flags : {0U, 1U, 2U, 99U}) {
    cases.add("flags " + std::to_string(flags), [=](World& w, Line& line) {
      CUstream out = reinterpret_cast<CUstream>(kUntouched);
      CUdeviceptr block = kUntouched;
      const CUresult result = cuStreamCreate(&out, flags);
      line.code(result).handle("out", out);
      if (result != CUDA_SUCCESS) return;
      line.code(cuMemAllocAsync(&block, kMiB, out)).memory("block", block).code(cuStreamDestroy_v2(out)).code(cuMemFreeAsync(block, w.stream));
    });
  }
  cases.add("null output", [](World&, Line& line) { line.code(cuStreamCreate(nullptr, 0)); });
}

void cases_cuStreamCreateWithPriority(Cases& cases) {
  for (const int priority : {0, -1, -100, 100}) {
    cases.add("priority " + std::to_string(priority), [=](World&, Line& line) {
      CUstream out = reinterpret_cast<CUstream>(kUntouched);
      int got = 77;
      const CUresult result = cuStreamCreateWithPriority(&out, CU_STREAM_NON_BLOCKING, priority);
      line.code(result).handle("out", out);
      if (result == CUDA_SUCCESS) line.code(cuStreamGetPriority(out, &got)).text("now", std::to_string(got)).code(cuStreamDestroy_v2(out));
    });
  }
  cases.add("flags", [](World&, Line& line) {
    CUstream out = reinterpret_cast<CUstream>(kUntouched);
    line.code(cuStreamCreateWithPriority(&out, 99, 0)).handle("out", out).code(cuStreamCreateWithPriority(nullptr, 0, 0));
  });
}

void cases_cuGreenCtxStreamCreate(Cases& cases) {
  for (const unsigned flags : {0U, 1U, 99U}) {
    cases.add("flags " + std::to_string(flags), [=](World& w, Line& line) {
      CUstream out = reinterpret_cast<CUstream>(kUntouched);
      CUdeviceptr block = kUntouched;
      const CUresult result = cuGreenCtxStreamCreate(&out, w.green, flags, 0);
      line.code(result).handle("out", out);
      if (result != CUDA_SUCCESS) return;
      line.code(cuMemAllocAsync(&block, kMiB, out)).memory("block", block).code(cuStreamDestroy_v2(out)).code(cuMemFreeAsync(block, w.stream));
    });
  }
  cases.add("nulls", [](World& w, Line& line) {
    line.code(cuGreenCtxStreamCreate(nullptr, w.green, 1, 0)).code(cuGreenCtxStreamCreate(nullptr, nullptr, 1, 0));
  });
}

void cases_cuModuleLoad(Cases& cases) {
  file_cases(cases, [](World&, Line& line, const char* path) {
    CUmodule out = reinterpret_cast<CUmodule>(kUntouched);
    say_loaded(line, cuModuleLoad(&out, path), out);
    line.code(cuModuleLoad(nullptr, path));
  });
}

template <class Call> void module_image_cases(Cases& cases, Call call) {
  const auto load = [call](World&, Line& line, const void* image) {
    CUmodule out = reinterpret_cast<CUmodule>(kUntouched);
    say_loaded(line, call(&out, image), out);
    line.code(call(nullptr, image));
  };
  image_cases(cases, load);
  const auto load_code = [load](World& w, Line& line) { load(w, line, "no code"); };
  add_when_full(cases, "full, then one of many freed", 1, load_code);
  add_when_full(cases, "full, then all freed", ~std::size_t{0}, load_code);
}
ROW(cuModuleLoadData, module_image_cases)
ROW(cuModuleLoadFatBinary, module_image_cases)
void cases_cuModuleLoadDataEx(Cases& cases) {
  module_image_cases(cases, [](CUmodule* out, const void* image) { return cuModuleLoadDataEx(out, image, 0, nullptr, nullptr); });
}

void cases_cuModuleGetFunction(Cases& cases) {
  cases.add("of a module", [](World&, Line& line) {
    CUmodule module = nullptr;
    CUfunction out = reinterpret_cast<CUfunction>(kUntouched);
    line.code(cuModuleLoadData(&module, "no code")).code(cuModuleGetFunction(&out, module, "kernel")).handle("out", out);
  });
  cases.add("nulls", [](World&, Line& line) { line.code(cuModuleGetFunction(nullptr, nullptr, nullptr)); });
}

namespace {
/// Variables of what was loaded, and of nothing.
template <class Handle, class Address, class Size>
void variable_cases(Cases& cases, CUresult (*load)(Handle*), CUresult (*find)(Address*, Size*, Handle, const char*)) {
  for (const char* name : {"variable", static_cast<const char*>(nullptr)}) {
    cases.add(name != nullptr ? "by name" : "without a name", [=](World&, Line& line) {
      Handle handle = nullptr;
      Address out = 0;
      Size bytes = 0;
      line.code(load(&handle)).code(find(&out, &bytes, handle, name)).number("found", out != 0 ? 1 : 0).number("bytes", bytes);
      line.code(find(nullptr, nullptr, handle, name));
    });
  }
  cases.add("nulls", [=](World&, Line& line) { line.code(find(nullptr, nullptr, nullptr, nullptr)); });
}
CUresult load_module(CUmodule* out) { return cuModuleLoadData(out, "no code"); }
CUresult load_library(CUlibrary* out) { return cuLibraryLoadData(out, "no code", nullptr, nullptr, 0, nullptr, nullptr, 0); }
}  // namespace

void cases_cuModuleGetGlobal(Cases& cases) { variable_cases(cases, &load_module, &::cuModuleGetGlobal); }
void cases_cuModuleGetGlobal_v2(Cases& cases) { variable_cases(cases, &load_module, &::cuModuleGetGlobal_v2); }
void cases_cuLibraryGetGlobal(Cases& cases) { variable_cases(cases, &load_library, &::cuLibraryGetGlobal); }
void cases_cuLibraryGetManaged(Cases& cases) { variable_cases(cases, &load_library, &::cuLibraryGetManaged); }

void cases_cuLibraryLoadData(Cases& cases) {
  image_cases(cases, [](World&, Line& line, const void* code) {
    CUlibrary out = reinterpret_cast<CUlibrary>(kUntouched);
    say_loaded(line, cuLibraryLoadData(&out, code, nullptr, nullptr, 0, nullptr, nullptr, 0), out);
  });
}
void cases_cuLibraryLoadFromFile(Cases& cases) {
  file_cases(cases, [](World&, Line& line, const char* path) {
    CUlibrary out = reinterpret_cast<CUlibrary>(kUntouched);
    say_loaded(line, cuLibraryLoadFromFile(&out, path, nullptr, nullptr, 0, nullptr, nullptr, 0), out);
  });
}
void cases_cuLibraryGetModule(Cases& cases) {
  cases.add("of a library", [](World&, Line& line) {
    CUlibrary library = nullptr;
    CUmodule out = reinterpret_cast<CUmodule>(kUntouched);
    line.code(cuLibraryLoadData(&library, "no code", nullptr, nullptr, 0, nullptr, nullptr, 0))
        .code(cuLibraryGetModule(&out, library))
        .handle("out", out);
  });
  cases.add("nulls", [](World&, Line& line) { line.code(cuLibraryGetModule(nullptr, nullptr)); });
}
void cases_cuKernelGetFunction(Cases& cases) {
  cases.add("nulls", [](World&, Line& line) {
    CUfunction out = reinterpret_cast<CUfunction>(kUntouched);
    line.code(cuKernelGetFunction(&out, nullptr)).handle("out", out).code(cuKernelGetFunction(nullptr, nullptr));
  });
}
void cases_cuFuncLoad(Cases& cases) {
  cases.add("null", [](World&, Line& line) { line.code(cuFuncLoad(nullptr)); });
}

void cases_cuGraphInstantiate(Cases& cases) {
  instantiation_cases(
      cases, [](CUgraphExec* out, CUgraph graph, unsigned long long, CUstream) { return cuGraphInstantiate(out, graph, nullptr, nullptr, 0); });
}
void cases_cuGraphInstantiate_v2(Cases& cases) {
  instantiation_cases(
      cases, [](CUgraphExec* out, CUgraph graph, unsigned long long, CUstream) { return cuGraphInstantiate_v2(out, graph, nullptr, nullptr, 0); });
}
void cases_cuGraphExecDestroy(Cases& cases) {
  cases.add("of a graph with an allocation", [](World& w, Line& line) {
    CUDA_MEM_ALLOC_NODE_PARAMS parameters;
    std::memset(&parameters, 0, sizeof parameters);
    parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    parameters.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    parameters.bytesize = kMiB;
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    CUgraphExec executable = nullptr;
    line.code(cuGraphCreate(&graph, 0)).code(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &parameters));
    line.code(cuGraphInstantiateWithFlags(&executable, graph, 0))
        .code(cuGraphLaunch(executable, w.stream))
        .code(cuMemFreeAsync(parameters.dptr, w.stream));
    line.code(cuStreamSynchronize(w.stream)).code(cuGraphExecDestroy(executable)).code(cuGraphDestroy(graph)).code(cuDeviceGraphMemTrim(0));
  });
  cases.add("null", [](World&, Line& line) { line.code(cuGraphExecDestroy(nullptr)); });
}
void cases_cuGraphInstantiateWithFlags(Cases& cases) {
  instantiation_cases(
      cases, [](CUgraphExec* out, CUgraph graph, unsigned long long flags, CUstream) { return cuGraphInstantiateWithFlags(out, graph, flags); });
}
ROW(cuGraphInstantiateWithParams, params_cases)
ROW(cuGraphInstantiateWithParams_ptsz, params_cases)
ROW(cuGraphUpload, graph_stream_cases)
ROW(cuGraphUpload_ptsz, graph_stream_cases)
ROW(cuGraphLaunch, graph_stream_cases)
ROW(cuGraphLaunch_ptsz, graph_stream_cases)

void cases_cuGraphAddMemAllocNode(Cases& cases) {
  for (const CUdevice device : {0, 1, 9}) {
    for (const std::size_t bytes : {std::size_t{0}, kMiB, std::size_t{2} * kGiB}) {
      cases.add("device " + std::to_string(device) + ", " + std::to_string(bytes) + " bytes", [=](World& w, Line& line) {
        CUDA_MEM_ALLOC_NODE_PARAMS parameters;
        std::memset(&parameters, 0, sizeof parameters);
        parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        parameters.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        parameters.poolProps.location.id = device;
        parameters.bytesize = bytes;
        CUgraph graph = nullptr;
        CUgraphNode node = reinterpret_cast<CUgraphNode>(kUntouched);
        CUgraphExec executable = nullptr;
        line.code(cuGraphCreate(&graph, 0)).code(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &parameters)).address("address", parameters.dptr);
        line.code(cuGraphInstantiateWithFlags(&executable, graph, 0))
            .code(cuGraphLaunch(executable, w.stream))
            .code(cuMemFreeAsync(parameters.dptr, w.stream));
        line.code(cuGraphLaunch(executable, w.stream)).code(cuMemFree_v2(parameters.dptr)).code(cuMemFree_v2(parameters.dptr));
      });
    }
  }
  cases.add("nulls", [](World&, Line& line) { line.code(cuGraphAddMemAllocNode(nullptr, nullptr, nullptr, 0, nullptr)); });
}

namespace {
/// One allocation node and one that is empty, by the general form of the call.
void general_node_cases(Cases& cases, CUresult (*add)(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, std::size_t count,
                                                      CUgraphNodeParams* parameters)) {
  for (const std::size_t bytes : {std::size_t{0}, kMiB, std::size_t{2} * kGiB}) {
    cases.add(std::to_string(bytes) + " bytes", [=](World& w, Line& line) {
      CUgraphNodeParams parameters;
      std::memset(&parameters, 0, sizeof parameters);
      parameters.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
      parameters.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
      parameters.alloc.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
      parameters.alloc.bytesize = bytes;
      CUgraph graph = nullptr;
      CUgraphNode node = reinterpret_cast<CUgraphNode>(kUntouched), empty = nullptr;
      CUgraphExec executable = nullptr;
      line.code(cuGraphCreate(&graph, 0)).code(add(&node, graph, nullptr, 0, &parameters)).address("address", parameters.alloc.dptr);
      CUgraphNodeParams nothing;
      std::memset(&nothing, 0, sizeof nothing);
      nothing.type = CU_GRAPH_NODE_TYPE_EMPTY;
      line.code(add(&empty, graph, nullptr, 0, &nothing));
      line.code(cuGraphInstantiateWithFlags(&executable, graph, 0))
          .code(cuGraphLaunch(executable, w.stream))
          .code(cuMemFreeAsync(parameters.alloc.dptr, w.stream));
      line.code(cuStreamSynchronize(w.stream)).code(cuGraphExecDestroy(executable)).code(cuGraphDestroy(graph)).code(cuDeviceGraphMemTrim(0));
    });
  }
  cases.add("nulls", [=](World&, Line& line) { line.code(add(nullptr, nullptr, nullptr, 0, nullptr)); });
}
}  // namespace

void cases_cuGraphAddNode(Cases& cases) {
  general_node_cases(cases, [](auto... arguments) { return cuGraphAddNode(arguments...); });
}
void cases_cuGraphAddNode_v2(Cases& cases) {
  general_node_cases(cases, [](CUgraphNode* out, CUgraph graph, const CUgraphNode* after, std::size_t count, CUgraphNodeParams* parameters) {
    return cuGraphAddNode_v2(out, graph, after, nullptr, count, parameters);
  });
}

void cases_cuGraphAddNode_v3(Cases& cases) {
  general_node_cases(cases, [](CUgraphNode* out, CUgraph graph, const CUgraphNode* after, std::size_t count, CUgraphNodeParams* parameters) {
    return cuGraphAddNode_v3(out, graph, after, nullptr, count, parameters);
  });
}

void cases_cuDeviceGraphMemTrim(Cases& cases) {
  for (const CUdevice device : {0, 1, 9, -1})
    cases.add("device " + std::to_string(device), [=](World&, Line& line) { line.code(cuDeviceGraphMemTrim(device)); });
}

}  // namespace battery
