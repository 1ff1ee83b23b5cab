// What the files of memory pools share.
#pragma once

#include "tests/sim/call.hpp"

namespace cusim {

/// Can a pool (or an allocation node) have these properties? Tells the place of its memory.
CUresult check_pool_properties(Call& c, const CUmemPoolProps& properties, PoolPlace* place);

/// The place of a pool that a location and a type name. Does not check whether there is such a device.
CUresult check_place(Call& c, const CUmemLocation* location, CUmemAllocationType type, PoolPlace* out);

/// Stream-ordered memory from a pool of pages of the host (api_pool_host.cpp).
CUresult allocate_on_host(Call& c, CUdeviceptr* out, std::size_t bytes, MemoryPool& pool, Stream& stream);

}  // namespace cusim
