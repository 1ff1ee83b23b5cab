// BlockHandle: the 64 bytes that cuIpcGetMemHandle returns for a pooled block, and that another process under cupool opens.
//
// It names an entry of the exporter's registry (registry_format.hpp); the nonce says which export it was. The program passes it on in any way it
// likes, so what comes back is untrusted. Makes no driver call.
// Thread rule: plain values.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <optional>

namespace cupool::ipc {

/// Random, one per export: a handle that is kept after its block was freed never fits the next user of the entry.
using Nonce = std::array<std::uint64_t, 2>;

/// A process among all that have run on this machine since it was started.
struct ProcessName {
  std::int32_t pid = 0;
  std::uint64_t start_ticks = 0;
  bool operator==(const ProcessName&) const = default;
};

struct BlockHandle {
  ProcessName exporter;
  Nonce nonce{};
  std::uint32_t index = 0;  ///< index of the entry in the exporter's registry
  bool operator==(const BlockHandle&) const = default;
};

enum class HandleKind {
  foreign,  ///< not of this library: the driver's own, or garbage that the driver shall judge
  ours,
  damaged,  ///< of this library, but not whole, or of a version that we do not speak
};

CUipcMemHandle encode(const BlockHandle& handle);
/// Fills `out` when the kind is `ours`.
HandleKind decode(const CUipcMemHandle& raw, BlockHandle& out);

/// FNV-1a, 64 bits: against damage and torn reads, not against malice (both sides are the same user).
std::uint64_t checksum(const void* bytes, std::size_t count);

}  // namespace cupool::ipc
