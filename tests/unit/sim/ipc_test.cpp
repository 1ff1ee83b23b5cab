// Legacy IPC between two processes that both run the simulated driver.
#include <catch2/catch.hpp>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

#include "sim_fixture.hpp"

using sim_test::kMiB;
using sim_test::Simulated;

namespace {

/// A second process, forked before this one initialises its driver; both talk over two pipes.
class Peer {
 public:
  template <class Body> explicit Peer(Body&& body) {
    cusim_reset();
    if (pipe(to_child_) != 0 || pipe(to_parent_) != 0) throw std::runtime_error("pipe");
    child_ = fork();
    if (child_ != 0) return;
    CUcontext context = nullptr;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    _exit(body(*this, to_child_[0], to_parent_[1]) ? 0 : 1);
  }
  ~Peer() {
    for (const int fd : {to_child_[0], to_child_[1], to_parent_[0], to_parent_[1]}) close(fd);
  }
  template <class T> void tell(const T& value) {
    if (write(to_child_[1], &value, sizeof value) != ssize_t{sizeof value}) throw std::runtime_error("write");
  }
  template <class T> static T hear(int fd) {
    T value{};
    if (read(fd, &value, sizeof value) != ssize_t{sizeof value}) _exit(2);
    return value;
  }
  bool succeeded() const {
    int status = 0;
    waitpid(child_, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  int to_child_[2] = {-1, -1};
  int to_parent_[2] = {-1, -1};
  pid_t child_ = -1;
};

}  // namespace

TEST_CASE("another process opens the allocation at its base and shares its bytes") {
  Peer peer([](Peer&, int in, int) {
    const auto handle = Peer::hear<CUipcMemHandle>(in);
    CUdeviceptr first = 0;
    CUdeviceptr second = 0;
    const bool opened = cuIpcOpenMemHandle_v2(&first, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS &&
                        cuIpcOpenMemHandle_v2(&second, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS;
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    cuMemGetAddressRange_v2(&base, &bytes, first + 100);
    unsigned char seen[2] = {0, 0};
    cuMemcpyDtoH_v2(seen, first + 3 * kMiB - 2, 2);
    cuMemsetD8_v2(first, 77, 5);
    cuCtxSynchronize();
    const bool once = cuIpcCloseMemHandle(first) == CUDA_SUCCESS;
    const bool still = cuMemcpyDtoH_v2(seen + 1, first + 3 * kMiB - 1, 1) == CUDA_SUCCESS;
    const bool twice = cuIpcCloseMemHandle(first) == CUDA_SUCCESS;
    const bool gone = cuIpcCloseMemHandle(first) == CUDA_ERROR_INVALID_VALUE && cusim_violation_count() == 1;
    return opened && first == second && base == first && bytes == 3 * kMiB && seen[0] == 9 && seen[1] == 9 && once && still && twice && gone;
  });
  const Simulated sim;
  Simulated::allocate(5 * kMiB);
  const CUdeviceptr address = Simulated::allocate(3 * kMiB);
  REQUIRE(cuMemsetD8_v2(address, 9, 3 * kMiB) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CUipcMemHandle handle{};
  REQUIRE(cuIpcGetMemHandle(&handle, address + 12345) == CUDA_SUCCESS);  // an interior pointer exports its allocation
  peer.tell(handle);
  CHECK(peer.succeeded());
  unsigned char seen[6] = {};
  REQUIRE(cuMemcpyDtoH_v2(seen, address, 6) == CUDA_SUCCESS);
  CHECK(seen[4] == 77);
  CHECK(seen[5] == 9);
}

TEST_CASE("a handle of freed memory does not open") {
  Peer peer([](Peer&, int in, int) {
    const auto handle = Peer::hear<CUipcMemHandle>(in);
    CUdeviceptr address = 0;
    return cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_ERROR_INVALID_VALUE;
  });
  const Simulated sim;
  const CUdeviceptr address = Simulated::allocate(kMiB);
  CUipcMemHandle handle{};
  REQUIRE(cuIpcGetMemHandle(&handle, address) == CUDA_SUCCESS);
  REQUIRE(cuMemFree_v2(address) == CUDA_SUCCESS);
  peer.tell(handle);
  CHECK(peer.succeeded());
}

TEST_CASE("closing waits for the work of the context, also when the memory stays open") {
  Peer peer([](Peer&, int in, int) {
    const auto handle = Peer::hear<CUipcMemHandle>(in);
    CUdeviceptr address = 0;
    for (int i = 0; i < 2; ++i) {
      if (cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS) return false;
    }
    for (std::uint64_t i = 1; i <= 2; ++i) {
      if (cusim_launch_spin(nullptr, 1000) != CUDA_SUCCESS || cuIpcCloseMemHandle(address) != CUDA_SUCCESS) return false;
      if (cusim_now_ns() != i * 1000) return false;
    }
    return cuIpcCloseMemHandle(address) == CUDA_ERROR_INVALID_VALUE;
  });
  const Simulated sim;
  CUipcMemHandle handle{};
  REQUIRE(cuIpcGetMemHandle(&handle, Simulated::allocate(kMiB)) == CUDA_SUCCESS);
  peer.tell(handle);
  CHECK(peer.succeeded());
}

TEST_CASE("handles are refused where they cannot work") {
  const Simulated sim;
  const CUdeviceptr address = Simulated::allocate(kMiB);
  CUipcMemHandle handle{};
  CUdeviceptr opened = 0;
  REQUIRE(cuIpcGetMemHandle(&handle, address) == CUDA_SUCCESS);
  CHECK(cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuIpcOpenMemHandle_v2(&opened, handle, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuIpcGetMemHandle(nullptr, address) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuIpcGetMemHandle(&handle, address + kMiB) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuIpcCloseMemHandle(address) == CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr managed = 0;
  REQUIRE(cuMemAllocManaged(&managed, kMiB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuIpcGetMemHandle(&handle, managed) == CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr pooled = 0;
  REQUIRE(cuMemAllocAsync(&pooled, kMiB, nullptr) == CUDA_SUCCESS);
  CHECK(cuIpcGetMemHandle(&handle, pooled) == CUDA_ERROR_INVALID_VALUE);
  std::memset(&handle, 0, sizeof handle);
  CHECK(cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_ERROR_INVALID_VALUE);
}
