// See identity.hpp. Sources: proc(5).
#include "shim/identity.hpp"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <memory>
#include <optional>

namespace cupool::shim {
namespace {

constexpr std::size_t kCommandBytesMax = 64 * 1024;  ///< of the command line, that are kept for the report

/// Up to `bytes_max` bytes of a file, or a little more: it is read by whole chunks. Empty where it cannot be opened.
std::string read_file(const char* path, std::size_t bytes_max) {
  std::string text;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  char chunk[512];  // threads have small stacks
  ssize_t got = 0;
  while (text.size() < bytes_max && (got = read(file, chunk, sizeof chunk)) > 0) text.append(chunk, static_cast<std::size_t>(got));
  close(file);
  return text;
}

/// The arguments in /proc/<pid>/cmdline, each of which ends with a NUL.
std::vector<std::string> words_of(const std::string& raw) {
  std::vector<std::string> command;
  for (std::size_t begin = 0; begin < raw.size();) {
    const std::size_t end = std::min(raw.find('\0', begin), raw.size());
    command.push_back(raw.substr(begin, end - begin));
    begin = end + 1;
  }
  return command;
}

std::string rank_of_environment() {
  for (const char* variable : {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"}) {
    if (const char* value = secure_getenv(variable); value != nullptr && *value != '\0') return value;
  }
  return "";
}

std::uint64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

std::optional<std::string> variable(std::string_view name) {
  const char* value = secure_getenv(std::string(name).c_str());
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

std::optional<int> parse_rank(const std::string& text) {
  int rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional<int>(rank) : std::nullopt;
}

}  // namespace

std::uint64_t start_ticks_of(int pid) {
  const std::string text = read_file(("/proc/" + std::to_string(pid) + "/stat").c_str(), 4096);
  std::size_t at = text.rfind(')');  // field 2 is the name in parentheses, which may hold anything; field 3 begins behind the last ')'
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  if (at == std::string::npos) return 0;
  std::uint64_t ticks = 0;
  std::from_chars(text.data() + at + 1, text.data() + text.size(), ticks);
  return ticks;
}

std::uint64_t unix_now_ns() { return clock_ns(CLOCK_REALTIME); }
std::uint64_t monotonic_now_ns() { return clock_ns(CLOCK_MONOTONIC); }

Identity::Identity(const char* cupool_version, int driver_version)
    : cupool_version_(cupool_version), driver_version_(driver_version), rank_(rank_of_environment()) {
  std::string command = read_file("/proc/self/cmdline", kCommandBytesMax + 1);
  is_command_cut_ = command.size() > kCommandBytesMax;
  if (is_command_cut_) command.resize(kCommandBytesMax);
  command_ = words_of(command);
  live_.pid = getpid();
  live_.process_start_ticks = start_ticks_of(live_.pid);
  const std::uint64_t ticks_per_second = static_cast<std::uint64_t>(sysconf(_SC_CLK_TCK));
  const std::uint64_t up_ns = clock_ns(CLOCK_BOOTTIME);
  const std::uint64_t started_ns = live_.process_start_ticks * (1'000'000'000U / ticks_per_second);
  const std::uint64_t age_ns = live_.process_start_ticks != 0 && up_ns > started_ns ? up_ns - started_ns : 0;
  live_.start_unix_ns = unix_now_ns() - age_ns;
  live_.start_monotonic_ns = clock_ns(CLOCK_MONOTONIC) - age_ns;
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  host_ = host;
}

observe::ProcessFacts Identity::facts() const {
  observe::ProcessFacts facts;
  facts.pid = live_.pid;
  facts.command = command_;
  facts.is_command_cut = is_command_cut_;
  facts.host = host_;
  facts.rank = parse_rank(rank_);
  facts.cupool_version = cupool_version_;
  facts.driver_version = driver_version_;
  facts.start_unix_ns = live_.start_unix_ns;
  facts.duration_ns = clock_ns(CLOCK_MONOTONIC) - live_.start_monotonic_ns;
  return facts;
}

std::string Identity::expand(std::string_view pattern) const {
  const config::PatternFacts facts{live_.pid, host_, rank_.empty() ? "0" : rank_};
  if (auto path = config::expand_pattern(pattern, facts, &variable)) return *path;
  return config::expand_pattern(config::Options{}.report, facts, &variable).value_or("cupool-report.json");
}

std::string Identity::expand_path(std::string_view pattern) const {
  const config::PatternFacts facts{live_.pid, host_, rank_.empty() ? "0" : rank_};
  const std::optional<std::string> path = config::expand_pattern(pattern, facts, &variable);
  return in_current_folder(path.value_or(""));
}

std::string in_current_folder(const std::string& path) {
  if (path.empty() || path.front() == '/') return path;
  const std::unique_ptr<char, decltype(&std::free)> folder(getcwd(nullptr, 0), &std::free);
  if (folder == nullptr) return path;
  const std::string start = folder.get();
  return start == "/" ? start + path : start + "/" + path;
}

void settle_patterns(config::Options& options) {
  const auto settle = [&options](const char* name, const char* shown, const std::string& pattern) {
    if (pattern.find("%q") == std::string::npos) return;  // without a variable it names a file, as was checked when it was read
    if (config::expand_pattern(pattern, {getpid(), "host", "0"}, &variable)) return;
    options.fall_back(name, std::string(shown) + "=" + pattern + ": names no file here (is the variable set?)");
  };
  settle("report", "CUPOOL_REPORT", options.report);
  settle("trace", "CUPOOL_TRACE", options.trace);
}

std::vector<observe::OptionFact> option_facts(const config::Options& options) {
  std::vector<observe::OptionFact> facts;
  facts.reserve(options.facts.size());
  for (const config::OptionFact& fact : options.facts) {
    facts.push_back({fact.name, fact.value, fact.source == config::Source::environment ? "env" : "default"});
  }
  return facts;
}

}  // namespace cupool::shim
