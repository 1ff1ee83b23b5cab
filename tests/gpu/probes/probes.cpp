// The list of probes: one row each, in the order in which --list shows them.
#include "tests/gpu/probes/probe.hpp"

// clang-format off
#define PROBES(ROW) \
  ROW(lookups) ROW(codes) ROW(contexts) ROW(green) ROW(pointers) ROW(capture) ROW(ipc) ROW(fork) ROW(exit) ROW(costs) \
  ROW(costs_vmm) ROW(overlap) ROW(waits) ROW(vmm_copies) ROW(stream_ordered) ROW(double_frees) ROW(mempools) ROW(graph_memory) \
  ROW(startup) ROW(lives) ROW(pairs)
// clang-format on

namespace probe {

#define DECLARE(name) void ask_##name(Session&);
PROBES(DECLARE)
#undef DECLARE

const std::vector<Probe>& all_probes() {
#define ROW(name) Probe{#name, ask_##name},
  static const std::vector<Probe> probes = {PROBES(ROW)};
#undef ROW
  return probes;
}

}  // namespace probe
