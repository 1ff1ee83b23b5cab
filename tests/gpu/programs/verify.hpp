// How the bytes of a block are written and checked: verify_kernels.cu by kernels, verify_copies.cpp by sets and copies.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace verify {

/// Enqueues the pattern of `seed` on the stream; ends the process with 1 where that fails.
void fill(void* address, std::size_t bytes, unsigned seed, cudaStream_t stream);
/// Waits for the stream; how many bytes are not the pattern's.
[[nodiscard]] std::uint64_t wrong_bytes(const void* address, std::size_t bytes, unsigned seed, cudaStream_t stream);

}  // namespace verify
