// Process: all that the library holds while the process is live: the driver's functions, options, live page, pools, books and reporter.
//
// Built once, in place, when the process goes live; never destroyed, because libraries free memory after our destructors have run. Thread rule:
// read-only, except for what its members allow.
#pragma once

#include <atomic>
#include <memory>

#include "config/options.hpp"
#include "pool/device/pool_set.hpp"
#include "pool/driver/driver_api.hpp"
#include "shim/context_book.hpp"
#include "shim/graph_book.hpp"
#include "shim/identity.hpp"
#include "shim/late_frees.hpp"
#include "shim/live_page.hpp"
#include "shim/mempool_book.hpp"
#include "shim/peer_book.hpp"
#include "shim/reporter.hpp"
#include "shim/shared_blocks.hpp"
#include "shim/stream_book.hpp"
#include "shim/trace_file.hpp"
#include "shim/vmm_ledger.hpp"

namespace cupool::shim {

struct Process {
  Process(const DriverApi& driver_api, int driver_version, std::unique_ptr<config::Options> loaded);

  /// The program asks for device memory: names the live page and makes the trace file, if that has not happened yet.
  void before_allocation() {
    page.publish();
    trace.begin();
  }

  /// A call was seen that no part of the pool serves, for the report. `symbol`: a literal.
  void saw_unpooled(const char* symbol) {
    if (pools.saw_unpooled(symbol)) observe::note_unpooled(&page.header(), symbol);
  }

  /// The same for a node of a graph, whose memory the driver keeps: from now on graphs are watched.
  void saw_graph_memory(const char* symbol) {
    before_allocation();
    saw_unpooled(symbol);
    pools.expect_graph_memory();
  }

  /// After each call, with no lock held: refills the trace, and serves what `cupool trim` or `cupool dump` has asked for.
  void upkeep() {
    trace.upkeep();
    if (page.header().request.load(std::memory_order_relaxed) != 0) [[unlikely]]
      serve_request();
  }

  DriverApi api;
  std::unique_ptr<config::Options> options;
  Identity identity;
  std::string report_path;  ///< absolute; "stderr", or empty for none
  LivePage page;
  TraceFile trace;
  PoolSet pools;
  SharedBlocks shared;
  Reporter reporter;
  LateFrees late_frees;
  ContextBook contexts;
  StreamBook streams{api, contexts, pools};
  MempoolBook mempools{api};
  PeerBook peers;
  GraphBook graphs{pools};
  VmmLedger vmm;

 private:
  void serve_request() noexcept;

  std::atomic<bool> serving_request_{false};
};

/// The options of this process's environment.
std::unique_ptr<config::Options> load_options();

/// Builds the process's state. Called once, by lifecycle.
void make_process(const DriverApi& api, int driver_version, std::unique_ptr<config::Options> options);

/// Set by make_process and never again. Only for find_process(), which every call uses several times.
inline constinit std::atomic<Process*> g_process{nullptr};
/// nullptr until the process has been live.
inline Process* find_process() { return g_process.load(std::memory_order_acquire); }
/// Precondition: the process is live or exiting.
inline Process& process() { return *find_process(); }

}  // namespace cupool::shim
