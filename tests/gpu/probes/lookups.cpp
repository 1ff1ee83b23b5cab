// Does cuGetProcAddress return the pointer that dlsym gives? Asked for every row of shim/entry_points.def, in both
// forms and with both stream flags: the pool's table of hooks is keyed by that pointer.
#include <algorithm>

#include "tests/gpu/probes/probe.hpp"

namespace probe {
namespace {

struct Row {
  const char* name;
  const char* symbol;
  int since;
};

const Row kRows[] = {
#define HOOK(name, symbol, since, role, method) {#name, #symbol, since},
#include "shim/entry_points.def"
#undef HOOK
};

bool is_per_thread(std::string_view symbol) {
  const std::string_view end = symbol.substr(symbol.size() - std::min<std::size_t>(symbol.size(), 5));
  return end == "_ptsz" || end == "_ptds";
}

/// What one lookup gave, beside dlsym's answer.
std::string compare(CUresult code, void* found, void* expected) {
  if (code != CUDA_SUCCESS) return error_name(code);
  if (found == nullptr) return "NULL";
  if (expected == nullptr) return "a function that dlsym does not know";
  return found == expected ? "same" : "another pointer";
}

void ask_row(const Row& row, int driver_version, int& same, int& asked) {
  void* expected = find_symbol(row.symbol);
  if (row.since > driver_version) return leave_out(row.symbol, "newer than this driver");
  const cuuint64_t flags = is_per_thread(row.symbol) ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
  void* first = nullptr;
  void* second = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  const CUresult code = CU(cuGetProcAddress)(row.name, &first, row.since, flags);
  const CUresult code_of_v2 = CU(cuGetProcAddress_v2)(row.name, &second, row.since, flags, &status);
  const std::string v1 = compare(code, first, expected);
  const std::string v2 = compare(code_of_v2, second, expected);
  answer(std::string(row.symbol) + ": cuGetProcAddress(" + row.name + ", " + std::to_string(row.since) + ") against dlsym",
         v1 == v2 ? v1 : v1 + "; v2: " + v2, "same");
  asked += 1;
  same += v1 == "same" && v2 == "same" ? 1 : 0;
}

void ask_unknown() {
  void* found = nullptr;
  answer("cuGetProcAddress of an unknown name", CU(cuGetProcAddress)("cuNoSuchFunction", &found, 12000, 0));
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  found = nullptr;
  answer("cuGetProcAddress_v2 of an unknown name", CU(cuGetProcAddress_v2)("cuNoSuchFunction", &found, 12000, 0, &status), CUDA_SUCCESS);
  answer("cuGetProcAddress_v2 of an unknown name: status (1: not found)", static_cast<int>(status), 1);
  CU(cuGetProcAddress_v2)("cuMemAllocAsync", &found, 10000, 0, &status);
  answer("cuGetProcAddress_v2 with too low a version: status (2: not sufficient)", static_cast<int>(status), 2);
}

/// The newest variant of all rows, which no driver that was asked had: from which version on it is given.
void ask_later_variant(int driver_version) {
  constexpr int kSince = 13040;
  void* const variant = driver_version >= kSince ? find_symbol("cuGraphAddNode_v3") : nullptr;
  if (variant == nullptr) return leave_out("cuGraphAddNode_v3", "this driver has none");
  int since = 0;
  for (int version = 12030; version <= driver_version && since == 0; version += 10) {
    void* found = nullptr;
    if (CU(cuGetProcAddress)("cuGraphAddNode", &found, version, 0) == CUDA_SUCCESS && found == variant) since = version;
  }
  answer("cuGraphAddNode_v3 is what cuGetProcAddress gives from version", since, kSince);
}

}  // namespace

void ask_lookups(Session&) {
  int version = 0, same = 0, asked = 0;
  prepare(CU(cuDriverGetVersion)(&version), "cuDriverGetVersion");
  for (const Row& row : kRows) ask_row(row, version, same, asked);
  answer("rows whose pointer is dlsym's", same, asked);
  ask_later_variant(version);
  ask_unknown();
}

}  // namespace probe
