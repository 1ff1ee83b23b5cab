// PoolSet: finds the device and the context of a call and passes the call on. No policy here.
// More than 400 lines: a few for each operation of the boundary, all of them on the one Impl.
#include "pool/device/pool_set.hpp"

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>

#include "pool/device/device_birth.hpp"
#include "pool/device/device_pool.hpp"
#include "pool/device/outside_memory.hpp"
#include "pool/driver/handles.hpp"

namespace cupool {

using device::ContextPool;
using device::DevicePool;
using device::OwnerMap;

namespace {
constexpr std::size_t kCachedContexts = 4;
constexpr std::size_t kUnpooledNames = 64;
static_assert(std::tuple_size_v<device::MempoolUses> == PoolSet::kMempools);

/// What a thread remembers between calls. Trivially destructible, because libraries free memory after thread-local destructors have run.
struct ThreadCache {
  std::uint64_t set_id;  ///< the PoolSet that filled it; the ticks of its birth, so never another's
  std::uint16_t thread;
  bool is_watched;
  bool is_ending;
  CUcontext contexts[kCachedContexts];
  ContextPool* homes[kCachedContexts];
  device::Magazine* magazines[kCachedContexts];
};
thread_local ThreadCache t_cache;

std::size_t slot_of(CUcontext context) { return (reinterpret_cast<std::uintptr_t>(context) >> 6) % kCachedContexts; }

SystemClock& system_clock() {
  static SystemClock clock;  // has no state
  return clock;
}
}  // namespace

class PoolSet::Impl {
 public:
  Impl(const DriverApi& api, const config::Options& options, observe::LiveDevice* devices, std::size_t device_slots, Clock* clock,
       observe::TraceSink* trace, ThreadWatch* thread_watch)
      : threads(thread_watch),
        services(api, options, clock != nullptr ? *clock : system_clock(), trace),
        lives(devices),
        slots(std::min(device_slots, pools.size())),
        driver(api, uncounted) {
    services.lives = {lives, slots};
    if (api.cuCtxRecordEvent == nullptr || api.cuEventCreate == nullptr || api.cuEventQuery == nullptr || api.cuEventSynchronize == nullptr) {
      services.no_context_events.store(true);
      if (options.free == config::FreeMode::deferred && options.policy != config::Policy::platform)
        services.warn("the driver has no cuCtxRecordEvent (CUDA 12.5): every free synchronises, as CUPOOL_FREE=sync");
    }
    // Now, while the process has few threads, perhaps one, which makes it cheap; only deferred frees with pooled blocks need it.
    if (options.free == config::FreeMode::deferred && options.policy != config::Policy::platform) services.fences.prepare();
    if (options.stacks != config::StackMode::off) services.warn("CUPOOL_STACKS is not served yet: the report has no call sites");
  }

  ThreadCache& cache() {
    if (t_cache.set_id != id) [[unlikely]]
      begin_cache();
    return t_cache;
  }
  [[gnu::noinline]] void begin_cache() {
    t_cache = ThreadCache{};
    t_cache.set_id = id;
    t_cache.thread = static_cast<std::uint16_t>(std::min<std::uint64_t>(next_thread.fetch_add(1, std::memory_order_relaxed), UINT16_MAX));
  }

  DevicePool* pool_of(int ordinal) const {
    const bool known = ordinal >= 0 && static_cast<std::size_t>(ordinal) < slots;
    return known ? pools[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire) : nullptr;
  }

  /// The device's pool, made if it is new; null when there is no slot or the driver does not know the device.
  DevicePool* pool_for(int ordinal) {
    if (DevicePool* pool = pool_of(ordinal)) return pool;
    if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= slots || services.stopped.load(std::memory_order_relaxed)) return nullptr;
    const auto slot = static_cast<std::size_t>(ordinal);
    const MutexLock lock(birth_lock);  // the queries under it do not block; a device is born once
    if (owned[slot] != nullptr) return owned[slot].get();
    observe::LiveDevice& live = lives[slot];
    if (device::describe_device(Driver(services.api, live.driver_calls), ordinal, services.options, live) != CUDA_SUCCESS) return nullptr;
    const config::Policy policy = device::policy_in_force(Driver(services.api, live.driver_calls), ordinal, services.options);
    if (services.options.policy == config::Policy::async && policy == config::Policy::grow)
      services.warn("CUPOOL_POLICY=async: GPU " + std::to_string(ordinal) + " or its driver has no memory pools; served as by grow");
    owned[slot] = std::make_unique<DevicePool>(services, ordinal, live, live.total_bytes, live.limit_bytes, policy);
    pools[slot].store(owned[slot].get(), std::memory_order_release);
    return owned[slot].get();
  }

