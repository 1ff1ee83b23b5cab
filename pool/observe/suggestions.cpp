// One function per cause. Messages carry no numbers: those stand in `evidence` as name=integer, for whoever formats them.
#include "pool/observe/suggestions.hpp"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace cupool::observe {

namespace {

using Numbers = std::initializer_list<std::pair<std::string_view, std::uint64_t>>;

std::string evidence_text(Numbers numbers) {
  std::string text;
  for (const auto& [name, value] : numbers) {
    if (!text.empty()) text += ' ';
    text.append(name).append("=").append(std::to_string(value));
  }
  return text;
}

/// What is in force, and the list under construction.
class Rules {
 public:
  Rules(const OomVerdict& verdict, const OomEvidence& evidence, const std::vector<OptionFact>& options)
      : verdict_(verdict), e_(evidence), options_(options) {}

  std::vector<Suggestion> apply() {
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
    if (exceeds_own_maximum() && !exceeds_device()) put_own_maximum_first();
    return std::move(out_);
  }

 private:
  std::string_view value(std::string_view option) const {
    const OptionFact* fact = find(option);
    return fact == nullptr ? std::string_view() : std::string_view(fact->value);
  }
  bool is_set(std::string_view option) const {
    const OptionFact* fact = find(option);
    return fact != nullptr && fact->source == "env";
  }
  const OptionFact* find(std::string_view option) const {
    const auto at = std::find_if(options_.begin(), options_.end(), [&](const OptionFact& fact) { return fact.name == option; });
    return at == options_.end() ? nullptr : &*at;
  }
  bool preallocates() const {
    return value("policy") == "preallocate" ||
           (is_set("preallocate") && value("preallocate") != "none" && value("preallocate") != "0" && value("preallocate") != "0%");
  }

  void add(const char* rule, const char* level, const char* message, Numbers numbers) {
    out_.push_back({rule, level, message, evidence_text(numbers), false});
  }
  void add_already(const char* rule, const char* message, Numbers numbers) { out_.push_back({rule, "info", message, evidence_text(numbers), true}); }

  void impossible() {
    if (e_.limit_bytes > 0 && !exceeds_device()) {
      const bool driver_has_it = !e_.driver_free_bytes || e_.request_bytes - std::min(e_.request_bytes, *e_.driver_free_bytes) <= e_.releasable_bytes;
      const std::uint64_t enough_bytes = limit_that_would_do(e_);
      add("raise_limit", driver_has_it ? "fix" : "consider",
          "the request alone is larger than CUPOOL_LIMIT, and what is held counts as well: raise the limit (enough_limit_bytes in the report is what "
          "it takes now), or ask for less",
          {{"request_bytes", e_.request_bytes},
           {"limit_bytes", e_.limit_bytes},
           {"held_bytes", e_.held_bytes},
           {"releasable_bytes", e_.releasable_bytes},
           {"enough_limit_bytes", enough_bytes},
           {"raise_by_bytes", enough_bytes - e_.limit_bytes}});
      return;
    }
    add("request_exceeds_device", "info",
        "the request alone is larger than the device: no setting can help; look for a wrong shape or size, or split it",
        {{"request_bytes", e_.request_bytes}, {"device_total_bytes", e_.device_total_bytes}});
  }

  bool exceeds_device() const { return e_.device_total_bytes != 0 && (e_.request_bytes == 0 || e_.request_bytes > e_.device_total_bytes); }

  /// More than the program's own memory pool may still have: whatever else refuses, that does.
  bool exceeds_own_maximum() const {
    return e_.mempool_max_bytes != 0 && e_.request_bytes > e_.mempool_max_bytes - std::min(e_.mempool_used_bytes, e_.mempool_max_bytes);
  }
  void raise_own_maximum() {
    add("mempool_max", "fix",
        e_.request_bytes > e_.mempool_max_bytes ? "the program made this memory pool with a maxSize, and the request alone is more, which the driver "
                                                  "refuses whatever is free: raise it, or ask that pool for less"
                                                : "the program made this memory pool with a maxSize, which the driver lets it not pass whatever is "
                                                  "free: raise it, or free blocks of that pool",
        {{"mempool_max_bytes", e_.mempool_max_bytes}, {"mempool_used_bytes", e_.mempool_used_bytes}, {"request_bytes", e_.request_bytes}});
  }
  /// And then nothing else would do alone.
  void put_own_maximum_first() {
    if (verdict_.cause == OomCause::driver_refused) return;
    for (Suggestion& other : out_)
      if (other.level == "fix") other.level = "consider";
    raise_own_maximum();
    std::rotate(out_.begin(), out_.end() - 1, out_.end());
  }

