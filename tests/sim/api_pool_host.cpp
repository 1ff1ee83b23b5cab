// Stream-ordered memory of pools on the host, and of managed memory: pages of the host, mapped by the allocation and unmapped when the device has got
// to the free. Nothing is kept for reuse, whatever the threshold says, and no device is charged. Source: CUDA Driver API 13.0, "Stream Ordered Memory
// Allocator". [?] that each place has a default pool without a device's having been asked, which codes refuse a NUMA node that is not there, what
// questions about such an address answer, and that the memory outlives every context.
#include <sys/mman.h>

#include <algorithm>

#include "tests/sim/pool_calls.hpp"

namespace cusim {

CUresult allocate_on_host(Call& c, CUdeviceptr* out, std::size_t bytes, MemoryPool& pool, Stream& stream) {
  *out = 0;
  if (pool.max_bytes != 0 && pool.reserved + bytes > pool.max_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  auto memory = std::make_unique<Allocation>();
  memory->base = as_number(pages);
  memory->bytes = bytes;
  memory->kind = MemoryKind::stream_ordered;
  memory->live = true;
  memory->device = stream.context->device;
  memory->buffer_id = next_buffer_id();
  memory->host = static_cast<std::byte*>(pages);
  memory->pool = &pool;
  memory->available = c.sim.submit(*stream.context, Work{}, c.sim.stream_predecessors(stream), c.lock, &stream.tail);
  pool.used += bytes;
  pool.reserved += bytes;
  pool.used_high = std::max(pool.used_high, pool.used);
  pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
  *out = memory->base;
  c.sim.regions[memory->base] = std::move(memory);
  return CUDA_SUCCESS;
}

}  // namespace cusim
