// PageHeap: blocks of one context at addresses of its own, with physical pages mapped under them that can be moved. Backing `pages`.
//
// An ExtentHeap over reserved addresses. Addresses without memory are absent extents: vacant ones may get memory; quarantined ones have lost theirs,
// and are bound again, oldest first, only after 64 times the device's memory of fresh addresses was bound (registration caches key on addresses). A
// page is busy exactly when a block lies on it, so nothing is counted per page: an empty handle lies wholly in one hole.
// On a miss memory is created while there is plenty, in handles whose size depends on what is left (large ones cost few calls, small ones leave
// little behind). When there is not, it is moved: empty handles, from the largest holes first, are mapped behind the free memory that ends where
// addresses are vacant; the last one is cracked where it is larger than what is missing (page_cracking.cpp). Neighbours share tail pages. As long as
// large handles are made, blocks that are small beside them have addresses of their own (zones, page_zones.cpp), since one of them would keep a whole
// handle from everybody; and a block does not begin on the page of a much smaller one (heap::FitPolicy). Live and deferred blocks never move.
// This memory belongs to no context: when one ends its blocks are forgotten at once, and release_abandoned() gives the memory back. Blocks of memory
// pools stay where they are after cuCtxDestroy (outlive()); what becomes empty is released then, and a later context may allocate beside them.
// Figures: DECISIONS.md and build/bench/page_model. Known from: PyTorch's expandable segments, DALI's cuda_vm_resource.
// Thread rule: as DeviceAllocator. One thread at a time is in the driver for it (supplying_); what it works on is in no bin meanwhile. The driver may
// wait there for running work (cuMemSetAccess, cuMemUnmap), which may itself wait for another thread of the program. So nobody waits for that thread
// without a bound: a thread that misses meanwhile goes on up the ladder, to a driver call of its own.
#pragma once

#include <array>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "pool/device/extent_allocator.hpp"
#include "pool/vmm/page_table.hpp"
#include "pool/vmm/virtual_memory.hpp"

namespace cupool::device {

using vmm::MappedHandle;
using vmm::PageTable;

class PageHeap final : public ExtentAllocator {
 public:
  // The figures behind these values are in DECISIONS.md, "Regions and pages". A "share" n stands for the n-th part.

  // Sizes of new handles. "Everything" is what the heap has or may get of the device, "the rest" what the driver has left.
  static constexpr std::uint64_t kShareOfAll = 4096;               ///< a handle is at most this share of everything,
  static constexpr std::uint64_t kShareOfAllWhole = 768;           ///< or this one for a program that asks for whole pages;
  static constexpr std::uint64_t kHandleShare = 256;               ///< at most this share of the rest;
  static constexpr std::uint64_t kLargestGrown_bytes = 64 * kMiB;  ///< at most this, and no larger than the block that it is made for,
  static constexpr std::uint64_t kPartsOfBlock = 8;                ///< or than this part of a block of whole pages, or what divides it
  static constexpr std::uint64_t kPreallocatedShareOfAll = 640;    ///< a preallocated handle is at most this share of everything,
  static constexpr std::uint64_t kPreallocatedShare = 128;         ///< and this one of the rest
  /// Where everything is more than this, kLargestHandle_bytes stands for the first of these shares: 105 GiB are to take about 1,000 calls.
  static constexpr std::uint64_t kFewHandlesFrom_bytes = 96 * kGiB;
  static constexpr std::uint64_t kLargestHandle_bytes = 256 * kMiB;

  // How much more than the block one growth brings (ahead_bytes).
  static constexpr std::uint64_t kAheadShare = 32;                ///< at least this share of the rest or, if less,
  static constexpr std::uint64_t kAheadOfReserved = 8;            ///< this share of what the heap has;
  static constexpr std::uint64_t kGrowthStep_bytes = 256 * kMiB;  ///< in multiples of this or, if less, of a handle's share of the rest;
  static constexpr std::uint64_t kAheadBlocks = 64;               ///< at most this many times the block
  static constexpr std::uint64_t kSlackShare = 8;                 ///< and as much as waits for the GPU: at most this share of the peak of live bytes
  static constexpr std::uint64_t kLeastSlack_bytes = 256 * kMiB;  ///< or this, and never more than kSlackShare of the rest

