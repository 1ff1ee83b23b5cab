// The ordered counterfactuals of config/causes.json: which single difference would have served the request? Letters: R request, T total, F driver
// free, PF pool free, LF largest free, REL releasable, PEND deferred, U other processes, N own bytes outside the pool, L limit, H held.
//
// REL is what holds no block: regions, or on pages the physical handles. There they are moved instead of returned, which makes no difference to the
// limit and to F + REL >= R; what is free beside something else in its handle (PF - REL) stays in pieces on either backing.
//
// Each counterfactual is judged yes, no or unknown. An unknown input is not zero: bounds that follow from the others are used (F + U <= T - H), and
// what stays open lowers the confidence. The first yes is the cause.
#include <algorithm>
#include <array>

#include "pool/core/bytes.hpp"
#include "pool/observe/report.hpp"
#include "pool/observe/suggestions.hpp"

namespace cupool::observe {

namespace {

using Bytes = std::uint64_t;
enum class Truth : std::uint8_t { no, yes, unknown };

constexpr std::size_t kCauseCount = std::size(kOomCauses);
constexpr std::size_t at(OomCause cause) { return static_cast<std::size_t>(cause); }
constexpr Truth truth(bool is) { return is ? Truth::yes : Truth::no; }
constexpr Truth both(Truth a, Truth b) {
  if (a == Truth::no || b == Truth::no) return Truth::no;
  return a == Truth::yes && b == Truth::yes ? Truth::yes : Truth::unknown;
}
constexpr Truth opposite(Truth a) { return a == Truth::unknown ? a : truth(a == Truth::no); }

/// The evidence, with every counterfactual as a question.
class Case {
 public:
  explicit Case(const OomEvidence& e)
      : e_(e),
        request_(e.request_bytes == 0 ? UINT64_MAX : e.request_bytes),
        releasable_with_deferred_(std::max(e.releasable_with_deferred_bytes.value_or(e.releasable_bytes), e.releasable_bytes)) {}

  Truth holds(OomCause cause) const {
    switch (cause) {
      case OomCause::impossible_request: return impossible();
      case OomCause::limit: return both(truth(e_.refused_by_limit || limit_blocks(e_.releasable_bytes)), driver_gives(e_.releasable_bytes));
      case OomCause::driver_refused:
        return e_.is_managed ? Truth::yes : both(truth(!e_.refused_by_limit && !limit_blocks(e_.releasable_bytes)), driver_gives(0));
      case OomCause::deferred_free: return deferred();
      case OomCause::external_fragmentation: return fragmented(e_.pool_free_bytes);
      case OomCause::other_process:
        return both(truth(!limit_blocks(e_.releasable_bytes)), both(opposite(driver_gives(e_.releasable_bytes)), others_give()));
      case OomCause::non_pool_memory: {  // memory outside the pool may have counted against the limit, too
        const Bytes all_bytes = saturating_add(e_.releasable_bytes, e_.own_outside_bytes);
        return both(truth(!limit_blocks(all_bytes)), both(opposite(driver_gives(e_.releasable_bytes)), driver_gives(all_bytes)));
      }
      case OomCause::true_exhaustion: return truth(exhausted_by() > 0);
    }
    return Truth::no;
  }

  /// Are there enough free bytes, but in pieces, counting what waits for the GPU and what the driver has? No cause of its own says that.
  bool scattered() const { return fragmented(UINT64_MAX) != Truth::no; }

  /// On pages the driver's free memory joins the pool's, so nothing but the pieces stood in the way.
  bool only_scattered() const { return e_.can_remap && e_.driver_free_bytes && saturating_add(driver_free(), e_.pool_free_bytes) >= request_; }

  /// Bytes that were missing, in the cause's own resource.
  Bytes shortfall(OomCause cause) const {
    switch (cause) {
      case OomCause::impossible_request: return saturating_sub(request_, cap());
      case OomCause::limit: return saturating_sub(saturating_add(saturating_sub(e_.held_bytes, e_.releasable_bytes), request_), e_.limit_bytes);
      case OomCause::driver_refused: return 0;
      case OomCause::deferred_free:
      case OomCause::external_fragmentation: return saturating_sub(request_, in_one_piece());
      case OomCause::other_process:
      case OomCause::non_pool_memory: return saturating_sub(request_, saturating_add(driver_free(), e_.releasable_bytes));
      case OomCause::true_exhaustion: return exhausted_by();
    }
    return 0;
  }

