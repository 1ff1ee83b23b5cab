// cudaPointerGetAttributes of device, host, managed and unknown memory.
#include <cuda_runtime_api.h>

#include "victim.h"

static void ask(const char* what, const void* pointer) {
  cudaPointerAttributes facts{};
  const int code = cudaPointerGetAttributes(&facts, pointer);
  printf("%s: %d, type %d, device %d, same device pointer %d\n", what, code, facts.type, facts.device, facts.devicePointer == pointer);
}

int main() {
  void* device = nullptr;
  void* host = nullptr;
  int local = 0;
  MUST(cudaMalloc(&device, 5000));
  MUST(cudaMallocHost(&host, 5000));
  ask("device", device);
  ask("device inside", static_cast<char*>(device) + 4999);
  ask("host", host);
  ask("stack", &local);
  ask("null", nullptr);
  MUST(cudaFree(device));
  ask("freed", device);
  return 0;
}
