// Waits of the program, and questions whether the GPU is done: its own call must answer as it does alone, and whatever is done behind it must end no
// capture and lose no error.
#include "battery.hpp"

namespace battery {
namespace {

/// So much that a pool has reason to look at once the program has waited.
constexpr std::size_t kMuch_bytes = 64 * kMiB;

/// A question after a free would find the GPU at work here, where natively the free has waited for it.
enum class Kind { wait, question };

/// `wait` after frees; then everything goes on as it would.
template <class Wait> void add_wait(Cases& cases, const std::string& name, Wait wait, Kind kind = Kind::wait) {
  cases.add(name, [=](World& w, Line& line) { line.code(wait(w)); });
  cases.add(name + ", after a large free", [=](World& w, Line& line) {
    CUdeviceptr much = kUntouched;
    CUdeviceptr again = kUntouched;
    if (kind == Kind::question) let_gpu_finish();
    line.code(cuMemAlloc_v2(&much, kMuch_bytes)).code(cuMemFree_v2(much)).code(cuMemFree_v2(w.small)).code(wait(w));
    line.code(cuMemAlloc_v2(&again, kMuch_bytes)).memory("again", again).code(wait(w)).code(cuMemFree_v2(again));
    for (const CUstream stream : {w.stream, w.second_stream}) {
      CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
      line.code(cuStreamIsCapturing(stream, &status)).number("status", status);
    }
  });
}

template <class Wait> void stream_wait_cases(Cases& cases, Wait wait, Kind what = Kind::wait) {
  for (const StreamKind& kind : stream_kinds())
    add_wait(
        cases, kind.name, [=, &kind](const World& w) { return wait(kind.of(w)); }, what);
}

template <class Wait> void context_wait_cases(Cases& cases, Wait wait) {
  for (const ContextKind& kind : context_kinds()) add_wait(cases, kind.name, [=, &kind](const World& w) { return wait(kind.of(w)); });
}

/// `wait` for an event recorded in `stream`, or (`is_recorded` false) never.
template <class Wait> CUresult wait_for_event_in(CUstream stream, bool is_recorded, Wait wait) {
  CUevent event = nullptr;
  if (const CUresult created = cuEventCreate(&event, CU_EVENT_DISABLE_TIMING); created != CUDA_SUCCESS) return created;
  const CUresult recorded = is_recorded ? cuEventRecord(event, stream) : CUDA_SUCCESS;
  const CUresult waited = wait(event);
  const CUresult destroyed = cuEventDestroy_v2(event);
  if (recorded != CUDA_SUCCESS) return recorded;
  return waited != CUDA_SUCCESS ? waited : destroyed;
}

template <class Wait> void host_wait_cases(Cases& cases, Wait wait, Kind what = Kind::wait) {
  add_wait(
      cases, "null event", [=](const World&) { return wait(nullptr); }, what);
  add_wait(
      cases, "never recorded", [=](const World&) { return wait_for_event_in(nullptr, false, wait); }, what);
  for (const StreamKind& kind : stream_kinds()) {
    add_wait(
        cases, std::string("in ") + kind.name, [=, &kind](const World& w) { return wait_for_event_in(kind.of(w), true, wait); }, what);
  }
}

}  // namespace

void cases_cuCtxSynchronize(Cases& cases) {
  add_wait(cases, "current", [](const World&) { return cuCtxSynchronize(); });
}
void cases_cuCtxSynchronize_v2(Cases& cases) { context_wait_cases(cases, cuCtxSynchronize_v2); }
void cases_cuStreamSynchronize(Cases& cases) { stream_wait_cases(cases, cuStreamSynchronize); }
void cases_cuStreamSynchronize_ptsz(Cases& cases) { stream_wait_cases(cases, cuStreamSynchronize_ptsz); }
void cases_cuEventSynchronize(Cases& cases) { host_wait_cases(cases, cuEventSynchronize); }
void cases_cuStreamQuery(Cases& cases) { stream_wait_cases(cases, cuStreamQuery, Kind::question); }
void cases_cuStreamQuery_ptsz(Cases& cases) { stream_wait_cases(cases, cuStreamQuery_ptsz, Kind::question); }
void cases_cuEventQuery(Cases& cases) { host_wait_cases(cases, cuEventQuery, Kind::question); }

}  // namespace battery