  /// The pool of `context`. A context that we were not told of is the caller's current one, so the driver knows its device.
  Result<ContextPool*> home_of(CUcontext context) {
    ContextPool* home = services.contexts.find(context);
    if (home != nullptr) return home;
    if (services.stopped.load(std::memory_order_relaxed)) return Error{CUDA_ERROR_DEINITIALIZED, "exit"};
    CUdevice ordinal = -1;
    if (driver.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS) return nullptr;  // whatever the error is, the program's own call meets it too
    DevicePool* pool = pool_for(ordinal);
    if (pool == nullptr) return nullptr;
    home = pool->context_seen(context, BlockLife::context);
    // A primary context that has ended can still be a thread's current one, and the driver still tells its device: a late thread would get memory
    // that nobody ends. Asked once the context is known here, so that an end from now on is met. [?] that a driver reports a released one as gone.
    const auto is_gone = [&] {
      unsigned version = 0;
      return driver.has_cuCtxGetApiVersion() && device::is_context_gone(driver.cuCtxGetApiVersion(context, &version));
    };
    if (!is_gone()) return home;
    // Asked again where no thread can begin to use it any more: another thread may have begun the next life of the same handle.
    pool->end_context(
        home, context, [] { return CUDA_SUCCESS; }, is_gone, PoolBlocks::go);
    return nullptr;
  }

  /// Asks every device's pool whose region may hold `address`; `ask` returns whether it was the right one.
  template <class Ask> bool ask_owner(CUdeviceptr address, Ask&& ask) {
    const int owner = services.owners.find(address);
    if (owner == OwnerMap::kNobody) return false;
    if (owner != OwnerMap::kSeveral) return pool_of(owner) != nullptr && ask(*pool_of(owner));
    for (std::size_t slot = 0; slot < slots; ++slot)
      if (DevicePool* pool = pool_of(static_cast<int>(slot)); pool != nullptr && ask(*pool)) return true;
    return false;
  }

  CUdeviceptr allocate_in(ContextPool& home, CUcontext context, std::size_t bytes, const char* symbol, Error* error) {
    ThreadCache& own = t_cache;
    device::Magazine*& magazine = own.magazines[slot_of(context)];
    const device::MagazineUser user{!own.is_ending, magazine};
    const CUdeviceptr address = home.pool.allocate(&home, context, bytes, symbol, own.thread, user, error);
    if (magazine != nullptr) watch(own);
    return address;
  }

  /// Asks to be told of the end of this thread, because it keeps blocks.
  void watch(ThreadCache& own) {
    if (own.is_watched) [[likely]]
      return;
    own.is_watched = true;
    if (threads != nullptr) threads->watch();
  }

  /// An allocation in a context that the calling thread does not remember.
  /// Tried twice: the pool that was found may be that of a context which ended meanwhile, and whose handle the new one has.
  Result<CUdeviceptr> allocate_first(CUcontext context, std::size_t bytes, const char* symbol) {
    const Result<CUdeviceptr> block = allocate_found(context, bytes, symbol);
    return !block.ok() && block.error().where == device::kStaleContext.where ? allocate_found(context, bytes, symbol) : block;
  }

  Result<CUdeviceptr> allocate_found(CUcontext context, std::size_t bytes, const char* symbol) {
    const Result<ContextPool*> home = home_of(context);
    if (!home.ok()) return home.error();
    if (home.value() == nullptr) {  // a device that we have no slot for: the driver serves it, and its frees are foreign
      CUdeviceptr address = 0;
      const CUresult code = driver.cuMemAlloc_v2(&address, bytes);
      if (code != CUDA_SUCCESS) return Error{code, "cuMemAlloc_v2"};
      return address;
    }
    ThreadCache& remembered = cache();
    remembered.contexts[slot_of(context)] = context;
    remembered.homes[slot_of(context)] = home.value();
    remembered.magazines[slot_of(context)] = nullptr;
    Error error{};
    const CUdeviceptr address = allocate_in(*home.value(), context, bytes, symbol, &error);
    if (address == 0) return error;
    return address;
  }

