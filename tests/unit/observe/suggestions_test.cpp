// Advice: never a setting that is on, never one that cannot help.
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>

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
  CHECK(find(classify(e, default_options()), "raise_limit")->level == "fix");
  e.request_bytes = 0;
  CHECK(find(classify(e, default_options()), "raise_limit") == nullptr);
}

TEST_CASE("deferred frees: synchronise; CUPOOL_FREE=sync is advised only to who has deferred") {
  const OomEvidence e = evidence_of(OomCause::deferred_free);
  CHECK(find(classify(e, default_options()), "synchronize_first")->level == "fix");
  CHECK(find(classify(e, default_options()), "free_sync")->level == "consider");
  CHECK(find(classify(e, with_option(default_options(), "free", "sync")), "free_sync")->already_enabled);
  CHECK(find(classify(e, with_option(default_options(), "free", "immediate")), "free_sync") == nullptr);
}

TEST_CASE("preallocation counts as on by its policy or by its own variable, not when that says none") {
  const OomEvidence e = evidence_of(OomCause::external_fragmentation);
  CHECK(find(classify(e, default_options()), "preallocate")->level == "consider");
  CHECK(find(classify(e, with_option(default_options(), "policy", "preallocate")), "preallocate")->already_enabled);
  CHECK(find(classify(e, with_option(default_options(), "preallocate", "8GiB")), "preallocate")->already_enabled);
  CHECK(find(classify(e, with_option(default_options(), "preallocate", "none")), "preallocate")->level == "consider");
  CHECK(find(classify(e, with_option(default_options(), "policy", "platform")), "preallocate") == nullptr);
}

TEST_CASE("pages are advised only where they would serve") {
  OomEvidence e = evidence_of(OomCause::external_fragmentation);
  CHECK(find(classify(e, default_options()), "backing_pages") == nullptr);
  e.pages_available = true;
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
    CHECK(find(verdict, "pinned_pages") == nullptr);
    CHECK(find(verdict, "smaller_pages") == nullptr);
  }
}

TEST_CASE("on pages: pinned ones are spoken of where there are any, and as the way out where they alone would have done") {
  OomEvidence e = samples::stranded_evidence();
  e.pinned_free_bytes = 2 * samples::kGiB;
  CHECK(find(classify(e, default_options()), "pinned_pages")->level == "fix");
  CHECK(find(classify(e, default_options()), "pinned_by")->evidence.find("stranded_bytes=1073741824") == 0);
  e.pinned_free_bytes = 2 * samples::kGiB - 1;
  CHECK(find(classify(e, default_options()), "pinned_pages")->level == "consider");
  e.pinned_free_bytes = e.stranded_bytes;
  CHECK(find(classify(e, default_options()), "pinned_by") == nullptr);
}

TEST_CASE("on pages: smaller ones are advised to who preallocates large ones, and where the device has smaller ones") {
  OomEvidence e = samples::stranded_evidence();
  const auto preallocating = with_option(default_options(), "policy", "preallocate");
  CHECK(find(classify(e, preallocating), "smaller_pages") == nullptr);
  e.stranding_handle_bytes = 256 * samples::kMiB;
  CHECK(find(classify(e, default_options()), "smaller_pages") == nullptr);
  CHECK(find(classify(e, preallocating), "smaller_pages")->level == "consider");
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
