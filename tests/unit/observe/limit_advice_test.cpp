// What is advised where CUPOOL_LIMIT refuses: a number that is enough where one is known, a hint where none is.
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>

#include "pool/observe/enough_limit.hpp"
#include "pool/observe/suggestions.hpp"
#include "samples.hpp"

using namespace cupool::observe;
using samples::default_options;
using samples::kGiB;
using samples::kMiB;
using samples::with_option;

namespace {

/// 1 GiB, a limit of 600 MiB that is full; 200 MiB of it are free in pieces, nothing of that goes back.
OomEvidence full_limit() {
  OomEvidence e;
  e.device_total_bytes = kGiB;
  e.limit_bytes = e.held_bytes = 600 * kMiB;
  e.driver_free_bytes = 424 * kMiB;
  e.other_process_bytes = 0;
  e.request_bytes = 100 * kMiB;
  e.pool_free_bytes = 200 * kMiB;
  e.largest_free_bytes = e.largest_free_remapped_bytes = 50 * kMiB;
  e.releasable_with_deferred_bytes = 0;
  return e;
}

OomEvidence on_segments() {
  OomEvidence e = full_limit();
  e.region_slack_bytes = 256 * kMiB;
  e.region_edge_bytes = 50 * kMiB;
  e.whole_page_bytes = 150 * kMiB;
  return e;
}

const Suggestion* find(const OomVerdict& verdict, const std::string& rule) {
  const auto at = std::find_if(verdict.suggestions.begin(), verdict.suggestions.end(), [&](const Suggestion& s) { return s.rule_id == rule; });
  return at == verdict.suggestions.end() ? nullptr : &*at;
}

std::uint64_t number_in(const Suggestion& suggestion) {
  const std::string name = "enough_limit_bytes=";
  const std::size_t at = suggestion.evidence.find(name);
  return at == std::string::npos ? 0 : std::stoull(suggestion.evidence.substr(at + name.size()));
}

}  // namespace

TEST_CASE("a limit that is enough: what the driver serves itself takes the sum, pages some more, the driver's own pool one of its pieces") {
  OomEvidence e = full_limit();
  e.pool_free_bytes = 0;
  CHECK(enough_limit_bytes(e) == 700 * kMiB);
  e.holes_known = false;
  CHECK(enough_limit_bytes(e) == 732 * kMiB);
  e.pool_free_bytes = 99 * kMiB;  // idle there, and no more than a part
  CHECK(enough_limit_bytes(e) == 732 * kMiB);
  e.pool_free_bytes = 100 * kMiB;  // idle in pieces
  CHECK_FALSE(enough_limit_bytes(e));
  e = full_limit();
  e.can_remap = true;
  e.page_bytes = 2 * kMiB;
  CHECK(enough_limit_bytes(e) == 708 * kMiB);
  e.request_bytes += 512;  // a page more
  CHECK(enough_limit_bytes(e) == 710 * kMiB);
  e.releasable_bytes = 60 * kMiB;
  CHECK(enough_limit_bytes(e) == 650 * kMiB);
}

TEST_CASE("a limit that is enough is never more than the device has") {
  OomEvidence e = full_limit();
  e.can_remap = true;
  e.page_bytes = 2 * kMiB;
  e.driver_free_bytes = 104 * kMiB;  // another process has the rest
  CHECK(enough_limit_bytes(e) == 704 * kMiB);
  e.driver_free_bytes = 98 * kMiB;
  CHECK_FALSE(enough_limit_bytes(e));
  OomEvidence regions = on_segments();
  CHECK(enough_limit_bytes(regions) == 956 * kMiB);
  regions.request_bytes = 168 * kMiB;
  CHECK(enough_limit_bytes(regions) == kGiB);
  regions.request_bytes += 512;
  CHECK_FALSE(enough_limit_bytes(regions));
  regions.driver_free_bytes.reset();
  regions.request_bytes -= 512;
  CHECK(enough_limit_bytes(regions) == kGiB);
}

TEST_CASE("a limit that is enough on pages: what is allowed for pages that hold something is whole pages") {
  OomEvidence e = full_limit();
  e.can_remap = true;
  e.page_bytes = 2 * kMiB;
  e.device_total_bytes = 3 * kGiB + 200 * kMiB;  // a 128th of it is 25.6 MiB
  e.driver_free_bytes = 2 * kGiB;
  CHECK(page_allowance_bytes(e) == 24 * kMiB);
  CHECK(enough_limit_bytes(e) == 724 * kMiB);
}

TEST_CASE("a limit that is enough on pages instead of segments is never below the one that there is") {
  OomEvidence e = on_segments();
  e.pages_available = true;
  e.whole_page_bytes = 590 * kMiB;
  e.request_bytes = 8 * kMiB;
  CHECK(enough_limit_on_pages_bytes(e) == e.limit_bytes);
}