  /// What would still be missing if this alone were different; nullopt when an input that decides it is unknown.
  std::optional<Bytes> remaining(OomCause cause) const {
    switch (cause) {
      case OomCause::impossible_request: return cap() == UINT64_MAX ? std::nullopt : std::optional(saturating_sub(request_, cap()));
      case OomCause::limit: return has_limit() ? missing_from_driver(0, e_.releasable_bytes) : std::nullopt;
      case OomCause::driver_refused: return missing_from_driver(0, 0);
      case OomCause::deferred_free: return missing_from_driver(e_.largest_free_with_deferred_bytes, releasable_with_deferred_);
      case OomCause::external_fragmentation: return missing_from_driver(e_.pool_free_bytes, e_.can_remap ? e_.pool_free_bytes : e_.releasable_bytes);
      case OomCause::other_process:
        if (!e_.other_process_bytes) return std::nullopt;
        return missing_from_driver(0, saturating_add(e_.releasable_bytes, *e_.other_process_bytes));
      case OomCause::non_pool_memory: return missing_from_driver(0, saturating_add(e_.releasable_bytes, e_.own_outside_bytes));
      case OomCause::true_exhaustion: return e_.driver_free_bytes ? std::optional(exhausted_by()) : std::nullopt;
    }
    return std::nullopt;
  }

 private:
  /// F; on pages a block can have whole pages of it only.
  Bytes driver_free() const {
    const Bytes bytes = e_.driver_free_bytes.value_or(0);
    return e_.can_remap && e_.page_bytes.value_or(0) != 0 ? bytes - bytes % *e_.page_bytes : bytes;
  }
  /// LF, with and without remapping.
  Bytes largest_free() const { return std::max(e_.largest_free_bytes, e_.largest_free_remapped_bytes); }
  /// What one block could have had: a hole, or on pages everything that moves, with what the driver and the limit still give.
  Bytes in_one_piece() const {
    if (!e_.can_remap && e_.holes_known && !e_.is_outside_pool && e_.deferred_at_driver_bytes == 0) return largest_free();
    const Bytes allowed = has_limit() ? saturating_sub(e_.limit_bytes, saturating_sub(e_.held_bytes, e_.releasable_bytes)) : UINT64_MAX;
    return std::max(largest_free(), std::min(saturating_add(driver_free(), e_.releasable_bytes), allowed));
  }
  bool has_limit() const { return e_.limit_bytes > 0 && !e_.is_managed; }
  /// The most that one request could ever get; UINT64_MAX when neither total nor limit is known.
  Bytes cap() const {
    if (e_.is_managed) return UINT64_MAX;
    const Bytes total = e_.device_total_bytes == 0 ? UINT64_MAX : e_.device_total_bytes;
    return has_limit() ? std::min(total, e_.limit_bytes) : total;
  }
  Truth impossible() const {
    if (e_.request_bytes == 0 || request_ > cap()) return Truth::yes;
    return e_.device_total_bytes == 0 ? Truth::unknown : Truth::no;
  }

  /// The limit forbids R more bytes even after `given_back` went back to the driver.
  bool limit_blocks(Bytes given_back) const {
    return has_limit() && saturating_add(saturating_sub(e_.held_bytes, given_back), request_) > e_.limit_bytes;
  }

  /// F + extra >= R. Without F: F lies between 0 and what is not ours.
  Truth driver_gives(Bytes extra) const {
    if (e_.driver_free_bytes) return truth(saturating_add(driver_free(), extra) >= request_);
    if (extra >= request_) return Truth::yes;
    if (e_.device_total_bytes != 0 && saturating_add(not_ours(), extra) < request_) return Truth::no;
    return Truth::unknown;
  }

  /// F + REL + U >= R. Without U: F + U is at most what is not ours.
  Truth others_give() const {
    if (e_.other_process_bytes) return driver_gives(saturating_add(e_.releasable_bytes, *e_.other_process_bytes));
    if (e_.device_total_bytes != 0 && saturating_add(not_ours(), e_.releasable_bytes) < request_) return Truth::no;
    return Truth::unknown;
  }
  Bytes not_ours() const { return saturating_sub(e_.device_total_bytes, e_.held_bytes); }

