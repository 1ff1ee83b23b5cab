// Fills the device with large and small blocks in turn, frees the large ones, and asks for a quarter of what it freed, in one piece.
// Knows nothing of cupool. Each small block keeps the page that it lies in from moving, and the report says so.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kSkipped = 77;
constexpr std::size_t kKiB = 1024;
constexpr std::size_t kLargeBytes = 1536 * kKiB;
constexpr std::size_t kSmallBytes = 512 * kKiB;

const char* name_of(CUresult code) {
  const char* name = nullptr;
  return cuGetErrorName(code, &name) == CUDA_SUCCESS ? name : "an unknown error";
}

void require(CUresult code, const char* call) {
  if (code == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: %s\n", call, name_of(code));
  std::exit(1);
}

CUdevice first_device() {
  int count = 0;
  CUresult code = cuInit(0);
  if (code == CUDA_SUCCESS) code = cuDeviceGetCount(&count);
  if (code != CUDA_SUCCESS || count == 0) {
    std::printf("skipped: no usable GPU (%s)\n", code == CUDA_SUCCESS ? "none is visible" : name_of(code));
    std::exit(kSkipped);
  }
  CUdevice device;
  require(cuDeviceGet(&device, 0), "cuDeviceGet");
  return device;
}

/// False when the driver says that there is no more.
bool take(std::vector<CUdeviceptr>& blocks, std::size_t bytes) {
  CUdeviceptr block = 0;
  const CUresult code = cuMemAlloc(&block, bytes);
  if (code == CUDA_ERROR_OUT_OF_MEMORY) return false;
  require(code, "cuMemAlloc");
  blocks.push_back(block);
  return true;
}

void give_back(std::vector<CUdeviceptr>& blocks) {
  for (const CUdeviceptr block : blocks) require(cuMemFree(block), "cuMemFree");
  blocks.clear();
}

}  // namespace

int main() {
  const CUdevice device = first_device();
  CUcontext context;
  require(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  require(cuCtxSetCurrent(context), "cuCtxSetCurrent");

  std::vector<CUdeviceptr> large, small;
  while (take(large, kLargeBytes) && take(small, kSmallBytes)) {}
  std::printf("took     %zu blocks of 1.5 MiB and %zu of 0.5 MiB, then there was no more\n", large.size(), small.size());
  const std::size_t wanted_bytes = large.size() * kLargeBytes / 4;
  give_back(large);
  require(cuCtxSynchronize(), "cuCtxSynchronize");

  CUdeviceptr whole = 0;
  const CUresult answer = cuMemAlloc(&whole, wanted_bytes);
  std::printf("asked    for a quarter of what was freed: %s\n", answer == CUDA_SUCCESS ? "got it" : name_of(answer));
  if (answer != CUDA_SUCCESS && answer != CUDA_ERROR_OUT_OF_MEMORY) return 1;
  if (answer == CUDA_SUCCESS) require(cuMemFree(whole), "cuMemFree");

  give_back(small);
  require(cuCtxSynchronize(), "cuCtxSynchronize");
  require(cuMemAlloc(&whole, wanted_bytes), "cuMemAlloc once the small blocks are gone");
  std::printf("again    got it once the small blocks were gone\n");
  require(cuMemFree(whole), "cuMemFree");
  require(cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
}