  /// A free of an address in a page that several devices share, or that is no device's.
  void free_shared(CUdeviceptr address, FreeResult* result) {
    ask_owner(address, [&](DevicePool& pool) {
      result->outcome = pool.free(address, cache().thread, &result->error);
      return result->outcome != FreeOutcome::unknown;
    });
  }

  /// The device of a foreign pointer is not known: the lowest one in use counts it.
  void count_foreign_free(CUdeviceptr address) {
    bool is_known = address == 0;  // a free of a null pointer
    for_each_pool([&](DevicePool& pool) { is_known = is_known || pool.has_driver_block(address); });
    if (is_known) return;
    for (std::size_t slot = 0; slot < slots; ++slot) {
      DevicePool* pool = pool_of(static_cast<int>(slot));
      if (pool == nullptr) continue;
      pool->state().counters().foreign_frees.value.fetch_add(1, std::memory_order_relaxed);
      return;
    }
  }

  /// Takes committed outside memory out of the books and off the limit.
  void forget_outside(OutsideKind kind, const device::OutsideMemory::Entry& entry) {
    DevicePool* pool = pool_of(entry.device);
    pool->book_outside(kind, -static_cast<std::int64_t>(entry.bytes));
    pool->refund_outside(kind, entry.bytes);
  }

  template <class F> void for_each_pool(F&& visit) const {
    for (std::size_t slot = 0; slot < slots; ++slot)
      if (DevicePool* pool = pool_of(static_cast<int>(slot))) visit(*pool);
  }
  /// After what may have been the end of the last capture, or of a context.
  void stamp_late() const {
    if (!services.has_context_events() && !services.gate.capturing()) for_each_pool([](DevicePool& pool) { pool.stamp_late(); });
  }

  ThreadWatch* const threads;
  device::PoolServices services;
  device::OutsideMemory outside;
  observe::LiveDevice* const lives;
  const std::uint64_t id = ticks();
  std::atomic<std::uint32_t> next_thread{1};
  DriverCallCounts uncounted{};  ///< calls before a device is known
  std::array<std::atomic<DevicePool*>, observe::kMaxDevices> pools{};
  const std::size_t slots;
  const Driver driver;
  Mutex birth_lock;
  std::array<std::unique_ptr<DevicePool>, observe::kMaxDevices> owned CUPOOL_GUARDED_BY(birth_lock);
  std::array<std::atomic<const char*>, kUnpooledNames> unpooled{};
};

PoolSet::PoolSet(const DriverApi& api, const config::Options& options, observe::LiveDevice* devices, std::size_t device_slots, Clock* clock,
                 observe::TraceSink* trace, ThreadWatch* threads)
    : impl_(std::make_unique<Impl>(api, options, devices, device_slots, clock, trace, threads)) {}
PoolSet::~PoolSet() = default;

Result<CUdeviceptr> PoolSet::allocate(CUcontext context, std::size_t bytes, const char* api) {
  ThreadCache& cache = impl_->cache();
  const std::size_t slot = slot_of(context);
  if (cache.contexts[slot] != context || cache.homes[slot] == nullptr) return impl_->allocate_first(context, bytes, api);
  Error error{};
  const CUdeviceptr address = impl_->allocate_in(*cache.homes[slot], context, bytes, api, &error);
  if (address != 0) return address;
  if (error.where != device::kStaleContext.where) return error;
  return impl_->allocate_first(context, bytes, api);
}

bool PoolSet::serves_streams() const {
  const config::Options& options = impl_->services.options;
  const bool pools = options.policy == config::Policy::grow || options.policy == config::Policy::preallocate;
  return pools && options.ipc != config::IpcMode::native;
}

Result<CUdeviceptr> PoolSet::allocate_on(CUcontext context, std::size_t bytes, StreamName stream, std::uint8_t mempool, const char* api,
                                         BlockLife life) {
  ThreadCache& cache = impl_->cache();
  const std::size_t slot = slot_of(context);
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (attempt != 0 || cache.contexts[slot] != context || cache.homes[slot] == nullptr) {
      const Result<ContextPool*> home = impl_->home_of(context);
      if (!home.ok()) return home.error();
      if (home.value() == nullptr) return Error{CUDA_ERROR_NOT_SUPPORTED, "the device has no pool"};
      cache.contexts[slot] = context;
      cache.homes[slot] = home.value();
      cache.magazines[slot] = nullptr;
    }
    ContextPool* home = cache.homes[slot];
    Error error{};
    const device::MagazineUser user{!cache.is_ending, cache.magazines[slot]};
    const CUdeviceptr address = home->pool.allocate_on(home, context, bytes, stream, mempool, life, api, cache.thread, user, &error);
    if (address != 0) return address;
    if (error.where != device::kStaleContext.where || attempt != 0) return error;
  }
  return device::kStaleContext;
}

