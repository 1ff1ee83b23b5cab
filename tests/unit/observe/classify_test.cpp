// The ordered counterfactuals: each cause, one byte to either side of its boundary, and what is not known.
#include <catch2/catch.hpp>

#include <algorithm>
#include <optional>
#include <random>
#include <string>

#include "samples.hpp"

using namespace cupool::observe;
using samples::exhausted_evidence;
using samples::kGiB;

namespace {

OomVerdict judge(const OomEvidence& e) { return classify(e, samples::default_options()); }

std::optional<std::uint64_t> remaining(const OomVerdict& verdict, OomCause cause) {
  for (const auto& [of, bytes] : verdict.shortfalls) {
    if (of == cause) return bytes;
  }
  return std::nullopt;
}

bool misses(const OomVerdict& verdict, const std::string& input) {
  return std::find(verdict.missing_inputs.begin(), verdict.missing_inputs.end(), input) != verdict.missing_inputs.end();
}

}  // namespace

TEST_CASE("the sample of each cause is judged as that cause, with high confidence and something to say") {
  const std::vector<OomRecord> ooms = samples::one_of_each_cause();
  for (std::size_t i = 0; i < ooms.size(); ++i) {
    const OomVerdict verdict = judge(ooms[i].evidence);
    CHECK(std::string(name_of(verdict.cause)) == name_of(kOomCauses[i]));
    CHECK(verdict.confidence == "high");
    CHECK_FALSE(verdict.suggestions.empty());
    CHECK(verdict.shortfalls.size() == (ooms[i].evidence.limit_bytes != 0 ? 8 : 7));  // without a limit nothing is short of one
    CHECK(remaining(verdict, OomCause::limit).has_value() == (ooms[i].evidence.limit_bytes != 0));
  }
}

TEST_CASE("impossible_request begins one byte above the device, and one byte above the limit") {
  OomEvidence e = exhausted_evidence();
  e.held_bytes = 0;
  e.driver_free_bytes = 0;
  e.request_bytes = e.device_total_bytes;
  CHECK(judge(e).cause != OomCause::impossible_request);
  e.request_bytes += 1;
  CHECK(judge(e).cause == OomCause::impossible_request);
  CHECK(judge(e).shortfall_bytes == 1);
  e = exhausted_evidence();
  e.limit_bytes = e.request_bytes;
  CHECK(judge(e).cause != OomCause::impossible_request);
  e.limit_bytes -= 1;
  CHECK(judge(e).cause == OomCause::impossible_request);
  CHECK(judge(e).shortfall_bytes == 1);
}

TEST_CASE("a request that overflowed when it was rounded is impossible") {
  OomEvidence e = exhausted_evidence();
  e.request_bytes = 0;
  CHECK(judge(e).cause == OomCause::impossible_request);
  CHECK(judge(e).shortfall_bytes == UINT64_MAX - e.device_total_bytes);
}

TEST_CASE("limit needs the limit to block by a byte, after what can be returned, and a device that could") {
  OomEvidence e = exhausted_evidence();
  e.held_bytes = 10 * kGiB;
  e.releasable_bytes = 3 * kGiB;
  e.driver_free_bytes = 20 * kGiB;
  e.limit_bytes = 10 * kGiB - 3 * kGiB + e.request_bytes - 1;
  CHECK(judge(e).cause == OomCause::limit);
  CHECK(judge(e).shortfall_bytes == 1);
  e.limit_bytes += 1;
  CHECK(judge(e).cause == OomCause::driver_refused);
  e.limit_bytes -= 1;
  e.releasable_bytes = 0;
  e.driver_free_bytes = e.request_bytes;
  CHECK(judge(e).cause == OomCause::limit);
  CHECK(judge(e).shortfall_bytes == 3 * kGiB + 1);
  e.driver_free_bytes = e.request_bytes - 1;
  CHECK(judge(e).cause == OomCause::true_exhaustion);
}

