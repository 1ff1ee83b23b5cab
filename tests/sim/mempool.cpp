// Pools of stream-ordered memory.
#include "tests/sim/simulator.hpp"

namespace cusim {

void Simulator::return_to_pool(Allocation&, const OperationPtr&) {}
bool Simulator::trim_pools(int) { return false; }

}  // namespace cusim
