// The options that are one word of a few: their enums and spellings, generated from options.def.
//
// Thread rule: constants only.
#pragma once

#include <cstdint>
#include <span>

namespace cupool::config {

#define CUPOOL_ENUMERATOR(word, spelling, doc) word,
enum class Policy : std::uint8_t {
#define POLICY CUPOOL_ENUMERATOR
#include "config/options.def"
};
enum class Backing : std::uint8_t {
#define BACKING CUPOOL_ENUMERATOR
#include "config/options.def"
};
enum class FreeMode : std::uint8_t {
#define FREE_MODE CUPOOL_ENUMERATOR
#include "config/options.def"
};
enum class IpcMode : std::uint8_t {
#define IPC_MODE CUPOOL_ENUMERATOR
#include "config/options.def"
};
enum class StackMode : std::uint8_t {
#define STACK_MODE CUPOOL_ENUMERATOR
#include "config/options.def"
};
enum class LogLevel : std::uint8_t {
#define LOG_LEVEL CUPOOL_ENUMERATOR
#include "config/options.def"
};
#undef CUPOOL_ENUMERATOR

/// How a variable spells the value: "auto" for Backing::automatic. Never null for a value of the enum.
const char* name_of(Policy value);
const char* name_of(Backing value);
const char* name_of(FreeMode value);
const char* name_of(IpcMode value);
const char* name_of(StackMode value);
const char* name_of(LogLevel value);

/// One spelling of one value; an alias is understood but never shown.
struct Choice {
  std::uint8_t value;
  const char* spelling;
  bool is_alias;
};

/// Every spelling, in the order that is shown. The argument only selects the enum.
std::span<const Choice> choices_of(Policy);
std::span<const Choice> choices_of(Backing);
std::span<const Choice> choices_of(FreeMode);
std::span<const Choice> choices_of(IpcMode);
std::span<const Choice> choices_of(StackMode);
std::span<const Choice> choices_of(LogLevel);

}  // namespace cupool::config
