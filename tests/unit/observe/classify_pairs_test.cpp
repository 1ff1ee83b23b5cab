// Causes that two conditions decide: each holds by itself, one byte to either side.
#include <catch2/catch.hpp>

#include "samples.hpp"

using namespace cupool::observe;
using samples::exhausted_evidence;
using samples::kGiB;

namespace {
OomVerdict judge(const OomEvidence& e) { return classify(e, samples::default_options()); }
}  // namespace

TEST_CASE("what goes past the pool counts against the limit too: non_pool_memory where both would do without it") {
  OomEvidence e = exhausted_evidence();
  e.driver_free_bytes = 0;
  e.own_outside_bytes = 4 * kGiB;
  e.limit_bytes = e.held_bytes - e.own_outside_bytes + e.request_bytes;
  CHECK(judge(e).cause == OomCause::non_pool_memory);
  e.limit_bytes -= 1;
  CHECK(judge(e).cause == OomCause::true_exhaustion);
}

TEST_CASE("what others hold is no cause where the limit forbids it anyway") {
  OomEvidence e = exhausted_evidence();
  e.held_bytes = 60 * kGiB;
  e.other_process_bytes = 20 * kGiB;
  e.driver_free_bytes = 0;
  e.limit_bytes = e.held_bytes + e.request_bytes;
  CHECK(judge(e).cause == OomCause::other_process);
  e.limit_bytes -= 1;
  CHECK(judge(e).cause == OomCause::true_exhaustion);
}

TEST_CASE("what fits without what waits for the GPU is not deferred_free") {
  OomEvidence e = exhausted_evidence();
  e.deferred_bytes = kGiB;
  e.pool_free_bytes = e.largest_free_bytes = e.request_bytes - 1;
  e.largest_free_with_deferred_bytes = e.request_bytes + kGiB;
  CHECK(judge(e).cause == OomCause::deferred_free);
  e.pool_free_bytes = e.largest_free_bytes += 1;
  CHECK(judge(e).cause != OomCause::deferred_free);
}

TEST_CASE("on pages one block could have had no more than the limit leaves") {
  OomEvidence e = samples::stranded_evidence();  // 4 GiB asked for, 4 GiB free in pieces; of that and of the driver's 1 GiB each
  CHECK(judge(e).cause == OomCause::external_fragmentation);
  CHECK(judge(e).shortfall_bytes == 2 * kGiB);
  e.limit_bytes = e.held_bytes + kGiB / 2;
  CHECK(judge(e).cause == OomCause::external_fragmentation);
  CHECK(judge(e).shortfall_bytes == 4 * kGiB - 3 * kGiB / 2);
}
