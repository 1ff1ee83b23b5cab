// Blocks of random sizes, some of which stay, and a request that CUPOOL_LIMIT refuses: what the report names first, followed by the letter, serves it.
// Arguments: seed, distribution of sizes, MiB wanted, MiB allocated before, percent that stay.
//! env CUSIM_MEMORY=1GiB
//! native skip
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report| ) .*)
//! case regions_in_pieces
//! args 552723 3 384 597 20
//! env CUPOOL_BACKING=segments
//! env CUPOOL_LIMIT=735MiB
//! ooms 1
//! check "wanted: 2" in out
//! check [(s["rule_id"], s["level"]) for s in ooms[0]["ooms"][0]["suggestions"]][:2] == [("backing_pages", "fix"), ("raise_limit", "info")]
//! case with_pages
//! args 552723 3 384 597 20
//! env CUPOOL_BACKING=pages
//! env CUPOOL_LIMIT=735MiB
//! check "wanted: 0" in out
//! case pages
//! args 656370 0 318 461 40
//! env CUPOOL_LIMIT=532MiB
//! ooms 1
//! check "wanted: 2" in out
//! check ooms[0]["ooms"][0]["suggestions"][0]["rule_id"] == "raise_limit"
//! check f"enough_limit_bytes={610 << 20}" in ooms[0]["ooms"][0]["suggestions"][0]["evidence"].split()
//! case with_the_number
//! args 656370 0 318 461 40
//! env CUPOOL_LIMIT=610MiB
//! check "wanted: 0" in out
#include <cuda.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "victim.h"

static std::size_t next_size(std::mt19937& random, int distribution) {
  switch (distribution) {
    case 0: return (1 + random() % 64) * 64 * KIB;
    default: return (1 + random() % 200) * 128 * KIB;
  }
}

int main(int count, char** arguments) {
  if (count < 6) return 64;
  std::mt19937 random(static_cast<unsigned>(std::atoi(arguments[1])));
  const int distribution = std::atoi(arguments[2]);
  const std::size_t wanted = std::strtoull(arguments[3], nullptr, 10) * MIB;
  const std::size_t before = std::strtoull(arguments[4], nullptr, 10) * MIB;
  const unsigned staying_percent = static_cast<unsigned>(std::atoi(arguments[5]));
  struct Planned {
    std::size_t bytes;
    bool stays;
  };
  std::vector<Planned> plan;
  for (std::size_t sum = 0;;) {
    const std::size_t bytes = next_size(random, distribution);
    if (sum + bytes > before) break;
    sum += bytes;
    plan.push_back({bytes, random() % 100 < staying_percent});
  }
  enter_device(0);
  std::vector<CUdeviceptr> leaving;
  for (const Planned& one : plan) {
    const CUdeviceptr block = allocate(one.bytes);
    if (!one.stays) leaving.push_back(block);
  }
  std::shuffle(leaving.begin(), leaving.end(), random);
  for (const CUdeviceptr block : leaving) MUST(cuMemFree(block));
  MUST(cuCtxSynchronize());
  CUdeviceptr large = 0;
  std::printf("wanted: %d\n", static_cast<int>(cuMemAlloc(&large, wanted)));
  return 0;
}
