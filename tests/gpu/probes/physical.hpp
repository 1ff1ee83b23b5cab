// One mapped range of virtual memory management: address, handle and mapping together, undone in reverse order.
#pragma once

#include "tests/gpu/probes/probe.hpp"

namespace probe {

[[nodiscard]] CUmemAllocationProp physical_properties(CUdevice device);
/// Read and write for `device`. The range must be mapped.
[[nodiscard]] CUresult grant(CUdeviceptr address, std::size_t bytes, CUdevice device);

/// `pieces` handles of `bytes` / `pieces` each, mapped side by side with access. Throws Unprepared or Missing.
class Mapping {
 public:
  Mapping(CUdevice device, std::size_t bytes, std::size_t pieces = 1);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  [[nodiscard]] CUdeviceptr address() const { return address_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] CUmemGenericAllocationHandle handle() const { return handles_.front(); }
  /// cuMemUnmap of the whole range; the destructor then leaves it alone.
  [[nodiscard]] CUresult unmap();

 private:
  void undo();
  std::size_t bytes_;
  CUdeviceptr address_ = 0;
  std::vector<CUmemGenericAllocationHandle> handles_;
  std::size_t mapped_bytes_ = 0;
};

}  // namespace probe
