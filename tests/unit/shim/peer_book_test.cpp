// Which peer access is the program's, which is ours, and what of both ends with a context.
#include "shim/peer_book.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

using cupool::shim::PeerBook;
using Disable = PeerBook::Disable;

namespace {
CUcontext context(std::uintptr_t number) { return reinterpret_cast<CUcontext>(number * 0x10); }
}  // namespace

TEST_CASE("access that only we have enabled is not the program's until it enables it, too") {
  PeerBook book;
  CHECK(book.program_disables(context(1), context(2)) == Disable::ask_driver);
  CHECK_FALSE(book.program_enables(context(1), context(2)));
  book.enabled_by_us(context(1), context(2));
  CHECK(book.program_disables(context(1), context(2)) == Disable::not_enabled);
  CHECK(book.program_enables(context(1), context(2)));
  CHECK_FALSE(book.program_enables(context(1), context(2)));
  book.enabled_by_us(context(1), context(2));
  CHECK(book.program_disables(context(1), context(2)) == Disable::success);
  CHECK(book.program_disables(context(1), context(2)) == Disable::not_enabled);
}

TEST_CASE("access that the program had enabled before us is the program's to end") {
  PeerBook book;
  book.enabled_by_program(context(1), context(2));
  CHECK_FALSE(book.program_enables(context(1), context(2)));
  CHECK(book.program_disables(context(1), context(2)) == Disable::success);
  book.enabled_by_program(context(1), context(2));
  CHECK(book.program_disables(context(1), context(2)) == Disable::not_enabled);
}

TEST_CASE("access goes from one context to one other") {
  PeerBook book;
  book.enabled_by_us(context(1), context(2));
  CHECK(book.program_disables(context(2), context(1)) == Disable::ask_driver);
  CHECK(book.program_disables(context(1), context(3)) == Disable::ask_driver);
  CHECK(book.program_disables(context(3), context(2)) == Disable::ask_driver);
}

TEST_CASE("with a context ends the access that it has, and the access to it") {
  PeerBook book;
  book.enabled_by_us(context(1), context(2));
  book.enabled_by_us(context(2), context(3));
  book.enabled_by_us(context(1), context(3));
  book.context_ended(context(2));
  CHECK(book.program_disables(context(1), context(2)) == Disable::ask_driver);
  CHECK(book.program_disables(context(2), context(3)) == Disable::ask_driver);
  CHECK(book.program_disables(context(1), context(3)) == Disable::not_enabled);
}

TEST_CASE("a device's access to default pools, and others' to its own, holds as long as any context of it lives") {
  PeerBook book;
  book.context_seen(context(1), 0);
  book.context_seen(context(2), 0);
  book.context_seen(context(3), 1);
  book.grants(0, 1);
  book.grants(1, 0);
  book.grants(1, 2);
  CHECK_FALSE(book.is_granted(2, 1));
  book.context_ended(context(9));
  book.context_ended(context(1));
  CHECK(book.is_granted(0, 1));
  book.context_ended(context(2));
  CHECK_FALSE(book.is_granted(0, 1));
  CHECK_FALSE(book.is_granted(1, 0));
  CHECK(book.is_granted(1, 2));
}

TEST_CASE("a context is of the device where it was seen last") {
  PeerBook book;
  CHECK(book.device_of(context(1)) == -1);
  book.context_seen(context(1), 0);
  book.context_seen(context(2), 0);
  book.context_seen(context(2), 0);
  CHECK(book.contexts_of(0) == std::vector<CUcontext>{context(1), context(2)});
  CHECK(book.devices() == std::vector<int>{0});
  CHECK_FALSE(book.has_others(0));
  CHECK(book.has_others(1));
  book.context_seen(context(1), 1);
  CHECK(book.device_of(context(1)) == 1);
  CHECK(book.device_of(context(2)) == 0);
  CHECK(book.contexts_of(0) == std::vector<CUcontext>{context(2)});
  CHECK(book.has_others(0));
  book.context_ended(context(1));
  CHECK(book.device_of(context(1)) == -1);
  CHECK(book.devices() == std::vector<int>{0});
}

TEST_CASE("a device shares its memory with each peer once, until that is taken back") {
  PeerBook book;
  book.share(0, 1, true);
  book.share(0, 1, true);
  book.share(0, 2, true);
  book.share(3, 1, true);
  CHECK(book.shares().size() == 3);
  CHECK(book.is_shared(0, 1));
  CHECK_FALSE(book.is_shared(1, 0));
  CHECK_FALSE(book.is_shared(1, 2));
  book.share(0, 1, false);
  CHECK_FALSE(book.is_shared(0, 1));
  CHECK(book.is_shared(0, 2));
  CHECK(book.is_shared(3, 1));
}
