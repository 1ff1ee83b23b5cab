// What cuMemAlloc, cuMemFree and their kin answer to odd arguments, and what shape their memory has: sizes as reported,
// distances, pitch, what one allocation costs of the device's free memory. Frees everything that it takes.
#include <algorithm>

#include "tests/gpu/probes/probe.hpp"

namespace probe {
namespace {

constexpr std::size_t kGranule_bytes = 2 << 20;  // of the driver's own
constexpr std::size_t kOddSizes_bytes[] = {1, 511, 512, 513, 1000003, (2u << 20) - 1, (2u << 20) + 1};

CUresult allocate(std::size_t bytes, CUdeviceptr* out) { return CU(cuMemAlloc_v2)(out, bytes); }

void ask_bad_sizes() {
  std::size_t free_bytes = 0, total_bytes = 0;
  prepare(CU(cuMemGetInfo_v2)(&free_bytes, &total_bytes), "cuMemGetInfo");
  CUdeviceptr address = 0x1234;
  answer("cuMemAlloc of 0 bytes", allocate(0, &address), CUDA_ERROR_INVALID_VALUE);
  answer("cuMemAlloc of 0 bytes: what the output holds (0x1234 before)", address);
  answer("cuMemAlloc with a NULL output", allocate(512, nullptr), CUDA_ERROR_INVALID_VALUE);
  answer("cuMemAlloc of more than the device has", allocate(total_bytes + 1, &address), CUDA_ERROR_OUT_OF_MEMORY);
  answer("cuMemAlloc of 2^63 bytes", allocate(std::size_t{1} << 63, &address), CUDA_ERROR_OUT_OF_MEMORY);
  answer("cuMemAlloc of 2^64 - 1 bytes", allocate(~std::size_t{0}, &address), CUDA_ERROR_OUT_OF_MEMORY);
  address = 0x1234;
  static_cast<void>(allocate(total_bytes + 1, &address));
  answer("a failed cuMemAlloc: what the output holds (0x1234 before)", address);
  answer("cuMemGetInfo with NULL for free", CU(cuMemGetInfo_v2)(nullptr, &total_bytes));
  answer("cuMemGetInfo with NULL for total", CU(cuMemGetInfo_v2)(&free_bytes, nullptr));
}

void ask_bad_frees() {
  auto* release = CU(cuMemFree_v2);
  answer("cuMemFree of 0", release(0), CUDA_SUCCESS);
  Memory memory(1 << 20);
  answer("cuMemFree of an interior address", release(memory.address() + 512), CUDA_ERROR_INVALID_VALUE);
  answer("cuMemFree of an address that was never given", release(0x1000), CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr freed = memory.address();
  memory.forget();
  prepare(release(freed), "cuMemFree");
  answer("cuMemFree of a freed address", release(freed), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  CUcontext context = nullptr;
  answer("cuMemGetAddressRange of a freed address", CU(cuMemGetAddressRange_v2)(&base, &bytes, freed), CUDA_ERROR_NOT_FOUND);
  answer("cuPointerGetAttribute(CONTEXT) of a freed address", CU(cuPointerGetAttribute)(&context, CU_POINTER_ATTRIBUTE_CONTEXT, freed),
         CUDA_ERROR_INVALID_VALUE);
  unsigned type = 99;
  void* outputs[] = {&type};
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  answer("cuPointerGetAttributes(MEMORY_TYPE) of a freed address", CU(cuPointerGetAttributes)(1, wanted, outputs, freed), CUDA_SUCCESS);
  answer("cuPointerGetAttributes(MEMORY_TYPE) of a freed address: the value", type, 0);
}

/// The last of its probe: a driver that does not notice breaks the context.
void ask_use_after_free() {
  Memory memory(1 << 20);
  const CUdeviceptr freed = memory.address();
  memory.forget();
  prepare(CU(cuMemFree_v2)(freed), "cuMemFree");
  answer("cuMemsetD8 on a freed address", CU(cuMemsetD8_v2)(freed, 1, 16));
}

/// The four sizes that the driver tells of a block.
void ask_sizes() {
  for (const std::size_t asked : kOddSizes_bytes) {
    const Memory memory(asked);
    CUdeviceptr base = 0;
    std::size_t range = 0, attribute = 0, mapping = 0;
    prepare(CU(cuMemGetAddressRange_v2)(&base, &range, memory.address()), "cuMemGetAddressRange");
    CU(cuPointerGetAttribute)(&attribute, CU_POINTER_ATTRIBUTE_RANGE_SIZE, memory.address());
    const CUresult code = CU(cuPointerGetAttribute)(&mapping, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, memory.address());
    const std::string size = std::to_string(asked);
    answer("size of a block of " + size + " bytes: cuMemGetAddressRange", range, asked);
    answer("size of a block of " + size + " bytes: RANGE_SIZE", attribute, asked);
    if (code == CUDA_SUCCESS)
      answer("size of a block of " + size + " bytes: MAPPING_SIZE", mapping, (asked + kGranule_bytes - 1) / kGranule_bytes * kGranule_bytes);
    else answer("size of a block of " + size + " bytes: MAPPING_SIZE", code);
    answer("base of a block of " + size + " bytes is its address", base == memory.address(), true);
    answer("last byte of a block of " + size + " bytes: its range is found", CU(cuMemGetAddressRange_v2)(&base, &range, memory.address() + asked - 1),
           CUDA_SUCCESS);
  }
}

void ask_layout() {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1000}, std::size_t{1} << 20, std::size_t{3} << 20}) {
    const Memory first(bytes), second(bytes), third(bytes);
    const std::vector<std::int64_t> distances = {static_cast<std::int64_t>(second.address() - first.address()),
                                                 static_cast<std::int64_t>(third.address() - second.address())};
    answer("distances of three consecutive blocks of " + std::to_string(bytes) + " bytes", distances);
    const CUdeviceptr low = first.address() | second.address() | third.address();
    answer("alignment of blocks of " + std::to_string(bytes) + " bytes is at least 512", low % 512 == 0, true);
  }
}

void ask_pitch() {
  for (const unsigned element : {4u, 8u, 16u}) {
    std::vector<std::size_t> given, assumed;
    for (const std::size_t width : {1u, 100u, 511u, 512u, 513u, 1000u, 4097u, 1000000u}) {
      CUdeviceptr address = 0;
      std::size_t pitch = 0;
      prepare(CU(cuMemAllocPitch_v2)(&address, &pitch, width, 7, element), "cuMemAllocPitch");
      given.push_back(pitch);
      assumed.push_back((width + 511) / 512 * 512);
      CU(cuMemFree_v2)(address);
    }
    answer("cuMemAllocPitch of widths 1, 100, 511, 512, 513, 1000, 4097, 1000000, element " + std::to_string(element), given, assumed);
  }
  CUdeviceptr address = 0;
  std::size_t pitch = 0;
  answer("cuMemAllocPitch with an element of 3 bytes", CU(cuMemAllocPitch_v2)(&address, &pitch, 64, 4, 3), CUDA_ERROR_INVALID_VALUE);
  answer("cuMemAllocPitch of width 0", CU(cuMemAllocPitch_v2)(&address, &pitch, 0, 4, 4), CUDA_ERROR_INVALID_VALUE);
  answer("cuMemAllocPitch of height 0", CU(cuMemAllocPitch_v2)(&address, &pitch, 64, 0, 4), CUDA_ERROR_INVALID_VALUE);
}

/// How much of the device's free memory one block takes: the driver's own granule.
void ask_device_cost() {
  auto* info = CU(cuMemGetInfo_v2);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 20, std::size_t{2} << 20, (std::size_t{2} << 20) + 1, std::size_t{64} << 20}) {
    std::size_t before = 0, after = 0, total = 0;
    info(&before, &total);
    const Memory memory(bytes);
    info(&after, &total);
    answer("free memory taken by one block of " + std::to_string(bytes) + " bytes", before - std::min(after, before));
  }
}

}  // namespace

void ask_codes(Session&) {
  group("sizes that cannot be", ask_bad_sizes);
  group("frees that cannot be", ask_bad_frees);
  group("sizes as reported", ask_sizes);
  group("layout", ask_layout);
  group("pitch", ask_pitch);
  group("cost in device memory", ask_device_cost);
  group("use after free", ask_use_after_free);
}

}  // namespace probe