  // When a hole is refused for the memory that it would strand (strands).
  static constexpr std::uint64_t kCrackedFromShare = 8;    ///< once the program has needed this share of everything
  static constexpr std::uint64_t kWholePagesOf = 15;       ///< and asks this many times as often for whole pages as for anything else;
  static constexpr std::uint64_t kCrackedAfterMove = 512;  ///< in a job that repeats itself: on a full device, this long after a move, in requests
  static constexpr std::uint64_t kFullShare = 8;           ///< the device is full when the peak has left less than this share of everything
  static constexpr std::size_t kCrackLooks = 4096;         ///< empty handles that are looked at for ones that fit

  static constexpr std::uint64_t kAskShare = 4;           ///< the driver is asked again once this share of the rest was taken
  static constexpr std::uint64_t kQuarantineTotals = 64;  ///< fresh addresses, in times the device's memory, before old ones are bound again
  /// Requests that may lie in any zone once one had to: a climb for each small block would close all magazines each time.
  static constexpr std::uint64_t kAnywhereRequests = 64;

  // Zones: blocks that are small beside the handles get addresses of their own (page_zones.cpp).
  static constexpr unsigned kZones = 4;
  static constexpr std::array<std::uint64_t, kZones> kZoneEnd_bytes{~std::uint64_t{0}, 32 * kMiB, 4 * kMiB, 256 * kKiB};  ///< blocks are smaller
  static constexpr std::array<std::uint64_t, kZones> kZoneShare{1, 8 * kHandleShare, 64 * kHandleShare, 1};  ///< and below this share of the rest
  static constexpr std::uint64_t kZonedFromShare = 32;                 ///< one zone while the heap has less than this share of everything,
  static constexpr std::uint64_t kZonedFrom_pages = 2 * kHandleShare;  ///< and where less is left than this, as handles are single pages then
  static constexpr std::uint64_t kPreallocatedZonePart = 64;           ///< the part of what is preallocated for each zone of small blocks,
  static constexpr std::uint64_t kZonedPreallocated_pages = 4 * kZonedFrom_pages;  ///< if it is this much

  // Where a block begins (heap::FitPolicy).
  static constexpr std::uint64_t kSmallShare = 8;   ///< blocks below this share of a page share pages with each other rather than with larger ones
  static constexpr std::uint64_t kWide_pages = 16;  ///< where any zone will do: only in holes of at least this many pages
  static constexpr std::uint64_t kGapsFrom_pages = 4096;  ///< on smaller devices blocks of whole pages always begin on a page
  static constexpr unsigned kPreallocatedPageLevels = 3;  ///< in preallocated memory this also holds for units of 8 and of 64 pages

  static constexpr std::uint64_t kStall_ns = 100'000'000;       ///< a driver call this long is stalled: most take microseconds, 256 MiB some ms
  static constexpr std::uint64_t kPatience_ns = 1'000'000'000;  ///< how long a thread waits for others that take turns

  /// Precondition: memory->available().
  PageHeap(std::uint64_t device_total_bytes, std::unique_ptr<vmm::VirtualMemory> memory);
  ~PageHeap() override;