  /// What lies in the limit's way may be the pool's own: that costs nothing to clear.
  void limit() {
    if (deferred_would_do()) deferred();
    if (verdict_.shortfall_bytes == 0) {
      add("raise_limit", "info",
          "CUPOOL_LIMIT refused it, though there was room a moment later: another thread has freed meanwhile, or the driver takes more for a block "
          "than its bytes; raise the limit, or remove it",
          {{"limit_bytes", e_.limit_bytes}, {"held_bytes", e_.held_bytes}});
      return;
    }
    // With a higher limit the preallocation takes as much more.
    const bool is_preallocated =
        e_.is_outside_pool && preallocates() && e_.pool_free_bytes - std::min(e_.releasable_bytes, e_.pool_free_bytes) >= verdict_.shortfall_bytes;
    if (is_preallocated) preallocate_less();
    if (e_.mempool_idle_bytes >= verdict_.shortfall_bytes) mempool_idle();
    add("raise_limit", is_preallocated ? "consider" : "fix",
        "the device has the memory but CUPOOL_LIMIT forbids it: raise the limit by the shortfall or more (with more room the pool takes memory "
        "earlier, too), or remove it",
        {{"shortfall_bytes", verdict_.shortfall_bytes}, {"limit_bytes", e_.limit_bytes}, {"held_bytes", e_.held_bytes}});
    if (joined_would_do(e_.pool_free_bytes)) fragmented();
  }

  void refused() {
    if (e_.is_managed) {
      add("managed_memory", "info",
          "managed memory is bounded by neither CUPOOL_LIMIT nor the device: look at the host's memory (and its cgroup), and in the driver's log",
          {{"request_bytes", e_.request_bytes}});
      return;
    }
    if (e_.mempool_max_bytes != 0) return raise_own_maximum();
    add("driver_refused", "info",
        "enough memory was free and the driver still refused: look in its log (Xid, MIG or vGPU quotas) and at a neighbour that frees and takes",
        {{"driver_free_bytes", e_.driver_free_bytes.value_or(0)}, {"releasable_bytes", e_.releasable_bytes}, {"request_bytes", e_.request_bytes}});
  }

  /// Under the limit, once the GPU is done with what was freed.
  bool deferred_would_do() const {
    if (e_.deferred_bytes == 0 || e_.largest_free_bytes >= e_.request_bytes) return false;
    return e_.largest_free_with_deferred_bytes >= e_.request_bytes ||
           joined_would_do(e_.releasable_with_deferred_bytes.value_or(e_.releasable_bytes));
  }

  std::uint64_t in_use_bytes() const { return e_.held_bytes - std::min(e_.held_bytes, e_.pool_free_bytes + e_.deferred_bytes); }

  /// What is free in pieces is little beside what is not: a job that goes on growing ends here all the same.
  void nearly_all_in_use() {
    constexpr std::uint64_t kLittle = 32;
    if (e_.pool_free_bytes > in_use_bytes() / kLittle) return;
    add("reduce_demand", "fix",
        "nearly all of the memory is really in use, and what is free in pieces is little beside it: the job needs less (smaller batch, "
        "recomputation, offloading), more devices, or a leak found (leaks[])",
        {{"pool_free_bytes", e_.pool_free_bytes}, {"held_bytes", e_.held_bytes}});
  }

  /// The one region that `preallocate` takes by default, three quarters of what there is, could have the request beside all that is in use.
  bool one_region_would_do() const {
    const std::uint64_t there_bytes = e_.limit_bytes == 0 ? e_.device_total_bytes : std::min(e_.device_total_bytes, e_.limit_bytes);
    return in_use_bytes() <= there_bytes / 4 * 3 && e_.request_bytes <= there_bytes / 4 * 3 - in_use_bytes();
  }

  /// So much free memory, if it were in one piece, with what driver and limit still give.
  bool joined_would_do(std::uint64_t bytes) const {
    if (e_.request_bytes == 0) return false;
    const std::uint64_t headroom_bytes = e_.limit_bytes == 0 ? UINT64_MAX : e_.limit_bytes - std::min(e_.held_bytes, e_.limit_bytes);
    const std::uint64_t more_bytes = std::min(e_.driver_free_bytes.value_or(0), headroom_bytes);
    return bytes >= e_.request_bytes - std::min(more_bytes, e_.request_bytes);
  }

  void deferred() {
    const Numbers numbers = {{"deferred_bytes", e_.deferred_bytes}, {"request_bytes", e_.request_bytes}};
    if (e_.capturing) {  // no setting helps, and to synchronise now would end the capture
      add("before_capture", "fix",
          "freed memory cannot be waited for while a stream captures: make this allocation, or free and synchronise, before the capture begins",
          numbers);
      return;
    }
    add("synchronize_first", "fix", "freed memory was still in use by the GPU: synchronise the device before this allocation", numbers);
    if (e_.deferred_in_order_bytes.value_or(0) != 0) return;  // such frees wait for nothing, whatever CUPOOL_FREE says
    if (value("free") == "sync") {
      add_already("free_sync", "CUPOOL_FREE=sync is on already", {{"deferred_bytes", e_.deferred_bytes}});
    } else if (value("free") == "deferred") {
      add("free_sync", "consider", "CUPOOL_FREE=sync makes every free wait for the GPU, as the native one does: slower, but nothing is left pending",
          {{"deferred_bytes", e_.deferred_bytes}});
    }
  }

