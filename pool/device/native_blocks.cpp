// The order of steps in give_back and grow matters: the driver may hand an address to another thread the moment cuMemFree returns, and a report that
// is written while the driver works must list what the counters count.
#include "pool/device/native_blocks.hpp"

#include <algorithm>
#include <new>

#include "pool/core/bytes.hpp"
#include "pool/device/context_pool.hpp"

namespace cupool::device {

using heap::Extent;
using heap::ExtentState;

namespace {
constexpr char kAllocate[] = "allocate";
}  // namespace

void NativeBlocks::defer(DeviceState&, Extent* extent) {
  extent->state = ExtentState::deferred;
  extent->bin_previous = nullptr;
  extent->bin_next = nullptr;
}

void NativeBlocks::recycle(DeviceState&, Extent* extent) {
  extent->state = ExtentState::free;
  push_waiting(extent);
}

void NativeBlocks::push_waiting(Extent* extent) {
  extent->bin_next = std::exchange(first_waiting_, extent);
  ++waiting_;
}

Extent* NativeBlocks::find(DeviceState&, std::uint64_t address) {
  const auto found = nodes_.find(address);
  return found == nodes_.end() || found->second.extent.state == ExtentState::free ? nullptr : &found->second.extent;
}

Extent* NativeBlocks::find_containing(DeviceState&, std::uint64_t address) {
  auto after = nodes_.upper_bound(address);
  if (after == nodes_.begin()) return nullptr;
  Node& node = (--after)->second;
  return address - node.region.address < node.region.bytes ? &node.extent : nullptr;
}

namespace {
HeapFigures as_free(std::uint64_t bytes) { return {0, bytes, bytes, bytes, 0, bytes}; }
}  // namespace

/// A block that waits to be given back counts as free, like a region without blocks, although nothing is served from it.
HeapFigures NativeBlocks::figures(DeviceState& device) const {
  const bool is_owner = device.idle_owner == this;
  const std::uint64_t idle_bytes = is_owner ? device.idle_bytes : 0;
  const std::uint64_t kept_bytes = is_owner ? device.idle_kept_bytes : 0;
  const std::uint64_t whole_bytes = idle_bytes - kept_bytes;  // as far as is known: the driver does not say how idle memory is divided
  HeapFigures figures{bytes_ + idle_bytes, idle_bytes, whole_bytes, whole_bytes, kept_bytes, whole_bytes};
  for (const Extent* extent = first_waiting_; extent != nullptr; extent = extent->bin_next) figures.add(as_free(extent->bytes));
  return figures;
}

HeapFigures NativeBlocks::survey(DeviceState& device, observe::OomEvidence&) const {
  HeapFigures figures = this->figures(device);
  if (device.counters().deferred_bytes.now() == 0) return figures;
  for (const auto& [address, node] : nodes_)
    if (node.extent.state == ExtentState::deferred) figures.add(as_free(node.extent.bytes));
  return figures;
}

/// Books a block. Precondition: its address is not in `nodes_` (see move_aside).
Extent* NativeBlocks::insert(Nodes::node_type&& handle) {
  Node& node = handle.mapped();
  count(node, 1);
  nodes_.insert(std::move(handle));
  return &node.extent;
}

/// Moves aside blocks of ours where the driver has now given out [address, address + bytes): they were freed behind our back, by a library that is
/// bound to the driver itself. False where the program has freed one of them here as well and that free is still waiting: it would hit the new block.
bool NativeBlocks::move_aside(std::uint64_t address, std::uint64_t bytes) {
  auto first = nodes_.upper_bound(address);
  if (first != nodes_.begin() && address - std::prev(first)->first < std::prev(first)->second.region.bytes) --first;
  auto last = first;
  for (; last != nodes_.end() && last->first < address + bytes; ++last)
    if (last->second.extent.state != ExtentState::live) return false;
  while (first != last) given_again_.insert(nodes_.extract(first++));
  return true;
}

void NativeBlocks::lose_given_again(DeviceState& device, LossVisitor& visitor) {
  for (auto& [address, node] : given_again_) {
    count(node, -1);
    lose(device, visitor, node, true);
  }
  given_again_.clear();
}

/// The driver's pool is the device's, whichever context asked it last: its idle bytes are booked once, by one of the contexts. `covered_bytes`: what
/// a thread counted as covered by idle memory, and that has now been served, or not.
void NativeBlocks::book_idle(DeviceState& device, std::uint64_t covered_bytes) {
  if (device.idle_owner == nullptr) device.idle_owner = this;
  std::uint64_t now_bytes = device.driver_pool.idle_bytes();
  // The books count the rounding of the program's own blocks as theirs; a driver that counts requested sizes reports it as idle.
  if (device.driver_pool.counts_requested()) now_bytes -= std::min(now_bytes, device.pool_rounding_bytes);
  device.add_reserved(static_cast<std::int64_t>(now_bytes - device.idle_bytes));
  device.limit.hold(now_bytes + covered_bytes, device.idle_bytes);
  device.idle_covered_bytes -= covered_bytes;
  device.idle_bytes = now_bytes;
  device.idle_kept_bytes = std::min(device.idle_kept_bytes, now_bytes);
}

std::uint64_t NativeBlocks::trim(DeviceState& device, std::uint64_t wanted_bytes) {
  const std::uint64_t before_bytes = device.idle_bytes;
  const bool is_told = !source_->may_hold_more();
  if (before_bytes == 0 && is_told) return 0;
  {
    const MutexUnlock unlocked(device.lock);
    source_->trim(device, wanted_bytes);
  }
  book_idle(device);
  const std::uint64_t released_bytes = saturating_sub(before_bytes, device.idle_bytes);
  if (released_bytes < wanted_bytes) device.idle_kept_bytes = device.idle_bytes;  // the driver keeps the rest
  return is_told ? released_bytes : std::max<std::uint64_t>(released_bytes, 1);   // at least 1, so that the caller looks for itself
}

/// While other threads are in the driver, their blocks and the idle memory that these come from, or become, may count twice. True after a pause, if
/// there is such a thread and fewer than kMostPauses were made.
bool NativeBlocks::await_others(DeviceState& device, std::uint32_t* pauses) {
  const bool is_moving = source_->keeps_idle() && (device.leaving_bytes != 0 || device.idle_covered_bytes != 0);
  if (!is_moving || *pauses == kMostPauses) return false;
  ++*pauses;
  const MutexUnlock unlocked(device.lock);
  device.services.clock.pause(kDriverCallPause_ns);
  return true;
}

std::optional<std::uint64_t> NativeBlocks::charge(DeviceState& device, std::uint64_t bytes) {
  if (device.growth.has_late()) {
    trim(device, device.limit.passed_bytes());
    if (device.limit.passed_bytes() == 0) device.growth.forget_late();
  }
  std::uint32_t pauses = 0;
  do {
    const std::uint64_t covered_bytes = std::min(saturating_sub(device.idle_bytes, device.idle_covered_bytes), bytes);
    if (device.limit.charge(bytes - covered_bytes)) return covered_bytes;
  } while (await_others(device, &pauses));
  return std::nullopt;
}

Result<Growth> NativeBlocks::grow(DeviceState& device, ContextPool& home, const AllocationRequest& wanted) {
  AllocationRequest request = wanted;
  PoolGrowth::Turn turn;
  if (source_->keeps_idle() && device.limit.limit_bytes() != 0) {
    const MutexUnlock unlocked(device.lock);
    turn = device.growth.begin(request.bytes);
  }
  // Idle memory may serve the request, and must not count twice. What cannot serve it is returned first.
  if (device.idle_bytes != 0 && device.idle_bytes < request.bytes && device.limit.headroom_bytes() < request.bytes) trim(device);
  std::optional<std::uint64_t> covered_bytes = charge(device, request.bytes);
  if (!covered_bytes && trim(device) != 0) covered_bytes = charge(device, request.bytes);
  if (!covered_bytes) return Error{CUDA_ERROR_OUT_OF_MEMORY, kLimitRefusal};
  Nodes made;  // host memory first: after the driver call nothing may fail
  Node* node = nullptr;
  try {
    node = &made[0];
  } catch (...) {
    device.limit.refund(request.bytes - *covered_bytes);
    throw;
  }
  CUdeviceptr address = 0;
  Error answer = allocate_within_limit(device, home, request, *covered_bytes, &address, &node->is_of_pool);
  if (answer.code == CUDA_SUCCESS && !move_aside(address, request.bytes)) answer = free_unseen(device, home, address, request.bytes, kAllocate);
  if (answer.code != CUDA_SUCCESS) {
    device.limit.refund(request.bytes);
    return answer;
  }
  if (source_->keeps_idle() && !node->is_of_pool) device.counters().native_fallbacks.add();
  node->place(address, request.bytes);
  node->info = {&home, this, 0, true, false};
  Nodes::node_type handle = made.extract(made.begin());
  handle.key() = address;
  Extent* extent = insert(std::move(handle));
  device.add_reserved(static_cast<std::int64_t>(request.bytes));
  device.counters().regions_created.add();
  device.note_region(observe::EventKind::region_create, address, request.bytes);
  return Growth{extent, false};
}

/// Makes the driver's call, without the lock. Where the driver takes more than the limit allows, because idle memory is in pieces or its pool grows by
/// a step, that goes back, and the block is one outside the pool if there is room for it.
Error NativeBlocks::allocate_within_limit(DeviceState& device, ContextPool& home, AllocationRequest& request, std::uint64_t covered_bytes,
                                          CUdeviceptr* address, bool* is_of_pool) {
  // What is late to go back may have made a pool exceed the limit: that is no reason to refuse what lies idle elsewhere.
  const std::uint64_t before_bytes = device.limit.passed_bytes();
  const auto beyond_bytes = [&]() CUPOOL_REQUIRES(device.lock) { return saturating_sub(device.limit.passed_bytes(), before_bytes); };
  device.idle_covered_bytes += covered_bytes;
  const CUresult code =
      allocate_by(device, home, request, address, [&] { return source_->allocate(device, home, request.requested_bytes, address, is_of_pool); });
  book_idle(device, covered_bytes);
  if (code != CUDA_SUCCESS) return {code, kAllocate};
  std::uint32_t pauses = 0;
  while (beyond_bytes() != 0 && await_others(device, &pauses)) book_idle(device);
  if (beyond_bytes() != 0) trim(device, beyond_bytes());
  if (beyond_bytes() == 0 && !device.growth.is_late(*address, request.bytes)) return {};
  const Error refusal = free_unseen(device, home, *address, request.bytes, kLimitRefusal);
  book_idle(device);
  if (beyond_bytes() != 0) trim(device, beyond_bytes());
  if (beyond_bytes() != 0) return refusal;
  *is_of_pool = false;
  const std::uint64_t rounding_bytes = rounding_of(request.bytes);
  if (!device.limit.charge(rounding_bytes)) return refusal;
  request.bytes += rounding_bytes;
  if (allocate_by(device, home, request, address, [&] { return source_->allocate_outside(device, request.requested_bytes, address); }) ==
      CUDA_SUCCESS)
    return {};
  return refusal;
}

/// Makes `call`, which allocates the block, without the lock.
CUresult NativeBlocks::allocate_by(DeviceState& device, ContextPool& home, const AllocationRequest& request, const CUdeviceptr* address,
                                   const std::function<CUresult()>& call) {
  const MutexUnlock unlocked(device.lock);
  const CUresult code = call();
  if (code != CUDA_SUCCESS || device.services.owners.add(*address, request.bytes, device.ordinal)) return code;
  source_->free_unused(device, home, *address);  // the program has not seen the block
  return CUDA_ERROR_OUT_OF_MEMORY;
}

/// Returns to the driver a block that the program is not to have. Returns the refusal for the request.
Error NativeBlocks::free_unseen(DeviceState& device, ContextPool& home, CUdeviceptr address, std::uint64_t bytes, const char* why) {
  const MutexUnlock unlocked(device.lock);
  device.services.owners.remove(address, bytes);
  source_->free_unused(device, home, address);
  return {CUDA_ERROR_OUT_OF_MEMORY, why};
}

void NativeBlocks::Node::place(std::uint64_t address, std::uint64_t bytes) {
  region.address = extent.address = address;
  region.bytes = extent.bytes = bytes;
  region.first = &extent;
  region.owner = &info;
  extent.region = &region;
  extent.state = ExtentState::live;
}

Status NativeBlocks::give_back(DeviceState& device, Extent* extent, const CUstream* stream, bool is_over) {
  // Out of our books before the call: while the driver works, the address belongs to the driver.
  Nodes::node_type handle = nodes_.extract(extent->address);
  const std::uint64_t address = extent->address;
  const std::uint64_t bytes = extent->bytes;
  ContextPool& home = *info_of(*extent).home;
  count(handle.mapped(), -1);
  device.services.owners.remove(address, bytes);
  device.add_reserved(-static_cast<std::int64_t>(bytes));
  device.note_region(observe::EventKind::region_release, address, bytes);
  device.leaving_bytes += bytes;
  CUresult code = CUDA_SUCCESS;
  {
    const MutexUnlock unlocked(device.lock);
    code = stream != nullptr ? source_->free_on(device, home, address, *stream)
           : is_over         ? source_->free_unused(device, home, address)
                             : source_->free(device, home, address);
  }
  book_idle(device);
  device.leaving_bytes -= bytes;
  if (code != CUDA_SUCCESS && device.services.owners.add(address, bytes, device.ordinal)) {
    insert(std::move(handle));
    device.add_reserved(static_cast<std::int64_t>(bytes));
    device.note_region(observe::EventKind::region_create, address, bytes);
    return Error{code, "free"};
  }
  device.limit.refund(bytes);
  device.counters().regions_released.add();
  return {};
}

std::uint64_t NativeBlocks::waiting_bytes() const {
  std::uint64_t bytes = 0;
  for (const Extent* extent = first_waiting_; extent != nullptr; extent = extent->bin_next)
    bytes += align_up(extent->bytes, kRegionGranularity_bytes);
  return bytes;
}

/// Returns every waiting block, whatever is wanted: the program has freed it, and nobody can use it again. One that the driver refuses (a second free
/// reached it past our books) is moved to the end and holds up no other.
std::uint64_t NativeBlocks::release(DeviceState& device, ContextPool&, std::uint64_t, bool) {
  constexpr std::size_t kMostRefused = 8;  // all of them may be refused for the same reason
  std::uint64_t released = 0;
  std::size_t refused = 0;
  for (std::size_t left = waiting_; left != 0 && first_waiting_ != nullptr && refused < kMostRefused; --left) {
    Extent* const extent = first_waiting_;
    first_waiting_ = extent->bin_next;
    --waiting_;
    const std::uint64_t bytes = extent->bytes;
    if (give_back(device, extent, nullptr, true).ok()) {  // its epoch is over
      released += bytes;
      continue;
    }
    Extent** end = &first_waiting_;
    while (*end != nullptr) end = &(*end)->bin_next;
    extent->bin_next = std::exchange(*end, extent);
    ++waiting_;
    ++refused;
  }
  return released;
}

/// The end of a primary context "destroys all allocations of the device in the process" (CUDA Driver API 13.0, cuDevicePrimaryCtxReset); an H100
/// (driver 580) leaves what is in its pools, until it is freed.
void NativeBlocks::abandon(DeviceState& device, LossVisitor& visitor) { lose_all(device, visitor, true); }

/// To the program all of them are lost, since they came from plain calls. What lies in the driver's pool is left there until free_left().
bool NativeBlocks::outlive(DeviceState& device, LossVisitor& visitor, bool) {
  lose_all(device, visitor, false);
  return false;
}

void NativeBlocks::lose(DeviceState& device, LossVisitor& visitor, Node& node, bool is_nobodys) {
  if (node.extent.state != ExtentState::free) visitor.lost(node.extent);
  if (is_nobodys) device.services.owners.remove(node.region.address, node.region.bytes);
  device.limit.refund(node.region.bytes);
  device.add_reserved(-static_cast<std::int64_t>(node.region.bytes));
  device.note_region(observe::EventKind::region_release, node.region.address, node.region.bytes);
}

void NativeBlocks::lose_all(DeviceState& device, LossVisitor& visitor, bool may_be_gone) {
  for (auto& [address, node] : nodes_) lose(device, visitor, node, may_be_gone || !node.is_of_pool);
  while (!nodes_.empty()) {
    Nodes::node_type node = nodes_.extract(nodes_.begin());
    if (!node.mapped().is_of_pool) continue;
    node.mapped().may_be_gone = may_be_gone;
    left_.insert(std::move(node));
  }
  source_->forget();
  if (device.idle_owner == this) {  // the next context that asks the driver books its idle memory
    device.driver_pool.update(device.driver_pool.ticket(), 0);
    book_idle(device);
    device.idle_owner = nullptr;
  }
  bytes_ = rounding_bytes_ = 0;
  waiting_ = 0;
  first_waiting_ = nullptr;
}

void NativeBlocks::append_map(DeviceState&, const TickConverter& time, observe::DeviceSnapshot& out) const {
  for (const auto& [address, node] : nodes_) {
    const auto region = static_cast<std::uint32_t>(out.regions.size());
    out.regions.push_back({address, node.region.bytes, reinterpret_cast<std::uint64_t>(node.info.home->context)});
    append_block(node.extent, region, time, out);
  }
}

std::string NativeBlocks::check(DeviceState& device) const {
  std::uint64_t bytes = 0;
  std::uint64_t end = 0;
  std::size_t waiting = 0;
  for (const auto& [address, node] : nodes_) {
    if (address < end) return "two native blocks overlap";
    if (node.region.owner != &node.info || node.extent.region != &node.region) return "a native block has lost its region";
    const int owner = device.services.owners.find(address);
    if (owner != device.ordinal && owner != OwnerMap::kSeveral) return "a native block's address does not lead to its device";
    end = address + node.region.bytes;
    bytes += node.region.bytes;
    waiting += node.extent.state == ExtentState::free ? 1 : 0;
  }
  if (bytes != bytes_) return "native bytes do not add up";
  std::size_t listed = 0;
  for (const Extent* extent = first_waiting_; extent != nullptr && listed <= waiting; extent = extent->bin_next)
    listed += extent->state == ExtentState::free ? 1 : 0;
  if (listed != waiting) return "native blocks that wait to be given back are not those on the list";
  return waiting == waiting_ ? "" : "native blocks that wait to be given back do not add up";
}

}  // namespace cupool::device
