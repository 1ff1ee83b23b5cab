// The 64 bytes: what goes in comes out, and everything else is told from it.
#include <catch2/catch.hpp>
#include <cstring>

#include "pool/ipc/block_handle.hpp"

using namespace cupool::ipc;

namespace {
const BlockHandle kHandle{{4711, 0x1234'5678'9abc'def0U}, {7, UINT64_MAX}, 99};
}  // namespace

TEST_CASE("a handle survives its 64 bytes") {
  BlockHandle out;
  REQUIRE(decode(encode(kHandle), out) == HandleKind::ours);
  CHECK(out == kHandle);
}

TEST_CASE("every changed bit makes a handle foreign or damaged, and leaves the answer alone") {
  const CUipcMemHandle whole = encode(kHandle);
  for (std::size_t bit = 0; bit < 8 * sizeof whole; ++bit) {
    CUipcMemHandle bent = whole;
    unsigned char bytes[sizeof bent];
    std::memcpy(bytes, &bent, sizeof bent);
    bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1u << bit % 8));
    std::memcpy(&bent, bytes, sizeof bent);
    BlockHandle out;
    INFO("bit " << bit);
    REQUIRE(decode(bent, out) == (bit < 64 ? HandleKind::foreign : HandleKind::damaged));
    REQUIRE(out == BlockHandle{});
  }
}

TEST_CASE("zeros and a driver's handle are foreign") {
  BlockHandle out;
  CUipcMemHandle raw{};
  CHECK(decode(raw, out) == HandleKind::foreign);
  std::memset(&raw, 0xff, sizeof raw);
  CHECK(decode(raw, out) == HandleKind::foreign);
}

TEST_CASE("a handle names a process, so no pid below one is whole") {
  BlockHandle out;
  CHECK(decode(encode({{0, 1}, {1, 1}, 0}), out) == HandleKind::damaged);
  CHECK(decode(encode({{-5, 1}, {1, 1}, 0}), out) == HandleKind::damaged);
}

TEST_CASE("a whole handle of another version is not read") {
  constexpr std::size_t kVersion = 8, kCheck = sizeof(CUipcMemHandle) - 8;
  CUipcMemHandle raw = encode(kHandle);
  char* const bytes = raw.reserved;
  ++bytes[kVersion];
  const std::uint64_t check = checksum(bytes, kCheck);
  std::memcpy(bytes + kCheck, &check, sizeof check);
  BlockHandle out;
  CHECK(decode(raw, out) == HandleKind::damaged);
  --bytes[kVersion];
  const std::uint64_t own_check = checksum(bytes, kCheck);
  std::memcpy(bytes + kCheck, &own_check, sizeof own_check);
  CHECK(decode(raw, out) == HandleKind::ours);
}