  void fragmented() {
    nearly_all_in_use();
    if (e_.can_remap) return fragmented_pages();
    if (!e_.holes_known) return fragmented_driver_pool();
    const Numbers numbers = {{"pool_free_bytes", e_.pool_free_bytes}, {"largest_free_bytes", e_.largest_free_bytes}};
    if (e_.pages_available && value("backing") == "pages") {
      add_already("backing_pages", "CUPOOL_BACKING=pages is on already", numbers);
    } else if (e_.pages_available && joined_would_do(e_.whole_page_bytes.value_or(0))) {
      add("backing_pages", "fix",
          "CUPOOL_BACKING=pages joins free memory that lies apart, where its pages hold nothing else; not for programs that share memory by "
          "cudaIpcGetMemHandle, which refuses blocks on pages",
          numbers);
    }
    if (e_.is_outside_pool) {
      if (preallocates()) preallocate_less();
    } else if (preallocates()) {
      add_already("preallocate", "the pool is preallocated already; what lies between its holes is in pinned_by", numbers);
    } else if (value("policy") == "grow" && one_region_would_do() && joined_would_do(e_.region_edge_bytes.value_or(0))) {
      add("preallocate", "consider",
          "CUPOOL_POLICY=preallocate takes one large region at the start: holes of one region can join, those of many cannot", numbers);
    }
    add("pinned_by", "info", "where small blocks keep free memory apart, they stand in devices[].pinned_by: allocate them first, or free them",
        numbers);
  }

  /// A request past the pool: regions with a block in them do not go back, and preallocation makes few and large ones.
  void preallocate_less() {
    add("preallocate_less", "fix",
        "what the pool preallocated and has free beside its blocks does not go back to the driver: CUPOOL_POLICY=grow without CUPOOL_PREALLOCATE, or "
        "a smaller CUPOOL_PREALLOCATE, leaves it to calls outside the pool",
        {{"pool_free_bytes", e_.pool_free_bytes}, {"releasable_bytes", e_.releasable_bytes}, {"shortfall_bytes", verdict_.shortfall_bytes}});
  }

  /// `async`: where its memory lies is the driver's to know, so nothing here names who keeps it apart.
  void fragmented_driver_pool() {
    const Numbers numbers = {{"pool_free_bytes", e_.pool_free_bytes}, {"request_bytes", e_.request_bytes}};
    add("driver_pool_pieces", "info",
        "the driver's own pool has the free memory in pieces, between live blocks, and does not say where: allocate what lives long first, or free "
        "it",
        numbers);
    if (value("policy") == "async")
      add("pool_of_ours", "consider", "CUPOOL_POLICY=grow serves from cupool's own pool, whose reports name what keeps memory apart", numbers);
  }

  /// What is free and did not move lies in handles that hold something else.
  void fragmented_pages() {
    const std::uint64_t stranded_bytes = e_.stranded_bytes.value_or(0);
    const Numbers numbers = {
        {"stranded_bytes", stranded_bytes}, {"releasable_bytes", e_.releasable_bytes}, {"shortfall_bytes", verdict_.shortfall_bytes}};
    add_already("backing_pages", "pages serve already, and all that hold nothing were gathered; what else is free lies in pages that hold something",
                numbers);
    if (stranded_bytes != 0)
      add("pinned_by", "fix", "where small blocks hold whole pages, they stand in devices[].pinned_by: allocate what lives long first, or free it",
          {{"stranded_bytes", stranded_bytes}, {"shortfall_bytes", verdict_.shortfall_bytes}});
    const std::uint64_t handle_bytes = e_.stranding_handle_bytes.value_or(0);
    if (preallocates() && handle_bytes > e_.page_bytes.value_or(handle_bytes) && joined_would_do(e_.whole_page_bytes.value_or(0)))
      add("smaller_pages", "consider",
          "preallocated memory comes in large pieces, and one small block keeps all of one from moving: CUPOOL_POLICY=grow takes smaller ones",
          {{"stranding_handle_bytes", handle_bytes}, {"page_bytes", e_.page_bytes.value_or(0)}});
  }