FreeResult PoolSet::free_on(CUdeviceptr address, CUcontext context, StreamName stream) {
  FreeResult result;
  ThreadCache& cache = impl_->cache();
  const std::size_t slot = slot_of(context);
  const bool is_known = context != nullptr && cache.contexts[slot] == context && cache.homes[slot] != nullptr;
  device::Magazine* const magazine = is_known ? cache.magazines[slot] : nullptr;
  if (magazine != nullptr && magazine->free_on(address, context, stream.identity, cache.thread)) {
    result.outcome = FreeOutcome::freed;
    return result;
  }
  device::MagazineUser user{!cache.is_ending, cache.magazines[slot]};
  impl_->ask_owner(address, [&](DevicePool& pool) {
    const bool is_of_pool = is_known && &cache.homes[slot]->pool == &pool;
    result.outcome = pool.free_on(address, context, stream, cache.thread, is_of_pool ? &user : nullptr, &result.error);
    return result.outcome != FreeOutcome::unknown;
  });
  if (user.magazine != nullptr) impl_->watch(cache);
  if (result.outcome == FreeOutcome::unknown) impl_->count_foreign_free(address);
  return result;
}

CUresult PoolSet::allocate_by_driver(const DriverServed& request, CUdeviceptr* out, const std::function<CUresult()>& call, const AskDriver& ask) {
  DevicePool* pool = impl_->pool_for(request.device);
  if (pool == nullptr) return call();
  const CUresult result = pool->allocate_by_driver(request, out, impl_->cache().thread, call, ask);
  if (result != CUDA_SUCCESS) return result;
  impl_->for_each_pool([&](DevicePool& other) {
    if (&other != pool) other.forget_driver_block(*out);  // it was of a context whose end we did not see
  });
  return result;
}

void PoolSet::mempool_made(int device, CUmemoryPool handle) { impl_->services.driver_pools.add(handle, device); }
void PoolSet::mempool_ending(CUmemoryPool handle) { impl_->services.driver_pools.remove(handle, impl_->services.clock); }
void PoolSet::mempools_changed() {
  impl_->for_each_pool([](DevicePool& pool) { pool.update_mempools(true); });
}

std::optional<CUresult> PoolSet::free_by_driver(CUdeviceptr address, std::uint64_t stream, const std::function<CUresult()>& call) {
  std::optional<CUresult> result;
  impl_->for_each_pool([&](DevicePool& pool) {
    if (!result) result = pool.free_by_driver(address, stream, impl_->cache().thread, call);
  });
  return result;
}

void PoolSet::stream_ending(CUcontext context, std::uint64_t identity) {
  if (!impl_->services.has_context_events()) impl_->for_each_pool([&](DevicePool& pool) { pool.end_unstamped(identity); });
  if (context == nullptr) impl_->for_each_pool([&](DevicePool& pool) { pool.stream_ending(identity); });
  else if (ContextPool* home = impl_->services.contexts.find(context)) home->pool.stream_ending(home, context, identity);
}

void PoolSet::streams_ending(CUcontext context) {
  if (!impl_->services.has_context_events()) impl_->for_each_pool([&](DevicePool& pool) { pool.end_unstamped(0); });
  if (ContextPool* home = impl_->services.contexts.find(context)) home->pool.streams_ending(home, context);
}

PoolSet::MempoolFigures PoolSet::mempool_figures(int device, std::uint8_t mempool) {
  DevicePool* pool = impl_->pool_for(device);
  return pool != nullptr && mempool < kMempools ? pool->mempool_figures(mempool) : MempoolFigures{};
}

void PoolSet::reset_mempool_high(int device, std::uint8_t mempool, MempoolHigh which) {
  DevicePool* pool = impl_->pool_of(device);
  if (pool != nullptr && mempool < kMempools) pool->reset_mempool_high(mempool, which);
}

std::uint64_t PoolSet::plain_bytes(int device) {
  DevicePool* pool = impl_->pool_of(device);
  return pool != nullptr ? pool->plain_bytes() : 0;
}

