// cuGetProcAddress in both forms, and error names. Source: CUDA Driver API 13.0, "Driver Entry Point Access".
#include <array>
#include <cstring>

#include "tests/sim/call.hpp"

using namespace cusim;

namespace {

CUresult look_up(Symbol symbol, const char* name, void** out, int requested, cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  return call(
      symbol,
      [&](Call& c) -> CUresult {
        constexpr cuuint64_t kKnown = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
        if (name == nullptr || out == nullptr || (flags & ~kKnown) != 0 || flags == kKnown) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        if (requested > c.sim.settings.driver_version) return CUDA_ERROR_INVALID_VALUE;
        const bool per_thread_streams = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
        const bool is_there = !is_missing(c.sim.settings.missing.c_str(), name);
        const SearchResult found = is_there ? search_symbol(name, requested, c.sim.settings.driver_version, per_thread_streams)
                                            : SearchResult{SearchStatus::unknown_name, nullptr};
        *out = found.row != nullptr ? found.row->entry : nullptr;
        if (status != nullptr) {
          *status = found.status == SearchStatus::found          ? CU_GET_PROC_ADDRESS_SUCCESS
                    : found.status == SearchStatus::unknown_name ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
                                                                 : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        }
        // The form that tells a status succeeds, the older one says it by its code: an H100, driver 580.
        return found.row == nullptr && symbol == Symbol::cuGetProcAddress ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
      },
      false);
}

struct ErrorText {
  CUresult code;
  const char* name;
  const char* text;
};

// The errors that the simulated driver can return, and the ones tests inject.
constexpr ErrorText kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_UNSUPPORTED_LIMIT, "CUDA_ERROR_UNSUPPORTED_LIMIT", "limit is not supported on this architecture"},
    {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
    {CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

CUresult describe(Symbol symbol, CUresult code, const char** out, const char* ErrorText::*field) {
  return call(
      symbol,
      [&](Call&) -> CUresult {
        if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *out = nullptr;
        for (const ErrorText& error : kErrors) {
          if (error.code == code) *out = error.*field;
        }
        return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
      },
      false);
}

}  // namespace

extern "C" {

CUresult cuGetProcAddress(const char* name, void** out, int version, cuuint64_t flags) {
  return look_up(Symbol::cuGetProcAddress, name, out, version, flags, nullptr);
}
CUresult cuGetProcAddress_v2(const char* name, void** out, int version, cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  return look_up(Symbol::cuGetProcAddress_v2, name, out, version, flags, status);
}
CUresult cuGetErrorName(CUresult code, const char** out) { return describe(Symbol::cuGetErrorName, code, out, &ErrorText::name); }
CUresult cuGetErrorString(CUresult code, const char** out) { return describe(Symbol::cuGetErrorString, code, out, &ErrorText::text); }

/// The private tables behind it are not modelled: a runtime that needs them stops here, which it would natively not.
CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  return call(
      Symbol::cuGetExportTable,
      [&](Call&) -> CUresult {
        if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *table = nullptr;
        return CUDA_ERROR_NOT_FOUND;
      },
      false);
}

}  // extern "C"
