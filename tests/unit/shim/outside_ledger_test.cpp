// When physical memory of the program's own is really gone, and which context owns what.
#include "shim/outside_ledger.hpp"

#include <catch2/catch.hpp>

using namespace cupool::shim;
using Keys = std::vector<std::uint64_t>;

namespace {
/// The key of the memory that is gone with this release; 0: none.
std::uint64_t gone(VmmLedger& ledger, VmmLedger::Handle handle) {
  const VmmLedger::Released released = ledger.released(handle);
  return released.is_gone ? released.key : 0;
}
}  // namespace

TEST_CASE("memory that is released while unmapped is gone at once") {
  VmmLedger ledger;
  const std::uint64_t key = ledger.created(10);
  CHECK(key != 0);
  CHECK(gone(ledger, 10) == key);
  CHECK(gone(ledger, 10) == 0);
}

TEST_CASE("memory that is released while mapped is gone with its last mapping") {
  VmmLedger ledger;
  const std::uint64_t key = ledger.created(10);
  ledger.mapped(10, 0x1000, 0x100);
  ledger.mapped(10, 0x2000, 0x100);
  CHECK(gone(ledger, 10) == 0);
  CHECK(ledger.unmapped(0x1000, 0x100).empty());
  CHECK(ledger.unmapped(0x2000, 0x100) == Keys{key});
}

TEST_CASE("memory that is unmapped before its release is gone with the release") {
  VmmLedger ledger;
  const std::uint64_t key = ledger.created(10);
  ledger.mapped(10, 0x1000, 0x100);
  CHECK(ledger.unmapped(0x1000, 0x100).empty());
  CHECK(gone(ledger, 10) == key);
}

TEST_CASE("every retained reference holds the memory") {
  VmmLedger ledger;
  const std::uint64_t key = ledger.created(10);
  ledger.retained(10, 0);
  CHECK(gone(ledger, 10) == 0);
  CHECK(gone(ledger, 10) == key);
}

TEST_CASE("what was released while mapped has a handle again by its address") {
  VmmLedger ledger;
  const std::uint64_t key = ledger.created(10);
  ledger.mapped(10, 0x1000, 0x100);
  CHECK(gone(ledger, 10) == 0);
  ledger.retained(11, 0x1080);
  CHECK(ledger.unmapped(0x1000, 0x100).empty());
  ledger.mapped(11, 0x5000, 0x100);
  CHECK(gone(ledger, 11) == 0);
  CHECK(ledger.unmapped(0x5000, 0x100) == Keys{key});
  ledger.retained(12, 0x5000);
  CHECK(gone(ledger, 12) == 0);
}

TEST_CASE("a release that the driver refuses leaves the memory held") {
  VmmLedger ledger;
  const std::uint64_t key = ledger.created(10);
  const VmmLedger::Released released = ledger.released(10);
  CHECK(released.is_gone);
  ledger.not_released(10, released);
  CHECK(gone(ledger, 10) == key);
}

TEST_CASE("a handle whose value comes again names other memory") {
  VmmLedger ledger;
  const std::uint64_t first = ledger.created(10);
  ledger.mapped(10, 0x1000, 0x100);
  CHECK(gone(ledger, 10) == 0);
  const std::uint64_t second = ledger.created(10);
  CHECK(second != first);
  CHECK(ledger.unmapped(0x1000, 0x100) == Keys{first});
  CHECK(gone(ledger, 10) == second);
}

TEST_CASE("one unmap takes every mapping in its range and none outside") {
  VmmLedger ledger;
  const std::uint64_t a = ledger.created(1);
  const std::uint64_t b = ledger.created(2);
  const std::uint64_t c = ledger.created(3);
  ledger.mapped(1, 0x1000, 0x1000);
  ledger.mapped(2, 0x2000, 0x1000);
  ledger.mapped(3, 0x3000, 0x1000);
  for (const std::uint64_t handle : {1, 2, 3}) CHECK(gone(ledger, handle) == 0);
  CHECK(ledger.unmapped(0x1000, 0x2000) == Keys{a, b});
  CHECK(ledger.unmapped(0x3000, 0x1000) == Keys{c});
}

TEST_CASE("handles that the program did not create are not counted") {
  VmmLedger ledger;
  ledger.mapped(99, 0x1000, 0x1000);
  ledger.retained(99, 0);
  CHECK(gone(ledger, 99) == 0);
  CHECK(ledger.unmapped(0x1000, 0x1000).empty());
}

TEST_CASE("memory under a green context belongs to the primary") {
  ContextBook book;
  const auto context = [](std::uintptr_t value) { return reinterpret_cast<CUcontext>(value); };
  const auto green = reinterpret_cast<CUgreenCtx>(std::uintptr_t{0x30});
  CHECK(book.owner(context(0x10)) == context(0x10));
  book.set_primary(0, context(0x20));
  book.set_green(green, 0, ContextBook::place_for_green());
  book.set_alias(context(0x10), context(0x20), green);
  CHECK(book.owner(context(0x10)) == context(0x20));
  CHECK(book.owner(context(0x11)) == context(0x11));
  CHECK(book.primary(0) == context(0x20));
  CHECK(book.primary(1) == nullptr);
  CHECK(book.green_device(green) == 0);
  book.forget_green(green, 1);
  CHECK(book.green_device(green) == 0);
  book.forget_green(green, 0);
  CHECK_FALSE(book.green_device(green));
}

TEST_CASE("with a primary context end the contexts that stand for its green ones; its next life is not theirs") {
  ContextBook book;
  int objects[4];
  const auto context = [&](int i) { return reinterpret_cast<CUcontext>(&objects[i]); };
  const auto green = reinterpret_cast<CUgreenCtx>(&objects[3]);
  book.set_primary(0, context(0));
  book.set_green(green, 0, ContextBook::place_for_green());
  book.set_alias(context(1), context(0), green);
  CHECK(book.greens_of(0) == std::vector<CUgreenCtx>{green});
  CHECK(book.greens_of(1).empty());
  CHECK(book.owner(context(1)) == context(0));
  book.ended(context(0));
  CHECK(book.has_ended(context(1)));
  book.lives(context(0));
  CHECK_FALSE(book.has_ended(context(0)));
  CHECK(book.has_ended(context(1)));
  book.set_alias(context(1), context(0), green);  // the handle of a new green context
  CHECK_FALSE(book.has_ended(context(1)));
}

TEST_CASE("one thread at a time begins or ends the primary context of a device") {
  ContextBook book;
  std::unique_lock first = book.primary_turn(0);
  {
    const std::unique_lock other_device = book.primary_turn(1);
    CHECK(other_device.owns_lock());
  }
  first.unlock();
  CHECK(book.primary_turn(0).owns_lock());
}
