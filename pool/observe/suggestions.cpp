// Chooses the rules that apply, and has those that need few words. See rules.hpp.
#include "pool/observe/suggestions.hpp"

#include <algorithm>

#include "pool/core/bytes.hpp"
#include "pool/observe/enough_limit.hpp"
#include "pool/observe/rules.hpp"

namespace cupool::observe {

namespace {

std::string evidence_text(Rules::Numbers numbers) {
  std::string text;
  for (const auto& [name, value] : numbers) {
    if (!text.empty()) text += ' ';
    text.append(name).append("=").append(std::to_string(value));
  }
  return text;
}

}  // namespace

std::vector<Suggestion> Rules::apply() {
  switch (verdict_.cause) {
    case OomCause::impossible_request: impossible(); break;
    case OomCause::limit: limit(); break;
    case OomCause::driver_refused: refused(); break;
    case OomCause::deferred_free: deferred(); break;
    case OomCause::external_fragmentation: fragmented(); break;
    case OomCause::other_process: others(); break;
    case OomCause::non_pool_memory: outside(); break;
    case OomCause::true_exhaustion: exhausted(); break;
  }
  other_contexts();
  if (exceeds_own_maximum() && !exceeds_device()) put_own_maximum_first();
  else other_devices();
  return std::move(out_);
}

std::string_view Rules::value(std::string_view option) const {
  const OptionFact* fact = find(option);
  return fact == nullptr ? std::string_view() : std::string_view(fact->value);
}

bool Rules::is_set(std::string_view option) const {
  const OptionFact* fact = find(option);
  return fact != nullptr && fact->source == "env";
}

const OptionFact* Rules::find(std::string_view option) const {
  const auto at = std::find_if(options_.begin(), options_.end(), [&](const OptionFact& fact) { return fact.name == option; });
  return at == options_.end() ? nullptr : &*at;
}

bool Rules::preallocates() const {
  return value("policy") == "preallocate" ||
         (is_set("preallocate") && value("preallocate") != "none" && value("preallocate") != "0" && value("preallocate") != "0%");
}

bool Rules::has(std::string_view rule) const {
  return std::any_of(out_.begin(), out_.end(), [&](const Suggestion& one) { return one.rule_id == rule; });
}

/// Moves the last suggestion before those that are no advice: only a few lines are printed.
void Rules::put_before_hints() {
  const auto hint = std::find_if(out_.begin(), out_.end(), [](const Suggestion& one) { return one.level == "info"; });
  if (hint != out_.end()) std::rotate(hint, out_.end() - 1, out_.end());
}

/// A region belongs to one context: what is free in another context goes back to the driver only where whole regions hold no block.
void Rules::other_contexts() {
  const bool is_of_free = verdict_.cause == OomCause::limit || verdict_.cause == OomCause::external_fragmentation ||
                          verdict_.cause == OomCause::true_exhaustion || verdict_.cause == OomCause::other_process;
  if (!is_of_free || e_.can_remap || e_.is_outside_pool || e_.other_context_free_bytes <= e_.pool_free_bytes / 2) return;
  add("other_contexts", "info",
      "most of what is free in the pool lies in another context's part of it, which only that context can use: allocate there, or use one context",
      {{"other_context_free_bytes", e_.other_context_free_bytes},
       {"pool_free_bytes", e_.pool_free_bytes},
       {"releasable_bytes", e_.releasable_bytes}});
  put_before_hints();
}

/// For what is missing on this device; not for what no device would give, nor for what is waiting.
void Rules::other_devices() {
  const bool is_short = verdict_.cause == OomCause::limit || verdict_.cause == OomCause::external_fragmentation ||
                        verdict_.cause == OomCause::other_process || verdict_.cause == OomCause::non_pool_memory ||
                        verdict_.cause == OomCause::true_exhaustion;
  const std::uint64_t free_bytes = saturating_sub(e_.other_device_free_bytes, page_allowance_bytes(e_));
  if (!is_short || !e_.other_device || e_.request_bytes == 0 || e_.request_bytes > free_bytes) return;
  add("other_devices", "consider",
      "GPU " + std::to_string(*e_.other_device) + ", which this process uses too, had room for the request when last heard of: place it there",
      {{"other_device", *e_.other_device}, {"other_device_free_bytes", e_.other_device_free_bytes}, {"request_bytes", e_.request_bytes}});
  put_before_hints();
}

Suggestion& Rules::add(const char* rule, const char* level, std::string message, Numbers numbers) {
  return out_.emplace_back(Suggestion{rule, level, std::move(message), evidence_text(numbers), 0, false});
}

void Rules::add_already(const char* rule, const char* message, Numbers numbers) {
  out_.push_back({rule, "info", message, evidence_text(numbers), 0, true});
}

bool Rules::exceeds_device() const { return e_.device_total_bytes != 0 && (e_.request_bytes == 0 || e_.request_bytes > e_.device_total_bytes); }

/// Does the request exceed what the program's own memory pool may still have? Then that refuses it, whatever else does.
bool Rules::exceeds_own_maximum() const {
  return e_.mempool_max_bytes != 0 && e_.request_bytes > saturating_sub(e_.mempool_max_bytes, e_.mempool_used_bytes);
}

void Rules::raise_own_maximum() {
  add("mempool_max", "fix",
      e_.request_bytes > e_.mempool_max_bytes ? "the program made this memory pool with a maxSize, and the request alone is more, which the driver "
                                                "refuses whatever is free: raise it, or ask that pool for less"
                                              : "the program made this memory pool with a maxSize, which the driver lets it not pass whatever is "
                                                "free: raise it, or free blocks of that pool",
      {{"mempool_max_bytes", e_.mempool_max_bytes}, {"mempool_used_bytes", e_.mempool_used_bytes}, {"request_bytes", e_.request_bytes}});
}

/// If so nothing else would suffice alone.
void Rules::put_own_maximum_first() {
  if (verdict_.cause == OomCause::driver_refused) return;
  for (Suggestion& other : out_)
    if (other.level == "fix") other.level = "consider";
  raise_own_maximum();
  std::rotate(out_.begin(), out_.end() - 1, out_.end());
}

void Rules::refused() {
  if (e_.is_managed) {
    add("managed_memory", "info",
        "managed memory is bounded by neither CUPOOL_LIMIT nor the device: look at the host's memory (and its cgroup), and in the driver's log",
        {{"request_bytes", e_.request_bytes}});
    return;
  }
  if (e_.mempool_max_bytes != 0) return raise_own_maximum();
  add("driver_refused", "info",
      "enough was free a moment after the refusal: another thread or process may have freed in between; if none does, look in the driver's log (Xid, "
      "MIG or vGPU quotas)",
      {{"driver_free_bytes", e_.driver_free_bytes.value_or(0)}, {"releasable_bytes", e_.releasable_bytes}, {"request_bytes", e_.request_bytes}});
}

void Rules::deferred() {
  const Numbers numbers = {{"deferred_bytes", e_.deferred_bytes}, {"request_bytes", e_.request_bytes}};
  if (e_.capturing) {  // no setting helps, and synchronising now would end the capture
    add("before_capture", "fix",
        "freed memory cannot be waited for while a stream captures: make this allocation, or free and synchronise, before the capture begins",
        numbers);
    return;
  }
  if (e_.deferred_at_driver_bytes != 0)
    add("synchronize_first", "consider",
        "memory that was freed in the order of a stream may still be in use by the GPU, and the driver gives it to nobody else until then: "
        "synchronise that stream, or the device, before this allocation",
        {{"deferred_bytes", e_.deferred_bytes}, {"deferred_at_driver_bytes", e_.deferred_at_driver_bytes}, {"request_bytes", e_.request_bytes}});
  else add("synchronize_first", "fix", "freed memory was still in use by the GPU: synchronise the device before this allocation", numbers);
  if (e_.deferred_in_order_bytes.value_or(0) != 0) return;  // no setting of CUPOOL_FREE makes such frees wait
  if (value("free") == "sync") {
    add_already("free_sync", "CUPOOL_FREE=sync is on already", {{"deferred_bytes", e_.deferred_bytes}});
  } else if (value("free") == "deferred") {
    add("free_sync", "consider", "CUPOOL_FREE=sync makes every free wait for the GPU, as the native one does: slower, but nothing is left pending",
        {{"deferred_bytes", e_.deferred_bytes}});
  }
}

void Rules::others() {
  add("other_process", "fix", "other processes hold what is missing: end them, move them, or give each a CUPOOL_LIMIT",
      {{"other_process_bytes", e_.other_process_bytes.value_or(0)}, {"shortfall_bytes", verdict_.shortfall_bytes}});
  const Numbers numbers = {{"held_bytes", e_.held_bytes}};
  if (preallocates()) {
    add_already("preallocate", "this process preallocates already", numbers);
  } else if (value("policy") == "grow") {
    add("preallocate", "consider", "CUPOOL_POLICY=preallocate secures this process's share before the others take it", numbers);
  }
}

void Rules::outside() {
  if (only_idle_is_outside(e_, verdict_)) return mempool_idle();
  add("non_pool_memory", "fix",
      "this process holds the missing memory outside the pool (arrays, cuMemCreate, managed memory, memory pools of its own, CUDA graphs): free it "
      "first; the ledger says which kind",
      {{"own_outside_bytes", e_.own_outside_bytes}, {"shortfall_bytes", verdict_.shortfall_bytes}});
  if (e_.mempool_idle_bytes >= verdict_.shortfall_bytes) mempool_idle();
  const Numbers numbers = {{"graph_bytes", e_.graph_bytes}, {"living_graphs", e_.living_graphs}, {"shortfall_bytes", verdict_.shortfall_bytes}};
  if (e_.graph_bytes != 0 && e_.living_graphs != 0 && !e_.capturing)
    add("graph_memory", "consider",
        "an executable CUDA graph lives whose next launch may need what the driver keeps for graphs, so that it is left alone: "
        "cudaDeviceGraphMemTrim, called by the program, gives back what none "
        "of them uses just now, and they launch again while there is memory; or destroy the graphs",
        numbers);
  else if (e_.graph_bytes != 0 && value("policy") == "platform")
    add("graph_memory", "consider",
        "cudaDeviceGraphMemTrim gives back what the driver keeps for CUDA graphs that do not run; CUPOOL_POLICY=grow does so before it refuses",
        numbers);
  else if (e_.graph_bytes != 0 && e_.capturing)
    add("graph_memory", "consider",
        "nothing that the driver keeps for CUDA graphs is given back while a stream captures: call cudaDeviceGraphMemTrim before", numbers);
  else if (e_.graph_bytes != 0)
    add("graph_memory", "consider", "CUDA graphs that run, or whose memory was not freed, keep it: free what they left live, or end them", numbers);
}

/// The memory pool was trimmed before the refusal: what is left is in pieces between live blocks. What may wait for running work is not included.
void Rules::mempool_idle() {
  add("mempool_idle", "consider",
      "memory pools that the driver serves have memory idle that they did not give back when they were trimmed: it lies between their live blocks; "
      "allocate what lives long first, or free what keeps it",
      {{"mempool_idle_bytes", e_.mempool_idle_bytes}, {"shortfall_bytes", verdict_.shortfall_bytes}});
  if (value("policy") == "platform") pool_of_ours();
}

/// Nothing that this process could free would help, so there is no leak to look for.
void Rules::ask_for_less() {
  add("request_exceeds_reach", "fix",
      "the request would not fit even if all that this process holds were freed: it has to be smaller (a smaller batch, or in parts), or what others "
      "hold on the device has to go",
      {{"request_bytes", e_.request_bytes}, {"reachable_bytes", *reachable_bytes(e_)}});
}

/// Blocks of the pool share pages.
void Rules::native_rounding() {
  if (e_.native_rounding_bytes < verdict_.shortfall_bytes) return;
  const Numbers numbers = {{"native_rounding_bytes", e_.native_rounding_bytes}, {"shortfall_bytes", verdict_.shortfall_bytes}};
  if (value("policy") == "platform")
    add("native_rounding", "consider",
        "each block is a driver call of its own and takes whole pieces of 2 MiB, which may be all that is missing: under CUPOOL_POLICY=grow blocks "
        "share them",
        numbers);
  else if (value("ipc") == "native")
    add("native_rounding", "consider",
        "under CUPOOL_IPC=native each block is a driver call of its own and takes whole pieces of 2 MiB, which may be all that is missing: by "
        "default blocks share them",
        numbers);
}

void Rules::exhausted() {
  const Numbers numbers = {{"shortfall_bytes", verdict_.shortfall_bytes}, {"held_bytes", e_.held_bytes}};
  if (others_may_hold(e_, verdict_)) {
    native_rounding();
    add("look_elsewhere", "consider",
        "memory that is in none of the books here would cover the shortfall: contexts and modules (this process's too), the driver's own rounding, "
        "memory that was exported and whose descriptors are still open, or other processes (nvidia-smi names them): end or move those, or give each "
        "a CUPOOL_LIMIT",
        {{"unattributed_bytes", *e_.unattributed_bytes}, {"shortfall_bytes", verdict_.shortfall_bytes}, {"held_bytes", e_.held_bytes}});
    if (exceeds_reach(e_)) return ask_for_less();
    add("reduce_demand", "consider",
        "where no other process holds it, the job needs less (smaller batch, recomputation, offloading), more devices, or a leak found (leaks[])",
        numbers);
    return;
  }
  if (exceeds_reach(e_)) return ask_for_less();
  if (only_limit_is_short(e_)) {
    pages_under_limit();
    add("reduce_demand", "fix",
        "of what CUPOOL_LIMIT allows the memory is really in use: the job needs less (smaller batch, recomputation, offloading), more devices, or "
        "a leak found (leaks[])",
        numbers);
    return;
  }
  if (e_.request_bytes > in_use_bytes(e_)) {  // a leak is then not what to look for first
    add("reduce_demand", "fix",
        "the request is larger than all that is in use, and the two do not fit together: ask for less (a smaller batch, or in parts), or free first "
        "what is not needed beside it",
        {{"shortfall_bytes", verdict_.shortfall_bytes}, {"request_bytes", e_.request_bytes}, {"held_bytes", e_.held_bytes}});
    return;
  }
  add("reduce_demand", "fix",
      "the memory is really in use: the job needs less (smaller batch, recomputation, offloading), more devices, or a leak found (leaks[])", numbers);
}

bool others_may_hold(const OomEvidence& e, const OomVerdict& verdict) {
  if (e.limit_bytes != 0 && e.request_bytes > saturating_sub(e.limit_bytes, in_use_bytes(e))) return false;  // the limit is in the way as well
  return !e.other_process_bytes && e.unattributed_bytes && verdict.shortfall_bytes != 0 && *e.unattributed_bytes >= verdict.shortfall_bytes;
}

bool only_idle_is_outside(const OomEvidence& e, const OomVerdict& verdict) {
  return e.mempool_idle_bytes >= verdict.shortfall_bytes && saturating_sub(e.own_outside_bytes, e.mempool_idle_bytes) < verdict.shortfall_bytes;
}

std::optional<std::uint64_t> reachable_bytes(const OomEvidence& e) {
  if (!e.driver_free_bytes || e.is_managed) return std::nullopt;
  // An upper bound: some of the last term is held as well.
  return *e.driver_free_bytes + e.held_bytes + e.own_outside_bytes + e.deferred_unheld_bytes;
}

bool exceeds_reach(const OomEvidence& e) {
  const std::optional<std::uint64_t> most_bytes = reachable_bytes(e);
  return most_bytes && e.request_bytes > *most_bytes;
}

bool only_limit_is_short(const OomEvidence& e) {
  if (e.limit_bytes == 0 || e.is_managed || !e.driver_free_bytes) return false;
  const std::uint64_t pool_bytes = e.pool_free_bytes + e.deferred_bytes;
  if (saturating_sub(e.request_bytes, pool_bytes) > *e.driver_free_bytes) return false;
  return e.request_bytes > saturating_sub(e.limit_bytes, in_use_bytes(e));
}

std::vector<Suggestion> suggest(const OomVerdict& verdict, const OomEvidence& evidence, const std::vector<OptionFact>& options) {
  return Rules(verdict, evidence, options).apply();
}

}  // namespace cupool::observe
