// spdlog without its registry, threads, pattern formatter and destructors: one logger that is built in place and never destroyed, with our own sink.
#include "shim/log.hpp"

#ifndef SPDLOG_FMT_EXTERNAL
#define SPDLOG_FMT_EXTERNAL
#endif
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <spdlog/logger.h>
#include <poll.h>
#include <spdlog/sinks/sink.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <memory>
#include <new>
#include <string>

#include "shim/identity.hpp"
#include "shim/log_file.hpp"
#include "shim/log_line.hpp"
#include "shim/standard_error.hpp"
#include "shim/unnoticed.hpp"

namespace cupool::shim::log {
namespace {

alignas(LogFile) std::byte g_file_storage[sizeof(LogFile)];
constinit std::atomic<LogFile*> g_file{nullptr};  ///< nullptr: stderr

/// Waits a moment until `descriptor` takes bytes. A pipe that stays full because nobody reads it must not hold up an allocation.
bool takes_more(int descriptor) {
  constexpr int kPatience_ms = 100;
  pollfd asked{descriptor, POLLOUT, 0};
  int ready = ::poll(&asked, 1, kPatience_ms);
  if (ready < 0 && errno == EINTR) ready = ::poll(&asked, 1, 0);
  return ready != 0;  // where poll fails, the write will tell
}

/// Writes `text`; returns the rest that could not be written.
std::string_view write_whole(int descriptor, std::string_view text) {
  while (!text.empty() && takes_more(descriptor)) {
    const ssize_t written = ::write(descriptor, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return text;
}

/// Writes to the log file or stderr. What a file does not take any more (a full disk) goes to stderr: the user is to know it.
void write_out(std::string_view text) {
  const Unnoticed unnoticed;  // a closed pipe or a full quota must not raise a signal
  LogFile* file = g_file.load(std::memory_order_acquire);
  const int descriptor = file != nullptr ? file->descriptor() : standard_error();
  const std::string_view left = descriptor >= 0 ? write_whole(descriptor, text) : std::string_view();
  if (left.empty() || file == nullptr) return;
  if (const int instead = standard_error(); instead >= 0) write_whole(instead, text);  // with its prefix, also where the file has a part of it
}

/// Formats nothing but the prefix, so that a line is one write and no clock or locale is touched.
class DescriptorSink final : public spdlog::sinks::sink {
 public:
  explicit DescriptorSink(int pid) : pid_(pid) {}

  void log(const spdlog::details::log_msg& message) override {
    if (getpid() != pid_) return;  // a forked child: its parent speaks for itself
    std::string line = "cupool[" + std::to_string(pid_) + "]: ";
    if (message.level >= spdlog::level::warn) line += message.level == spdlog::level::warn ? "warning: " : "error: ";
    line += one_line(std::string_view(message.payload.data(), message.payload.size()));
    line += '\n';
    write_out(line);
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

 private:
  int pid_;
};

alignas(spdlog::logger) std::byte g_storage[sizeof(spdlog::logger)];
constinit std::atomic<spdlog::logger*> g_logger{nullptr};

spdlog::level::level_enum spdlog_level(config::LogLevel level) {
  switch (level) {
    case config::LogLevel::trace: return spdlog::level::trace;
    case config::LogLevel::debug: return spdlog::level::debug;
    case config::LogLevel::info: return spdlog::level::info;
    case config::LogLevel::warn: return spdlog::level::warn;
    case config::LogLevel::error: return spdlog::level::err;
    case config::LogLevel::off: return spdlog::level::off;
  }
  return spdlog::level::warn;
}

}  // namespace

void open(config::Options& options) {
  if (!options.log_file.empty()) {
    auto* file = new (g_file_storage) LogFile(Identity().expand_path(options.log_file));
    if (file->is_open()) g_file.store(file, std::memory_order_release);
    else options.fall_back("log_file", "cannot open CUPOOL_LOG_FILE " + file->path() + ": " + file->reason());
  }
  auto* logger = new (g_storage) spdlog::logger("cupool", std::make_shared<DescriptorSink>(getpid()));
  logger->set_level(spdlog_level(options.log));
  g_logger.store(logger, std::memory_order_release);
}

bool says(config::LogLevel level) {
  const spdlog::logger* logger = g_logger.load(std::memory_order_acquire);
  return logger != nullptr && logger->should_log(spdlog_level(level));
}

void say(config::LogLevel level, std::string_view line) {
  spdlog::logger* logger = g_logger.load(std::memory_order_acquire);
  if (logger != nullptr) logger->log(spdlog_level(level), spdlog::string_view_t(line.data(), line.size()));
}

void debug(std::string_view line) { say(config::LogLevel::debug, line); }
void info(std::string_view line) { say(config::LogLevel::info, line); }
void warn(std::string_view line) { say(config::LogLevel::warn, line); }

void block(config::LogLevel level, std::string_view text) {
  if (says(level)) write_out(text);
}

}  // namespace cupool::shim::log
