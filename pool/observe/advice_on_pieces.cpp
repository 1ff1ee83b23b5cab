// Suggestions where what is free is in pieces: see rules.hpp.
#include <algorithm>

#include "pool/core/bytes.hpp"
#include "pool/observe/enough_limit.hpp"
#include "pool/observe/rules.hpp"

namespace cupool::observe {

/// What is free in pieces is little beside what is in use: a job that goes on growing runs out all the same.
void Rules::nearly_all_in_use() {
  constexpr std::uint64_t kLittle = 32;
  if (e_.pool_free_bytes > in_use_bytes(e_) / kLittle) return;
  add("reduce_demand", "fix",
      "nearly all of the memory is really in use, and what is free in pieces is little beside it: the job needs less (smaller batch, "
      "recomputation, offloading), more devices, or a leak found (leaks[])",
      {{"pool_free_bytes", e_.pool_free_bytes}, {"held_bytes", e_.held_bytes}});
}

/// Would the one region that `preallocate` takes by default, three quarters of the device, have room for the request beside everything in use?
bool Rules::one_region_would_do() const {
  const std::uint64_t there_bytes = e_.limit_bytes == 0 ? e_.device_total_bytes : std::min(e_.device_total_bytes, e_.limit_bytes);
  const std::uint64_t region_bytes = there_bytes / 4 * 3;  // the default of CUPOOL_PREALLOCATE
  return saturating_add(in_use_bytes(e_), e_.request_bytes) <= region_bytes;
}

/// Would the free memory be enough if it were in one piece, together with what the driver and the limit still give?
bool Rules::joined_would_do(std::uint64_t bytes) const {
  if (e_.request_bytes == 0) return false;
  const std::uint64_t headroom_bytes = e_.limit_bytes == 0 ? UINT64_MAX : saturating_sub(e_.limit_bytes, e_.held_bytes);
  const std::uint64_t more_bytes = std::min(e_.driver_free_bytes.value_or(0), headroom_bytes);
  return bytes >= saturating_sub(e_.request_bytes, more_bytes);
}

/// Is it certain that pages would join the free memory? Only for a request of the pool itself, allowing for memory that would lie differently on
/// pages.
bool Rules::pages_surely_join() const {
  const std::uint64_t whole_bytes = e_.whole_page_bytes.value_or(0);
  return !e_.is_outside_pool && joined_would_do(saturating_sub(whole_bytes, page_allowance_bytes(e_)));
}

void Rules::pages_would_join() {
  if (!e_.pages_available || has("backing_pages")) return;
  const Numbers numbers = {{"pool_free_bytes", e_.pool_free_bytes}, {"largest_free_bytes", e_.largest_free_bytes}};
  if (value("backing") == "pages") {
    add_already("backing_pages", "CUPOOL_BACKING=pages is on already", numbers);
  } else if (pages_surely_join()) {
    add("backing_pages", "fix",
        "CUPOOL_BACKING=pages joins free memory that lies apart, where its pages hold nothing else; not for programs that share memory by "
        "cudaIpcGetMemHandle, which refuses blocks on pages",
        numbers);
  } else if (joined_would_do(e_.whole_page_bytes.value_or(0))) {
    add("backing_pages", "info",
        "CUPOOL_BACKING=pages joins free memory that lies apart, where its pages hold nothing else: it may just do; not for programs that share "
        "memory by cudaIpcGetMemHandle",
        numbers);
  }
}

void Rules::fragmented() {
  nearly_all_in_use();
  if (e_.can_remap) return fragmented_pages();
  if (!e_.holes_known) return fragmented_driver_pool();
  pages_would_join();
  const Numbers numbers = {{"pool_free_bytes", e_.pool_free_bytes}, {"largest_free_bytes", e_.largest_free_bytes}};
  if (e_.is_outside_pool) {
    if (preallocates()) preallocate_less();
  } else if (preallocates()) {
    add_already("preallocate", "the pool is preallocated already; what lies between its holes is in pinned_by", numbers);
  } else if (value("policy") == "grow" && one_region_would_do() && joined_would_do(e_.region_edge_bytes.value_or(0))) {
    add("preallocate", "info",
        "CUPOOL_POLICY=preallocate takes one large region at the start: holes of one region can join, those of many cannot; whether they would have "
        "joined here nobody can tell",
        numbers);
  }
  add("pinned_by", "info",
      "blocks that live on keep free memory apart: allocate what lives long first, or free it (devices[].pinned_by lists those that keep most)",
      numbers);
}

/// A request that goes past the pool: regions with a block in them do not go back, and preallocation makes few and large ones. What was never in use
/// stays with the driver without it; what is free between blocks may stay as it is.
void Rules::preallocate_less() {
  if (has("preallocate_less")) return;
  const std::uint64_t peak_bytes = e_.live_peak_bytes.value_or(e_.held_bytes);
  const std::uint64_t device_bytes = e_.held_bytes + e_.driver_free_bytes.value_or(0);
  const std::uint64_t there_bytes = e_.limit_bytes == 0 ? device_bytes : std::min(device_bytes, e_.limit_bytes);
  const auto fits = [&](std::uint64_t beside_bytes) { return beside_bytes <= there_bytes && e_.request_bytes <= there_bytes - beside_bytes; };
  const bool is_sure = fits(2 * peak_bytes);  // regions double, and each may keep a block
  if (!is_sure && !fits(in_use_bytes(e_))) return;
  add("preallocate_less", is_sure ? "fix" : "info",
      is_sure
          ? "what the pool preallocated and has free beside its blocks does not go back to the driver: CUPOOL_POLICY=grow without "
            "CUPOOL_PREALLOCATE leaves it to calls outside the pool"
          : "what the pool preallocated and has free beside its blocks does not go back to the driver; without preallocation it may, where no small "
            "blocks keep it apart",
      {{"pool_free_bytes", e_.pool_free_bytes}, {"releasable_bytes", e_.releasable_bytes}, {"shortfall_bytes", verdict_.shortfall_bytes}});
}

/// `async`: only the driver knows where its memory lies, so nothing here names what keeps it apart.
void Rules::fragmented_driver_pool() {
  const Numbers numbers = {{"pool_free_bytes", e_.pool_free_bytes}, {"request_bytes", e_.request_bytes}};
  add("driver_pool_pieces", "info",
      "the driver's own pool has the free memory in pieces, between live blocks, and does not say where: allocate what lives long first, or free it",
      numbers);
  if (value("policy") == "async") pool_of_ours();
}

/// How memory would lie in a pool of ours cannot be told.
void Rules::pool_of_ours() {
  add("pool_of_ours", "info",
      "CUPOOL_POLICY=grow serves such calls from cupool's own pool: on pages what is free in pieces is joined where its pages hold nothing else, and "
      "reports name what keeps the rest apart",
      {{"pool_free_bytes", e_.pool_free_bytes}, {"mempool_idle_bytes", e_.mempool_idle_bytes}, {"request_bytes", e_.request_bytes}});
}

/// What is free and did not move lies in handles that hold something else.
void Rules::fragmented_pages() {
  const std::uint64_t stranded_bytes = e_.stranded_bytes.value_or(0);
  const Numbers numbers = {
      {"stranded_bytes", stranded_bytes}, {"releasable_bytes", e_.releasable_bytes}, {"shortfall_bytes", verdict_.shortfall_bytes}};
  add_already("backing_pages", "pages serve already, and all that hold nothing were gathered; what else is free lies in pages that hold something",
              numbers);
  const std::uint64_t joined_bytes = saturating_sub(e_.pool_free_bytes, page_allowance_bytes(e_));
  if (stranded_bytes != 0)
    add("pinned_by", joined_would_do(joined_bytes) ? "fix" : "info",
        "blocks that live on keep whole pages: allocate what lives long first, or free it (devices[].pinned_by lists those that keep most)",
        {{"stranded_bytes", stranded_bytes}, {"shortfall_bytes", verdict_.shortfall_bytes}});
  const std::uint64_t handle_bytes = e_.stranding_handle_bytes.value_or(0);
  if (preallocates() && handle_bytes > e_.page_bytes.value_or(handle_bytes) && joined_would_do(e_.whole_page_bytes.value_or(0)))
    add("smaller_pages", "consider",
        "preallocated memory comes in large pieces, and one small block keeps all of one from moving: CUPOOL_POLICY=grow takes smaller ones",
        {{"stranding_handle_bytes", handle_bytes}, {"page_bytes", e_.page_bytes.value_or(0)}});
}

}  // namespace cupool::observe
