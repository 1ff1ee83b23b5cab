// How graph memory gets its address, its bytes and its two lives.
#include "tests/sim/graph_memory.hpp"

#include <algorithm>

#include "tests/sim/simulator.hpp"

namespace cusim {
namespace {

/// True when there was any.
bool release_vacant(Device& device) {
  GraphPool& pool = device.graph_pool;
  if (pool.vacant.empty()) return false;
  for (const auto& [bytes, backing] : pool.vacant) {
    pool.reserved -= bytes;
    device.memory.release(backing);
  }
  pool.vacant.clear();
  return true;
}

}  // namespace

std::shared_ptr<GraphMemory> Simulator::create_graph_memory(Context& context, int device, std::size_t bytes) {
  if (bytes > kReservationAreaBytes) return nullptr;
  auto memory = std::make_shared<GraphMemory>();
  memory->reserved_bytes = whole_granules(bytes);
  memory->base = address_space->take(memory->reserved_bytes, kGranuleBytes, 0);
  if (memory->base == 0) return nullptr;
  memory->bytes = bytes;
  memory->device = device;
  memory->context = &context;
  auto region = std::make_unique<Allocation>();
  region->base = memory->base;
  region->bytes = bytes;
  region->kind = MemoryKind::graph;
  region->live = true;
  region->device = device;
  region->buffer_id = next_buffer_id();
  region->graph = memory.get();
  adopt(*region, context);
  regions.emplace(memory->base, std::move(region));
  graph_memory.push_back(memory);
  return memory;
}

std::shared_ptr<GraphMemory> Simulator::find_graph_memory(CUdeviceptr base) {
  for (const auto& memory : graph_memory) {
    if (memory->base == base && memory->context != nullptr) return memory;
  }
  return nullptr;
}

bool Simulator::back_graph_memory(GraphMemory& memory) {
  if (memory.backing != nullptr) return true;
  Device& device = *devices[static_cast<std::size_t>(memory.device)];
  GraphPool& pool = device.graph_pool;
  const std::size_t bytes = whole_granules(memory.bytes);
  if (const auto vacant = pool.vacant.find(bytes); vacant != pool.vacant.end()) {
    memory.backing = vacant->second;
    pool.vacant.erase(vacant);
  } else {
    memory.backing = device.memory.allocate(bytes);
    if (memory.backing == nullptr && give_back_unused(memory.device)) memory.backing = device.memory.allocate(bytes);
    if (memory.backing == nullptr) return false;
    pool.reserved += bytes;
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
  }
  memory.backing->touched = true;
  Allocation& region = *regions.at(memory.base);
  region.file_offset = memory.backing->file_offset;
  pool.used_high = std::max(pool.used_high, graph_bytes_in_use(memory.device));
  return true;
}

std::uint64_t Simulator::graph_bytes_in_use(int device) const {
  std::uint64_t used = 0;
  for (const auto& memory : graph_memory) {
    if (memory->device == device && memory->backing != nullptr) used += memory->backing->bytes;
  }
  return used;
}

void Simulator::end_graph_memory(GraphMemory& memory) {
  memory.context = nullptr;
  memory.live = false;
  memory.on_device = false;
  if (memory.backing == nullptr) return;
  Device& device = *devices[static_cast<std::size_t>(memory.device)];
  device.graph_pool.vacant.emplace(memory.backing->bytes, memory.backing);
  memory.backing = nullptr;
}

void Simulator::sweep_graph_memory() {
  std::erase_if(graph_memory, [this](const std::shared_ptr<GraphMemory>& memory) {
    // Held by no node of a graph or an executable one, nor by work in flight.
    if (memory.use_count() > 1 || memory->is_busy()) return false;
    if (memory->context != nullptr) {
      Allocation& region = *regions.at(memory->base);
      end_graph_memory(*memory);
      disown(region);
      regions.erase(memory->base);
    }
    address_space->give(memory->base, memory->reserved_bytes);
    return true;
  });
}

void Simulator::trim_graph_memory(int ordinal) {
  sweep_graph_memory();
  Device& device = *devices[static_cast<std::size_t>(ordinal)];
  GraphPool& pool = device.graph_pool;
  for (const auto& memory : graph_memory) {
    if (memory->device != ordinal || memory->backing == nullptr || memory->is_busy()) continue;
    pool.vacant.emplace(memory->backing->bytes, memory->backing);
    memory->backing = nullptr;
  }
  release_vacant(device);
}

bool Simulator::give_back_unused(int ordinal) {
  sweep_graph_memory();
  const bool any = release_vacant(*devices[static_cast<std::size_t>(ordinal)]);
  return trim_pools(ordinal) || any;
}

}  // namespace cusim