TEST_CASE("what the limit refused is the limit's, also when there is room a moment later") {
  OomEvidence e = exhausted_evidence();
  e.limit_bytes = 60 * kGiB;
  e.held_bytes = e.limit_bytes - e.request_bytes;  // another thread has freed
  e.driver_free_bytes = 2 * e.request_bytes;
  REQUIRE(judge(e).cause == OomCause::driver_refused);
  e.refused_by_limit = true;
  const OomVerdict verdict = judge(e);
  CHECK(verdict.cause == OomCause::limit);
  CHECK(verdict.shortfall_bytes == 0);
  REQUIRE(verdict.suggestions.size() == 1);
  CHECK(verdict.suggestions.front().level == "info");
  e.driver_free_bytes = e.request_bytes - 1;  // the driver could not have
  CHECK(judge(e).cause != OomCause::limit);
}

TEST_CASE("on pages what the driver has is of use in whole pages") {
  OomEvidence e = exhausted_evidence();
  e.can_remap = true;
  e.page_bytes = 2 * (std::uint64_t{1} << 20);
  e.pool_free_bytes = e.releasable_bytes = 0;
  e.request_bytes = 27 * (std::uint64_t{1} << 20);
  e.driver_free_bytes = 27 * (std::uint64_t{1} << 20);
  CHECK(judge(e).cause == OomCause::true_exhaustion);
  CHECK(judge(e).shortfall_bytes == (std::uint64_t{1} << 20));
  e.driver_free_bytes = 28 * (std::uint64_t{1} << 20);
  CHECK(judge(e).cause == OomCause::driver_refused);
}

TEST_CASE("driver_refused begins where the driver has exactly enough") {
  OomEvidence e = exhausted_evidence();
  e.driver_free_bytes = e.request_bytes;
  CHECK(judge(e).cause == OomCause::driver_refused);
  CHECK(judge(e).shortfall_bytes == 0);
  e.driver_free_bytes = e.request_bytes - 1;
  CHECK(judge(e).cause == OomCause::true_exhaustion);
  CHECK(judge(e).shortfall_bytes == 1);
}

TEST_CASE("deferred_free needs a hole that is exactly large enough once the GPU is done") {
  OomEvidence e = exhausted_evidence();
  e.deferred_bytes = e.request_bytes - 1;  // joins a free byte beside it
  e.pool_free_bytes = 1;
  e.driver_free_bytes = 0;
  e.largest_free_with_deferred_bytes = e.request_bytes;
  CHECK(judge(e).cause == OomCause::deferred_free);
  CHECK(judge(e).shortfall_bytes == e.request_bytes);
  CHECK(remaining(judge(e), OomCause::deferred_free) == 0);
  e.largest_free_with_deferred_bytes -= 1;
  CHECK(judge(e).cause != OomCause::deferred_free);
  CHECK(remaining(judge(e), OomCause::deferred_free) == 1);
}

TEST_CASE("deferred_free also counts regions that would become returnable, under the limit") {
  OomEvidence e = exhausted_evidence();
  e.deferred_bytes = kGiB;
  e.releasable_with_deferred_bytes = kGiB;
  CHECK(judge(e).cause == OomCause::deferred_free);
  e.releasable_with_deferred_bytes = kGiB - 1;
  CHECK(judge(e).cause != OomCause::deferred_free);
  e.releasable_with_deferred_bytes = kGiB;
  e.limit_bytes = e.held_bytes - kGiB + e.request_bytes;
  CHECK(judge(e).cause == OomCause::deferred_free);
  e.limit_bytes -= 1;
  CHECK(judge(e).cause != OomCause::deferred_free);
}

TEST_CASE("nothing deferred is never deferred_free") {
  OomEvidence e = exhausted_evidence();
  e.largest_free_with_deferred_bytes = 10 * kGiB;
  CHECK(judge(e).cause == OomCause::true_exhaustion);
}

