// One line to the user: "cupool[pid]: …", by one write(2), to stderr or CUPOOL_LOG_FILE; never stdout.
//
// Silent until open() has been called (a process that never uses CUDA prints nothing) and in a forked child. Never
// throws, never takes a lock while writing, keeps errno. Thread-safe. The only user of spdlog.
#pragma once

#include <string_view>

#include "config/options.hpp"

namespace cupool::shim::log {

/// Level and file of `options`, which say so if the file cannot be opened. Called once, while the process goes live.
void open(config::Options& options);

/// Is what has this level printed? Under CUPOOL_LOG=off nothing is.
bool says(config::LogLevel level);

void say(config::LogLevel level, std::string_view line);
void debug(std::string_view line);
void info(std::string_view line);
void warn(std::string_view line);

/// `text` as it is, several lines in one write; for the out-of-memory block, which carries its own prefix.
void block(config::LogLevel level, std::string_view text);

}  // namespace cupool::shim::log
