// PoolServices: what all devices of a PoolSet share: options, clock, registry of contexts, capture gate, what the process is known to do.
//
// Plain members in one place, so that whoever needs several takes one reference. One per PoolSet.
// Thread rule: what is not atomic is read-only after construction or thread-safe itself.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "config/options.hpp"
#include "pool/core/clock.hpp"
#include "pool/device/capture_gate.hpp"
#include "pool/device/context_registry.hpp"
#include "pool/device/driver_pools.hpp"
#include "pool/device/mailbox.hpp"
#include "pool/device/message.hpp"
#include "pool/device/oom_log.hpp"
#include "pool/device/owner_lock.hpp"
#include "pool/device/owner_map.hpp"
#include "pool/driver/driver_api.hpp"
#include "pool/observe/live_page.hpp"
#include "pool/observe/trace_sink.hpp"

namespace cupool::device {

struct PoolServices {
  PoolServices(const DriverApi& driver_api, const config::Options& pool_options, Clock& pool_clock, observe::TraceSink* trace_sink)
      : api(driver_api), options(pool_options), clock(pool_clock), trace(trace_sink) {}

  const DriverApi& api;
  const config::Options options;
  Clock& clock;
  observe::TraceSink* const trace;             ///< null: nothing is traced
  std::span<const observe::LiveDevice> lives;  ///< the slots of all devices; the process uses those that are in_use
  const TickConverter::Moment start = TickConverter::now();
  OwnerMap owners;
  ContextRegistry contexts;
  DriverPools driver_pools;  ///< the memory pools that the program made
  CaptureGate gate;
  OwnerFences fences;  ///< of the threads' magazines

  // What the driver can do, as it has turned out.
  std::atomic<bool> stopped{false};                 ///< no driver call is made any more: the process exits
  std::atomic<bool> no_context_events{false};       ///< see has_context_events()
  std::atomic<std::uint32_t> refused_events{0};     ///< context events that were refused in a row, for no reason that is known to pass
  std::atomic<bool> cannot_free_in_order{false};    ///< cuMemFreeAsync does not take what cuMemAlloc gave
  std::atomic<std::uint32_t> refused_in_order{0};   ///< how often it refused that since it last took it
  std::atomic<std::uint64_t> waited_in_vain_ns{0};  ///< when in_order::is_untouched() last gave up; it is brief for a second from then on

  // What was done so far, counted.
  std::atomic<std::uint64_t> driver_blocks_made{0};  ///< stream-ordered blocks that the driver served (DriverBlocks)
  std::atomic<std::uint64_t> freed_at_driver{0};     ///< frees in the order of streams that the driver got (DriverBacklog)
  std::atomic<std::uint64_t> given_back{0};          ///< how often memory of some device went back to the driver
  std::atomic<std::uint32_t> graph_launches{0};      ///< since graphs_take_memory

  // What the program has done, as far as it changes what the pool does.
  std::atomic<bool> has_lanes{false};                                           ///< freed memory of some context in the order of a stream
  std::atomic<bool> devices_linked{false};                                      ///< enabled peer access between some devices
  std::atomic<bool> graphs_take_memory{false};                                  ///< made a graph with an allocation node
  std::array<std::atomic<std::int32_t>, observe::kMaxDevices> living_graphs{};  ///< executable ones that may have such a node, of each device
  std::atomic<bool> keeps_to_segments{false};                                   ///< it may export blocks: no pages under `auto`
  std::atomic<bool> shares_blocks{false};   ///< it does export blocks: what it asks for from now on is not put on pages either
  std::atomic<bool> exports_ranges{false};  ///< it may ask for dma-buf descriptors: large blocks begin on host pages

  Mailbox<Message> messages{64};
  OomLog ooms{256};

  bool may_call_driver() const { return !stopped.load(std::memory_order_relaxed); }
  /// Does the driver have events that cover a whole context (cuCtxRecordEvent, CUDA 12.5), as far as is known?
  bool has_context_events() const { return !no_context_events.load(std::memory_order_relaxed); }
  /// Does a free synchronise? Because CUPOOL_FREE asks for that, or because there are no context events.
  bool synchronises() const {
    return options.free == config::FreeMode::sync || (options.free == config::FreeMode::deferred && !has_context_events());
  }
  /// A message that the user must see: it is printed, and stands in the report.
  void warn(std::string text) { messages.add({config::LogLevel::warn, std::move(text)}); }
  /// A message that the user asked for by CUPOOL_LOG. `make()` gives its text, and is not called where the level is not asked for. Where there are
  /// too many messages, or no host memory for this one, it is lost.
  template <class Make> void log(config::LogLevel level, Make&& make) noexcept {
    if (options.log > level) [[likely]]
      return;
    try {
      messages.add_while_half_empty({level, make()});
    } catch (...) {}
  }
};

}  // namespace cupool::device