TEST_CASE("on pages deferred_free needs handles that would be empty, with what the driver has and under the limit") {
  OomEvidence e = samples::stranded_evidence();
  e.deferred_bytes = 5 * kGiB;  // most of it lies beside live blocks
  e.releasable_with_deferred_bytes = 3 * kGiB;
  CHECK(judge(e).cause == OomCause::deferred_free);
  CHECK(judge(e).shortfall_bytes == 2 * kGiB);  // R less F and REL
  CHECK(remaining(judge(e), OomCause::deferred_free) == 0);
  *e.releasable_with_deferred_bytes -= 1;
  CHECK(judge(e).cause == OomCause::external_fragmentation);
  CHECK(remaining(judge(e), OomCause::deferred_free) == 1);
  *e.releasable_with_deferred_bytes += 1;
  e.limit_bytes = e.held_bytes + kGiB;  // one GiB of new pages is allowed
  CHECK(judge(e).cause == OomCause::deferred_free);
  e.limit_bytes -= 1;
  CHECK(judge(e).cause != OomCause::deferred_free);
}

TEST_CASE("external_fragmentation needs enough free in pieces") {
  OomEvidence e = exhausted_evidence();
  e.driver_free_bytes = 0;
  e.pool_free_bytes = e.request_bytes;
  e.largest_free_bytes = e.request_bytes - 1;
  CHECK(judge(e).cause == OomCause::external_fragmentation);
  CHECK(judge(e).confidence == "high");
  CHECK(judge(e).shortfall_bytes == 1);
  e.pool_free_bytes -= 1;
  CHECK(judge(e).cause == OomCause::true_exhaustion);
  CHECK(judge(e).shortfall_bytes == 1);
}

TEST_CASE("on pages it is what lies beside something else: handles that hold nothing join what the driver has") {
  OomEvidence e = samples::stranded_evidence();
  CHECK(judge(e).cause == OomCause::external_fragmentation);
  CHECK(judge(e).confidence == "high");
  CHECK(judge(e).shortfall_bytes == 2 * kGiB);
  CHECK(remaining(judge(e), OomCause::external_fragmentation) == 0);
  e.releasable_bytes = 3 * kGiB - 1;  // one byte less than is needed beside the driver's
  e.releasable_with_deferred_bytes = e.largest_free_remapped_bytes = e.releasable_bytes;
  CHECK(judge(e).cause == OomCause::external_fragmentation);
  CHECK(judge(e).shortfall_bytes == 1);
  e.releasable_bytes += 1;  // all that moves would have done: something else refused
  CHECK(judge(e).cause == OomCause::driver_refused);
  CHECK(judge(e).confidence == "low");
  e.releasable_bytes = kGiB;
  e.largest_free_remapped_bytes = e.request_bytes;
  CHECK(judge(e).cause != OomCause::external_fragmentation);
}

TEST_CASE("on pages free bytes of pool and driver are one sum: without its pieces the request had been served") {
  OomEvidence e = samples::stranded_evidence();
  e.pool_free_bytes = e.request_bytes - kGiB;  // and one GiB at the driver
  CHECK(judge(e).cause == OomCause::external_fragmentation);
  CHECK(judge(e).confidence == "high");
  CHECK(remaining(judge(e), OomCause::external_fragmentation) == 0);
  e.pool_free_bytes -= 1;
  CHECK(judge(e).cause == OomCause::true_exhaustion);
  CHECK(judge(e).shortfall_bytes == 1);
  CHECK(remaining(judge(e), OomCause::external_fragmentation) == 1);
}

TEST_CASE("free bytes split between pool and driver are pieces too, with less confidence") {
  OomEvidence e = exhausted_evidence();
  e.pool_free_bytes = kGiB;
  e.largest_free_bytes = kGiB;
  CHECK(judge(e).cause == OomCause::external_fragmentation);
  CHECK(judge(e).confidence == "medium");
  e.pool_free_bytes -= 1;
  CHECK(judge(e).cause == OomCause::true_exhaustion);
}

