// Copies and sets: what they check when they are called, and the bytes that they move when they complete.
//
// Strict: both sides must lie in live memory that the context may reach, at the call and again at completion. Host memory that the
// driver did not pin is staged: read at the call, or waited for before the call returns. Thread rule: under the simulator's lock.
#pragma once

#include "tests/sim/call.hpp"

namespace cusim {

/// One end of a copy. A unified address is host memory when the driver knows nothing there and it is no device address.
struct CopySide {
  enum class Kind { host, device, unified } kind = Kind::unified;
  std::uint64_t address = 0;
  std::size_t pitch_bytes = 0;
  Context* context = nullptr;  ///< whose rights count; null: the stream's context
  std::size_t slice_rows = 0;  ///< rows of this side from one slice to the next; 0: there is one slice

  /// Where row `row` of a copy begins that moves `height` rows of each slice.
  std::uint64_t row_address(std::size_t row, std::size_t height) const {
    const std::size_t slice = height != 0 ? row / height : 0;
    return address + (slice * slice_rows + row - slice * height) * pitch_bytes;
  }
};

struct Copy {
  CopySide to;
  CopySide from;
  std::size_t width_bytes = 0;
  std::size_t height = 1;  ///< rows of one slice
  std::size_t depth = 1;

  std::size_t rows() const { return height * depth; }
};

struct Fill {
  CUdeviceptr address = 0;
  std::size_t pitch_bytes = 0;
  std::uint32_t value = 0;
  std::size_t element_bytes = 1;
  std::size_t width = 0;  ///< in elements
  std::size_t height = 1;
};

enum class Blocking { no, yes };

CopySide host_side(const void* address);
CopySide device_side(CUdeviceptr address);
CopySide unified_side(CUdeviceptr address);

/// `blocking` is the synchronous form: an unsafe call during captures, and the host waits if it has a part in the copy.
CUresult copy(Call& c, CUstream stream, Copy copy, Blocking blocking);
CUresult copy_2d(Call& c, CUstream stream, const CUDA_MEMCPY2D_v2* parameters, Blocking blocking);
/// Between linear memory; each side with the rights of its own context (CUDA_MEMCPY3D_PEER) or of the stream's (CUDA_MEMCPY3D).
CUresult copy_3d(Call& c, CUstream stream, const CUDA_MEMCPY3D_v2* parameters, Blocking blocking);
CUresult copy_3d(Call& c, CUstream stream, const CUDA_MEMCPY3D_PEER* parameters, Blocking blocking);
CUresult fill(Call& c, CUstream stream, const Fill& fill, Blocking blocking);

}  // namespace cusim