  void others() {
    add("other_process", "fix", "other processes hold what is missing: end them, move them, or give each a CUPOOL_LIMIT",
        {{"other_process_bytes", e_.other_process_bytes.value_or(0)}, {"shortfall_bytes", verdict_.shortfall_bytes}});
    const Numbers numbers = {{"held_bytes", e_.held_bytes}};
    if (preallocates()) {
      add_already("preallocate", "this process preallocates already", numbers);
    } else if (value("policy") == "grow") {
      add("preallocate", "consider", "CUPOOL_POLICY=preallocate secures this process's share before the others take it", numbers);
    }
  }

  void outside() {
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

  /// It was trimmed before the refusal: what is left is in pieces between live blocks, or behind work that runs.
  void mempool_idle() {
    add("mempool_idle", "consider",
        "memory pools that the driver serves have memory idle that they did not give back when they were trimmed: it lies between their live blocks, "
        "or work on "
        "the GPU may still use it; synchronise first, or free what keeps it",
        {{"mempool_idle_bytes", e_.mempool_idle_bytes}, {"shortfall_bytes", verdict_.shortfall_bytes}});
  }

  void exhausted() {
    const Numbers numbers = {{"shortfall_bytes", verdict_.shortfall_bytes}, {"held_bytes", e_.held_bytes}};
    if (others_may_hold(e_, verdict_)) {
      add("look_elsewhere", "consider",
          "memory that nobody allocated here would cover the shortfall: contexts and modules (this process's too), the driver's own rounding, or "
          "other processes (nvidia-smi names "
          "them): end or move those, or give each a CUPOOL_LIMIT",
          {{"unattributed_bytes", *e_.unattributed_bytes}, {"shortfall_bytes", verdict_.shortfall_bytes}, {"held_bytes", e_.held_bytes}});
      add("reduce_demand", "consider",
          "where no other process holds it, the job needs less (smaller batch, recomputation, offloading), more devices, or a leak found (leaks[])",
          numbers);
      return;
    }
    if (only_limit_is_short(e_)) {
      add("raise_limit", "consider",
          "driver and pool have the bytes together, though in pieces, and CUPOOL_LIMIT forbids more: with a limit that is higher by the shortfall or "
          "more, or none, the pool takes memory otherwise",
          {{"shortfall_bytes", verdict_.shortfall_bytes}, {"limit_bytes", e_.limit_bytes}, {"held_bytes", e_.held_bytes}});
      add("reduce_demand", "fix",
          "of what CUPOOL_LIMIT allows the memory is really in use: the job needs less (smaller batch, recomputation, offloading), more devices, or "
          "a leak found (leaks[])",
          numbers);
      return;
    }
    add("reduce_demand", "fix",
        "the memory is really in use: the job needs less (smaller batch, recomputation, offloading), more devices, or a leak found (leaks[])",
        numbers);
  }

  const OomVerdict& verdict_;
  const OomEvidence& e_;
  const std::vector<OptionFact>& options_;
  std::vector<Suggestion> out_;
};

}  // namespace

bool others_may_hold(const OomEvidence& e, const OomVerdict& verdict) {
  const std::uint64_t in_use_bytes = e.held_bytes - std::min(e.held_bytes, e.pool_free_bytes + e.deferred_bytes);
  if (e.limit_bytes != 0 && e.request_bytes > e.limit_bytes - std::min(in_use_bytes, e.limit_bytes)) return false;  // the limit is in the way as well
  return !e.other_process_bytes && e.unattributed_bytes && verdict.shortfall_bytes != 0 && *e.unattributed_bytes >= verdict.shortfall_bytes;
}

bool only_limit_is_short(const OomEvidence& e) {
  if (e.limit_bytes == 0 || e.is_managed || !e.driver_free_bytes || e.request_bytes == 0) return false;
  const std::uint64_t pool_bytes = e.pool_free_bytes + e.deferred_bytes;
  if (e.request_bytes - std::min(e.request_bytes, pool_bytes) > *e.driver_free_bytes) return false;
  const std::uint64_t in_use_bytes = e.held_bytes - std::min(e.held_bytes, pool_bytes);
  return e.request_bytes > e.limit_bytes - std::min(in_use_bytes, e.limit_bytes);
}

std::uint64_t limit_that_would_do(const OomEvidence& e) {
  const std::uint64_t piece_bytes = e.is_outside_pool ? 1 : e.page_bytes.value_or(std::uint64_t{2} << 20);  // the pool takes memory in such pieces
  const std::uint64_t kept_bytes = e.held_bytes - std::min(e.held_bytes, e.releasable_bytes);
  return kept_bytes + (e.request_bytes + piece_bytes - 1) / piece_bytes * piece_bytes;
}

std::vector<Suggestion> suggest(const OomVerdict& verdict, const OomEvidence& evidence, const std::vector<OptionFact>& options) {
  return Rules(verdict, evidence, options).apply();
}

}  // namespace cupool::observe