TEST_CASE("a limit that is enough: a preallocated region grows at its free end, and what goes past the pool comes behind all of it") {
  OomEvidence e = on_segments();
  e.held_bytes = e.limit_bytes = 500 * kMiB;
  e.driver_free_bytes = 524 * kMiB;
  e.pool_free_bytes = e.region_edge_bytes.emplace(497 * kMiB);
  e.request_bytes = 650 * kMiB;
  e.preallocate_bytes = 768 * kMiB;
  CHECK(enough_limit_bytes(e) == 655 * kMiB);
  e.request_bytes = 768 * kMiB;
  CHECK_FALSE(enough_limit_bytes(e));
  e.request_bytes = 100 * kMiB;
  e.is_outside_pool = true;
  e.region_slack_bytes = 0;
  CHECK(enough_limit_bytes(e) == 868 * kMiB);
  e.preallocate_bytes = 300 * kMiB;
  CHECK(enough_limit_bytes(e) == 600 * kMiB);
}

TEST_CASE("a number that is named stands in the evidence, and is what is to be set") {
  for (const bool can_remap : {false, true}) {
    OomEvidence e = full_limit();
    e.can_remap = can_remap;
    const OomVerdict verdict = classify(e, default_options());
    REQUIRE(verdict.cause == OomCause::limit);
    REQUIRE(find(verdict, "raise_limit") != nullptr);
    CHECK(find(verdict, "raise_limit")->level == "fix");
    CHECK(number_in(*find(verdict, "raise_limit")) == enough_limit_bytes(e));
    CHECK(find(verdict, "raise_limit")->enough_limit_bytes == enough_limit_bytes(e));
  }
}

TEST_CASE("where regions are in pieces no number is known: pages come first, by themselves or with a higher limit, and the limit is a hint") {
  OomEvidence e = on_segments();
  e.pages_available = true;
  e.driver_free_bytes = 324 * kMiB;  // not enough for another region
  OomVerdict verdict = classify(e, default_options());
  REQUIRE(verdict.cause == OomCause::limit);
  CHECK(verdict.suggestions.front().rule_id == "backing_pages");
  CHECK(verdict.suggestions.front().level == "fix");
  CHECK(verdict.suggestions.front().enough_limit_bytes == 0);
  CHECK(find(verdict, "raise_limit")->level == "info");
  e.whole_page_bytes = 60 * kMiB;
  verdict = classify(e, default_options());
  CHECK(verdict.suggestions.front().rule_id == "backing_pages");
  CHECK(verdict.suggestions.front().level == "fix");
  CHECK(verdict.suggestions.front().enough_limit_bytes == 672 * kMiB);
  CHECK(number_in(verdict.suggestions.front()) == 672 * kMiB);
  e.pages_available = false;
  verdict = classify(e, default_options());
  CHECK(find(verdict, "backing_pages") == nullptr);
  CHECK(find(verdict, "raise_limit")->level == "info");
  CHECK(number_in(*find(verdict, "raise_limit")) == 0);
}

TEST_CASE("a limit that was full, though the figures of a moment later are within it: a number where the driver takes more than a block") {
  OomEvidence e = full_limit();
  e.refused_by_limit = true;
  e.holes_known = false;
  e.pool_free_bytes = 0;
  e.held_bytes = 500 * kMiB;
  e.driver_free_bytes = 524 * kMiB;
  OomVerdict verdict = classify(e, with_option(default_options(), "policy", "async"));
  REQUIRE(verdict.cause == OomCause::limit);
  CHECK(verdict.shortfall_bytes == 0);
  CHECK(find(verdict, "raise_limit")->level == "fix");
  CHECK(find(verdict, "raise_limit")->enough_limit_bytes == 632 * kMiB);
  e.holes_known = true;
  verdict = classify(e, default_options());
  CHECK(find(verdict, "raise_limit")->level == "info");
  CHECK(find(verdict, "raise_limit")->message.find("another thread has freed meanwhile") != std::string::npos);
}

TEST_CASE("where the limit is exhausted and the device is in pieces a higher limit alone does nothing: it is not advised, pages with it are") {
  OomEvidence e = on_segments();
  e.request_bytes = 500 * kMiB;
  e.driver_free_bytes = 340 * kMiB;
  e.pool_free_bytes = 470 * kMiB;
  e.refused_by_limit = true;
  OomVerdict verdict = classify(e, default_options());
  REQUIRE(verdict.cause == OomCause::true_exhaustion);
  CHECK(verdict.shortfall_bytes == 30 * kMiB);
  CHECK(find(verdict, "raise_limit") == nullptr);
  CHECK(find(verdict, "backing_pages") == nullptr);
  CHECK(find(verdict, "reduce_demand")->message.find("CUPOOL_LIMIT") != std::string::npos);
  e.pages_available = true;
  e.whole_page_bytes = 400 * kMiB;
  verdict = classify(e, default_options());
  REQUIRE(find(verdict, "backing_pages") != nullptr);
  CHECK(find(verdict, "backing_pages")->level == "fix");
  CHECK(find(verdict, "backing_pages")->enough_limit_bytes == 732 * kMiB);
  CHECK(find(verdict, "raise_limit") == nullptr);
  e.whole_page_bytes = 100 * kMiB;
  CHECK(find(classify(e, default_options()), "backing_pages") == nullptr);  // the device has not so much
}
