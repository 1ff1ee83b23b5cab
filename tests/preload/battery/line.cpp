// How outcomes are printed: addresses and handles become the names of what they are, so that two runs compare.
#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "battery.hpp"

namespace battery {
namespace {

std::string hex(std::uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "%#" PRIx64, value);
  return text;
}

struct Known {
  const char* name;
  CUdeviceptr base;
  std::size_t bytes;
};

std::vector<Known> known_blocks(const World& w) {
  return {{"block", w.block, kMiB},
          {"small", w.small, 1000},
          {"stream_block", w.stream_block, kMiB},
          {"plain_pool_block", w.plain_pool_block, kMiB},
          {"special_pool_block", w.special_pool_block, kMiB},
          {"block_of_other", w.block_of_other, kMiB},
          {"block_elsewhere", w.block_elsewhere, kMiB},
          {"managed", w.managed, kMiB},
          {"mapped", w.mapped, 2 * kMiB},
          {"host", reinterpret_cast<CUdeviceptr>(w.host), kMiB},
          {"registered", reinterpret_cast<CUdeviceptr>(w.registered), 64 * kKiB}};
}

/// The largest power of two that divides it, and no more than any driver promises for small memory.
std::uint64_t alignment(CUdeviceptr address) { return std::min<std::uint64_t>(address & (~address + 1), 512); }

}  // namespace

std::string World::label(CUdeviceptr address) const {
  if (address == 0) return "null";
  if (address == kUntouched) return "untouched";
  if (address == kNeverAllocated) return "never_allocated";
  for (const Known& known : known_blocks(*this)) {
    if (situation == Situation::destroyed) break;  // other memory may have their addresses now
    if (known.base == 0 || address < known.base || address >= known.base + known.bytes) continue;
    return address == known.base ? known.name : std::string(known.name) + "+" + std::to_string(address - known.base);
  }
  return "fresh/" + std::to_string(alignment(address));
}

std::string World::label(const void* handle) const {
  if (handle == nullptr) return "null";
  if (reinterpret_cast<CUdeviceptr>(handle) == kUntouched) return "untouched";
  const std::pair<const char*, const void*> known[] = {
      {"current", current},           {"other", other},           {"elsewhere", elsewhere},         {"dead_context", dead_context},
      {"default_pool", default_pool}, {"plain_pool", plain_pool}, {"special_pool", special_pool},   {"pool_elsewhere", pool_elsewhere},
      {"dead_pool", dead_pool},       {"stream", stream},         {"second_stream", second_stream}, {"graph", graph}};
  for (const auto& [name, value] : known) {
    if (value == handle) return name;
  }
  return "fresh";
}

Line& Line::text(const char* what, const std::string& value) {
  text_ += std::string(text_.empty() ? "" : " ") + what + "=" + value;
  return *this;
}
Line& Line::code(CUresult result) { return text("code", std::to_string(result)); }
Line& Line::address(const char* what, CUdeviceptr value) { return text(what, world_.label(value)); }
Line& Line::handle(const char* what, const void* value) { return text(what, world_.label(value)); }
Line& Line::number(const char* what, std::uint64_t value) { return text(what, value == kUntouched ? "untouched" : std::to_string(value)); }

Line& Line::memory(const char* what, CUdeviceptr given) {
  address(what, given);
  if (given == 0 || given == kUntouched) return *this;
  given_.push_back(given);
  constexpr std::pair<const char*, CUpointer_attribute> kFigures[] = {{"type", CU_POINTER_ATTRIBUTE_MEMORY_TYPE},
                                                                      {"sync", CU_POINTER_ATTRIBUTE_SYNC_MEMOPS},
                                                                      {"managed", CU_POINTER_ATTRIBUTE_IS_MANAGED},
                                                                      {"device", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL},
                                                                      {"ipc", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE},
                                                                      {"bytes", CU_POINTER_ATTRIBUTE_RANGE_SIZE},
                                                                      {"mapped", CU_POINTER_ATTRIBUTE_MAPPED},
                                                                      {"handles", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES},
                                                                      {"rdma", CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE},
                                                                      {"access", CU_POINTER_ATTRIBUTE_ACCESS_FLAGS}};
  for (const auto& [name, attribute] : kFigures) {
    std::uint64_t value = 0;
    const CUresult result = cuPointerGetAttribute(&value, attribute, given);
    text(name, result == CUDA_SUCCESS ? std::to_string(value) : "error" + std::to_string(result));
  }
  CUcontext context = nullptr;
  CUmemoryPool pool = nullptr;
  CUdeviceptr base = 0;
  unsigned long long id = 0;
  if (cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, given) == CUDA_SUCCESS) handle("context", context);
  if (cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, given) == CUDA_SUCCESS) handle("pool", pool);
  if (cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, given) == CUDA_SUCCESS)
    text("base", base == given ? "itself" : hex(given - base));
  if (cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, given) == CUDA_SUCCESS) text("id", id != 0 ? "some" : "none");
  return *this;
}

}  // namespace battery