  heap::Extent* allocate(DeviceState& device, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock) override;
  std::uint64_t fit_bytes(DeviceState& device, std::uint64_t bytes) const CUPOOL_REQUIRES(device.lock) override;
  std::uint64_t occupies_bytes(DeviceState& device, std::uint64_t bytes) const CUPOOL_REQUIRES(device.lock) override;
  std::uint64_t occupies_bytes(DeviceState& device, const heap::Extent& deferred, std::uint64_t bytes) const CUPOOL_REQUIRES(device.lock) override;
  void pin(DeviceState& device, const heap::Extent& extent) CUPOOL_REQUIRES(device.lock) override;
  Status share(DeviceState& device, int ordinal) CUPOOL_REQUIRES(device.lock) override;
  std::uint64_t withheld_bytes(const heap::Extent& extent) const override;
  HeapFigures figures(DeviceState& device) const CUPOOL_REQUIRES(device.lock) override;
  HeapFigures figures_of_all_lanes(DeviceState& device, std::uint64_t least_bytes) const CUPOOL_REQUIRES(device.lock) override;
  HeapFigures survey(DeviceState& device, observe::OomEvidence& evidence) const CUPOOL_REQUIRES(device.lock) override;
  void abandon(DeviceState& device, LossVisitor& visitor) CUPOOL_REQUIRES(device.lock) override;
  bool outlive(DeviceState& device, LossVisitor& visitor, bool also_deferred) CUPOOL_REQUIRES(device.lock) override;
  bool can_outlive() const override { return true; }
  std::uint64_t unit_bytes() const override { return memory_->granularity_bytes(); }
  bool can_serve_next() const override { return !supplying_ && releasing_ == 0; }
  bool holds_blocks() const override;
  void release_abandoned(DeviceState& device) CUPOOL_REQUIRES(device.lock) override;
  void append_map(DeviceState& device, const TickConverter& time, observe::DeviceSnapshot& out) const CUPOOL_REQUIRES(device.lock) override;
  bool is_stalled(DeviceState& device) const CUPOOL_REQUIRES(device.lock) override;
  bool releases_in_order(const DeviceState&) const override { return true; }  // unmapping does not wait for work, and no work uses empty pages
  std::string check(DeviceState& device) const CUPOOL_REQUIRES(device.lock) override;
  /// By creating handles only; out of memory as soon as the device is known to have too little left.
  Result<Growth> grow(DeviceState& device, ContextPool& home, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock) override;
  Status grow_ahead(DeviceState& device, ContextPool& home, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock) override;
  bool can_move() const override { return true; }
  bool never_opens() const override { return refused_openings_ >= kMostRefusedOpenings; }
  bool is_out_of_mappings() const override { return is_out_of_mappings_; }
  void open_zones() override { anywhere_requests_ = kAnywhereRequests; }
  Result<Growth> crack(DeviceState& device, ContextPool& home, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock) override;
  Result<Growth> remap(DeviceState& device, ContextPool& home, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock) override;
  Status reserve(DeviceState& device, ContextPool& home, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock) override;
  std::uint64_t release(DeviceState& device, ContextPool& home, std::uint64_t wanted_bytes, bool at_most) CUPOOL_REQUIRES(device.lock) override;
  bool has_unused() const override;
  std::uint64_t release_unused(DeviceState& device) CUPOOL_REQUIRES(device.lock) override;

