// Who owns the memory of a context, and which contexts have ended.
#include "shim/context_book.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <utility>
#include <vector>

using namespace cupool::shim;

TEST_CASE("memory under a green context belongs to the primary") {
  ContextBook book;
  const auto context = [](std::uintptr_t value) { return reinterpret_cast<CUcontext>(value); };
  const auto green = reinterpret_cast<CUgreenCtx>(std::uintptr_t{0x30});
  CHECK(book.owner(context(0x10)) == context(0x10));
  CHECK_FALSE(book.has_aliases());
  book.set_primary(0, context(0x20));
  book.set_green(green, 0, ContextBook::place_for_green());
  book.set_alias(context(0x20), context(0x20), green);  // a driver that gives out the primary itself
  CHECK_FALSE(book.has_aliases());
  book.set_alias(context(0x10), context(0x20), green);
  CHECK(book.has_aliases());
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
  book.forget_green(green, 0);
  CHECK(book.has_ended(context(1)));
  book.lives(context(1));  // a context of its own has the handle
  CHECK_FALSE(book.has_ended(context(1)));
  CHECK(book.owner(context(1)) == context(1));
}

TEST_CASE("a green context whose handle comes again ends with no context that stood for the one before") {
  ContextBook book;
  int objects[3];
  const auto context = [&](int i) { return reinterpret_cast<CUcontext>(&objects[i]); };
  const auto green = reinterpret_cast<CUgreenCtx>(&objects[2]);
  book.set_green(green, 0, ContextBook::place_for_green());
  book.set_alias(context(1), context(0), green);
  book.forget_green(green, 0);
  book.lives(context(1));  // a context of its own has the handle
  book.set_green(green, 0, ContextBook::place_for_green());
  book.forget_green(green, 0);
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