FreeResult PoolSet::free(CUdeviceptr address) {
  FreeResult result;
  const ThreadCache& cache = impl_->cache();
  for (device::Magazine* magazine : cache.magazines) {
    if (magazine == nullptr || !magazine->free(address, cache.thread)) continue;
    result.outcome = FreeOutcome::freed;
    return result;
  }
  const int owner = impl_->services.owners.find(address);
  DevicePool* pool = owner == OwnerMap::kSeveral ? nullptr : impl_->pool_of(owner);
  if (pool != nullptr) result.outcome = pool->free(address, cache.thread, &result.error);
  else impl_->free_shared(address, &result);
  if (result.outcome == FreeOutcome::unknown) impl_->count_foreign_free(address);
  return result;
}

void PoolSet::thread_ending() {
  ThreadCache& cache = impl_->cache();
  cache.is_ending = true;
  for (device::Magazine*& magazine : cache.magazines) magazine = nullptr;
  impl_->for_each_pool([](DevicePool& pool) { pool.thread_ending(); });
}

bool PoolSet::free_while_exiting(CUdeviceptr address) {
  return impl_->ask_owner(address, [&](DevicePool& pool) { return pool.free_while_exiting(address); });
}

Ownership PoolSet::find(CUdeviceptr address, BlockView* block) {
  Ownership ownership = Ownership::unknown;
  impl_->ask_owner(address, [&](DevicePool& pool) {
    ownership = pool.find(address, block);
    return ownership != Ownership::unknown;
  });
  return ownership;
}

std::optional<int> PoolSet::device_of(CUcontext context) const {
  const ContextPool* home = impl_->services.contexts.find(context);
  return home != nullptr ? std::optional<int>(home->device.ordinal) : std::nullopt;
}

bool PoolSet::owns(CUdeviceptr address) const { return impl_->services.owners.find(address) != OwnerMap::kNobody; }

void PoolSet::adjust_mem_info(CUcontext context, std::size_t* free_bytes, std::size_t* total_bytes) {
  const Result<ContextPool*> home = impl_->home_of(context);
  if (home.ok() && home.value() != nullptr) home.value()->pool.adjust_mem_info(context, free_bytes, total_bytes);
}

void PoolSet::pin_pages(CUdeviceptr address) {
  impl_->ask_owner(address, [address](DevicePool& pool) { return pool.pin_pages(address); });
}

void PoolSet::begin_on_host_pages() { impl_->services.exports_ranges.store(true, std::memory_order_relaxed); }
void PoolSet::share_blocks() {
  keep_to_segments();
  impl_->services.shares_blocks.store(true, std::memory_order_relaxed);
}
void PoolSet::keep_to_segments() { impl_->services.keeps_to_segments.store(true, std::memory_order_relaxed); }

Status PoolSet::set_sync_memops(CUdeviceptr address, bool on) {
  Status status{Error{CUDA_ERROR_INVALID_VALUE, "cuPointerSetAttribute"}};
  impl_->ask_owner(address, [&](DevicePool& pool) {
    if (pool.find(address, nullptr) == Ownership::unknown) return false;
    status = pool.set_sync_memops(address, on);
    return true;
  });
  return status;
}

Status PoolSet::reserve_outside(int device, OutsideKind kind, std::size_t bytes, const char* api, const AskDriver& ask) {
  DevicePool* pool = impl_->pool_for(device);
  return pool != nullptr ? pool->charge_outside(kind, bytes, api, ask) : Status{};
}

void PoolSet::commit_outside(int device, OutsideKind kind, std::uint64_t key, std::size_t bytes, CUcontext context) {
  DevicePool* pool = impl_->pool_of(device);
  if (pool == nullptr) return;
  // A key that is still listed was released behind our back (with its context, say) and has come again.
  if (const auto before = impl_->outside.add(kind, key, {device, bytes, context})) impl_->forget_outside(kind, *before);
  pool->book_outside(kind, static_cast<std::int64_t>(bytes));
}

void PoolSet::cancel_outside(int device, OutsideKind kind, std::size_t bytes) {
  if (DevicePool* pool = impl_->pool_of(device)) pool->refund_outside(kind, bytes);
}

void PoolSet::note_refusal(int device, std::size_t bytes, const Refused& what) {
  if (DevicePool* pool = impl_->pool_of(device)) pool->note_refusal(bytes, what);
}

void PoolSet::note_failure(int device) {
  if (DevicePool* pool = impl_->pool_of(device)) pool->note_failure();
}

void PoolSet::count_foreign_free(CUdeviceptr address) { impl_->count_foreign_free(address); }

