// The layout of the 64 bytes of a BlockHandle. Both sides are on one machine: native byte order.
#include "pool/ipc/block_handle.hpp"

#include <cstddef>
#include <cstring>

namespace cupool::ipc {
namespace {

// No handle of the driver begins like this: theirs hold a device's and a process's numbers (e004f912… on an H100).
constexpr std::uint64_t kHandleMagic = 0x6c6f'6f70'7563'b10cU;
constexpr std::uint32_t kVersion = 1;

struct Layout {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t pid;
  std::uint64_t start_ticks;
  std::uint64_t nonce[2];
  std::uint32_t index;
  std::uint32_t reserved;  ///< zero
  std::uint64_t also_reserved;
  std::uint64_t check;  ///< of everything before it
};
static_assert(sizeof(Layout) == sizeof(CUipcMemHandle));

}  // namespace

std::uint64_t checksum(const void* bytes, std::size_t count) {
  std::uint64_t value = 0xcbf2'9ce4'8422'2325U;
  for (std::size_t i = 0; i < count; ++i) value = (value ^ static_cast<const unsigned char*>(bytes)[i]) * 0x0000'0100'0000'01b3U;
  return value;
}

CUipcMemHandle encode(const BlockHandle& handle) {
  Layout layout{};
  layout.magic = kHandleMagic;
  layout.version = kVersion;
  layout.pid = handle.exporter.pid;
  layout.start_ticks = handle.exporter.start_ticks;
  layout.nonce[0] = handle.nonce[0];
  layout.nonce[1] = handle.nonce[1];
  layout.index = handle.index;
  layout.check = checksum(&layout, offsetof(Layout, check));
  CUipcMemHandle raw;
  std::memcpy(&raw, &layout, sizeof raw);
  return raw;
}

HandleKind decode(const CUipcMemHandle& raw, BlockHandle& out) {
  Layout layout;
  std::memcpy(&layout, &raw, sizeof layout);
  if (layout.magic != kHandleMagic) return HandleKind::foreign;
  const bool is_whole = layout.version == kVersion && layout.pid > 0 && layout.check == checksum(&layout, offsetof(Layout, check));
  if (!is_whole) return HandleKind::damaged;
  out = {{layout.pid, layout.start_ticks}, {layout.nonce[0], layout.nonce[1]}, layout.index};
  return HandleKind::ours;
}

}  // namespace cupool::ipc
