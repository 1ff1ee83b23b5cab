// PageHeap: blocks of one context at addresses of its own, with pages mapped under them that can be moved. Backing `pages`.
//
// An ExtentHeap over reserved addresses. Addresses without memory are absent extents: vacant ones get memory, quarantined ones lost theirs and are
// not bound again before 64 times the device's memory of fresh addresses has been, oldest first (registration caches key on addresses). A page is
// busy exactly when a block lies on it, so nothing is counted per page: an empty handle lies wholly in one hole. On a miss memory is created while
// there is plenty (handles of a 256th of what is left and a 768th of everything, at most 64 MiB and the block that asks, an eighth of it or what
// divides it where it is whole pages, at least the granularity: large ones cost few calls, small ones leave little behind), and moved when there is
// not: empty handles, from the largest holes first, go behind the free memory that ends where addresses are vacant; the last one is cracked where it
// is larger than what is missing (page_cracking.cpp). Neighbours share tail pages. As long as large handles are made, blocks that are small beside
// them have addresses of their own (zones, page_zones.cpp): one of them would keep a whole handle from everybody; and a block does not begin on the
// page of a much smaller one (heap::FitPolicy). Live bytes never move, nor what waits for the GPU.
// Figures: DECISIONS.md and build/bench/page_model. Known from: PyTorch's expandable segments, DALI's cuda_vm_resource. Memory of this kind belongs
// to no context: when one dies its blocks are forgotten at once and release_abandoned() gives the memory back. Blocks of memory pools stay where they are after
// cuCtxDestroy (outlive()); nothing is allocated beside them then, and what gets empty is released.
// Thread rule: as DeviceAllocator. One thread at a time is in the driver for it (supplying_); what it works on is in no bin meanwhile. The
// driver may wait there for running work (cuMemSetAccess, cuMemUnmap), which may wait for another thread of the program; so nobody waits
// for that thread without bound: who misses meanwhile goes on up the ladder, to memory of the driver's own.
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
  static constexpr std::uint64_t kShareOfAll = 4096;               ///< a handle is at most this part of all that the heap has or may get,
  static constexpr std::uint64_t kShareOfAllWhole = 768;           ///< for a program that asks for whole pages: at most this part,
  static constexpr std::uint64_t kHandleShare = 256;               ///< this part of what is left,
  static constexpr std::uint64_t kLargestGrown_bytes = 64 * kMiB;  ///< so large, and no larger than the block that it is made for
  static constexpr std::uint64_t kPartsOfBlock = 8;                ///< or, where that is whole pages, than this part of it or what divides it;
  static constexpr std::uint64_t kPreallocatedShareOfAll = 640;    ///< one that is preallocated at most this part of all,
  static constexpr std::uint64_t kPreallocatedShare = 128;         ///< and this part of what is left;
  /// Where all is more than that, not that part of it (105 GiB are to take 1,000 calls), but
  static constexpr std::uint64_t kFewHandlesFrom_bytes = 96 * kGiB;
  static constexpr std::uint64_t kLargestHandle_bytes = 256 * kMiB;  ///< so large
  static constexpr std::uint64_t kAheadShare = 32;                   ///< a growth brings at least this part of what is left, or, if that is less,
  static constexpr std::uint64_t kAheadOfReserved = 8;               ///< this part of what the heap has,
  static constexpr std::uint64_t kGrowthStep_bytes = 256 * kMiB;  ///< in steps of so much, or, if that is less, of a handle's part of what is left,
  static constexpr std::uint64_t kAheadBlocks = 64;               ///< and no more than so many blocks as the one that asks;
  static constexpr std::uint64_t kSlackShare = 8;  ///< and what waits: at most this part of the most that was live, in all of what is left,
  static constexpr std::uint64_t kLeastSlack_bytes = 256 * kMiB;  ///< or so much
  /// A hole is refused for what it would strand once the program has needed this part of everything,
  static constexpr std::uint64_t kCrackedFromShare = 8;
  static constexpr std::uint64_t kWholePagesOf = 15;  ///< and takes whole pages: asks for them so many times as often as for anything else
  /// And, where a job repeats itself, fills the device, and had pages moved so many requests ago at most
  static constexpr std::uint64_t kCrackedAfterMove = 512;
  /// A program fills the device that has left less than this part of everything at its peak
  static constexpr std::uint64_t kFullShare = 8;
  static constexpr std::size_t kCrackLooks = 4096;        ///< at empty handles, for those that fit
  static constexpr std::uint64_t kAskShare = 4;           ///< asked again after taking this part of what is left
  static constexpr std::uint64_t kQuarantineTotals = 64;  ///< so many times the device's memory of fresh addresses

  /// So many more may lie in any zone once one had to: who climbs for each small block closes all magazines
  static constexpr std::uint64_t kAnywhereRequests = 64;

  static constexpr unsigned kZones = 4;
  /// Larger blocks are never in that zone,
  static constexpr std::array<std::uint64_t, kZones> kZoneEnd_bytes{~std::uint64_t{0}, 32 * kMiB, 4 * kMiB, 256 * kKiB};
  /// Nor those above this part of what is left
  static constexpr std::array<std::uint64_t, kZones> kZoneShare{1, 8 * kHandleShare, 64 * kHandleShare, 1};
  static constexpr std::uint64_t kZonedFromShare = 32;                 ///< one zone while the heap has less than this part of what it has or may get,
  static constexpr std::uint64_t kZonedFrom_pages = 2 * kHandleShare;  ///< and with less left, where handles are single pages
  static constexpr std::uint64_t kPreallocatedZonePart = 64;           ///< of what is preallocated, for each zone of small blocks,
  static constexpr std::uint64_t kZonedPreallocated_pages = 4 * kZonedFrom_pages;  ///< if it is so much

  static constexpr std::uint64_t kSmallShare = 8;   ///< blocks below this part of a page share pages with each other rather than with larger ones,
  static constexpr std::uint64_t kWide_pages = 16;  ///< where any hole is taken only in holes of so many,
  static constexpr std::uint64_t kGapsFrom_pages = 4096;  ///< on a device of so many, blocks of whole pages begin on one where that leaves little
  static constexpr unsigned kPreallocatedPageLevels = 3;  ///< and in what is preallocated pages of 8 and 64 are minded, too

  static constexpr std::uint64_t kStall_ns = 100'000'000;       ///< one call of the driver's takes microseconds, 256 MiB at once some milliseconds
  static constexpr std::uint64_t kPatience_ns = 1'000'000'000;  ///< for others who take turns

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
  bool outlive(DeviceState& device, LossVisitor& visitor) CUPOOL_REQUIRES(device.lock) override;
  bool can_outlive() const override { return true; }
  bool holds_blocks() const override;
  void release_abandoned(DeviceState& device) CUPOOL_REQUIRES(device.lock) override;
  void append_map(DeviceState& device, const TickConverter& time, observe::DeviceSnapshot& out) const CUPOOL_REQUIRES(device.lock) override;
  bool is_stalled(DeviceState& device) const CUPOOL_REQUIRES(device.lock) override;
  bool releases_in_order(const DeviceState&) const override { return true; }  // by calls of virtual memory management: empty pages are nobody's
  std::string check(DeviceState& device) const CUPOOL_REQUIRES(device.lock) override;
  /// By creating only; out of memory as soon as the device is known to have too little left.
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
  /// Nobody would ever ask again: what the driver refuses now and then is asked for once more. True: done.
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
  /// A handle on its way to the driver.
  struct Going {
    Handle handle;
    bool is_unmapped = false;
    bool is_gone = false;
  };
  /// Neighbouring empty handles whose addresses go.
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
  /// Where a request may go: free memory that ends where vacant addresses begin (or none), and those.
  struct Window {
    heap::Extent* left = nullptr;
    heap::Extent* vacant = nullptr;
    std::uint64_t need_bytes = 0;
  };
  /// Where in a window the request is to begin: in free memory before its vacant addresses, there on a page, or with those addresses.
  enum class Beginning : std::uint8_t { anywhere, on_page, fresh };
  struct Supply;
  struct Addresses;
  enum class Holes { large, small };
  /// Quarantined extents, by their bin links: oldest first, each with the age of its youngest part in buffer_id.
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
  /// Where other blocks end within pages, what lies free before each block of whole ones adds up. Not where handles are pages: what two blocks share
  /// then goes with neither.
  bool begins_on_pages() const { return takes_whole_pages() || total_bytes_ < kGapsFrom_pages * memory_->granularity_bytes(); }
  bool takes_whole_pages() const { return whole_page_requests_ >= kWholePagesOf * other_requests_; }
  unsigned zone_of(std::uint64_t bytes, std::uint64_t room_bytes) const;
  heap::ZoneOrder zones_for(DeviceState& device, std::uint64_t bytes, bool wants_any = false) const CUPOOL_REQUIRES(device.lock);
  /// No `given_zone`: where such a block belongs.
  Status supply_bytes(DeviceState& device, ContextPool& home, std::uint64_t bytes, Source source, std::optional<unsigned> given_zone = {})
      CUPOOL_REQUIRES(device.lock);
  Status supply_alone(DeviceState& device, ContextPool& home, std::uint64_t bytes, Source source, std::optional<unsigned> given_zone)
      CUPOOL_REQUIRES(device.lock);
  std::uint64_t ahead_bytes(const DeviceState& device, const Supply& supply) const CUPOOL_REQUIRES(device.lock);
  /// `is_whole`: all of it new.
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
  void unmap_runs(std::vector<Run>& runs, CUresult* first_error);
  void give_to_driver(std::vector<Run>& runs, std::vector<Going>& going);
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
  /// Could such addresses be a window's (find_window)?
  bool is_long(const heap::Extent& vacant) const { return vacant.bytes >= memory_->granularity_bytes() + kLargestHandle_bytes; }
  std::string check_addresses() const;
  std::string check_handles() const;
  std::string check_region(const heap::Region& region, std::array<std::uint64_t, kZones>& mapped_bytes, std::uint64_t* quarantined_bytes) const;

  std::uint64_t total_bytes_;
  std::unique_ptr<vmm::VirtualMemory> memory_;
  std::vector<Handle> loose_;  ///< mapped nowhere
  std::uint64_t loose_bytes_ = 0;
  std::size_t loose_promised_ = 0;                  ///< so many more may come from threads that are in the driver
  std::array<std::uint64_t, kZones> zone_bytes_{};  ///< mapped there
  std::uint64_t moving_mapped_bytes_ = 0;           ///< of what is mapped, what threads that are in the driver took out of the heap
  std::vector<Handle> moving_loose_;                ///< and of what was loose
  std::uint64_t moving_loose_bytes_ = 0;
  /// Of moving_mapped_bytes_, what goes back to the driver: others may have it already, so it is in no figure
  std::uint64_t leaving_bytes_ = 0;
  std::uint64_t pinned_handles_ = 0;
  std::uint64_t whole_page_requests_ = 0;     ///< how often everybody's holes were asked for whole pages (by a miss more than once),
  std::uint64_t other_requests_ = 0;          ///< and how often anything else;
  std::uint64_t anywhere_requests_ = 0;       ///< so many of the next may lie in any zone
  std::uint64_t moved_at_ = 0;                ///< Σ both when a block was last to have memory from elsewhere
  std::vector<vmm::MappedHandle> looked_at_;  ///< take_fitting()'s, kept because it is long
  std::vector<heap::Extent*> vacant_;         ///< the long ones
  AbsentList quarantined_;
  std::uint64_t quarantined_bytes_ = 0;
  std::uint64_t fresh_bytes_ = 0;    ///< addresses that were bound, ever
  std::uint64_t created_bytes_ = 0;  ///< since the driver was asked what it has left
  bool must_ask_ = true;             ///< what it said is out of date
  bool is_refused_ = false;          ///< it had none left, the last time
  bool is_preallocated_ = false;     ///< reserve() was asked for memory
  bool is_out_of_mappings_ = false;  ///< handles were enough, the last time, and nothing could be made of them
  bool supplying_ = false;
  bool sharing_ = false;                                                            ///< supplying_ too: and nothing may be given back
  unsigned refused_openings_ = 0;                                                   ///< in a row, and nothing was ever opened
  std::uint64_t most_addresses_bytes_ = std::numeric_limits<std::uint64_t>::max();  ///< in one piece: of more the driver has refused some
  unsigned releasing_ = 0;                                                          ///< threads that unmap outside of a supply
  std::uint64_t supplying_since_ns_ = 0;
  std::unique_ptr<PagedRegion> dead_;
};

}  // namespace cupool::device