 private:
  /// Repeats a driver call that may be refused now and then where no later call would repeat it. True: done.
  template <class Call> static bool insist(Call&& call) {
    constexpr int kAttempts = 3;
    for (int i = 0; i < kAttempts; ++i)
      if (call() == CUDA_SUCCESS) return true;
    return false;
  }
  enum class Source : std::uint8_t { create, move, crack, preallocate, ahead };
  struct PagedRegion;
  /// A physical handle that is mapped nowhere.
  struct Handle {
    CUmemGenericAllocationHandle id = 0;
    std::uint64_t bytes = 0;
    bool is_unused = false;  ///< created for a request that could not be served, and never mapped since
  };
  /// A handle that is going back to the driver.
  struct Going {
    Handle handle;
    bool is_unmapped = false;
    bool is_gone = false;
  };
  /// Neighbouring empty handles that are to be unmapped.
  struct Run {
    heap::Extent* extent = nullptr;
    std::vector<Handle> handles;
    bool is_unmapped = false;
    std::uint64_t bytes() const {
      std::uint64_t sum = 0;
      for (const Handle& handle : handles) sum += handle.bytes;
      return sum;
    }
  };
  /// Where new pages for a request may be mapped: at vacant addresses, behind free memory (`left`, may be null) that ends there.
  struct Window {
    heap::Extent* left = nullptr;
    heap::Extent* vacant = nullptr;
    std::uint64_t need_bytes = 0;
  };
  /// Where in a window the request is to begin: anywhere in the free memory before its vacant addresses, there on a page, or at those addresses.
  enum class Beginning : std::uint8_t { anywhere, on_page, fresh };
  struct Supply;
  struct Addresses;
  enum class Holes { large, small };
  /// A list of quarantined extents through their bin links, oldest first, each with the age of its youngest part in buffer_id.
  struct AbsentList {
    heap::Extent* first = nullptr;
    heap::Extent* last = nullptr;
  };