  /// PEND makes the difference: the request fits with it, and did not without.
  Truth deferred() const {
    if (e_.deferred_bytes == 0 || largest_free() >= request_) return Truth::no;
    if (e_.largest_free_with_deferred_bytes >= request_) return Truth::yes;
    const Truth without = both(truth(!limit_blocks(e_.releasable_bytes)), driver_gives(e_.releasable_bytes));
    const Bytes held_bytes = saturating_sub(releasable_with_deferred_, e_.deferred_unheld_bytes);
    const Truth with = both(truth(!limit_blocks(held_bytes)), driver_gives(releasable_with_deferred_));
    return both(opposite(without), with);
  }
  Truth fragmented(Bytes pool_free) const {
    if (pool_free < request_ || largest_free() >= request_) return Truth::no;
    return both(opposite(driver_gives(e_.releasable_bytes)), e_.holes_known ? Truth::yes : Truth::unknown);
  }

  /// Bytes still missing if everything free were one piece and nothing waited for the GPU; under the limit too.
  Bytes exhausted_by() const {
    const Bytes pool = saturating_add(e_.pool_free_bytes, e_.deferred_bytes);
    const Bytes device = saturating_sub(request_, saturating_add(driver_free(), pool));
    const Bytes held = saturating_add(e_.pool_free_bytes, deferred_held_bytes(e_));
    const Bytes limit = has_limit() ? saturating_sub(saturating_add(saturating_sub(e_.held_bytes, held), request_), e_.limit_bytes) : 0;
    return held >= request_ ? 0 : std::max(device, limit);
  }

  /// R minus the better of `hole` and F + extra.
  std::optional<Bytes> missing_from_driver(Bytes hole, Bytes extra) const {
    const Bytes known = std::max(hole, saturating_add(driver_free(), extra));
    if (!e_.driver_free_bytes && known < request_) return std::nullopt;
    return saturating_sub(request_, known);
  }

  const OomEvidence& e_;
  Bytes request_;
  Bytes releasable_with_deferred_;
};

/// Where an unknown is answered by the failure itself: the limit does block; and had the driver had the bytes, it would have been asked.
bool assumed_when_unknown(OomCause cause) { return cause == OomCause::limit || cause == OomCause::external_fragmentation; }

std::vector<std::string> missing_inputs(const OomEvidence& e) {
  std::vector<std::string> names;
  if (e.device_total_bytes == 0) names.emplace_back("device_total_bytes");
  if (!e.driver_free_bytes) names.emplace_back("driver_free_bytes");
  if (!e.other_process_bytes) names.emplace_back("other_process_bytes");
  if (!e.holes_known) names.emplace_back("largest_free_bytes");
  if (e.deferred_bytes > 0 && !e.releasable_with_deferred_bytes) names.emplace_back("releasable_with_deferred_bytes");
  return names;
}

}  // namespace

OomVerdict classify(const OomEvidence& evidence, const std::vector<OptionFact>& options) {
  const Case judged(evidence);
  OomVerdict verdict;
  verdict.missing_inputs = missing_inputs(evidence);
  bool found = false;
  bool doubtful = false;
  for (const OomCause cause : kOomCauses) {
    if (const std::optional<Bytes> bytes = judged.remaining(cause)) verdict.shortfalls.emplace_back(cause, *bytes);
    if (found) continue;
    const Truth answer = judged.holds(cause);
    doubtful |= answer == Truth::unknown;
    found = answer == Truth::yes || (answer == Truth::unknown && assumed_when_unknown(cause));
    if (found) verdict.cause = cause;
  }
  // Of memory that went back to the driver only the most that may still be in use is known, and not whether it lies in one piece.
  doubtful |= found && verdict.cause == OomCause::deferred_free && evidence.deferred_at_driver_bytes != 0;
  verdict.confidence = doubtful ? "medium" : "high";
  if (!found) {
    // There were enough bytes, and yet it failed: either they are in pieces, or the driver refused. The evidence cannot tell more.
    verdict.cause = judged.scattered() ? OomCause::external_fragmentation : OomCause::driver_refused;
    verdict.confidence = verdict.cause == OomCause::driver_refused || doubtful ? "low" : judged.only_scattered() ? "high" : "medium";
  } else if (verdict.cause == OomCause::true_exhaustion && !evidence.driver_free_bytes) {
    verdict.confidence = "low";
  }
  verdict.shortfall_bytes = judged.shortfall(verdict.cause);
  verdict.suggestions = suggest(verdict, evidence, options);
  return verdict;
}

const char* name_of(OomCause cause) {
  static constexpr std::array<const char*, kCauseCount> kNames = {"impossible_request",     "limit",         "driver_refused",  "deferred_free",
                                                                  "external_fragmentation", "other_process", "non_pool_memory", "true_exhaustion"};
  return at(cause) < kNames.size() ? kNames[at(cause)] : "unknown";
}

}  // namespace cupool::observe