TEST_CASE("other_process needs exactly what the others hold") {
  OomEvidence e = exhausted_evidence();
  e.other_process_bytes = kGiB;
  e.held_bytes = 70 * kGiB;
  CHECK(judge(e).cause == OomCause::other_process);
  CHECK(judge(e).shortfall_bytes == kGiB);
  CHECK(remaining(judge(e), OomCause::other_process) == 0);
  e.other_process_bytes = kGiB - 1;
  CHECK(judge(e).cause == OomCause::true_exhaustion);
  CHECK(remaining(judge(e), OomCause::other_process) == 1);
  e.releasable_bytes = 1;
  e.pool_free_bytes = 1;
  CHECK(judge(e).cause == OomCause::other_process);
}

TEST_CASE("non_pool_memory needs exactly what this process holds outside, and comes after other processes") {
  OomEvidence e = exhausted_evidence();
  e.own_outside_bytes = kGiB;
  CHECK(judge(e).cause == OomCause::non_pool_memory);
  CHECK(judge(e).shortfall_bytes == kGiB);
  e.own_outside_bytes -= 1;
  CHECK(judge(e).cause == OomCause::true_exhaustion);
  e.own_outside_bytes += 1;
  e.other_process_bytes = kGiB;
  CHECK(judge(e).cause == OomCause::other_process);
}

TEST_CASE("true_exhaustion is short even with everything joined, and by the limit when that is tighter") {
  OomEvidence e = exhausted_evidence();
  e.pool_free_bytes = 100;
  e.deferred_bytes = 10;
  e.largest_free_with_deferred_bytes = 100;
  e.releasable_with_deferred_bytes = 0;
  CHECK(judge(e).cause == OomCause::true_exhaustion);
  CHECK(judge(e).shortfall_bytes == kGiB - 110);
  e.limit_bytes = e.held_bytes;
  CHECK(judge(e).cause == OomCause::true_exhaustion);
  CHECK(judge(e).shortfall_bytes == 2 * kGiB - 110);
}

TEST_CASE("evidence of plenty is called what it is: a refusal that we do not understand") {
  OomEvidence e = exhausted_evidence();
  e.largest_free_bytes = e.pool_free_bytes = 4 * kGiB;
  CHECK(judge(e).cause == OomCause::driver_refused);
  CHECK(judge(e).confidence == "low");
  e = exhausted_evidence();
  e.releasable_bytes = e.pool_free_bytes = e.largest_free_bytes = kGiB;  // returnable, but the driver did not give it
  CHECK(judge(e).cause == OomCause::driver_refused);
  CHECK(judge(e).confidence == "low");
}

TEST_CASE("without the driver's free bytes: listed, bounded by what is not ours, and less confident") {
  OomEvidence e = exhausted_evidence();
  e.driver_free_bytes.reset();
  OomVerdict verdict = judge(e);
  CHECK(misses(verdict, "driver_free_bytes"));
  CHECK(verdict.cause == OomCause::true_exhaustion);
  CHECK(verdict.confidence == "low");
  CHECK(remaining(verdict, OomCause::driver_refused) == std::nullopt);
  e.limit_bytes = 40 * kGiB;
  e.held_bytes = 39 * kGiB;
  verdict = judge(e);
  CHECK(verdict.cause == OomCause::limit);
  CHECK(verdict.confidence == "medium");
  e.held_bytes = 79 * kGiB;  // at most one GiB can be free: the limit is not what stands in the way
  e.limit_bytes = 79 * kGiB;
  CHECK(judge(e).cause == OomCause::true_exhaustion);
  e = exhausted_evidence();
  e.driver_free_bytes.reset();
  e.pool_free_bytes = 3 * kGiB;
  CHECK(judge(e).cause == OomCause::external_fragmentation);
  CHECK(judge(e).confidence == "high");
  e.held_bytes = 60 * kGiB;
  CHECK(judge(e).cause == OomCause::external_fragmentation);
  CHECK(judge(e).confidence == "medium");
}

