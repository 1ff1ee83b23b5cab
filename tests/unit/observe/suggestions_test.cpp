// Advice: never a setting that is on, never one that cannot help.
// More than 400 lines: a case for each piece of advice, and all of them ask the same two helpers.
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>

#include "pool/observe/enough_limit.hpp"
#include "pool/observe/suggestions.hpp"
#include "samples.hpp"

using namespace cupool::observe;
using samples::default_options;
using samples::with_option;

namespace {

OomEvidence evidence_of(OomCause cause) { return samples::one_of_each_cause()[static_cast<std::size_t>(cause)].evidence; }

const Suggestion* find(const OomVerdict& verdict, const std::string& rule) {
  const auto at = std::find_if(verdict.suggestions.begin(), verdict.suggestions.end(), [&](const Suggestion& s) { return s.rule_id == rule; });
  return at == verdict.suggestions.end() ? nullptr : &*at;
}

}  // namespace

TEST_CASE("whatever is set, what is on already comes as information only, and every suggestion is complete") {
  for (const OomCause cause : kOomCauses) {
    for (const char* policy : {"grow", "preallocate", "platform"}) {
      for (const char* free : {"deferred", "sync", "immediate"}) {
        for (const char* backing : {"auto", "pages", "segments"}) {
          for (const bool pages : {false, true}) {
            OomEvidence e = evidence_of(cause);
            e.pages_available = pages;
            auto options = with_option(with_option(with_option(default_options(), "policy", policy), "free", free), "backing", backing);
            for (const Suggestion& s : classify(e, options).suggestions) {
              CHECK((s.level == "fix" || s.level == "consider" || s.level == "info"));
              CHECK((!s.already_enabled || s.level == "info"));
              CHECK_FALSE(s.message.empty());
              CHECK(s.evidence.find('=') != std::string::npos);
              if (s.level != "info" && s.message.find("CUPOOL_FREE=sync") != std::string::npos) CHECK(std::string(free) != "sync");
              if (s.level != "info" && s.message.find("CUPOOL_POLICY=preallocate") != std::string::npos) CHECK(std::string(policy) != "preallocate");
              if (s.level != "info" && s.message.find("CUPOOL_BACKING=pages") != std::string::npos) {
                CHECK(std::string(backing) != "pages");
                CHECK(pages);
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a limit is only spoken of where there is one") {
  for (const OomCause cause : kOomCauses) {
    const OomVerdict verdict = classify(evidence_of(cause), default_options());
    CHECK((find(verdict, "raise_limit") != nullptr) == (cause == OomCause::limit));
  }
}

TEST_CASE("a request above the limit but not above the device asks for a higher limit; above the device no setting helps") {
  OomEvidence e = evidence_of(OomCause::impossible_request);
  CHECK(find(classify(e, default_options()), "raise_limit") == nullptr);
  CHECK(find(classify(e, default_options()), "request_exceeds_device")->level == "info");
  e.limit_bytes = 10;
  CHECK(find(classify(e, default_options()), "raise_limit") == nullptr);
  e.request_bytes = e.device_total_bytes;
  CHECK(find(classify(e, default_options()), "raise_limit")->level == "info");  // the device has not so much left
  e.driver_free_bytes = e.device_total_bytes;
  e.held_bytes = 0;
  CHECK(find(classify(e, default_options()), "raise_limit")->level == "fix");
  e.request_bytes = 0;
  CHECK(find(classify(e, default_options()), "raise_limit") == nullptr);
}

TEST_CASE("for a request above the limit the figure is given with which it would pass, with what is held") {
  OomEvidence e = evidence_of(OomCause::impossible_request);
  e.device_total_bytes = 8 * samples::kGiB;
  e.driver_free_bytes = 6 * samples::kGiB;
  e.limit_bytes = samples::kGiB;
  e.request_bytes = samples::kGiB + 512;
  e.held_bytes = 300 * samples::kMiB;
  e.releasable_bytes = 100 * samples::kMiB;
  e.pool_free_bytes = e.releasable_bytes;
  for (const bool is_outside : {false, true}) {
    e.is_outside_pool = is_outside;
    const std::uint64_t enough_bytes = 200 * samples::kMiB + samples::kGiB + (is_outside ? 512 : 2 * samples::kMiB);
    CHECK(least_limit_bytes(e) == enough_bytes);
    const OomVerdict verdict = classify(e, default_options());
    REQUIRE(verdict.cause == OomCause::impossible_request);
    CHECK(find(verdict, "raise_limit")->evidence.find("enough_limit_bytes=" + std::to_string(enough_bytes)) != std::string::npos);
    OomEvidence raised = e;
    raised.limit_bytes = enough_bytes;
    CHECK(classify(raised, default_options()).cause != OomCause::limit);
    raised.limit_bytes -= is_outside ? 1 : 2 * samples::kMiB;
    CHECK(classify(raised, default_options()).cause == OomCause::limit);
  }
}

TEST_CASE("memory of graphs: what can be done about it depends on who could have trimmed it") {
  OomEvidence e = evidence_of(OomCause::non_pool_memory);
  e.living_graphs = 1;
  CHECK(find(classify(e, default_options()), "graph_memory") == nullptr);
  e.living_graphs = 0;
  CHECK(find(classify(e, with_option(default_options(), "policy", "platform")), "graph_memory") == nullptr);
  e.graph_bytes = e.own_outside_bytes;
  CHECK(find(classify(e, default_options()), "graph_memory")->message.find("free what they left live") != std::string::npos);
  e.capturing = true;
  CHECK(find(classify(e, default_options()), "graph_memory")->message.find("while a stream captures") != std::string::npos);
  CHECK(find(classify(e, with_option(default_options(), "policy", "platform")), "graph_memory")->message.find("CUPOOL_POLICY=grow") !=
        std::string::npos);
}

TEST_CASE("deferred frees: synchronise; CUPOOL_FREE=sync is advised only to who has deferred") {
  const OomEvidence e = evidence_of(OomCause::deferred_free);
  CHECK(find(classify(e, default_options()), "synchronize_first")->level == "fix");
  CHECK(find(classify(e, default_options()), "free_sync")->level == "consider");
  CHECK(find(classify(e, with_option(default_options(), "free", "sync")), "free_sync")->already_enabled);
  CHECK(find(classify(e, with_option(default_options(), "free", "immediate")), "free_sync") == nullptr);
}

TEST_CASE("deferred frees: while a stream captures nothing is advised that would end the capture, and no setting") {
  OomEvidence e = evidence_of(OomCause::deferred_free);
  e.capturing = true;
  const OomVerdict verdict = classify(e, default_options());
  REQUIRE(verdict.cause == OomCause::deferred_free);
  REQUIRE(verdict.suggestions.size() == 1);
  CHECK(verdict.suggestions[0].rule_id == "before_capture");
}

TEST_CASE("deferred frees: CUPOOL_FREE=sync is not advised to who frees in stream order, which it leaves as it is") {
  OomEvidence e = evidence_of(OomCause::deferred_free);
  e.deferred_in_order_bytes = 0;
  CHECK(find(classify(e, default_options()), "free_sync")->level == "consider");
  e.deferred_in_order_bytes = 512;
  CHECK(find(classify(e, default_options()), "free_sync") == nullptr);
  CHECK(find(classify(e, default_options()), "synchronize_first")->level == "fix");
}

TEST_CASE("fragmentation: pages and one large region are advised only where the holes as they lie would have done") {
  OomEvidence e = evidence_of(OomCause::external_fragmentation);
  e.pages_available = true;
  e.held_bytes = e.device_total_bytes / 2;
  e.driver_free_bytes = samples::kGiB / 2;
  e.region_edge_bytes = e.request_bytes - samples::kGiB / 2;
  e.whole_page_bytes = *e.region_edge_bytes + page_allowance_bytes(e);
  REQUIRE(classify(e, default_options()).cause == OomCause::external_fragmentation);
  CHECK(find(classify(e, default_options()), "backing_pages")->level == "fix");
  CHECK(find(classify(e, default_options()), "preallocate")->level == "info");
  *e.whole_page_bytes -= 1;  // it may just do: other pages hold something when the blocks lie otherwise
  CHECK(find(classify(e, default_options()), "backing_pages")->level == "info");
  *e.whole_page_bytes -= page_allowance_bytes(e);
  CHECK(find(classify(e, default_options()), "backing_pages") == nullptr);
  CHECK(find(classify(e, default_options()), "preallocate")->level == "info");
  // The one region is three quarters of the device: no more than that is free for the request and all that is in use.
  OomEvidence full = e;
  full.held_bytes = e.device_total_bytes / 4 * 3 - e.request_bytes + e.pool_free_bytes + e.deferred_bytes;
  CHECK(find(classify(full, default_options()), "preallocate")->level == "info");
  full.held_bytes += 1;
  CHECK(find(classify(full, default_options()), "preallocate") == nullptr);
  *e.region_edge_bytes -= 1;
  CHECK(find(classify(e, default_options()), "preallocate") == nullptr);
  CHECK(find(classify(e, default_options()), "pinned_by")->level == "info");
}

TEST_CASE("fragmentation, for memory outside the pool: what is missing beside what the driver has, and a preallocation that keeps it is named") {
  OomEvidence e = evidence_of(OomCause::external_fragmentation);
  e.is_outside_pool = true;
  e.can_remap = false;
  e.device_total_bytes = 1 << 30;
  e.request_bytes = 600 << 20;
  e.driver_free_bytes = 272 << 20;
  e.pool_free_bytes = 652 << 20;
  e.largest_free_bytes = e.largest_free_remapped_bytes = e.releasable_bytes = 0;
  e.deferred_bytes = e.limit_bytes = 0;
  e.held_bytes = 752 << 20;
  e.live_peak_bytes = 100 << 20;
  const auto preallocating = with_option(default_options(), "policy", "preallocate");
  OomVerdict verdict = classify(e, preallocating);
  REQUIRE(verdict.cause == OomCause::external_fragmentation);
  CHECK(verdict.shortfall_bytes == 328 << 20);
  REQUIRE(find(verdict, "preallocate_less") != nullptr);
  CHECK(find(verdict, "preallocate_less")->level == "fix");
  CHECK(find(verdict, "preallocate") == nullptr);
  e.live_peak_bytes = 400 << 20;  // so much lay there once, and each region of it may keep a block
  CHECK(find(classify(e, preallocating), "preallocate_less")->level == "info");
  e.live_peak_bytes = 100 << 20;
  verdict = classify(e, default_options());
  CHECK(find(verdict, "preallocate_less") == nullptr);
  CHECK(find(verdict, "preallocate") == nullptr);  // it would make it worse
  // Under a limit that the preallocation has filled, raising it does nothing but preallocate more.
  e.limit_bytes = e.held_bytes = 300 << 20;
  e.driver_free_bytes = 724 << 20;
  e.pool_free_bytes = 240 << 20;
  e.request_bytes = 20 << 20;
  verdict = classify(e, preallocating);
  REQUIRE(verdict.cause == OomCause::limit);
  CHECK(find(verdict, "preallocate_less")->level == "fix");
  CHECK(find(verdict, "raise_limit")->level == "fix");  // by what it takes with all of the preallocation
  CHECK(find(classify(e, default_options()), "raise_limit")->level == "fix");
}

TEST_CASE("fragmentation of the driver's own pool: nothing is said to be in a list that is empty, and the largest hole is not known") {
  OomEvidence e = evidence_of(OomCause::external_fragmentation);
  e.holes_known = false;
  e.largest_free_bytes = 0;
  const OomVerdict verdict = classify(e, with_option(default_options(), "policy", "async"));
  REQUIRE(verdict.cause == OomCause::external_fragmentation);
  CHECK(verdict.confidence == "medium");
  CHECK(verdict.missing_inputs.back() == "largest_free_bytes");
  CHECK(find(verdict, "pinned_by") == nullptr);
  CHECK(find(verdict, "backing_pages") == nullptr);
  CHECK(find(verdict, "driver_pool_pieces")->level == "info");
  CHECK(find(verdict, "pool_of_ours")->level == "info");
}

TEST_CASE("a limit in the way of memory that waits, or is free in pieces: how to do without a higher one is said too") {
  OomEvidence e = evidence_of(OomCause::limit);
  const auto judge = [&e] { return classify(e, default_options()); };
  REQUIRE(judge().cause == OomCause::limit);
  CHECK(judge().suggestions.size() == 1);
  e.deferred_bytes = e.request_bytes;
  e.largest_free_with_deferred_bytes = e.request_bytes;
  REQUIRE(judge().cause == OomCause::limit);
  CHECK(judge().suggestions.at(0).rule_id == "synchronize_first");
  CHECK(find(judge(), "raise_limit")->level == "fix");
  e.largest_free_with_deferred_bytes -= 1;
  CHECK(find(judge(), "synchronize_first") == nullptr);
  e.releasable_with_deferred_bytes = e.held_bytes + e.request_bytes - e.limit_bytes;
  CHECK(find(judge(), "synchronize_first")->level == "fix");
  *e.releasable_with_deferred_bytes -= 1;
  CHECK(find(judge(), "synchronize_first") == nullptr);
  e.pool_free_bytes = e.request_bytes;
  CHECK(find(judge(), "pinned_by") != nullptr);
  e.can_remap = true;
  e.stranded_bytes = e.pool_free_bytes;
  CHECK(find(judge(), "pinned_by")->level == "fix");
}

TEST_CASE("what nobody can attribute is spoken of where it would cover the shortfall, and what is in use is not said to be known") {
  OomEvidence e = evidence_of(OomCause::true_exhaustion);
  e.other_process_bytes.reset();
  e.unattributed_bytes = classify(e, default_options()).shortfall_bytes;
  e.held_bytes = e.device_total_bytes - *e.driver_free_bytes - *e.unattributed_bytes;
  const OomVerdict verdict = classify(e, default_options());
  REQUIRE(verdict.cause == OomCause::true_exhaustion);
  CHECK(verdict.confidence == "medium");
  CHECK(verdict.suggestions.at(0).rule_id == "look_elsewhere");
  CHECK(find(verdict, "reduce_demand")->level == "consider");
  CHECK(others_may_hold(e, verdict));
  e.limit_bytes = e.held_bytes + e.request_bytes;
  CHECK(others_may_hold(e, verdict));
  e.limit_bytes -= 1;  // whoever ends the others meets the limit
  CHECK_FALSE(others_may_hold(e, verdict));
  e.limit_bytes = 0;
  *e.unattributed_bytes -= 1;
  CHECK(find(classify(e, default_options()), "look_elsewhere") == nullptr);
  CHECK(find(classify(e, default_options()), "reduce_demand")->level == "fix");
  *e.unattributed_bytes += 1;
  e.other_process_bytes = 0;  // somebody has looked
  CHECK(find(classify(e, default_options()), "look_elsewhere") == nullptr);
}

TEST_CASE("a request larger than all that is in use is told to shrink, and a leak is not looked for") {
  const auto advice = [](std::uint64_t free_gib) {
    OomEvidence e = evidence_of(OomCause::true_exhaustion);
    e.device_total_bytes = e.held_bytes = 10 * samples::kGiB;
    e.driver_free_bytes = 0;
    e.deferred_bytes = 0;
    e.pool_free_bytes = e.largest_free_bytes = e.largest_free_with_deferred_bytes = e.releasable_bytes = free_gib * samples::kGiB;
    e.releasable_with_deferred_bytes = e.releasable_bytes;
    e.request_bytes = e.pool_free_bytes + 512;
    return find(classify(e, default_options()), "reduce_demand")->message;
  };
  CHECK(advice(9).find("larger than all that is in use") != std::string::npos);
  CHECK(advice(9).find("leak") == std::string::npos);
  CHECK(advice(1).find("leak") != std::string::npos);
}

TEST_CASE("a request that does not fit beside what others hold has to be smaller: no leak is looked for") {
  OomEvidence e = evidence_of(OomCause::true_exhaustion);
  e.request_bytes = 70 * samples::kGiB;
  e.held_bytes = 20 * samples::kGiB;
  e.own_outside_bytes = samples::kGiB;
  e.driver_free_bytes = 49 * samples::kGiB;
  for (const bool is_known : {false, true}) {  // what others have
    e.other_process_bytes = is_known ? std::optional<std::uint64_t>(0) : std::nullopt;
    e.unattributed_bytes = 11 * samples::kGiB;
    REQUIRE(classify(e, default_options()).cause == OomCause::true_exhaustion);
    CHECK(find(classify(e, default_options()), "request_exceeds_reach") == nullptr);
    CHECK(find(classify(e, default_options()), "reduce_demand") != nullptr);
    e.request_bytes += 512;
    CHECK(find(classify(e, default_options()), "request_exceeds_reach")->level == "fix");
    CHECK(find(classify(e, default_options()), "reduce_demand") == nullptr);
    e.unattributed_bytes = 30 * samples::kGiB;  // would cover the shortfall: those are to look at, too
    CHECK((find(classify(e, default_options()), "look_elsewhere") != nullptr) == !is_known);
    CHECK(find(classify(e, default_options()), "request_exceeds_reach")->level == "fix");
    CHECK(find(classify(e, default_options()), "reduce_demand") == nullptr);
    e.request_bytes -= 512;
  }
  e.request_bytes += 512;
  e.driver_free_bytes.reset();
  CHECK(find(classify(e, default_options()), "request_exceeds_reach") == nullptr);
}

TEST_CASE("on segments it is said where most of what is free is another context's") {
  OomEvidence e = evidence_of(OomCause::external_fragmentation);
  e.other_context_free_bytes = e.pool_free_bytes / 2;
  CHECK(find(classify(e, default_options()), "other_contexts") == nullptr);
  e.other_context_free_bytes += 512;
  REQUIRE(find(classify(e, default_options()), "other_contexts") != nullptr);
  CHECK(find(classify(e, default_options()), "other_contexts")->level == "info");
  e.can_remap = true;
  CHECK(find(classify(e, default_options()), "other_contexts") == nullptr);
}

TEST_CASE(
    "another device of this process's with room for the request is named before the hints, and not where memory only waits or nothing would do") {
  for (const OomCause cause : kOomCauses) {
    OomEvidence e = evidence_of(cause);
    CHECK(find(classify(e, default_options()), "other_devices") == nullptr);
    e.other_device = 3;
    e.other_device_free_bytes = e.request_bytes + page_allowance_bytes(e);
    const OomVerdict verdict = classify(e, default_options());
    const bool is_short = cause != OomCause::impossible_request && cause != OomCause::driver_refused && cause != OomCause::deferred_free;
    REQUIRE((find(verdict, "other_devices") != nullptr) == is_short);
    e.other_device_free_bytes -= 1;
    CHECK(find(classify(e, default_options()), "other_devices") == nullptr);
    if (!is_short) continue;
    CHECK(find(verdict, "other_devices")->level == "consider");
    CHECK(find(verdict, "other_devices")->message.find("GPU 3") == 0);
    for (const Suggestion* after = find(verdict, "other_devices") + 1; after != &verdict.suggestions.back() + 1; ++after)
      CHECK(after->level == "info");
  }
}

TEST_CASE("preallocation counts as on by its policy or by its own variable, not when that says none") {
  OomEvidence e = evidence_of(OomCause::external_fragmentation);
  e.held_bytes = e.device_total_bytes / 2;
  e.region_edge_bytes = e.request_bytes;
  CHECK(find(classify(e, default_options()), "preallocate")->level == "info");
  CHECK(find(classify(e, with_option(default_options(), "policy", "preallocate")), "preallocate")->already_enabled);
  CHECK(find(classify(e, with_option(default_options(), "preallocate", "8GiB")), "preallocate")->already_enabled);
  CHECK(find(classify(e, with_option(default_options(), "preallocate", "none")), "preallocate")->level == "info");
  CHECK(find(classify(e, with_option(default_options(), "policy", "platform")), "preallocate") == nullptr);
}

TEST_CASE("fragmentation of what is little beside what is in use: the job itself needs less") {
  for (const OomEvidence& sample : {evidence_of(OomCause::external_fragmentation), samples::stranded_evidence()}) {
    OomEvidence e = sample;
    e.held_bytes = 32 * e.pool_free_bytes + e.pool_free_bytes + e.deferred_bytes;
    e.device_total_bytes = std::max(e.device_total_bytes, e.held_bytes + *e.driver_free_bytes);
    REQUIRE(classify(e, default_options()).cause == OomCause::external_fragmentation);
    REQUIRE(find(classify(e, default_options()), "reduce_demand") != nullptr);
    CHECK(classify(e, default_options()).suggestions.front().rule_id == "reduce_demand");
    e.held_bytes -= 32;
    CHECK(find(classify(e, default_options()), "reduce_demand") == nullptr);
  }
}

TEST_CASE("managed memory: neither the limit nor the device is blamed") {
  OomEvidence e = evidence_of(OomCause::impossible_request);
  e.is_managed = true;
  e.is_outside_pool = true;
  for (const std::uint64_t limit_bytes : {std::uint64_t{0}, e.request_bytes / 2}) {
    e.limit_bytes = limit_bytes;
    const OomVerdict verdict = classify(e, default_options());
    CHECK(verdict.cause == OomCause::driver_refused);
    CHECK(verdict.shortfall_bytes == 0);
    CHECK(find(verdict, "managed_memory")->level == "info");
  }
}

TEST_CASE("a memory pool of the program's own with a size of its own is named where the driver had enough") {
  OomEvidence e = evidence_of(OomCause::driver_refused);
  CHECK(find(classify(e, default_options()), "mempool_max") == nullptr);
  e.mempool_max_bytes = samples::kGiB;
  CHECK(find(classify(e, default_options()), "mempool_max")->level == "fix");
  CHECK(find(classify(e, default_options()), "driver_refused") == nullptr);
}

TEST_CASE("a limit is not all that has to be raised where the program's own pool, or the device, has less than the request") {
  for (const OomCause cause : {OomCause::limit, OomCause::impossible_request}) {
    OomEvidence e = evidence_of(cause);
    e.limit_bytes = cause == OomCause::limit ? e.limit_bytes : e.request_bytes / 2;
    e.device_total_bytes = std::max(e.device_total_bytes, 4 * e.request_bytes);
    e.driver_free_bytes = 2 * e.request_bytes;
    REQUIRE(classify(e, default_options()).cause == cause);
    CHECK(find(classify(e, default_options()), "raise_limit")->level == "fix");
    e.mempool_max_bytes = e.request_bytes / 2;
    CHECK(find(classify(e, default_options()), "raise_limit")->level == "consider");
    CHECK(find(classify(e, default_options()), "mempool_max")->level == "fix");
  }
  for (const OomCause cause : {OomCause::limit, OomCause::other_process, OomCause::non_pool_memory, OomCause::true_exhaustion}) {
    OomEvidence used = evidence_of(cause);
    used.mempool_max_bytes = used.request_bytes + samples::kGiB;
    used.mempool_used_bytes = samples::kGiB;
    REQUIRE(classify(used, default_options()).cause == cause);
    CHECK(find(classify(used, default_options()), "mempool_max") == nullptr);  // it has just the room
    used.mempool_used_bytes += 512;
    const OomVerdict verdict = classify(used, default_options());
    CHECK(verdict.suggestions.front().rule_id == "mempool_max");
    // Nothing else does alone
    CHECK(std::count_if(verdict.suggestions.begin(), verdict.suggestions.end(), [](const Suggestion& one) { return one.level == "fix"; }) == 1);
  }
  OomEvidence beyond = evidence_of(OomCause::impossible_request);
  beyond.request_bytes = beyond.device_total_bytes + samples::kGiB;
  beyond.mempool_max_bytes = samples::kGiB;
  CHECK(find(classify(beyond, default_options()), "mempool_max") == nullptr);  // no maxSize could help
  OomEvidence e = evidence_of(OomCause::impossible_request);
  e.limit_bytes = e.request_bytes / 2;
  e.device_total_bytes = 4 * e.request_bytes;
  e.driver_free_bytes = e.request_bytes / 4;
  e.releasable_bytes = e.request_bytes / 4;
  CHECK(find(classify(e, default_options()), "raise_limit")->level == "info");
}

TEST_CASE("pages are advised only where they would serve") {
  OomEvidence e = evidence_of(OomCause::external_fragmentation);
  CHECK(find(classify(e, default_options()), "backing_pages") == nullptr);
  e.pages_available = true;
  e.whole_page_bytes = e.request_bytes;
  CHECK(find(classify(e, with_option(default_options(), "backing", "segments")), "backing_pages")->level == "fix");
  CHECK(find(classify(e, with_option(default_options(), "backing", "pages")), "backing_pages")->already_enabled);
}

TEST_CASE("on pages: not what is on already, nor what large regions do for segments") {
  OomEvidence e = samples::stranded_evidence();
  for (const char* backing : {"auto", "pages"}) {
    const OomVerdict verdict = classify(e, with_option(default_options(), "backing", backing));
    REQUIRE(verdict.cause == OomCause::external_fragmentation);
    CHECK(find(verdict, "backing_pages")->already_enabled);
    CHECK(find(verdict, "preallocate") == nullptr);
    CHECK(find(verdict, "pinned_by")->level == "fix");
    CHECK(find(verdict, "smaller_pages") == nullptr);
  }
}

TEST_CASE("on pages: smaller ones are advised to who preallocates large ones, and where the device has smaller ones") {
  OomEvidence e = samples::stranded_evidence();
  const auto preallocating = with_option(default_options(), "policy", "preallocate");
  CHECK(find(classify(e, preallocating), "smaller_pages") == nullptr);
  e.stranding_handle_bytes = 256 * samples::kMiB;
  e.whole_page_bytes = e.request_bytes - *e.driver_free_bytes;
  CHECK(find(classify(e, default_options()), "smaller_pages") == nullptr);
  CHECK(find(classify(e, preallocating), "smaller_pages")->level == "consider");
  *e.whole_page_bytes -= 1;
  CHECK(find(classify(e, preallocating), "smaller_pages") == nullptr);  // a live block is on every page
  *e.whole_page_bytes += 1;
  e.page_bytes = e.stranding_handle_bytes;
  CHECK(find(classify(e, preallocating), "smaller_pages") == nullptr);
}

TEST_CASE("no options known: no setting is advised as if it were off") {
  for (const OomCause cause : kOomCauses) {
    for (const Suggestion& s : classify(evidence_of(cause), {}).suggestions) {
      CHECK(s.message.find("CUPOOL_POLICY") == std::string::npos);
      CHECK(s.message.find("CUPOOL_FREE") == std::string::npos);
    }
  }
}

TEST_CASE("while an executable graph lives the program's own trim is named, and no setting") {
  for (const char* policy : {"grow", "preallocate", "async", "platform"}) {
    OomEvidence e = evidence_of(OomCause::non_pool_memory);
    e.graph_bytes = e.own_outside_bytes;
    const auto message = [&] { return find(classify(e, with_option(default_options(), "policy", policy)), "graph_memory")->message; };
    const bool is_platform = std::string(policy) == "platform";
    CHECK((message().find("CUPOOL_POLICY=grow") != std::string::npos) == is_platform);
    e.living_graphs = 1;
    CHECK(message().find("CUPOOL_POLICY") == std::string::npos);
    CHECK(message().find("cudaDeviceGraphMemTrim, called by the program") != std::string::npos);
    e.capturing = !is_platform;
    if (!is_platform) CHECK(message().find("captures") != std::string::npos);
  }
}

TEST_CASE("what the driver was given back behind work: a wait may cure it, which is no promise, and the limit does not count it twice") {
  OomEvidence e = evidence_of(OomCause::true_exhaustion);
  const std::uint64_t missing_bytes = classify(e, default_options()).shortfall_bytes;
  e.deferred_bytes = e.deferred_at_driver_bytes = e.deferred_unheld_bytes = missing_bytes + e.deferred_bytes;
  e.deferred_in_order_bytes = e.deferred_bytes;
  e.releasable_with_deferred_bytes = e.releasable_bytes + e.request_bytes;
  OomVerdict verdict = classify(e, default_options());
  REQUIRE(verdict.cause == OomCause::deferred_free);
  CHECK(verdict.confidence == "medium");
  CHECK(verdict.suggestions.at(0).rule_id == "synchronize_first");
  CHECK(verdict.suggestions.at(0).level == "consider");
  CHECK(find(verdict, "free_sync") == nullptr);
  e.limit_bytes = e.held_bytes;  // which is really in use: no wait makes room there
  e.deferred_unheld_bytes = e.deferred_at_driver_bytes = e.deferred_bytes = e.request_bytes;
  e.releasable_bytes = e.pool_free_bytes = 0;
  e.releasable_with_deferred_bytes = e.request_bytes;
  verdict = classify(e, default_options());
  CHECK(verdict.cause != OomCause::deferred_free);
  CHECK(find(verdict, "synchronize_first") == nullptr);
}

TEST_CASE("blocks that are driver calls of their own: what they are rounded up to is named only where it would do, and where something else serves") {
  OomEvidence e = evidence_of(OomCause::true_exhaustion);
  e.other_process_bytes.reset();
  e.unattributed_bytes = classify(e, default_options()).shortfall_bytes;
  e.native_rounding_bytes = *e.unattributed_bytes;
  const auto rounding = [&](const char* option, const char* value) {
    return find(classify(e, with_option(default_options(), option, value)), "native_rounding") != nullptr;
  };
  CHECK(rounding("policy", "platform"));
  std::vector<OptionFact> by_the_driver = default_options();
  by_the_driver.push_back({"ipc", "native", "env"});
  CHECK(find(classify(e, by_the_driver), "native_rounding") != nullptr);
  CHECK_FALSE(rounding("policy", "grow"));
  e.native_rounding_bytes -= 1;
  CHECK_FALSE(rounding("policy", "platform"));
}

TEST_CASE("memory pools that keep idle memory in pieces hold nothing that could be freed: only what keeps the pieces apart is named") {
  OomEvidence e = evidence_of(OomCause::non_pool_memory);
  const std::uint64_t missing_bytes = classify(e, default_options()).shortfall_bytes;
  e.own_outside_bytes = e.mempool_idle_bytes = missing_bytes;
  const OomVerdict verdict = classify(e, with_option(default_options(), "policy", "platform"));
  REQUIRE(verdict.cause == OomCause::non_pool_memory);
  CHECK(find(verdict, "non_pool_memory") == nullptr);
  CHECK(verdict.suggestions.at(0).rule_id == "mempool_idle");
  const std::string missing = std::to_string(missing_bytes);
  CHECK(verdict.suggestions.at(0).evidence == "mempool_idle_bytes=" + missing + " shortfall_bytes=" + missing);
  CHECK(find(verdict, "pool_of_ours")->level == "info");
  CHECK(find(classify(e, default_options()), "pool_of_ours") == nullptr);
  e.own_outside_bytes += missing_bytes;  // arrays, say
  CHECK(find(classify(e, default_options()), "non_pool_memory")->level == "fix");
  CHECK(find(classify(e, default_options()), "mempool_idle") != nullptr);
  e.mempool_idle_bytes -= 1;  // not enough by itself
  CHECK(find(classify(e, default_options()), "mempool_idle") == nullptr);
}