void PoolSet::warn_of_refusal(int device, const char* api) {
  if (DevicePool* pool = impl_->pool_for(device)) pool->warn_of_refusal(api);
}

bool PoolSet::release_outside(OutsideKind kind, std::uint64_t key) {
  const std::optional<OutsideEntry> entry = take_outside(kind, key);
  if (entry) end_take(*entry, true);
  return entry.has_value();
}

std::optional<PoolSet::OutsideEntry> PoolSet::take_outside(OutsideKind kind, std::uint64_t key) {
  const auto entry = impl_->outside.remove(kind, key);
  if (!entry) return std::nullopt;
  return OutsideEntry{kind, key, entry->device, entry->bytes, entry->context};
}

void PoolSet::end_take(const OutsideEntry& entry, bool freed) {
  if (!freed) {
    impl_->outside.add(entry.kind, entry.key, {entry.device, entry.bytes, entry.context});
    return;
  }
  impl_->forget_outside(entry.kind, {entry.device, entry.bytes});
}

bool PoolSet::saw_unpooled(const char* api) {
  for (std::atomic<const char*>& slot : impl_->unpooled) {
    const char* seen = slot.load(std::memory_order_acquire);
    if (seen == nullptr && slot.compare_exchange_strong(seen, api, std::memory_order_acq_rel)) return true;
    if (seen == api || std::strcmp(seen, api) == 0) return false;
  }
  return false;
}

void PoolSet::context_seen(CUcontext context, int device, BlockLife life) {
  if (impl_->services.contexts.find(context) != nullptr) return;
  if (DevicePool* pool = impl_->pool_for(device)) pool->context_seen(context, life);
}

void PoolSet::await_end_of(CUcontext context) {
  Clock& clock = impl_->services.clock;
  const std::uint64_t until_ns = clock.now_ns() + DevicePool::kPollBound_ns;
  while (impl_->services.contexts.is_ending(context) && clock.now_ns() < until_ns) clock.pause(DevicePool::kTryPause_ns);
}

CUresult PoolSet::end_context(CUcontext context, const std::function<CUresult()>& destroy, const std::function<bool()>& is_dead,
                              PoolBlocks pool_blocks) {
  ContextPool* home = impl_->services.contexts.find(context);
  const std::uint64_t before = impl_->outside.mark();
  const std::uint64_t blocks_before = impl_->services.driver_blocks_made.load(std::memory_order_relaxed);
  const std::uint64_t captures_before = impl_->services.gate.mark();
  std::optional<bool> dead;
  const auto is_dead_once = [&] { return dead ? *dead : dead.emplace(is_dead()); };
  const CUresult result = home != nullptr ? home->pool.end_context(home, context, destroy, is_dead_once, pool_blocks) : destroy();
  if (!is_dead_once()) return result;
  impl_->services.gate.forget(context, captures_before);
  impl_->stamp_late();  // what its streams had freed is over
  impl_->for_each_pool([&](DevicePool& pool) {
    pool.forget_driver_blocks(context, blocks_before);
    pool.retire_outliving();
  });
  std::array<std::pair<OutsideKind, device::OutsideMemory::Entry>, 64> gone;
  for (std::size_t count = gone.size(); count == gone.size();) {
    count = impl_->outside.remove_of(context, before, gone);
    for (std::size_t i = 0; i < count; ++i) impl_->forget_outside(gone[i].first, gone[i].second);
  }
  return result;
}

PoolSet::ContextHold::ContextHold(PoolSet& pools, CUcontext context) : pools_(pools), home_(nullptr) {
  device::ContextRegistry& contexts = pools.impl_->services.contexts;
  ContextPool* home = contexts.find(context);
  if (home != nullptr && contexts.pin(home, context) == device::Pin::held) home_ = home;
}

PoolSet::ContextHold::~ContextHold() {
  if (held()) pools_.impl_->services.contexts.unpin(home_);
}

CUresult PoolSet::wait_for_context(CUcontext context) {
  ContextPool* home = impl_->services.contexts.find(context);
  if (home != nullptr) return device::wait_for_context(*home, context).code();
  const ScopedContext current(impl_->driver, context);  // a context that we were not told of, or that is gone
  return current.status().ok() ? impl_->driver.cuCtxSynchronize() : current.status().code();
}

std::uint64_t PoolSet::captures_begun() const { return impl_->services.gate.mark(); }

void PoolSet::forget_captures(CUcontext context, std::uint64_t before) { impl_->services.gate.forget(context, before); }

