// Builds the state of a live process, in static storage that is never destroyed.
#include "shim/process.hpp"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string_view>
#include <vector>

#include "pool/observe/report.hpp"
#include "shim/export_hints.hpp"
#include "shim/front_door.hpp"
#include "shim/log.hpp"
#include "shim/thread_end.hpp"
#include "shim/unnoticed.hpp"

namespace cupool::shim {
namespace {

alignas(Process) std::byte g_storage[sizeof(Process)];

/// Where the exit report goes, made absolute now: the program may change its folder.
std::string expand_report_path(const config::Options& options, const Identity& identity) {
  if (options.report == "none") return "";
  if (options.report == "stderr") return "stderr";
  return in_current_folder(identity.expand(options.report));
}

std::string page_text(const config::Options& options, const Identity& identity, const std::string& report_path) {
  return observe::process_json(identity.facts(), option_facts(options), report_path);
}

/// Tells the pool of the end of threads that keep small blocks for themselves.
class SmallBlockWatch final : public ThreadWatch {
 public:
  void watch() override { thread_end::watch(0); }
};

ThreadWatch& small_block_watch() {
  static SmallBlockWatch watch;  // it has no state
  return watch;
}

/// Are there several devices, and does the driver lack the calls that copies between them are turned into (front_door_copies.cpp)? Then blocks must
/// not lie on pages, where the program's own copies between devices would fail.
bool needs_segments(const DriverApi& api) {
  const bool can_turn = front_door::can_copy_to_peers(api) && front_door::can_copy_shapes_to_peers(api) && api.cuStreamGetCtx != nullptr &&
                        api.cuPointerGetAttribute != nullptr;
  int devices = 0;
  return !can_turn && (api.cuDeviceGetCount == nullptr || api.cuDeviceGetCount(&devices) != CUDA_SUCCESS || devices > 1);
}

observe::TraceIdentity trace_identity(const observe::LiveIdentity& identity) {
  return {identity.pid, identity.process_start_ticks, identity.start_unix_ns};
}

}  // namespace

Process::Process(const DriverApi& driver_api, int driver_version, std::unique_ptr<config::Options> loaded)
    : api(driver_api),
      options(std::move(loaded)),
      identity(CUPOOL_VERSION, driver_version),
      report_path(expand_report_path(*options, identity)),
      page(identity.live_identity(), page_text(*options, identity, report_path)),
      trace(options->trace.empty() ? std::string() : identity.expand_path(options->trace), trace_identity(identity.live_identity()),
            options->trace.empty() ? std::string() : page_text(*options, identity, report_path)),
      pools(api, *options, page.devices(), observe::kMaxDevices, nullptr, trace.sink(), &small_block_watch()),
      shared(api, pools, {identity.live_identity().pid, identity.live_identity().process_start_ticks}),
      reporter(pools, *options, identity, report_path, trace, page) {
  const bool may_choose = options->ipc == config::IpcMode::automatic && options->backing == config::Backing::automatic;
  if (may_choose && export_hints::reason() != nullptr) pools.keep_to_segments();
  if (needs_segments(api)) pools.keep_to_segments();
  if (export_hints::may_export_ranges()) pools.begin_on_host_pages();
}

/// Serves the request in the live page's word, one thread at a time, and sets the word to 0 when it is done.
void Process::serve_request() noexcept {
  if (serving_request_.exchange(true, std::memory_order_acquire)) return;
  const Unnoticed unnoticed;
  std::atomic<std::uint32_t>& word = page.header().request;
  const auto asked = static_cast<observe::LiveRequest>(word.load(std::memory_order_acquire));
  try {
    if (asked == observe::LiveRequest::trim) pools.trim();
    if (asked == observe::LiveRequest::report) {
      pools.note_graph_memory();
      reporter.write_requested();
    }
  } catch (...) {  // host memory is out: the request is dropped
  }
  word.store(0, std::memory_order_release);
  serving_request_.store(false, std::memory_order_release);
}

std::unique_ptr<config::Options> load_options() {
  std::vector<std::string_view> environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "CUPOOL_", 7) == 0) environment.emplace_back(*entry);
  }
  return std::make_unique<config::Options>(config::load(environment));
}

void make_process(const DriverApi& api, int driver_version, std::unique_ptr<config::Options> options) {
  g_process.store(new (g_storage) Process(api, driver_version, std::move(options)), std::memory_order_release);
}

}  // namespace cupool::shim
