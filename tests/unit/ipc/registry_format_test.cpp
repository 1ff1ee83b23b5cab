// Entries: a reader believes one that is whole, alive, the export it was told of, and inside its region. Nothing else.
#include <catch2/catch.hpp>
#include <cstring>

#include "pool/ipc/registry_format.hpp"

using namespace cupool::ipc;

namespace {

const Nonce kNonce{11, 22};

BlockPlace place(std::uint64_t offset, std::uint64_t bytes, std::uint64_t region_bytes) {
  BlockPlace made;
  made.nonce = kNonce;
  std::memset(&made.region, 0x5a, sizeof made.region);
  made.region_bytes = region_bytes;
  made.offset = offset;
  made.bytes = bytes;
  return made;
}

bool is_believed(const BlockPlace& written) {
  RegistryEntry entry{};
  BlockPlace read;
  write_entry(&entry, written);
  return judge(entry, kNonce, read);
}

}  // namespace

TEST_CASE("an entry is read as it was written") {
  RegistryEntry entry{};
  BlockPlace read;
  write_entry(&entry, place(512, 1000, 4096));
  REQUIRE(judge(entry, kNonce, read));
  CHECK(read.offset == 512);
  CHECK(read.bytes == 1000);
  CHECK(read.region_bytes == 4096);
  CHECK(read.nonce == kNonce);
  CHECK(std::memcmp(&read.region, &entry.region, sizeof read.region) == 0);
}

TEST_CASE("bounds of a block in its region") {
  CHECK(is_believed(place(0, 4096, 4096)));
  CHECK(is_believed(place(4095, 1, 4096)));
  CHECK_FALSE(is_believed(place(0, 0, 4096)));
  CHECK_FALSE(is_believed(place(0, 4097, 4096)));
  CHECK_FALSE(is_believed(place(1, 4096, 4096)));
  CHECK_FALSE(is_believed(place(4096, 1, 4096)));
  CHECK_FALSE(is_believed(place(UINT64_MAX, 1, 4096)));
  CHECK_FALSE(is_believed(place(UINT64_MAX - 511, 512, 4096)));
  CHECK_FALSE(is_believed(place(512, UINT64_MAX, 4096)));
  CHECK_FALSE(is_believed(place(0, 1, 0)));
}

TEST_CASE("a retired entry, another export's and an empty one are not believed") {
  RegistryEntry entry{};
  BlockPlace read;
  CHECK_FALSE(judge(entry, Nonce{}, read));
  write_entry(&entry, place(0, 1, 1));
  CHECK_FALSE(judge(entry, Nonce{11, 23}, read));
  CHECK_FALSE(judge(entry, Nonce{10, 22}, read));
  retire_entry(&entry);
  CHECK_FALSE(judge(entry, kNonce, read));
  CHECK(read.bytes == 0);
}

TEST_CASE("every changed bit of an entry is noticed") {
  RegistryEntry entry{};
  write_entry(&entry, place(512, 1000, 4096));
  for (std::size_t bit = 0; bit < 8 * sizeof entry; ++bit) {
    RegistryEntry bent = entry;
    auto* bytes = reinterpret_cast<unsigned char*>(&bent);
    bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1u << bit % 8));
    BlockPlace read;
    INFO("bit " << bit);
    REQUIRE_FALSE(judge(bent, kNonce, read));
  }
}

TEST_CASE("a body that is half written is not believed although the entry was alive before") {
  RegistryEntry old_entry{};
  RegistryEntry new_entry{};
  write_entry(&old_entry, place(512, 1000, 4096));
  write_entry(&new_entry, place(1024, 2000, 8192));
  for (std::size_t cut = 24; cut < offsetof(RegistryEntry, check); cut += 8) {
    RegistryEntry torn = old_entry;
    std::memcpy(&torn, &new_entry, cut);
    BlockPlace read;
    const bool is_whole = std::memcmp(&torn, &old_entry, sizeof torn) == 0 || std::memcmp(&torn, &new_entry, sizeof torn) == 0;
    INFO("cut at " << cut);
    REQUIRE(judge(torn, kNonce, read) == is_whole);
  }
}

TEST_CASE("a header is its own process's") {
  const ProcessName owner{77, 123456};
  RegistryHeader header = make_header(owner);
  CHECK(is_header_of(header, owner));
  CHECK_FALSE(is_header_of(header, {78, 123456}));
  CHECK_FALSE(is_header_of(header, {77, 123457}));
  header.version += 1;
  CHECK_FALSE(is_header_of(header, owner));
  CHECK_FALSE(is_header_of(RegistryHeader{}, ProcessName{}));
}

TEST_CASE("entries do not overlap each other nor the header") {
  CHECK(entry_offset(0) >= sizeof(RegistryHeader));
  CHECK(entry_offset(1) - entry_offset(0) >= sizeof(RegistryEntry));
  CHECK(entry_offset(kEntriesMax - 1) + kEntryStride_bytes == std::uint64_t{128} << 20);
}
