// The spellings of the one-word options. See choices.hpp; the words themselves stand in options.def.
#include "config/choices.hpp"

#include <cstddef>

namespace cupool::config {
namespace {

constexpr Choice kPolicyChoices[] = {
#define POLICY(word, spelling, doc) {static_cast<std::uint8_t>(Policy::word), spelling, false},
#include "config/options.def"
};
constexpr Choice kBackingChoices[] = {
#define BACKING(word, spelling, doc) {static_cast<std::uint8_t>(Backing::word), spelling, false},
#include "config/options.def"
};
constexpr Choice kFreeModeChoices[] = {
#define FREE_MODE(word, spelling, doc) {static_cast<std::uint8_t>(FreeMode::word), spelling, false},
#include "config/options.def"
};
constexpr Choice kIpcModeChoices[] = {
#define IPC_MODE(word, spelling, doc) {static_cast<std::uint8_t>(IpcMode::word), spelling, false},
#include "config/options.def"
};
constexpr Choice kStackModeChoices[] = {
#define STACK_MODE(word, spelling, doc) {static_cast<std::uint8_t>(StackMode::word), spelling, false},
#include "config/options.def"
};
constexpr Choice kLogLevelChoices[] = {
#define LOG_LEVEL(word, spelling, doc) {static_cast<std::uint8_t>(LogLevel::word), spelling, false},
#define LOG_ALIAS(word, spelling) {static_cast<std::uint8_t>(LogLevel::word), spelling, true},
#include "config/options.def"
};

const char* spelling_of(std::span<const Choice> choices, std::uint8_t value) {
  for (const Choice& choice : choices) {
    if (choice.value == value) return choice.spelling;  // aliases stand after the words
  }
  return "";
}

}  // namespace

std::span<const Choice> choices_of(Policy) { return kPolicyChoices; }
std::span<const Choice> choices_of(Backing) { return kBackingChoices; }
std::span<const Choice> choices_of(FreeMode) { return kFreeModeChoices; }
std::span<const Choice> choices_of(IpcMode) { return kIpcModeChoices; }
std::span<const Choice> choices_of(StackMode) { return kStackModeChoices; }
std::span<const Choice> choices_of(LogLevel) { return kLogLevelChoices; }

const char* name_of(Policy value) { return spelling_of(kPolicyChoices, static_cast<std::uint8_t>(value)); }
const char* name_of(Backing value) { return spelling_of(kBackingChoices, static_cast<std::uint8_t>(value)); }
const char* name_of(FreeMode value) { return spelling_of(kFreeModeChoices, static_cast<std::uint8_t>(value)); }
const char* name_of(IpcMode value) { return spelling_of(kIpcModeChoices, static_cast<std::uint8_t>(value)); }
const char* name_of(StackMode value) { return spelling_of(kStackModeChoices, static_cast<std::uint8_t>(value)); }
const char* name_of(LogLevel value) { return spelling_of(kLogLevelChoices, static_cast<std::uint8_t>(value)); }

}  // namespace cupool::config
