// What the pool knows at one moment, as plain data: the only thing a report is made of.
//
// pool/device fills it under its locks, quickly; pool/observe/report turns it into JSON with no lock held.
// Bytes are bytes, times are nanoseconds. Nothing here points into the pool.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/observe/event.hpp"

namespace cupool::observe {

enum class BlockState : std::uint8_t { live, deferred, free };

/// One row of the address map. Rows of a region are contiguous and in address order.
struct BlockRow {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t requested_bytes = 0;
  std::uint64_t allocated_unix_ns = 0;  ///< 0: unknown
  std::uint32_t region = 0;             ///< index into DeviceSnapshot::regions
  std::uint32_t site = 0;
  BlockState state = BlockState::live;
};

struct RegionRow {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t context = 0;  ///< the CUcontext's value, to tell contexts apart
};

/// The state of a physical handle. `empty`: may be moved or given back; `moving`: on its way; `lost`: the driver would not unmap it.
enum class HandleState : std::uint8_t { empty, used, pinned, moving, lost };

/// One physical handle that is mapped. Blocks share handles, and a block may lie in several.
struct HandleRow {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t free_bytes = 0;  ///< free bytes of it, including what streams keep for themselves, which any request gets that needs it
  HandleState state = HandleState::used;
};

/// All physical handles of one size. A handle moves and goes back only whole.
struct HandleTier {
  std::uint64_t handle_bytes = 0;
  std::uint64_t handles = 0;
  std::uint64_t mapped_bytes = 0;
  std::uint64_t unmapped_bytes = 0;  ///< held, and at no address
  std::uint64_t empty_bytes = 0;     ///< mapped, and may move
  std::uint64_t pinned_bytes = 0;    ///< mapped, holds blocks, and something outside may know its place
  std::uint64_t stranded_bytes = 0;  ///< free, in handles that may not move
};

/// One reservation of addresses by the pool; where no memory is mapped they are no bytes of anybody.
struct ReservationRow {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t vacant_bytes = 0;       ///< may get memory
  std::uint64_t quarantined_bytes = 0;  ///< had memory, and get none yet
};

/// The pages of a device with backing `pages`; page_bytes 0: another backing serves.
struct PageMap {
  std::uint64_t page_bytes = 0;
  std::vector<HandleTier> tiers;  ///< ascending by handle_bytes
  std::vector<ReservationRow> reservations;
  std::vector<HandleRow> handles;  ///< mapped ones, in address order within a reservation
};

struct Fragmentation {
  std::uint64_t free_bytes = 0;
  std::uint64_t largest_free_bytes = 0;
  std::uint64_t largest_free_remapped_bytes = 0;  ///< equals largest_free_bytes where nothing can be remapped
  std::uint64_t inactive_split_bytes = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t requested_bytes = 0;
  std::uint64_t reserved_bytes = 0;
};

struct CounterValue {
  std::string name;
  bool is_gauge = false;
  std::uint64_t current = 0;  ///< the total, for a TOTAL row
  std::uint64_t peak = 0;
};

struct DriverCallValue {
  std::string symbol;
  std::uint64_t count = 0;
};

/// Device memory by owner; report.cpp adds `unattributed` so that the parts sum to total_bytes.
struct OutsideBytes {
  std::uint64_t arrays = 0;
  std::uint64_t program_vmm = 0;
  std::uint64_t managed = 0;
  std::uint64_t host = 0;      ///< not device memory: listed, never in the sum
  std::uint64_t graphs = 0;    ///< what the driver keeps for CUDA graphs, as it said last
  std::uint64_t mempools = 0;  ///< what memory pools that the driver serves keep idle, as it said last
};

struct DeviceSnapshot {
  int ordinal = 0;
  std::string uuid;
  std::string name;
  std::string policy;
  std::string backing;
  std::uint64_t total_bytes = 0;
  std::uint64_t limit_bytes = 0;                     ///< 0: none
  std::uint64_t driver_free_bytes = 0;               ///< last sample
  std::uint64_t driver_free_unix_ns = 0;             ///< when that was; 0 with 0 bytes: never asked
  std::optional<std::uint64_t> other_process_bytes;  ///< nullopt: not known (no NVML)
  std::vector<CounterValue> counters;
  std::vector<DriverCallValue> driver_calls;  ///< only those made at least once
  Fragmentation now;
  Fragmentation at_peak;
  OutsideBytes outside;
  std::vector<RegionRow> regions;
  std::vector<BlockRow> blocks;
  PageMap pages;
  std::vector<Event> timeline;  ///< oldest first; ticks already turned into unix nanoseconds
  std::uint64_t timeline_dropped = 0;
  bool complete = true;  ///< false: a thread was inside its magazine; its events are missing, and what it keeps is not listed separately
};

enum class OomCause : std::uint8_t {
  impossible_request,
  limit,
  driver_refused,
  deferred_free,
  external_fragmentation,
  other_process,
  non_pool_memory,
  true_exhaustion
};

/// The inputs of the classifier, with the letters of classify.cpp. In bytes unless it says otherwise; an unknown input is nullopt, not 0.
struct OomEvidence {
  std::uint64_t request_bytes = 0;                              ///< R, rounded
  std::uint64_t device_total_bytes = 0;                         ///< T
  std::optional<std::uint64_t> driver_free_bytes;               ///< F
  std::uint64_t pool_free_bytes = 0;                            ///< PF
  std::uint64_t largest_free_bytes = 0;                         ///< LF, the largest hole
  std::uint64_t largest_free_remapped_bytes = 0;                ///< LF once every page that may move was gathered; 0: as LF
  std::uint64_t releasable_bytes = 0;                           ///< REL
  std::uint64_t deferred_bytes = 0;                             ///< PEND
  std::uint64_t largest_free_with_deferred_bytes = 0;           ///< largest hole if every deferred free had completed
  std::optional<std::uint64_t> releasable_with_deferred_bytes;  ///< REL if every deferred free had completed; nullopt: as REL
  std::optional<std::uint64_t> other_process_bytes;             ///< U
  std::uint64_t own_outside_bytes = 0;                          ///< N
  std::uint64_t graph_bytes = 0;                                ///< of N, what the driver keeps for CUDA graphs
  /// Number of executable graphs that may have memory on the device: while one lives nothing gives back what is kept for graphs.
  std::uint64_t living_graphs = 0;
  std::uint64_t mempool_idle_bytes = 0;                      ///< of N, what the driver's memory pools keep idle and did not give back
  std::uint64_t limit_bytes = 0;                             ///< 0: none
  std::uint64_t held_bytes = 0;                              ///< what counts against the limit
  bool refused_by_limit = false;                             ///< the limit refused, whatever figures of a later moment say
  bool can_remap = false;                                    ///< pages serve: empty handles (REL) move, and join what the driver has
  std::optional<std::uint64_t> stranded_bytes = {};          ///< pages: free bytes in handles that hold something else
  std::optional<std::uint64_t> pinned_free_bytes = {};       ///< of those, in handles that were exported and the like
  std::optional<std::uint64_t> stranding_handle_bytes = {};  ///< the largest handle with stranded bytes that is not pinned
  std::optional<std::uint64_t> page_bytes = {};              ///< the smallest handle that the device has
  bool pages_available = false;                              ///< CUPOOL_BACKING=pages would let the pool remap on this device
  bool is_outside_pool = false;          ///< the driver was to serve it, not the pool: no hole serves it, and LF is what would go back (REL)
  bool is_managed = false;               ///< managed memory, which neither the limit nor the device's size bounds
  std::uint64_t mempool_max_bytes = 0;   ///< maximum of the program's own memory pool, which the driver serves; 0: none
  std::uint64_t mempool_used_bytes = 0;  ///< bytes of that pool that its blocks use
  bool capturing = false;                ///< some stream of the process captured: nothing could be waited for
  /// False: what is free lies in the driver's own pool, which does not say where (LF means nothing then).
  bool holes_known = true;
  std::optional<std::uint64_t> deferred_in_order_bytes = {};  ///< of PEND, what was freed in stream order, for which no setting makes a free wait
  /// Of PEND, the most that streams may still use of what went back to the driver: nothing is recorded for such a free.
  std::uint64_t deferred_at_driver_bytes = 0;
  std::uint64_t deferred_unheld_bytes = 0;             ///< the part of those that is not held: to the limit it is free already
  std::optional<std::uint64_t> whole_page_bytes = {};  ///< free, in whole pages of the smallest size: what could move if every handle were one page
  /// Segments: the most that would lie in one piece if all regions were one: free bytes at the ends of regions.
  std::optional<std::uint64_t> region_edge_bytes = {};
  /// Segments: how much larger than the block that it is made for the next region may be; nullopt: there are no regions.
  std::optional<std::uint64_t> region_slack_bytes = {};
  std::uint64_t other_context_free_bytes = 0;            ///< of PF, in the parts of other contexts
  std::optional<std::uint64_t> other_device = {};        ///< the ordinal of this process's other device with most free bytes, by the live page
  std::uint64_t other_device_free_bytes = 0;             ///< free bytes there, within its limit
  std::optional<std::uint64_t> live_peak_bytes = {};     ///< the most that was ever live of the pool's blocks
  std::optional<std::uint64_t> preallocate_bytes = {};   ///< CUPOOL_PREALLOCATE on this device, before limit and driver reduce it
  std::uint64_t native_rounding_bytes = 0;               ///< of the next, the most that rounding adds to blocks which are driver calls of their own
  std::optional<std::uint64_t> unattributed_bytes = {};  ///< T less F, held and managed memory: contexts, the driver's own rounding, other processes
};

/// The part of PEND that counts against the limit.
inline std::uint64_t deferred_held_bytes(const OomEvidence& e) { return saturating_sub(e.deferred_bytes, e.deferred_unheld_bytes); }
/// The part of what counts against the limit that is really in use: neither free in the pool nor waiting for the GPU.
inline std::uint64_t in_use_bytes(const OomEvidence& e) { return saturating_sub(e.held_bytes, e.pool_free_bytes + deferred_held_bytes(e)); }

struct OomRecord {
  std::uint64_t time_unix_ns = 0;
  int device = 0;
  std::string api;  ///< exported driver symbol that was called
  std::uint64_t requested_bytes = 0;
  std::uint64_t allocations_before = 0;  ///< allocations on the device before it, ever: what was counted since came after
  int result = 2;                        ///< the CUresult that the program got
  std::uint64_t number = 0;              ///< from 1, per process; 0: the call failed twice, and only the second failure is reported
  OomEvidence evidence;
};

struct Snapshot {
  std::vector<DeviceSnapshot> devices;
  std::vector<OomRecord> ooms;
  std::uint64_t older_ooms = 0;  ///< OOMs that are not listed any more
  std::vector<std::string> unpooled_apis_seen;
  std::uint64_t dropped_events = 0;
  bool complete = true;  ///< false: a lock could not be taken in time, so some device or figure is missing
};

}  // namespace cupool::observe
