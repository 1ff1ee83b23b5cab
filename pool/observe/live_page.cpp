// Lays the live page out. The numbers asserted here are the published format: change them with kLivePageVersion only.
#include "pool/observe/live_page.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "pool/core/bytes.hpp"

namespace cupool::observe {

namespace {

constexpr std::size_t kAlignment = 128;  // a device's counters share no cache line with another's

static_assert(sizeof(std::atomic<std::uint64_t>) == 8 && std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(Gauge) == 16 && sizeof(Total) == 8);
static_assert(sizeof(DriverCallCounts) == 8 * kDriverCallCount);

#define LIVE_OFFSET(type, member, offset) static_assert(offsetof(type, member) == (offset), "published format")
LIVE_OFFSET(LiveHeader, magic, 0);
LIVE_OFFSET(LiveHeader, version, 8);
LIVE_OFFSET(LiveHeader, header_bytes, 12);
LIVE_OFFSET(LiveHeader, pid, 16);
LIVE_OFFSET(LiveHeader, state, 20);
LIVE_OFFSET(LiveHeader, process_start_ticks, 24);
LIVE_OFFSET(LiveHeader, start_unix_ns, 32);
LIVE_OFFSET(LiveHeader, start_monotonic_ns, 40);
LIVE_OFFSET(LiveHeader, counter_names_offset, 48);
LIVE_OFFSET(LiveHeader, counter_names_bytes, 52);
LIVE_OFFSET(LiveHeader, driver_call_names_offset, 56);
LIVE_OFFSET(LiveHeader, driver_call_names_bytes, 60);
LIVE_OFFSET(LiveHeader, process_json_offset, 64);
LIVE_OFFSET(LiveHeader, process_json_bytes, 68);
LIVE_OFFSET(LiveHeader, devices_offset, 72);
LIVE_OFFSET(LiveHeader, device_stride_bytes, 76);
LIVE_OFFSET(LiveHeader, device_count, 80);
LIVE_OFFSET(LiveHeader, counters_offset_in_device, 84);
LIVE_OFFSET(LiveHeader, driver_calls_offset_in_device, 88);
LIVE_OFFSET(LiveHeader, fragmentation_offset_in_device, 92);
LIVE_OFFSET(LiveHeader, request, 96);
LIVE_OFFSET(LiveHeader, outside_offset_in_device, 100);
LIVE_OFFSET(LiveHeader, fragmentation_names_offset, 104);
LIVE_OFFSET(LiveHeader, fragmentation_names_bytes, 108);
LIVE_OFFSET(LiveHeader, outside_names_offset, 112);
LIVE_OFFSET(LiveHeader, outside_names_bytes, 116);
LIVE_OFFSET(LiveHeader, unpooled_offset, 120);
LIVE_OFFSET(LiveHeader, unpooled_stride_bytes, 124);
LIVE_OFFSET(LiveHeader, unpooled_count, 128);
LIVE_OFFSET(LiveHeader, oom_count, 132);
LIVE_OFFSET(LiveHeader, shards_offset_in_device, 136);
LIVE_OFFSET(LiveHeader, shard_stride_bytes, 140);
LIVE_OFFSET(LiveHeader, shard_count, 144);
LIVE_OFFSET(LiveHeader, shard_names_offset, 148);
LIVE_OFFSET(LiveHeader, shard_names_bytes, 152);
static_assert(sizeof(LiveHeader) == 160, "published format");
LIVE_OFFSET(LiveDevice, in_use, 0);
LIVE_OFFSET(LiveDevice, ordinal, 4);
LIVE_OFFSET(LiveDevice, uuid, 8);
LIVE_OFFSET(LiveDevice, name, 48);
LIVE_OFFSET(LiveDevice, policy, 176);
LIVE_OFFSET(LiveDevice, backing, 192);
LIVE_OFFSET(LiveDevice, total_bytes, 208);
LIVE_OFFSET(LiveDevice, limit_bytes, 216);
LIVE_OFFSET(LiveDevice, driver_free_bytes, 224);
LIVE_OFFSET(LiveDevice, driver_free_unix_ns, 232);
LIVE_OFFSET(LiveUnpooled, name, 4);
#undef LIVE_OFFSET

constexpr std::size_t lines_in(std::string_view text) { return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')); }
static_assert(sizeof(LiveFragmentation) == 8 * lines_in(kLiveFragmentationNames), "one name per figure");
static_assert(sizeof(LiveOutside) == 8 * lines_in(kLiveOutsideNames), "one name per figure");
static_assert(offsetof(LiveShard, deferred_bytes) == 8 * (lines_in(kLiveShardNames) - 1), "one name per word");

constexpr std::size_t kDeviceStride = align_up(sizeof(LiveDevice), kAlignment);

std::string counter_names() {
  std::string text;
  for (const CounterRow& row : kCounterRows) {
    text.append(row.name).append(row.is_gauge ? " gauge " : " total ").append(row.unit).append("\n");
  }
  return text;
}

std::string driver_call_names() {
  std::string text;
  for (const char* name : kDriverCallNames) text.append(name).append("\n");
  return text;
}

/// Where everything stands in a page with that much text.
struct Layout {
  std::string counter_names = observe::counter_names();
  std::string driver_call_names = observe::driver_call_names();
  std::size_t unpooled = align_up(sizeof(LiveHeader), kAlignment);
  std::size_t devices = align_up(unpooled + kUnpooledSlots * sizeof(LiveUnpooled), kAlignment);
  std::size_t text = devices + kMaxDevices * kDeviceStride;

  std::size_t end(std::size_t process_json_bytes) const {
    return text + counter_names.size() + driver_call_names.size() + kLiveFragmentationNames.size() + kLiveOutsideNames.size() +
           kLiveShardNames.size() + process_json_bytes;
  }
};

/// Copies texts one behind the other, and returns where each went.
class TextWriter {
 public:
  TextWriter(char* page, std::size_t offset) : page_(page), offset_(offset) {}
  void put(std::string_view text, std::uint32_t* offset, std::uint32_t* bytes) {
    std::memcpy(page_ + offset_, text.data(), text.size());
    *offset = static_cast<std::uint32_t>(offset_);
    *bytes = static_cast<std::uint32_t>(text.size());
    offset_ += text.size();
  }

 private:
  char* page_;
  std::size_t offset_;
};

void describe_devices(LiveHeader* header, const Layout& layout) {
  header->devices_offset = static_cast<std::uint32_t>(layout.devices);
  header->device_stride_bytes = static_cast<std::uint32_t>(kDeviceStride);
  header->device_count = static_cast<std::uint32_t>(kMaxDevices);
  header->counters_offset_in_device = offsetof(LiveDevice, counters);
  header->driver_calls_offset_in_device = offsetof(LiveDevice, driver_calls);
  header->fragmentation_offset_in_device = offsetof(LiveDevice, fragmentation);
  header->outside_offset_in_device = offsetof(LiveDevice, outside);
  header->shards_offset_in_device = offsetof(LiveDevice, shards);
  header->shard_stride_bytes = sizeof(LiveShard);
  header->shard_count = static_cast<std::uint32_t>(kLiveShards);
  header->unpooled_offset = static_cast<std::uint32_t>(layout.unpooled);
  header->unpooled_stride_bytes = sizeof(LiveUnpooled);
  header->unpooled_count = static_cast<std::uint32_t>(kUnpooledSlots);
}

LiveUnpooled* unpooled_slots(LiveHeader* page) {
  return std::launder(reinterpret_cast<LiveUnpooled*>(reinterpret_cast<char*>(page) + page->unpooled_offset));
}

}  // namespace

std::size_t live_page_bytes(std::size_t process_json_bytes) { return align_up(Layout{}.end(process_json_bytes), kHostPage_bytes); }

LiveHeader* format_live_page(void* memory, std::size_t bytes, const LiveIdentity& identity, std::string_view process_json) {
  const Layout layout;
  if (memory == nullptr || process_json.size() > UINT32_MAX / 2 || bytes < live_page_bytes(process_json.size())) return nullptr;
  char* const page = static_cast<char*>(memory);
  auto* header = new (page) LiveHeader;
  for (std::size_t i = 0; i < kUnpooledSlots; ++i) new (page + layout.unpooled + i * sizeof(LiveUnpooled)) LiveUnpooled;
  for (std::size_t i = 0; i < kMaxDevices; ++i) new (page + layout.devices + i * kDeviceStride) LiveDevice;

  header->version = kLivePageVersion;
  header->header_bytes = sizeof(LiveHeader);
  header->pid = identity.pid;
  header->process_start_ticks = identity.process_start_ticks;
  header->start_unix_ns = identity.start_unix_ns;
  header->start_monotonic_ns = identity.start_monotonic_ns;
  header->state.store(static_cast<std::uint32_t>(LiveState::live), std::memory_order_relaxed);
  describe_devices(header, layout);
  TextWriter text(page, layout.text);
  text.put(layout.counter_names, &header->counter_names_offset, &header->counter_names_bytes);
  text.put(layout.driver_call_names, &header->driver_call_names_offset, &header->driver_call_names_bytes);
  text.put(kLiveFragmentationNames, &header->fragmentation_names_offset, &header->fragmentation_names_bytes);
  text.put(kLiveOutsideNames, &header->outside_names_offset, &header->outside_names_bytes);
  text.put(kLiveShardNames, &header->shard_names_offset, &header->shard_names_bytes);
  text.put(process_json, &header->process_json_offset, &header->process_json_bytes);
  header->magic.store(kLivePageMagic, std::memory_order_release);
  return header;
}

LiveDevice* live_devices(LiveHeader* page) {
  static_assert(kDeviceStride == sizeof(LiveDevice), "PoolSet indexes the slots as an array");
  return std::launder(reinterpret_cast<LiveDevice*>(reinterpret_cast<char*>(page) + page->devices_offset));
}

bool note_unpooled(LiveHeader* page, std::string_view symbol) {
  symbol = symbol.substr(0, kUnpooledName_bytes - 1);
  LiveUnpooled* const slots = unpooled_slots(page);
  for (std::size_t i = 0; i < kUnpooledSlots; ++i) {
    LiveUnpooled& slot = slots[i];
    std::uint32_t state = slot.state.load(std::memory_order_acquire);
    if (state == 0 && slot.state.compare_exchange_strong(state, 1, std::memory_order_acquire)) {
      std::memcpy(slot.name, symbol.data(), symbol.size());  // the slot was zero, so the name ends
      slot.state.store(2, std::memory_order_release);
      return true;
    }
    if (state == 2 && symbol == slot.name) return true;
  }
  return false;
}

}  // namespace cupool::observe
