// Random programs on the page heap, in episodes of a seed each: page_heap_world.hpp. An episode that fails names its seed.
//
//   page_heap_fuzz [--operations N] [--seed S] [--print]
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "page_heap_world.hpp"

namespace {
constexpr std::uint64_t kEpisodeOperations = 1000;
}  // namespace

int main(int count, char** arguments) {
  std::uint64_t operations = 20'000;
  std::uint64_t seed = 1;
  bool print = false;
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(arguments[i], "--operations") == 0 && i + 1 < count) operations = std::strtoull(arguments[++i], nullptr, 10);
    else if (std::strcmp(arguments[i], "--seed") == 0 && i + 1 < count) seed = std::strtoull(arguments[++i], nullptr, 10);
    else if (std::strcmp(arguments[i], "--print") == 0) print = true;
    else return std::fprintf(stderr, "usage: page_heap_fuzz [--operations N] [--seed S] [--print]\n"), 2;
  }
  if (print) std::setvbuf(stdout, nullptr, _IOLBF, 0);
  cupool::fuzz::Tally tally;
  for (; tally.operations < operations; ++seed) {
    cupool::fuzz::World world(seed, tally, print);
    for (std::uint64_t step = 0; step < kEpisodeOperations; ++step) world.step();
    world.finish();
  }
  const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "%llu operations: %llu allocations, %llu refused, %llu remaps (%llu MiB), %llu native, %llu faults, %llu pins, %llu captures, %llu contexts "
      "ended, %llu blocks outlived them, %llu steps\n",
      number(tally.operations), number(tally.allocations), number(tally.refused), number(tally.remaps), number(tally.moved_bytes >> 20),
      number(tally.natives), number(tally.injected), number(tally.pinned), number(tally.captures), number(tally.deaths), number(tally.outlived),
      number(tally.repeated_steps));
  return tally.remaps == 0 ? 1 : 0;  // nothing was moved: nothing was proved
}
