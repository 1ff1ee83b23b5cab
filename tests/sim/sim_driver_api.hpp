// The simulated driver as the table that the pool takes: the in-process use of tests/sim.
#pragma once

#include "pool/driver/driver_api.hpp"

/// Every row of driver_api.def that CUSIM_DRIVER_VERSION has; newer rows are null. Read again after each cusim_reset().
const cupool::DriverApi& cusim_driver_api();