  static heap::FitPolicy fit_policy(std::uint64_t page_bytes);
  static PagedRegion& paged(const heap::Region& region);
  static PageTable& table_of(const heap::Extent& extent);
  static std::uint64_t whole_handle_bytes(const heap::Extent& hole);
  Result<Growth> supply(DeviceState& device, ContextPool& home, const AllocationRequest& request, Source source) CUPOOL_REQUIRES(device.lock);
  Result<Growth> await_hole(DeviceState& device, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock);
  template <class Done> bool await(DeviceState& device, Done&& is_done) CUPOOL_REQUIRES(device.lock);
  void begin_turn(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  bool strands(DeviceState& device, const heap::Extent& block) const CUPOOL_REQUIRES(device.lock);
  bool program_fills(DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// Do blocks of whole pages always begin on a page? Where other blocks end within pages, the free bytes before each such block add up. On small
  /// devices handles are single pages, and a page that two blocks share would go back with neither.
  bool begins_on_pages() const { return takes_whole_pages() || total_bytes_ < kGapsFrom_pages * memory_->granularity_bytes(); }
  bool takes_whole_pages() const { return whole_page_requests_ >= kWholePagesOf * other_requests_; }
  unsigned zone_of(std::uint64_t bytes, std::uint64_t room_bytes) const;
  heap::ZoneOrder zones_for(DeviceState& device, std::uint64_t bytes, bool wants_any = false) const CUPOOL_REQUIRES(device.lock);
  /// Without `given_zone`: in the zone where such a block belongs.
  Status supply_bytes(DeviceState& device, ContextPool& home, std::uint64_t bytes, Source source, std::optional<unsigned> given_zone = {})
      CUPOOL_REQUIRES(device.lock);
  Status supply_alone(DeviceState& device, ContextPool& home, std::uint64_t bytes, Source source, std::optional<unsigned> given_zone)
      CUPOOL_REQUIRES(device.lock);
  std::uint64_t ahead_bytes(const DeviceState& device, const Supply& supply) const CUPOOL_REQUIRES(device.lock);
  /// `is_whole`: all the memory is to be new.
  Window find_window(std::uint64_t bytes, unsigned zone, Beginning beginning) const;
  Result<Window> find_or_add_window(DeviceState& device, ContextPool& home, std::uint64_t bytes, unsigned zone, bool is_whole)
      CUPOOL_REQUIRES(device.lock);
  Status add_addresses(DeviceState& device, ContextPool& home, std::uint64_t bytes, unsigned zone) CUPOOL_REQUIRES(device.lock);
  Addresses reserve_addresses(DeviceState& device, std::uint64_t bytes, unsigned zone) CUPOOL_REQUIRES(device.lock);
  std::uint64_t room_bytes(const DeviceState& device) const;
  void ask_room(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  bool prepare(DeviceState& device, Supply& supply) CUPOOL_REQUIRES(device.lock);
  bool is_within_reach(DeviceState& device, Supply& supply) CUPOOL_REQUIRES(device.lock);
  void claim(Supply& supply, const Window& window);
  void promise(Supply& supply, std::size_t count);
  void unclaim(Supply& supply) noexcept;
  void keep_loose(const Handle& handle) noexcept;
  void begin_moving(heap::Extent* extent) noexcept;
  void end_moving(heap::Extent* extent) noexcept;
  void begin_moving(const Handle& handle);
  void end_moving(const Handle& handle) noexcept;
  void give_back_left(Supply& supply) noexcept;
  void give_back(const Run& run) noexcept;
  std::uint64_t mapped_bytes() const { return std::accumulate(zone_bytes_.begin(), zone_bytes_.end(), std::uint64_t{0}); }
  std::uint64_t moving_bytes() const { return moving_mapped_bytes_ + moving_loose_bytes_; }
  void take_loose(Supply& supply);
  void drive(DeviceState& device, Supply& supply);
  std::uint64_t fitting_bytes(const Supply& supply) const;
  std::uint64_t preallocated_handle_bytes(const Supply& supply) const;
  std::uint64_t grown_handle_bytes(const Supply& supply) const;
  bool create_one(DeviceState& device, Supply& supply, std::uint64_t bytes);
  void create_missing(DeviceState& device, Supply& supply);
  void plan_pieces(Supply& supply, const Handle& handle, std::uint64_t needed_bytes) const;
  void crack(DeviceState& device, Supply& supply);
  static constexpr unsigned kMostRefusedOpenings = 16;
  void map_all(Supply& supply);
  void map_or_ask_less(DeviceState& device, Supply& supply);
  bool is_refused_as_ever(const Supply& supply) const;
  void drop_created(DeviceState& device, Supply& supply);
  void note_opening(DeviceState& device, const Supply& supply) CUPOOL_REQUIRES(device.lock);
  void note_no_addresses(DeviceState& device, const Addresses& refused) CUPOOL_REQUIRES(device.lock);
  void log_never_opens(DeviceState& device, const char* what, CUresult code) CUPOOL_REQUIRES(device.lock);
  void charge(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  Status publish(DeviceState& device, Supply& supply) CUPOOL_REQUIRES(device.lock);
  void bind(DeviceState& device, Supply& supply) CUPOOL_REQUIRES(device.lock);
  std::uint64_t send(DeviceState& device, std::vector<Run>& runs, std::size_t first_going) CUPOOL_REQUIRES(device.lock);
  void take_empty(std::vector<Run>& runs, std::uint64_t wanted_bytes, bool at_most);
  Holes holes_to_rob(DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  void take_fitting(Supply& supply, Holes first);
  void take_runs(std::vector<Run>& runs, const std::vector<MappedHandle>& handles);
  void unmap_runs(DeviceState& device, std::vector<Run>& runs, CUresult* first_error);
  void give_to_driver(DeviceState& device, std::vector<Run>& runs, std::vector<Going>& going);
  void book_runs(DeviceState& device, const std::vector<Run>& runs) CUPOOL_REQUIRES(device.lock);
  static std::size_t count_handles(const std::vector<Run>& runs);
  void book_leaving(DeviceState& device, const std::vector<Run>& runs, const std::vector<Going>& loose) CUPOOL_REQUIRES(device.lock);
  std::uint64_t book_release(DeviceState& device, const std::vector<Run>& runs, const std::vector<Going>& going) CUPOOL_REQUIRES(device.lock);
  void promise_loose(std::size_t count);
  template <class F> void for_each_mapped(F&& visit) const;
  template <class F> void for_each_empty(F&& visit, Holes first = Holes::large) const;
  bool unmap_all(const PageTable& table);
  std::uint64_t empty_bytes() const { return heap_.whole_bytes(); }
  std::uint64_t unpinned_empty_bytes() const;
  bool unpin_empty();
  static observe::HandleRow row_of(const MappedHandle& handle, const heap::Extent* first);
  void append_pages(observe::PageMap& out) const;
  struct Span {
    std::uint64_t begin, end;
  };
  static std::uint64_t occupied_bytes(const PageTable& table, Span free, std::uint64_t address, std::uint64_t bytes);
  std::vector<Span> mapped_runs() const;
  void quarantine(DeviceState& device, heap::Extent* extent) CUPOOL_REQUIRES(device.lock);
  void leave_quarantine(const heap::Extent* extent) noexcept;
  void expire(DeviceState& device, bool early) CUPOOL_REQUIRES(device.lock);
  void make_vacant(heap::Extent* extent) noexcept;
  void forget_vacant(const heap::Extent* extent) noexcept;
  /// Are these addresses long enough to be a window (find_window)?
  bool is_long(const heap::Extent& vacant) const { return vacant.bytes >= memory_->granularity_bytes() + kLargestHandle_bytes; }
  std::string check_addresses() const;
  std::string check_handles() const;
  std::string check_region(const heap::Region& region, std::array<std::uint64_t, kZones>& mapped_bytes, std::uint64_t* quarantined_bytes) const;

  std::uint64_t total_bytes_;
  std::unique_ptr<vmm::VirtualMemory> memory_;
  std::vector<Handle> loose_;  ///< handles that are mapped nowhere
  std::uint64_t loose_bytes_ = 0;
  std::size_t loose_promised_ = 0;                  ///< handles that threads in the driver may still add
  std::array<std::uint64_t, kZones> zone_bytes_{};  ///< bytes mapped in each zone
  std::uint64_t moving_mapped_bytes_ = 0;           ///< mapped bytes that threads in the driver have taken out of the heap
  std::vector<Handle> moving_loose_;                ///< loose handles that they have taken
  std::uint64_t moving_loose_bytes_ = 0;
  /// The part of moving_mapped_bytes_ that goes back to the driver: others may have it already, so it is in no figure.
  std::uint64_t leaving_bytes_ = 0;
  std::uint64_t pinned_handles_ = 0;
  std::uint64_t whole_page_requests_ = 0;     ///< how often lane 0 was asked for whole pages (a miss asks more than once),
  std::uint64_t other_requests_ = 0;          ///< and for anything else
  std::uint64_t anywhere_requests_ = 0;       ///< how many of the next requests may lie in any zone
  std::uint64_t moved_at_ = 0;                ///< sum of both counts when a block last had memory moved to it
  std::vector<vmm::MappedHandle> looked_at_;  ///< scratch space of take_fitting(), kept because it is long
  std::vector<heap::Extent*> vacant_;         ///< vacant extents that are long enough (is_long)
  AbsentList quarantined_;
  std::uint64_t quarantined_bytes_ = 0;
  std::uint64_t fresh_bytes_ = 0;    ///< bytes of addresses that were ever bound
  std::uint64_t created_bytes_ = 0;  ///< bytes created since the driver was asked what it has left
  bool must_ask_ = true;             ///< its last answer is out of date
  bool is_refused_ = false;          ///< it refused the last handle
  bool is_preallocated_ = false;     ///< reserve() was asked for memory
  bool is_out_of_mappings_ = false;  ///< at the last attempt there were enough handles, but they could not be mapped or opened
  bool supplying_ = false;
  bool sharing_ = false;           ///< as supplying_, and nothing may be given back either
  unsigned refused_openings_ = 0;  ///< refusals in a row while nothing was ever opened
  /// The most addresses in one piece that the driver has not refused.
  std::uint64_t most_addresses_bytes_ = std::numeric_limits<std::uint64_t>::max();
  unsigned releasing_ = 0;  ///< threads that unmap outside of a supply
  std::uint64_t supplying_since_ns_ = 0;
  std::unique_ptr<PagedRegion> dead_;
};

}  // namespace cupool::device