void PoolSet::forget_captures_of_thread(std::uint64_t thread) { impl_->services.gate.forget_thread(thread); }

CUresult PoolSet::begin_capture(CUstream stream, const std::function<CUresult()>& begin, CUstreamCaptureMode mode, std::uint64_t thread) {
  CUcontext context = nullptr;
  const bool is_handle = reinterpret_cast<std::uintptr_t>(stream) % 2 == 0;  // the caller's keys for default streams are odd
  const bool known = is_handle && impl_->driver.has_cuStreamGetCtx() && impl_->driver.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS;
  if (!known && impl_->driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS) context = nullptr;
  impl_->for_each_pool([](DevicePool& pool) { pool.before_capture(); });
  CUcontext part = impl_->services.contexts.find(context) != nullptr ? context : nullptr;  // events of a green context cover another part
  return impl_->services.gate.begin({stream, context, part, thread, mode}, begin, impl_->services.clock);
}

PoolSet::EventWait PoolSet::stream_will_wait(CUstream stream) {
  if (!capturing()) return {};
  CUcontext context = nullptr;
  CUresult code = CUDA_ERROR_NOT_SUPPORTED;
  // The question does not end a capture of the stream (seen on H100 and H200, driver 580).
  if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) code = impl_->driver.cuCtxGetCurrent(&context);
  else if (impl_->driver.has_cuStreamGetCtx()) code = impl_->driver.cuStreamGetCtx(stream, &context);
  const bool is_known = code == CUDA_SUCCESS && impl_->services.contexts.find(context) != nullptr;
  if (!is_known) context = nullptr;
  return {stream, context, impl_->services.gate.join(stream, context)};
}

void PoolSet::stream_has_waited(const EventWait& wait) { impl_->services.gate.submitted(wait.stream, wait.context, wait.round); }

CUresult PoolSet::end_capture(CUstream stream, const std::function<CUresult()>& end, const std::function<bool()>& still_capturing) {
  const CUresult result = impl_->services.gate.end(stream, end, still_capturing);
  impl_->stamp_late();
  return result;
}

bool PoolSet::much_waits(CUcontext context) const {
  const std::size_t slot = slot_of(context);
  ContextPool* home = t_cache.set_id == impl_->id && t_cache.contexts[slot] == context ? t_cache.homes[slot] : nullptr;
  if (home != nullptr) return home->pool.much_waits(t_cache.magazines[slot]);
  home = impl_->services.contexts.find(context);
  return home != nullptr && home->pool.much_waits(nullptr);
}

void PoolSet::after_wait(CUcontext context) {
  if (ContextPool* home = impl_->services.contexts.find(context)) home->pool.after_wait(*home, context);
}

bool PoolSet::has_lanes() const { return impl_->services.has_lanes.load(std::memory_order_relaxed); }

std::uint64_t PoolSet::lane_fills(CUcontext context) const {
  const ContextPool* home = impl_->services.contexts.find(context);
  return home != nullptr ? home->streams.fills() : 0;
}

void PoolSet::after_stream_wait(CUcontext context, std::uint64_t identity, std::uint64_t fills) {
  if (ContextPool* home = impl_->services.contexts.find(context)) home->pool.open_waited_lanes(*home, identity, fills);
}

std::uint64_t PoolSet::freed_at_driver() const { return impl_->services.freed_at_driver.load(std::memory_order_relaxed); }

void PoolSet::after_wait_at_driver(CUcontext context, std::uint64_t identity, std::uint64_t freed) {
  if (ContextPool* home = impl_->services.contexts.find(context)) home->pool.after_wait_at_driver(identity, freed);
}

std::size_t PoolSet::trim() {
  std::size_t released_bytes = 0;
  impl_->for_each_pool([&](DevicePool& pool) { released_bytes += pool.trim() + pool.give_back_graph_memory(); });
  return released_bytes;
}

std::size_t PoolSet::trim(int device, std::size_t keep_bytes) {
  DevicePool* pool = impl_->pool_of(device);
  return pool != nullptr ? pool->trim(keep_bytes) : 0;
}

bool PoolSet::capturing() const { return impl_->services.gate.capturing(); }

std::uint64_t PoolSet::times_given_back() const { return impl_->services.given_back.load(std::memory_order_relaxed); }

