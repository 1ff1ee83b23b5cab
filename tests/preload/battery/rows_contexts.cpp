// Contexts, green contexts, peers, streams and captures.
#include <cstring>

#include "rows.hpp"

namespace battery {
namespace {

/// What a new context is worth: a block in it, and what is said about it; then it goes.
void try_context(World& w, Line& line, CUcontext context) {
  CUdeviceptr block = kUntouched;
  CUdevice device = -1;
  line.handle("context", context).code(cuCtxGetDevice(&device)).number("device", static_cast<std::uint64_t>(device));
  line.code(cuMemAlloc_v2(&block, kMiB)).memory("block", block).code(cuMemFree_v2(block));
  line.code(cuCtxDestroy_v2(context)).memory("w.block", w.block);
}

template <class Call> void creation_cases(Cases& cases, Call create) {
  for (CUdevice device : {0, 1, 2, -1}) {
    for (unsigned flags : {0U, static_cast<unsigned>(CU_CTX_SCHED_BLOCKING_SYNC), 0x8000U}) {
      cases.add("device " + std::to_string(device) + ", flags " + std::to_string(flags), [=](World& w, Line& line) {
        CUcontext out = reinterpret_cast<CUcontext>(kUntouched);
        const CUresult result = create(&out, flags, device);
        line.code(result);
        if (result == CUDA_SUCCESS) try_context(w, line, out);
        else line.handle("out", out);
      });
    }
  }
  cases.add("null output", [=](World&, Line& line) { line.code(create(nullptr, 0, 0)); });
}

/// After a context may have ended: what is left of the memory of each.
void say_memory(World& w, Line& line) {
  for (CUdeviceptr address : {w.block, w.stream_block, w.plain_pool_block, w.block_of_other, w.block_elsewhere}) {
    std::uint64_t bytes = kUntouched;
    line.code(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address)).number("bytes", bytes);
  }
  line.code(cuMemFree_v2(w.block)).code(cuMemFree_v2(w.block_of_other));
}

template <class Call> void destruction_cases(Cases& cases, Call destroy) {
  for (const ContextKind& kind : context_kinds()) {
    cases.add(kind.name, [=, &kind](World& w, Line& line) {
      line.code(destroy(kind.of(w)));
      say_memory(w, line);
    });
    cases.add(std::string(kind.name) + ", twice", [=, &kind](World& w, Line& line) { line.code(destroy(kind.of(w))).code(destroy(kind.of(w))); });
  }
}

template <class Call> void primary_end_cases(Cases& cases, Call end) {
  for (CUdevice device : {0, 1, 2, -1}) {
    cases.add("device " + std::to_string(device), [=](World& w, Line& line) {
      line.code(end(device));
      say_memory(w, line);
    });
    cases.add("device " + std::to_string(device) + ", twice", [=](World&, Line& line) { line.code(end(device)).code(end(device)); });
    cases.add("device " + std::to_string(device) + ", retained twice", [=](World& w, Line& line) {
      CUcontext context = nullptr;
      line.code(cuDevicePrimaryCtxRetain(&context, device)).code(end(device));
      say_memory(w, line);
    });
    cases.add("device " + std::to_string(device) + ", and again", [=](World&, Line& line) {
      CUcontext context = nullptr;
      CUdeviceptr block = kUntouched;
      line.code(end(device)).code(cuDevicePrimaryCtxRetain(&context, device)).code(cuCtxSetCurrent(context));
      line.code(cuMemAlloc_v2(&block, kMiB)).memory("block", block);
    });
  }
}

template <class Call> void peer_cases(Cases& cases, Call change) {
  for (const ContextKind& kind : context_kinds()) {
    cases.add(kind.name, [=, &kind](World& w, Line& line) {
      line.code(change(kind.of(w)));
      line.code(cuCtxEnablePeerAccess(kind.of(w), 0)).code(change(kind.of(w))).code(change(kind.of(w)));
      line.code(cuCtxDisablePeerAccess(kind.of(w))).code(cuCtxDisablePeerAccess(kind.of(w)));
    });
  }
}

/// The three modes, and one that is none.
constexpr std::pair<const char*, CUstreamCaptureMode> kModes[] = {{"global", CU_STREAM_CAPTURE_MODE_GLOBAL},
                                                                  {"thread", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
                                                                  {"relaxed", CU_STREAM_CAPTURE_MODE_RELAXED},
                                                                  {"unknown", static_cast<CUstreamCaptureMode>(9)}};

/// Inside the capture: what is allocated, freed and asked; then its end.
template <class End> void use_capture(World& w, Line& line, CUstream stream, End end) {
  CUdeviceptr in_graph = kUntouched;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  line.code(cuMemAllocAsync(&in_graph, kMiB, stream)).address("in graph", in_graph).code(cuMemFreeAsync(in_graph, stream));
  line.code(cuStreamIsCapturing(stream, &status)).number("status", status);
  CUgraph graph = reinterpret_cast<CUgraph>(kUntouched);
  line.code(end(stream, &graph)).handle("graph", graph).code(end(stream, &graph)).handle("graph", graph);
  static_cast<void>(w);
}

template <class Begin, class End> void capture_cases(Cases& cases, Begin begin, End end) {
  for (const StreamKind& kind : stream_kinds()) {
    for (const auto& [name, mode] : kModes) {
      cases.add(std::string(kind.name) + ", " + name, [=, mode = mode, &kind](World& w, Line& line) {
        line.code(begin(kind.of(w), mode));
        use_capture(w, line, kind.of(w), end);
      });
    }
    cases.add(std::string(kind.name) + ", twice", [=, &kind](World& w, Line& line) {
      line.code(begin(kind.of(w), CU_STREAM_CAPTURE_MODE_RELAXED)).code(begin(kind.of(w), CU_STREAM_CAPTURE_MODE_RELAXED));
      use_capture(w, line, kind.of(w), end);
    });
  }
  cases.add("with frees inside", [=](World& w, Line& line) {
    line.code(begin(w.stream, CU_STREAM_CAPTURE_MODE_RELAXED)).code(cuMemFree_v2(w.block)).code(cuMemFreeAsync(w.stream_block, w.second_stream));
    use_capture(w, line, w.stream, end);
  });
}

template <class End> void end_cases(Cases& cases, End end) {
  for (const StreamKind& kind : stream_kinds()) {
    cases.add(std::string(kind.name) + ", nothing captured", [=, &kind](World& w, Line& line) {
      CUgraph graph = reinterpret_cast<CUgraph>(kUntouched);
      line.code(end(kind.of(w), &graph)).handle("graph", graph);
    });
    cases.add(std::string(kind.name) + ", null output", [=, &kind](World& w, Line& line) { line.code(end(kind.of(w), nullptr)); });
    cases.add(std::string(kind.name) + ", captured", [=, &kind](World& w, Line& line) {
      CUgraph graph = reinterpret_cast<CUgraph>(kUntouched);
      line.code(cuStreamBeginCapture_v2(kind.of(w), CU_STREAM_CAPTURE_MODE_RELAXED)).code(end(kind.of(w), nullptr));
      line.code(end(kind.of(w), &graph)).handle("graph", graph);
    });
  }
}

template <class Destroy> void stream_end_cases(Cases& cases, Destroy destroy) {
  for (const StreamKind& kind : stream_kinds()) {
    cases.add(kind.name, [=, &kind](World& w, Line& line) {
      line.code(destroy(kind.of(w))).memory("stream block", w.stream_block);
      line.code(cuMemFreeAsync(w.stream_block, kind.of(w))).code(cuMemFreeAsync(w.stream_block, w.second_stream));
    });
    cases.add(std::string(kind.name) + ", twice", [=, &kind](World& w, Line& line) { line.code(destroy(kind.of(w))).code(destroy(kind.of(w))); });
  }
  cases.add("with a free in it", [=](World& w, Line& line) {
    CUdeviceptr block = kUntouched;
    line.code(cuMemFreeAsync(w.stream_block, w.stream)).code(destroy(w.stream));
    line.code(cuMemAllocAsync(&block, kMiB, w.second_stream)).number("given", block != kUntouched);
  });
}

/// The stream may come into a capture by it, and a free of then is to end none.
template <class Wait> void event_wait_cases(Cases& cases, Wait wait) {
  for (const StreamKind& kind : stream_kinds()) {
    for (const bool is_captured : {false, true}) {
      const std::string name = std::string(kind.name) + (is_captured ? ", for one that captures" : "");
      cases.add(name, [=, &kind](World& w, Line& line) {
        CUevent event = nullptr;
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
        const CUresult created = cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
        line.code(created).code(cuEventRecord(event, is_captured ? w.second_stream : w.stream)).code(wait(kind.of(w), event, 0));
        line.code(cuMemFree_v2(w.block)).code(cuStreamIsCapturing(kind.of(w), &status)).number("status", status);
        line.code(cuStreamIsCapturing(w.second_stream, &status)).number("status of second", status);
      });
    }
    cases.add(std::string(kind.name) + ", null event", [=, &kind](World& w, Line& line) { line.code(wait(kind.of(w), nullptr, 0)); });
  }
}

CUdevResourceDesc describe(CUdevice device) {
  CUdevResource resource;
  CUdevResourceDesc description = nullptr;
  std::memset(&resource, 0, sizeof resource);
  static_cast<void>(cuDeviceGetDevResource(device, &resource, CU_DEV_RESOURCE_TYPE_SM));
  static_cast<void>(cuDevResourceGenerateDesc(&description, &resource, 1));
  return description;
}

void use_green(World& w, Line& line, CUgreenCtx green) {
  CUcontext context = nullptr;
  CUdeviceptr block = kUntouched;
  line.code(cuCtxFromGreenCtx(&context, green)).handle("context", context).code(cuCtxPushCurrent_v2(context));
  line.code(cuMemAlloc_v2(&block, kMiB)).memory("block", block).code(cuCtxPopCurrent_v2(&context)).code(cuGreenCtxDestroy(green));
  line.memory("after", block).code(cuMemFree_v2(block));
  if (w.situation != Situation::destroyed) line.memory("w.block", w.block);
}

}  // namespace

ROW(cuCtxCreate, creation_cases)
ROW(cuCtxCreate_v2, creation_cases)
ROW(cuGLCtxCreate, creation_cases)
ROW(cuGLCtxCreate_v2, creation_cases)
void cases_cuVDPAUCtxCreate(Cases& cases) {
  creation_cases(cases, [](CUcontext* out, unsigned flags, CUdevice device) { return cuVDPAUCtxCreate(out, flags, device, 1, nullptr); });
}
void cases_cuVDPAUCtxCreate_v2(Cases& cases) {
  creation_cases(cases, [](CUcontext* out, unsigned flags, CUdevice device) { return cuVDPAUCtxCreate_v2(out, flags, device, 1, nullptr); });
}
void cases_cuCtxCreate_v3(Cases& cases) {
  creation_cases(cases, [](CUcontext* out, unsigned flags, CUdevice device) { return cuCtxCreate_v3(out, nullptr, 0, flags, device); });
}
void cases_cuCtxCreate_v4(Cases& cases) {
  creation_cases(cases, [](CUcontext* out, unsigned flags, CUdevice device) { return cuCtxCreate_v4(out, nullptr, flags, device); });
}
ROW(cuCtxDestroy, destruction_cases)
ROW(cuCtxDestroy_v2, destruction_cases)
ROW(cuCtxDetach, destruction_cases)
ROW(cuDevicePrimaryCtxRelease, primary_end_cases)
ROW(cuDevicePrimaryCtxRelease_v2, primary_end_cases)
ROW(cuDevicePrimaryCtxReset, primary_end_cases)
ROW(cuDevicePrimaryCtxReset_v2, primary_end_cases)

void cases_cuDevicePrimaryCtxRetain(Cases& cases) {
  for (CUdevice device : {0, 1, 2, -1}) {
    cases.add("device " + std::to_string(device), [device](World&, Line& line) {
      CUcontext out = reinterpret_cast<CUcontext>(kUntouched);
      CUdeviceptr block = kUntouched;
      line.code(cuDevicePrimaryCtxRetain(&out, device)).handle("context", out).code(cuCtxSetCurrent(out));
      line.code(cuMemAlloc_v2(&block, kMiB)).memory("block", block).code(cuDevicePrimaryCtxRelease_v2(device)).code(cuMemFree_v2(block));
    });
    cases.add("device " + std::to_string(device) + ", null", [device](World&, Line& line) { line.code(cuDevicePrimaryCtxRetain(nullptr, device)); });
  }
}

void cases_cuGreenCtxCreate(Cases& cases) {
  for (CUdevice device : {0, 1, 2, -1}) {
    for (unsigned flags : {static_cast<unsigned>(CU_GREEN_CTX_DEFAULT_STREAM), 0U}) {
      cases.add("device " + std::to_string(device) + ", flags " + std::to_string(flags), [=](World& w, Line& line) {
        CUgreenCtx out = reinterpret_cast<CUgreenCtx>(kUntouched);
        const CUresult result = cuGreenCtxCreate(&out, describe(device), device, flags);
        line.code(result).handle("out", out);
        if (result == CUDA_SUCCESS) use_green(w, line, out);
      });
    }
    cases.add("device " + std::to_string(device) + ", description of another", [=](World&, Line& line) {
      CUgreenCtx out = reinterpret_cast<CUgreenCtx>(kUntouched);
      line.code(cuGreenCtxCreate(&out, describe(1 - device), device, CU_GREEN_CTX_DEFAULT_STREAM)).handle("out", out);
    });
  }
  cases.add("null output", [](World&, Line& line) { line.code(cuGreenCtxCreate(nullptr, describe(0), 0, CU_GREEN_CTX_DEFAULT_STREAM)); });
  cases.add("null description", [](World&, Line& line) {
    CUgreenCtx out = reinterpret_cast<CUgreenCtx>(kUntouched);
    line.code(cuGreenCtxCreate(&out, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM)).handle("out", out);
  });
}

void cases_cuGreenCtxDestroy(Cases& cases) {
  cases.add("null", [](World&, Line& line) { line.code(cuGreenCtxDestroy(nullptr)); });
  cases.add("green", [](World& w, Line& line) {
    line.code(cuGreenCtxDestroy(w.green));
    say_memory(w, line);
  });
  cases.add("twice", [](World& w, Line& line) { line.code(cuGreenCtxDestroy(w.green)).code(cuGreenCtxDestroy(w.green)); });
  cases.add("as the last holder", [](World& w, Line& line) {
    CUgreenCtx green = nullptr;
    line.code(cuGreenCtxCreate(&green, describe(w.device), w.device, CU_GREEN_CTX_DEFAULT_STREAM)).code(cuDevicePrimaryCtxRelease_v2(w.device));
    line.code(cuGreenCtxDestroy(green));
    say_memory(w, line);
  });
}

void cases_cuCtxFromGreenCtx(Cases& cases) {
  cases.add("null", [](World&, Line& line) {
    CUcontext out = reinterpret_cast<CUcontext>(kUntouched);
    line.code(cuCtxFromGreenCtx(&out, nullptr)).handle("out", out);
  });
  cases.add("green", [](World& w, Line& line) {
    CUcontext out = reinterpret_cast<CUcontext>(kUntouched);
    line.code(cuCtxFromGreenCtx(&out, w.green)).handle("out", out).code(cuCtxFromGreenCtx(nullptr, w.green));
  });
  cases.add("destroyed", [](World& w, Line& line) {
    CUcontext out = reinterpret_cast<CUcontext>(kUntouched);
    line.code(cuGreenCtxDestroy(w.green)).code(cuCtxFromGreenCtx(&out, w.green)).handle("out", out);
  });
}

void cases_cuCtxEnablePeerAccess(Cases& cases) {
  peer_cases(cases, [](CUcontext peer) { return cuCtxEnablePeerAccess(peer, 0); });
  cases.add("flags", [](World& w, Line& line) { line.code(cuCtxEnablePeerAccess(w.elsewhere, 1)).code(cuCtxDisablePeerAccess(w.elsewhere)); });
}
ROW(cuCtxDisablePeerAccess, peer_cases)

#define CAPTURE_ROW(begin, end) \
  void cases_##begin(Cases& cases) { capture_cases(cases, &::begin, &::end); }
void cases_cuStreamBeginCapture(Cases& cases) {  // of CUDA 10.0: no mode
  capture_cases(
      cases, [](CUstream stream, CUstreamCaptureMode) { return cuStreamBeginCapture(stream); }, &cuStreamEndCapture);
}
void cases_cuStreamBeginCapture_ptsz(Cases& cases) {
  capture_cases(
      cases, [](CUstream stream, CUstreamCaptureMode) { return cuStreamBeginCapture_ptsz(stream); }, &cuStreamEndCapture_ptsz);
}
CAPTURE_ROW(cuStreamBeginCapture_v2, cuStreamEndCapture)
CAPTURE_ROW(cuStreamBeginCapture_v2_ptsz, cuStreamEndCapture_ptsz)

template <class BeginToGraph, class End> void to_graph_cases(Cases& cases, BeginToGraph begin, End end) {
  static CUgraph target = nullptr;
  capture_cases(
      cases,
      [begin](CUstream stream, CUstreamCaptureMode mode) {
        if (const CUresult result = cuGraphCreate(&target, 0); result != CUDA_SUCCESS) return result;
        return begin(stream, target, nullptr, nullptr, 0, mode);
      },
      end);
  cases.add("null graph",
            [begin](World& w, Line& line) { line.code(begin(w.stream, nullptr, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED)); });
}
void cases_cuStreamBeginCaptureToGraph(Cases& cases) { to_graph_cases(cases, &cuStreamBeginCaptureToGraph, &cuStreamEndCapture); }
void cases_cuStreamBeginCaptureToGraph_ptsz(Cases& cases) { to_graph_cases(cases, &cuStreamBeginCaptureToGraph_ptsz, &cuStreamEndCapture_ptsz); }

template <class BeginRecapture, class End> void recapture_cases(Cases& cases, BeginRecapture begin, End end) {
  static CUgraph target = nullptr;
  capture_cases(
      cases,
      [begin](CUstream stream, CUstreamCaptureMode mode) {
        if (const CUresult result = cuGraphCreate(&target, 0); result != CUDA_SUCCESS) return result;
        return begin(stream, mode, target, nullptr, nullptr);
      },
      end);
  cases.add("null graph", [begin](World& w, Line& line) { line.code(begin(w.stream, CU_STREAM_CAPTURE_MODE_RELAXED, nullptr, nullptr, nullptr)); });
}
void cases_cuStreamBeginRecaptureToGraph(Cases& cases) { recapture_cases(cases, &cuStreamBeginRecaptureToGraph, &cuStreamEndCapture); }
void cases_cuStreamBeginRecaptureToGraph_ptsz(Cases& cases) { recapture_cases(cases, &cuStreamBeginRecaptureToGraph_ptsz, &cuStreamEndCapture_ptsz); }

/// Captures into a graphics command list are refused where there is no such graphics.
#define CIG_ROWS(suffix)                                                                                                       \
  void cases_cuStreamBeginCaptureToCig##suffix(Cases& cases) {                                                                 \
    cases.add("no parameters", [](World& w, Line& line) { line.code(cuStreamBeginCaptureToCig##suffix(w.stream, nullptr)); }); \
  }                                                                                                                            \
  void cases_cuStreamEndCaptureToCig##suffix(Cases& cases) {                                                                   \
    cases.add("not begun", [](World& w, Line& line) { line.code(cuStreamEndCaptureToCig##suffix(w.stream)); });                \
  }
CIG_ROWS()
CIG_ROWS(_ptsz)

ROW(cuStreamEndCapture, end_cases)
ROW(cuStreamEndCapture_ptsz, end_cases)
ROW(cuStreamWaitEvent, event_wait_cases)
ROW(cuStreamWaitEvent_ptsz, event_wait_cases)
ROW(cuStreamDestroy, stream_end_cases)
ROW(cuStreamDestroy_v2, stream_end_cases)

}  // namespace battery