TEST_CASE("without NVML other processes are only in doubt where they could matter") {
  OomEvidence e = exhausted_evidence();
  e.other_process_bytes.reset();
  e.held_bytes = 78 * kGiB + 1;  // F + U <= 2 GiB - 1 < R
  CHECK(judge(e).cause == OomCause::true_exhaustion);
  CHECK(judge(e).confidence == "high");
  CHECK(misses(judge(e), "other_process_bytes"));
  CHECK(remaining(judge(e), OomCause::other_process) == std::nullopt);
  e.held_bytes = 78 * kGiB;
  CHECK(judge(e).cause == OomCause::true_exhaustion);
  CHECK(judge(e).confidence == "medium");
  e.request_bytes = 81 * kGiB;  // decided before other processes come into it
  CHECK(judge(e).confidence == "high");
}

TEST_CASE("without the device's total the rest is still judged") {
  OomEvidence e = exhausted_evidence();
  e.device_total_bytes = 0;
  CHECK(judge(e).cause == OomCause::true_exhaustion);
  CHECK(judge(e).confidence == "medium");
  CHECK(misses(judge(e), "device_total_bytes"));
  CHECK(remaining(judge(e), OomCause::impossible_request) == std::nullopt);
}

TEST_CASE("no evidence makes the arithmetic wrap, and the cause always follows its own formula") {
  std::mt19937_64 random(7);
  const std::uint64_t interesting[] = {0, 1, 511, 512, kGiB - 1, kGiB, kGiB + 1, 2 * kGiB, 80 * kGiB, UINT64_MAX - 1, UINT64_MAX};
  const auto any = [&] { return interesting[random() % std::size(interesting)]; };
  const auto maybe = [&]() -> std::optional<std::uint64_t> { return random() % 4 == 0 ? std::nullopt : std::optional(any()); };
  for (int round = 0; round < (samples::kTimesCount ? 100000 : 10000); ++round) {
    const OomEvidence e{.request_bytes = any(),
                        .device_total_bytes = any(),
                        .driver_free_bytes = maybe(),
                        .pool_free_bytes = any(),
                        .largest_free_bytes = any(),
                        .largest_free_remapped_bytes = any(),
                        .releasable_bytes = any(),
                        .deferred_bytes = any(),
                        .largest_free_with_deferred_bytes = any(),
                        .releasable_with_deferred_bytes = maybe(),
                        .other_process_bytes = maybe(),
                        .own_outside_bytes = any(),
                        .limit_bytes = any(),
                        .held_bytes = any(),
                        .can_remap = random() % 2 == 0};
    const OomVerdict verdict = judge(e);
    REQUIRE(std::string(name_of(verdict.cause)) != "unknown");
    REQUIRE((verdict.confidence == "high" || verdict.confidence == "medium" || verdict.confidence == "low"));
    if (e.request_bytes != 0) REQUIRE(verdict.shortfall_bytes <= std::max(e.request_bytes, e.held_bytes));
    const bool too_large = e.request_bytes == 0 || (e.device_total_bytes != 0 && e.request_bytes > e.device_total_bytes) ||
                           (e.limit_bytes != 0 && e.request_bytes > e.limit_bytes);
    if (e.device_total_bytes != 0) REQUIRE((verdict.cause == OomCause::impossible_request) == too_large);
    if (verdict.cause == OomCause::true_exhaustion) REQUIRE(verdict.shortfall_bytes > 0);
    if (verdict.cause == OomCause::external_fragmentation)
      REQUIRE(std::max(e.largest_free_bytes, e.largest_free_remapped_bytes) < (e.request_bytes == 0 ? UINT64_MAX : e.request_bytes));
    if (verdict.cause == OomCause::deferred_free) REQUIRE(e.deferred_bytes > 0);
  }
}

TEST_CASE("every cause has a name of its own") {
  std::vector<std::string> names;
  for (const OomCause cause : kOomCauses) names.emplace_back(name_of(cause));
  CHECK(names.front() == "impossible_request");
  CHECK(names.back() == "true_exhaustion");
  std::sort(names.begin(), names.end());
  CHECK(std::unique(names.begin(), names.end()) == names.end());
  CHECK(std::string(name_of(static_cast<OomCause>(99))) == "unknown");
}
