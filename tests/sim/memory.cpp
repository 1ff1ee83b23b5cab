// Finding memory by address, moving its bytes, and who may touch it.
#include <unistd.h>

#include <cstring>

#include "tests/sim/simulator.hpp"

namespace cusim {
namespace {

std::string hex(CUdeviceptr address) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", address);
  return text;
}

bool transfer_file(const Allocation& memory, std::uint64_t offset, void* buffer, std::size_t bytes, bool is_write) {
  auto* at = static_cast<std::byte*>(buffer);
  auto position = static_cast<off_t>(memory.file_offset + offset);
  while (bytes > 0) {
    const ssize_t done = is_write ? pwrite(memory.fd, at, bytes, position) : pread(memory.fd, at, bytes, position);
    if (done <= 0) return false;
    at += done;
    position += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

bool transfer(Simulator& sim, CUdeviceptr address, void* buffer, std::size_t bytes, bool is_write) {
  auto* at = static_cast<std::byte*>(buffer);
  while (bytes > 0) {
    Allocation* memory = sim.find_memory(address);
    if (memory == nullptr) return false;
    const std::uint64_t offset = address - memory->base;
    const std::size_t piece = std::min<std::size_t>(bytes, memory->reach_bytes() - offset);
    // A copy may cross from one mapping into the next, never from one allocation into its neighbour.
    if (piece < bytes && memory->kind != MemoryKind::mapped) return false;
    if (is_write) memory->touched = true;
    if (memory->host != nullptr) {
      std::memcpy(is_write ? memory->host + offset : at, is_write ? at : memory->host + offset, piece);
    } else {
      memory->fd = sim.file_of(*memory);
      if (!transfer_file(*memory, offset, at, piece, is_write)) return false;
    }
    at += piece;
    address += piece;
    bytes -= piece;
  }
  return true;
}

/// Who touches: a kernel needs its device's access; the copy engine goes through the host where there is none.
enum class Toucher { kernel, copy_engine };

template <class Access> bool has_access(const Access& granted, int device, bool writes) {
  const auto access = granted.find(device);
  if (access == granted.end()) return false;
  return writes ? access->second == CU_MEM_ACCESS_FLAGS_PROT_READWRITE : access->second != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

bool device_may_touch(const Context& context, const Allocation& memory, bool writes, Toucher toucher) {
  // A pool on the host is the host's alone until a device gets access; [?] that copies need none.
  const bool is_open = memory.pool == nullptr || memory.pool->place.is_managed() || toucher == Toucher::copy_engine;
  if (memory.host != nullptr) return is_open || has_access(memory.pool->access, context.device, writes);
  if (memory.kind == MemoryKind::mapped) return has_access(memory.mapping->access, context.device, writes);
  if (memory.device == context.device) return true;
  if (memory.kind == MemoryKind::stream_ordered) return has_access(memory.pool->access, context.device, writes);
  if (memory.kind == MemoryKind::graph) return has_access(memory.graph->access, context.device, writes);
  return toucher == Toucher::copy_engine || context.family_head().peers.count(memory.context) != 0;
}

/// Null, or why the memory is not there in stream order.
const char* absent_in_order(const Allocation& memory) {
  if (memory.graph != nullptr && !memory.graph->on_device) return " is touched outside the life of its graph allocation";
  const bool is_early = memory.available != nullptr && !memory.available->done && !memory.has_previous_holder();
  return is_early ? " is touched before its stream-ordered allocation" : nullptr;
}

bool range_may_be_touched(Simulator& sim, const Context& context, CUdeviceptr address, std::size_t bytes, bool writes, Toucher toucher, Moment moment,
                          std::string* why) {
  while (bytes > 0) {
    const Allocation* memory = sim.find_memory(address);
    if (memory == nullptr) {
      *why = hex(address) + " is not in live memory";
      return false;
    }
    if (!device_may_touch(context, *memory, writes, toucher)) {
      *why = "device " + std::to_string(context.device) + " has no access to " + hex(address);
      return false;
    }
    if (const char* absent = moment == Moment::completion ? absent_in_order(*memory) : nullptr) {
      *why = hex(address) + absent;
      return false;
    }
    const std::size_t piece = std::min<std::size_t>(bytes, memory->reach_bytes() - (address - memory->base));
    if (piece < bytes && memory->kind != MemoryKind::mapped) {
      *why = hex(address) + " and what follows reaches past the end of its allocation";
      return false;
    }
    address += piece;
    bytes -= piece;
  }
  return true;
}

}  // namespace

int Simulator::file_of(const Allocation& memory) {
  if (memory.fd >= 0) return memory.fd;
  return memory.kind == MemoryKind::mapped ? physical_store.fd() : devices[static_cast<std::size_t>(memory.device)]->memory.fd();
}

CUmemAccess_flags Simulator::kernel_access(const Context& context, const Allocation& memory) const {
  if (device_may_touch(context, memory, true, Toucher::kernel)) return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return device_may_touch(context, memory, false, Toucher::kernel) ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

std::optional<std::uint64_t> Simulator::mapping_stamp(const std::vector<Touched>& ranges) const {
  std::uint64_t stamp = 0;
  for (const Touched& range : ranges) {
    auto region = regions.upper_bound(range.address);
    if (region == regions.begin()) return std::nullopt;
    CUdeviceptr at = range.address;
    for (--region; at < range.address + range.bytes; ++region) {
      if (region == regions.end() || region->second->kind != MemoryKind::mapped) return std::nullopt;
      if (at < region->first || at - region->first >= region->second->bytes) return std::nullopt;
      stamp = (stamp ^ region->second->buffer_id) * 0x100000001b3;
      at = region->first + region->second->bytes;
    }
  }
  return stamp;
}

Allocation* Simulator::find_memory(CUdeviceptr address) {
  for (const auto& device : devices) {
    // Device memory without a context backs a memory pool: only what the pool handed out (a region) is memory to anyone.
    if (Allocation* found = device->memory.find(address); found != nullptr && found->context != nullptr) return found;
  }
  auto after = regions.upper_bound(address);
  if (after == regions.begin()) return nullptr;
  Allocation* memory = std::prev(after)->second.get();
  return address - memory->base < memory->reach_bytes() ? memory : nullptr;
}

Allocation* Simulator::find_known(CUdeviceptr address) {
  Allocation* memory = find_memory(address);
  return memory != nullptr && memory->graph != nullptr && !memory->graph->live ? nullptr : memory;
}

void Simulator::adopt(Allocation& allocation, Context& asked) {
  Context& context = *asked.memory_owner();
  allocation.context = &context;
  allocation.previous = nullptr;
  allocation.next = context.memory;
  if (context.memory != nullptr) context.memory->previous = &allocation;
  context.memory = &allocation;
}

void Simulator::disown(Allocation& allocation) {
  if (allocation.context == nullptr) return;
  if (allocation.previous != nullptr) {
    allocation.previous->next = allocation.next;
  } else {
    allocation.context->memory = allocation.next;
  }
  if (allocation.next != nullptr) allocation.next->previous = allocation.previous;
}

void Simulator::release(Allocation& allocation) {
  disown(allocation);
  if (allocation.export_slot != 0) exports.remove(allocation.export_slot - 1);
  if (allocation.kind == MemoryKind::device || allocation.kind == MemoryKind::variable) {
    devices[static_cast<std::size_t>(allocation.device)]->memory.release(&allocation);
  } else {
    release_region(allocation);
  }
}

bool Simulator::read(CUdeviceptr address, void* out, std::size_t bytes) { return transfer(*this, address, out, bytes, false); }

bool Simulator::write(CUdeviceptr address, const void* data, std::size_t bytes) {
  return transfer(*this, address, const_cast<void*>(data), bytes, true);
}

bool Simulator::may_touch(const Context& context, CUdeviceptr address, std::size_t bytes, bool writes, std::string* why) {
  return range_may_be_touched(*this, context, address, bytes, writes, Toucher::kernel, Moment::completion, why);
}

bool Simulator::may_copy(const Context& context, CUdeviceptr address, std::size_t bytes, bool writes, Moment moment, std::string* why) {
  return range_may_be_touched(*this, context, address, bytes, writes, Toucher::copy_engine, moment, why);
}

}  // namespace cusim