bool PoolSet::make_room(std::uint64_t before) {
  std::size_t released_bytes = 0;
  const std::uint64_t until_ns = impl_->services.clock.now_ns() + DevicePool::kPollBound_ns;  // for all devices together
  impl_->for_each_pool([&](DevicePool& pool) { released_bytes += pool.make_room(until_ns); });
  return released_bytes != 0 || times_given_back() != before;
}

bool PoolSet::make_room_for(int device, std::uint64_t bytes) {
  DevicePool* const pool = impl_->pool_of(device);
  return pool != nullptr && pool->make_room_for(impl_->services.clock.now_ns() + DevicePool::kPollBound_ns, bytes) != 0;
}

bool PoolSet::trim_graphs() {
  std::size_t trimmed_bytes = 0;
  impl_->for_each_pool([&](DevicePool& pool) { trimmed_bytes += pool.give_back_graph_memory(); });
  return trimmed_bytes != 0;
}

void PoolSet::expect_graph_memory() { impl_->services.graphs_take_memory.store(true, std::memory_order_relaxed); }

bool PoolSet::expects_graph_memory() const { return impl_->services.graphs_take_memory.load(std::memory_order_relaxed); }

void PoolSet::note_living_graphs(std::uint64_t devices, int more) noexcept {
  static_assert(observe::kMaxDevices == std::numeric_limits<decltype(devices)>::digits);  // kAnyDevice is all of them
  for (; devices != 0; devices &= devices - 1)
    impl_->services.living_graphs[static_cast<std::size_t>(std::countr_zero(devices))].fetch_add(more, std::memory_order_relaxed);
}

void PoolSet::note_graph_memory() {
  if (!impl_->services.graphs_take_memory.load(std::memory_order_relaxed)) return;
  impl_->for_each_pool([](DevicePool& pool) { pool.note_graph_memory(); });
}

void PoolSet::graph_launched(bool is_new) {
  if (!impl_->services.graphs_take_memory.load(std::memory_order_relaxed)) [[likely]]
    return;
  constexpr std::uint32_t kUnaskedLaunches = 64;
  const std::uint32_t launches = impl_->services.graph_launches.fetch_add(1, std::memory_order_relaxed) + 1;
  if (is_new || std::has_single_bit(launches) || launches % kUnaskedLaunches == 0) note_graph_memory();
}

void PoolSet::link_devices() { impl_->services.devices_linked.store(true, std::memory_order_relaxed); }

Status PoolSet::share_pages(CUcontext owner, int device) {
  ContextPool* home = impl_->services.contexts.find(owner);
  return home != nullptr ? home->pool.share_pages(home, owner, device) : Status{};
}

bool PoolSet::used() const {
  bool used = false;
  impl_->for_each_pool([&](DevicePool& pool) { used = used || pool.used(); });
  return used;
}

observe::Snapshot PoolSet::snapshot(std::chrono::nanoseconds budget) {
  observe::Snapshot snapshot;
  const std::uint64_t deadline_ns = impl_->services.clock.now_ns() + static_cast<std::uint64_t>(budget.count());
  impl_->for_each_pool([&](DevicePool& pool) {
    observe::DeviceSnapshot one;
    if (!pool.snapshot(deadline_ns, one)) {
      snapshot.complete = false;
      return;
    }
    snapshot.complete = snapshot.complete && one.complete;
    snapshot.dropped_events += one.timeline_dropped;
    snapshot.devices.push_back(std::move(one));
  });
  while (!impl_->services.ooms.copy(snapshot.ooms, snapshot.older_ooms)) {
    if (impl_->services.clock.now_ns() >= deadline_ns) {
      snapshot.complete = false;
      break;
    }
    impl_->services.clock.pause(DevicePool::kTryPause_ns);
  }
  for (const std::atomic<const char*>& slot : impl_->unpooled)
    if (const char* api = slot.load(std::memory_order_acquire)) snapshot.unpooled_apis_seen.emplace_back(api);
  return snapshot;
}

std::uint64_t PoolSet::take_untold_oom() { return impl_->services.ooms.take_untold(); }
std::vector<Message> PoolSet::take_messages() { return impl_->services.messages.take(); }
bool PoolSet::has_messages() const { return !impl_->services.messages.empty(); }

std::string PoolSet::check() const {
  std::string broken;
  impl_->for_each_pool([&](DevicePool& pool) { broken = broken.empty() ? pool.check() : broken; });
  return broken;
}

void PoolSet::stop_calling_driver() { impl_->services.stopped.store(true, std::memory_order_relaxed); }

}  // namespace cupool
