// The registry's entries: see registry_format.hpp. Order of the stores: a reader that sees `alive` sees the body; one that reads in between finds a
// wrong checksum.
#include "pool/ipc/registry_format.hpp"

#include <atomic>
#include <cstring>

namespace cupool::ipc {
namespace {

constexpr std::uint64_t kMagic = 0x6970'6370'6f6f'6c31U;
constexpr std::size_t kBody_bytes = offsetof(RegistryEntry, reserved);

std::uint64_t check_of(const RegistryEntry& entry) {
  return checksum(reinterpret_cast<const char*>(&entry) + kBody_bytes, offsetof(RegistryEntry, check) - kBody_bytes);
}

std::uint64_t check_of(const RegistryHeader& header) { return checksum(&header, offsetof(RegistryHeader, check)); }

void set_alive(RegistryEntry* entry, std::uint32_t alive) { std::atomic_ref(entry->alive).store(alive, std::memory_order_release); }

}  // namespace

RegistryHeader make_header(const ProcessName& exporter) {
  RegistryHeader header{};
  header.magic = kMagic;
  header.version = kRegistryVersion;
  header.pid = exporter.pid;
  header.start_ticks = exporter.start_ticks;
  header.check = check_of(header);
  return header;
}

bool is_header_of(const RegistryHeader& header, const ProcessName& exporter) {
  return header.magic == kMagic && header.version == kRegistryVersion && header.pid == exporter.pid && header.start_ticks == exporter.start_ticks &&
         header.check == check_of(header);
}

void write_entry(RegistryEntry* entry, const BlockPlace& place) {
  RegistryEntry body{};
  body.nonce = place.nonce;
  body.region = place.region;
  body.region_bytes = place.region_bytes;
  body.offset = place.offset;
  body.bytes = place.bytes;
  body.check = check_of(body);
  std::memcpy(reinterpret_cast<char*>(entry) + kBody_bytes, reinterpret_cast<const char*>(&body) + kBody_bytes, sizeof body - kBody_bytes);
  set_alive(entry, 1);
}

void retire_entry(RegistryEntry* entry) { set_alive(entry, 0); }

bool judge(const RegistryEntry& entry, const Nonce& nonce, BlockPlace& place) {
  if (entry.alive != 1 || entry.nonce != nonce || entry.check != check_of(entry)) return false;
  const bool is_inside = entry.bytes != 0 && entry.bytes <= entry.region_bytes && entry.offset <= entry.region_bytes - entry.bytes;
  if (!is_inside) return false;
  place = {entry.nonce, entry.region, entry.region_bytes, entry.offset, entry.bytes};
  return true;
}

}  // namespace cupool::ipc
