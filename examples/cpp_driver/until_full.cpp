// Takes device memory through the driver API until there is no more (or 64 blocks), survives that, and goes on with less.
// Knows nothing of cupool. Under a limit it meets the limit, and the report says so.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kSkipped = 77;
constexpr std::size_t kBlockBytes = std::size_t{64} << 20;
constexpr std::size_t kMostBlocks = 64;
constexpr std::size_t kMarkBytes = 4096;  // of each block, at its end

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

/// Allocates until `most` blocks are held or the driver says no. Returns what it said last.
CUresult take(std::vector<CUdeviceptr>& blocks, std::size_t most) {
  while (blocks.size() < most) {
    CUdeviceptr block = 0;
    const CUresult code = cuMemAlloc(&block, kBlockBytes);
    if (code != CUDA_SUCCESS) return code;
    require(cuMemsetD8(block + kBlockBytes - kMarkBytes, static_cast<unsigned char>(blocks.size()), kMarkBytes), "cuMemsetD8");
    blocks.push_back(block);
  }
  return CUDA_SUCCESS;
}

void give_back(std::vector<CUdeviceptr>& blocks, std::size_t keep) {
  for (; blocks.size() > keep; blocks.pop_back()) require(cuMemFree(blocks.back()), "cuMemFree");
}

}  // namespace

int main() {
  const CUdevice device = first_device();
  CUcontext context;
  require(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  require(cuCtxSetCurrent(context), "cuCtxSetCurrent");

  std::vector<CUdeviceptr> blocks;
  const CUresult answer = take(blocks, kMostBlocks);
  std::printf("took     %zu blocks of 64 MiB, then %s\n", blocks.size(), answer == CUDA_SUCCESS ? "had enough" : name_of(answer));
  if (answer != CUDA_SUCCESS && answer != CUDA_ERROR_OUT_OF_MEMORY) return 1;

  const std::size_t most = blocks.size();
  give_back(blocks, most / 2);
  require(take(blocks, most), "cuMemAlloc after half was freed");
  std::printf("again    freed half of them and took as many once more\n");
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    unsigned char last = 0;
    require(cuMemcpyDtoH(&last, blocks[i] + kBlockBytes - 1, 1), "cuMemcpyDtoH");
    if (last != static_cast<unsigned char>(i)) {
      std::fprintf(stderr, "block %zu does not hold what was written\n", i);
      return 1;
    }
  }
  give_back(blocks, 0);
  require(cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
  std::printf("contents as written\n");
}
