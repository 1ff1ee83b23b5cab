// See reporter.hpp. A report is a snapshot, then a JSON file, then a line to the user.
#include "shim/reporter.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <string_view>

#include "pool/observe/report_file.hpp"
#include "pool/observe/trusted_path.hpp"
#include "shim/log.hpp"
#include "shim/standard_error.hpp"
#include "shim/unnoticed.hpp"

namespace cupool::shim {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kOomReportsMax = 8;
// A job that runs out of memory again and again spends at most a tenth of its time on reports that replace the last one. Of that it may use half a
// second at once, because the failure that ends the job often comes right behind another.
constexpr std::uint64_t kReplaceShare = 10;
constexpr std::uint64_t kReplaceAhead_ns = 5'000'000'000;
constexpr std::uint64_t kLeastBetweenLines_ns = 5'000'000'000;
constexpr milliseconds kLockBudget{500};  ///< most that a report waits for locks which other threads hold
constexpr std::uint64_t kWriteBudget_ns = 4'000'000'000;
constexpr std::uint64_t kOomWriteBudget_ns = 2'000'000'000;

thread_local int t_writing = 0;  ///< reports that this thread is writing: not 0 at the exit only where a signal handler ends the process

/// Takes `lock` within `budget`; false: it was not free. std::timed_mutex is not used, because older sanitizers do not know the function that
/// libstdc++ makes of it (pthread_mutex_clocklock) and then complain about the unlock.
bool lock_within(std::unique_lock<std::mutex>& lock, std::chrono::nanoseconds budget) {
  constexpr timespec kPause{0, 100'000};
  const auto until = std::chrono::steady_clock::now() + budget;
  while (!lock.try_lock()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    nanosleep(&kPause, nullptr);
  }
  return true;
}

/// Sets final_of_series in the last OOM report of the process. In place and with the same length ("false" -> "true "), so that the file is never half
/// written.
void mark_final(const std::string& path) {
  const observe::WriteSignals signals;
  const int file = observe::open_file(path, O_RDWR);
  if (file < 0) return;
  constexpr std::string_view kKey = "\"final_of_series\"";
  std::array<char, 4096> head{};  // the key stands in the report's first lines
  const ssize_t got = pread(file, head.data(), head.size(), 0);
  const std::string_view text(head.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  const std::size_t key = text.find(kKey);
  const std::size_t value = key == std::string_view::npos ? key : text.find("false", key);
  if (value != std::string_view::npos && value - key < kKey.size() + 4) {
    [[maybe_unused]] const ssize_t written = pwrite(file, "true ", 5, static_cast<off_t>(value));
  }
  close(file);
}

}  // namespace

Reporter::Writing::Writing(Reporter& reporter) : reporter_(reporter) {
  reporter_.writers_.fetch_add(1);
  begun_ = !reporter_.closed_.load();  // after the count: either it is seen here, or the count there
  if (begun_) ++t_writing;
  else reporter_.writers_.fetch_sub(1);
}

Reporter::Writing::~Writing() {
  if (!begun_) return;
  --t_writing;
  reporter_.writers_.fetch_sub(1, std::memory_order_release);
}

/// At the exit: lets no report begin any more, and waits a bounded time for other threads that are writing one, whose file would be cut off.
void Reporter::await_writers() noexcept {
  constexpr timespec kPause{0, 100'000};
  closed_.store(true);
  // Pauses are counted, because the program's clock may stand still.
  for (std::uint64_t i = 0; i < kOomWriteBudget_ns / kPause.tv_nsec && writers_.load() > t_writing; ++i) nanosleep(&kPause, nullptr);
}

observe::ReportInput Reporter::input(observe::ReportEvent event, std::chrono::nanoseconds lock_budget) {
  observe::ReportInput input;
  input.event = event;
  input.process = identity_.facts();
  input.options = option_facts(options_);
  input.snapshot = pools_.snapshot(lock_budget);
  input.snapshot.dropped_events += trace_.dropped();
  input.warnings = options_.warnings;
  pass_messages();
  if (std::unique_lock lock(warnings_mutex_, std::defer_lock); lock_within(lock, lock_budget)) {
    input.warnings.insert(input.warnings.end(), warnings_.begin(), warnings_.end());
  } else {
    input.snapshot.complete = false;
  }
  if (std::string warning = trace_.warning(); !warning.empty()) input.warnings.push_back(std::move(warning));
  return input;
}

void Reporter::take_messages() noexcept {
  try {
    for (Message& message : pools_.take_messages()) {
      log::say(message.level, message.text);
      if (message.level < config::LogLevel::warn) continue;
      const std::lock_guard lock(warnings_mutex_);
      warnings_.push_back(std::move(message.text));
    }
  } catch (...) {  // no memory for a line: it is lost
  }
}

/// Has the program removed the folder that it ran in (or left it by chroot)? It is not made again for a report whose pattern names no folder.
bool Reporter::is_folder_gone(const std::string& path) const {
  const std::size_t slash = path.rfind('/');
  if (options_.report.find('/') != std::string::npos || slash == std::string::npos || slash == 0) return false;
  return access(path.substr(0, slash).c_str(), F_OK) != 0 && errno == ENOENT;
}

bool Reporter::write(const observe::ReportInput& input, const std::string& path, std::uint64_t deadline_unix_ns) {
  // If the exit report would go to a device, no file is made beside it either: no /dev/null.oom1.
  int error = path != path_ ? observe::check_replaceable_at(AT_FDCWD, path_.c_str()) : 0;
  if (error == 0 && path != "stderr" && is_folder_gone(path)) error = ENOENT;
  if (error == 0)
    error =
        path == "stderr" ? observe::write_report_fd(input, standard_error(), deadline_unix_ns) : observe::write_report(input, path, deadline_unix_ns);
  if (error != 0)
    log::warn("no report: " + path + ": " +
              (error == EEXIST ? "not a regular file (`stderr` and `none` are names of their own)" : observe::reason_of(error)));
  else if (path != "stderr") log::info("report: " + path);
  return error == 0;
}

/// Tells the user about the report's last OOM: some ten lines, or only the first of them once reports replace each other.
void Reporter::tell(const observe::ReportInput& input, const std::string& path, std::uint64_t k) {
  if (!log::says(config::LogLevel::warn) || input.snapshot.ooms.empty()) return;
  const observe::OomRecord& oom = input.snapshot.ooms.back();
  const observe::DeviceSnapshot* device = nullptr;
  for (const observe::DeviceSnapshot& candidate : input.snapshot.devices) {
    if (candidate.ordinal == oom.device) device = &candidate;
  }
  std::string text = observe::oom_message(oom, observe::classify(oom.evidence, input.options), input.process, device, path);
  if (k > kOomReportsMax) {
    text.resize(text.find('\n'));
    text += ", number " + std::to_string(k) + (path.empty() ? "" : ": " + path) + "\n";
  }
  log::block(config::LogLevel::warn, text);
}

/// May this OOM's report replace the last one? A search for the largest batch meets hundreds of OOMs, and the one that ends a job is the last: so the
/// newest replaces the last file, within the time that this may cost, by one thread at a time.
bool Reporter::may_replace(std::uint64_t now_ns) {
  return now_ns >= next_replace_ns_.load(std::memory_order_relaxed) && !replacing_oom_.exchange(true, std::memory_order_acquire);
}

/// Reports the calling thread's own failure, if it has not been told yet. Other threads may have failed before it and since.
void Reporter::report_oom() {
  const std::uint64_t k = pools_.take_untold_oom();
  if (k == 0) return;
  std::uint64_t newest = newest_oom_.load(std::memory_order_relaxed);
  while (newest < k && !newest_oom_.compare_exchange_weak(newest, k, std::memory_order_relaxed)) {}
  const std::uint64_t began_ns = monotonic_now_ns();
  const bool is_new = k <= kOomReportsMax;
  if (!is_new && (k < newest || !may_replace(began_ns))) return;
  struct End {
    std::atomic<bool>* replacing;
    ~End() {
      if (replacing != nullptr) replacing->store(false, std::memory_order_release);
    }
  } const end{is_new ? nullptr : &replacing_oom_};
  // Nobody would read it.
  if (path_.empty() && (!log::says(config::LogLevel::warn) || (!is_new && began_ns < next_line_ns_.load(std::memory_order_relaxed)))) return;
  const Writing writing(*this);
  if (!writing) return;
  observe::ReportInput report = input(observe::ReportEvent::oom, kLockBudget);
  std::vector<observe::OomRecord>& ooms = report.snapshot.ooms;
  const auto own = std::find_if(ooms.begin(), ooms.end(), [k](const observe::OomRecord& oom) { return oom.number == k; });
  if (own != ooms.end()) ooms.erase(own + 1, ooms.end());  // the report is about the last one in it
  std::string path = path_.empty() || path_ == "stderr" ? path_ : config::oom_name(path_, static_cast<int>(std::min(k, kOomReportsMax)));
  if (path == "stderr" && !is_new) path.clear();
  if (!path.empty() && !write(report, path, unix_now_ns() + kOomWriteBudget_ns)) path.clear();
  else if (!path.empty() && is_new) page_.header().oom_count.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t now_ns = monotonic_now_ns();
  if (is_new || now_ns >= next_line_ns_.load(std::memory_order_relaxed)) {
    tell(report, path, k);
    next_line_ns_.store(now_ns + kLeastBetweenLines_ns, std::memory_order_relaxed);
  }
  const std::uint64_t earliest_ns = now_ns - std::min(now_ns, kReplaceAhead_ns);
  next_replace_ns_.store(std::max(next_replace_ns_.load(std::memory_order_relaxed), earliest_ns) + kReplaceShare * (now_ns - began_ns),
                         std::memory_order_relaxed);
}

/// A line that needs no host memory.
void Reporter::tell_without_memory(const char* what) noexcept {
  std::array<char, 160> line{};
  const int length = std::snprintf(line.data(), line.size(), "cupool[%d]: %s, and host memory is out: no report\n", getpid(), what);
  if (length > 0) log::block(config::LogLevel::error, std::string_view(line.data(), static_cast<std::size_t>(length)));
}

void Reporter::after_oom() noexcept {
  const Unnoticed unnoticed;
  try {
    report_oom();
  } catch (...) {
    if (newest_oom_.load(std::memory_order_relaxed) <= kOomReportsMax) tell_without_memory("out of memory on the GPU");
  }
}

void Reporter::write_requested() noexcept {
  const Unnoticed unnoticed;
  const Writing writing(*this);
  if (!writing) return;
  try {
    const int k = requested_reports_.fetch_add(1, std::memory_order_relaxed) + 1;
    const std::string path = path_.empty() || path_ == "stderr" ? path_ : config::numbered_name(path_, "request", k);
    if (!path.empty()) write(input(observe::ReportEvent::request, kLockBudget), path, unix_now_ns() + kOomWriteBudget_ns);
  } catch (...) {  // host memory is out: whoever asked sees that no report has come
  }
}

bool Reporter::write_exit(std::optional<int> exit_code) noexcept {
  await_writers();
  try {
    if (!pools_.used() || path_.empty()) return true;
    observe::ReportInput report = input(observe::ReportEvent::exit, kLockBudget);
    report.process.exit_code = exit_code;
    const auto ooms = static_cast<int>(std::min(newest_oom_.load(std::memory_order_relaxed), kOomReportsMax));
    if (ooms > 0 && path_ != "stderr") mark_final(config::oom_name(path_, ooms));
    return write(report, path_, unix_now_ns() + kWriteBudget_ns);
  } catch (...) {
    tell_without_memory("at the exit");
    return false;
  }
}

}  // namespace cupool::shim
