// Fills DriverApi from the simulated driver's own exports. In-process only: not part of sim/libcuda.so.1.
#include "tests/sim/sim_driver_api.hpp"

#include "tests/sim/simulator.hpp"

namespace {

/// `since` is what libcuda says (exports.def), not what the pool believes.
bool exists(cusim::Symbol symbol, const cusim::Settings& settings) {
  const cusim::SymbolRow& row = cusim::symbol_row(symbol);
  return row.since <= settings.driver_version && !cusim::is_missing(settings.missing.c_str(), row.base);
}

}  // namespace

const cupool::DriverApi& cusim_driver_api() {
  static cupool::DriverApi api;
  cusim::Simulator& sim = cusim::Simulator::instance();
  const std::lock_guard guard(sim.mutex);
#define DRIVER_CALL(symbol, since, need) api.symbol = exists(cusim::Symbol::symbol, sim.settings) ? &::symbol : nullptr;
#include "pool/driver/driver_api.def"
#undef DRIVER_CALL
  return api;
}
