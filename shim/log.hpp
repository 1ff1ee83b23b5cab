// Log lines for the user: "cupool[pid]: ...", each by one write(2), to stderr or CUPOOL_LOG_FILE; never to stdout.
//
// Silent until open() has been called, so that a process that never uses CUDA prints nothing, and in a forked child. Never throws, takes no lock
// while writing, keeps errno. Thread-safe. The only user of spdlog.
#pragma once

#include <string_view>

#include "config/options.hpp"

namespace cupool::shim::log {

/// Takes level and file from `options`, and adds a warning to them if the file cannot be opened. Called once, while the process goes live.
void open(config::Options& options);

/// Are lines of this level printed? Under CUPOOL_LOG=off none are.
bool says(config::LogLevel level);

void say(config::LogLevel level, std::string_view line);
void debug(std::string_view line);
void info(std::string_view line);
void warn(std::string_view line);

/// Writes `text` as it is, several lines in one write, if lines of this level are printed: for the out-of-memory message, which has its own prefix.
void block(config::LogLevel level, std::string_view text);

}  // namespace cupool::shim::log
