// The registry of one exporting process: a header, then entries of a fixed size, one per exported block.
//
// The exporter writes through a shared mapping, one entry at a time: body first, `alive` last; a retired entry only loses
// `alive`. Openers read a copy (never a mapping, which the other side could cut short) and believe nothing of it before
// judge() has looked. Pure: bytes in, verdict out. Thread rule: one writer; any number of readers in other processes.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "pool/ipc/block_handle.hpp"

namespace cupool::ipc {

inline constexpr std::uint32_t kRegistryVersion = 1;

struct RegistryHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t pid;
  std::uint64_t start_ticks;
  std::uint64_t check;
};

/// One block, as another process finds it.
struct RegistryEntry {
  std::uint32_t alive;  ///< 1 while the block is allocated; the only word that changes after the entry was written
  std::uint32_t reserved;
  Nonce nonce;
  CUipcMemHandle region;  ///< the real driver's handle of the region that holds the block
  std::uint64_t region_bytes;
  std::uint64_t offset;  ///< of the block in its region
  std::uint64_t bytes;   ///< as the program asked for
  std::uint64_t check;   ///< of everything between `alive` and it
};

/// Bytes from one entry to the next; the header takes the place of one.
inline constexpr std::size_t kEntryStride_bytes = 128;
static_assert(sizeof(RegistryEntry) <= kEntryStride_bytes && sizeof(RegistryHeader) <= kEntryStride_bytes);
/// No registry has more entries: 128 MiB of them.
inline constexpr std::uint32_t kEntriesMax = (std::uint32_t{1} << 20) - 1;

constexpr std::uint64_t entry_offset(std::uint32_t index) { return (std::uint64_t{index} + 1) * kEntryStride_bytes; }

RegistryHeader make_header(const ProcessName& exporter);
bool is_header_of(const RegistryHeader& header, const ProcessName& exporter);

/// What an export says of its block.
struct BlockPlace {
  Nonce nonce{};
  CUipcMemHandle region{};
  std::uint64_t region_bytes = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// Writes a dead entry's body and makes it alive. `entry` lies in the shared mapping.
void write_entry(RegistryEntry* entry, const BlockPlace& place);
/// The block is gone: no later reader finds it.
void retire_entry(RegistryEntry* entry);
/// True, and `place` filled, when the copy `entry` is whole, alive, the export that `nonce` names, and inside its region.
bool judge(const RegistryEntry& entry, const Nonce& nonce, BlockPlace& place);

}  // namespace cupool::ipc
