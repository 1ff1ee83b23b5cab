// IPC handles of cuMemAlloc memory, of a block's base and of addresses inside it, opened by a second process that reads
// what lies there. The exporter fills a block so that each 64 KiB says where it lies.
#include "tests/gpu/probes/ipc.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tests/gpu/probes/probe.hpp"
#include "tests/gpu/probes/work.hpp"

namespace probe {
namespace {

constexpr std::size_t kBlock_bytes = 1 << 20;
constexpr std::size_t kMark_bytes = 64 << 10;
constexpr std::size_t kInterior_bytes = 5 * kMark_bytes;

std::string to_hex(const CUipcMemHandle& handle) {
  std::string text;
  char pair[3];
  for (const char byte : handle.reserved) {
    std::snprintf(pair, sizeof pair, "%02x", static_cast<unsigned char>(byte));
    text += pair;
  }
  return text;
}

bool from_hex(const char* text, CUipcMemHandle* handle) {
  if (std::strlen(text) != 2 * sizeof handle->reserved) return false;
  for (std::size_t i = 0; i < sizeof handle->reserved; ++i) {
    unsigned value = 0;
    if (std::sscanf(text + 2 * i, "%2x", &value) != 1) return false;
    handle->reserved[i] = static_cast<char>(value);
  }
  return true;
}

void fill(CUdeviceptr address) {
  for (std::size_t mark = 0; mark < kBlock_bytes / kMark_bytes; ++mark) {
    prepare(CU(cuMemsetD8_v2)(address + mark * kMark_bytes, static_cast<unsigned char>(mark), kMark_bytes), "cuMemsetD8");
  }
  prepare(CU(cuCtxSynchronize)(), "cuCtxSynchronize");
}

/// A fresh process, not a fork: a child of a process that has used CUDA may not use it.
void open_elsewhere(const char* label, const CUipcMemHandle& handle) {
  const std::string hex = to_hex(handle);
  const pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", "gpu_probe", kOpenMode, label, hex.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    leave_out(label, "the second process failed");
  }
}

void ask_exported() {
  Memory memory(kBlock_bytes);
  fill(memory.address());
  CUipcMemHandle of_base{}, again{}, of_interior{};
  auto* export_handle = CU(cuIpcGetMemHandle);
  answer("cuIpcGetMemHandle of a block", export_handle(&of_base, memory.address()), CUDA_SUCCESS);
  answer("cuIpcGetMemHandle of an interior address", export_handle(&of_interior, memory.address() + kInterior_bytes), CUDA_SUCCESS);
  export_handle(&again, memory.address());
  answer("a handle begins with the bytes", to_hex(of_base).substr(0, 32));
  answer("two handles of one block are the same bytes", std::memcmp(&of_base, &again, sizeof again) == 0);
  answer("an interior address gives the block's handle", std::memcmp(&of_base, &of_interior, sizeof again) == 0);
  open_elsewhere("handle of a block", of_base);
  open_elsewhere("handle of an interior address", of_interior);
  CUdeviceptr opened = 0;
  answer("cuIpcOpenMemHandle in the exporting process", CU(cuIpcOpenMemHandle_v2)(&opened, of_base, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
         CUDA_ERROR_INVALID_CONTEXT);
  const CUdeviceptr address = memory.address();
  memory.forget();
  prepare(CU(cuMemFree_v2)(address), "cuMemFree");
  open_elsewhere("handle of a freed block", of_base);
}

/// Natively, small blocks share the driver's granule: does one handle open its neighbour too?
void ask_neighbours() {
  const Memory first(kMark_bytes), second(kMark_bytes);
  prepare(CU(cuMemsetD8_v2)(first.address(), 0, kMark_bytes), "cuMemsetD8");
  prepare(CU(cuMemsetD8_v2)(second.address(), 5, kMark_bytes), "cuMemsetD8");
  prepare(CU(cuCtxSynchronize)(), "cuCtxSynchronize");
  CUipcMemHandle handle{};
  prepare(CU(cuIpcGetMemHandle)(&handle, second.address()), "cuIpcGetMemHandle");
  answer("distance of two blocks of 64 KiB", static_cast<std::int64_t>(second.address() - first.address()));
  open_elsewhere("handle of the second of two small blocks (its bytes are 5)", handle);
}

void ask_bad_handles() {
  CUipcMemHandle handle{};
  CUdeviceptr opened = 0;
  answer("cuIpcGetMemHandle of an unknown address", CU(cuIpcGetMemHandle)(&handle, 0x1000), CUDA_ERROR_INVALID_VALUE);
  answer("cuIpcOpenMemHandle of zeros", CU(cuIpcOpenMemHandle_v2)(&opened, CUipcMemHandle{}, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  answer("cuIpcCloseMemHandle of an unknown address", CU(cuIpcCloseMemHandle)(0x1000));
}

/// Does closing wait for work that could still touch the memory?
void ask_close_while_busy(const std::string& label, CUdeviceptr opened) {
  constexpr std::uint64_t kWork_ns = 20'000'000;
  CUstream stream = nullptr;
  prepare(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const Spin spin;
  spin.launch(stream, kWork_ns);
  prepare(CU(cuIpcCloseMemHandle)(opened), "cuIpcCloseMemHandle");
  const bool waited = CU(cuStreamQuery)(stream) == CUDA_SUCCESS;
  prepare(CU(cuStreamSynchronize)(stream), "cuStreamSynchronize");
  answer(label + ": cuIpcCloseMemHandle while a stream works", waited ? "waited for the work" : "returned while the work ran");
}

/// The last opening, closed while a stream works on something else.
void ask_last_close(const std::string& label, const CUipcMemHandle& handle) {
  CUdeviceptr opened = 0;
  prepare(CU(cuIpcOpenMemHandle_v2)(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "cuIpcOpenMemHandle");
  ask_close_while_busy(label + ", opened once", opened);
}

void ask_opened(const std::string& label, const CUipcMemHandle& handle) {
  CUdeviceptr opened = 0, again = 0, base = 0;
  std::size_t bytes = 0;
  auto* open_handle = CU(cuIpcOpenMemHandle_v2);
  const CUresult code = open_handle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  answer(label + ", opened elsewhere", code);
  if (code != CUDA_SUCCESS) return;
  unsigned char byte = 0xEE;
  answer(label + ": copy from the opened address", CU(cuMemcpyDtoH_v2)(&byte, opened, 1), CUDA_SUCCESS);
  answer(label + ": the 64 KiB piece that the opened address shows", byte);
  answer(label + ": cuMemGetAddressRange", CU(cuMemGetAddressRange_v2)(&base, &bytes, opened), CUDA_SUCCESS);
  answer(label + ": opened address minus base", static_cast<std::int64_t>(opened - base));
  answer(label + ": size of the opened range", bytes);
  answer(label + ", opened twice", open_handle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  answer(label + ", opened twice: the same address", again == opened);
  answer(label + ": cuMemFree of the opened address", CU(cuMemFree_v2)(opened), CUDA_ERROR_INVALID_VALUE);
  CUipcMemHandle exported_again{};
  answer(label + ": cuIpcGetMemHandle of the opened address", CU(cuIpcGetMemHandle)(&exported_again, opened));
  group("cuIpcCloseMemHandle while a stream works", [&] { ask_close_while_busy(label, again); });
  answer(label + ": cuIpcCloseMemHandle", CU(cuIpcCloseMemHandle)(opened), CUDA_SUCCESS);
  answer(label + ": copy from the closed address", CU(cuMemcpyDtoH_v2)(&byte, opened, 1));
}

}  // namespace

int open_in_this_process(int count, char** words) {
  CUipcMemHandle handle{};
  if (count != 2 || !from_hex(words[1], &handle)) return 2;
  try {
    const Session session;
    group(words[0], [&] { ask_opened(words[0], handle); });
    group(words[0], [&] { ask_last_close(words[0], handle); });
    return 0;
  } catch (const std::runtime_error& error) {
    leave_out(words[0], error.what());
    return 3;
  }
}

void ask_ipc(Session&) {
  group("exported blocks", ask_exported);
  group("neighbours", ask_neighbours);
  group("bad handles", ask_bad_handles);
}

}  // namespace probe
