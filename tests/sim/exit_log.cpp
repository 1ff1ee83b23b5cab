// {"pid":…, "calls":{symbol:n}, "violations":[…], "devices":[{"used_bytes":…,"allocations":…}]}
#include "tests/sim/exit_log.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "tests/sim/simulator.hpp"

namespace cusim {
namespace {

std::string quoted(const char* text) {
  std::string out = "\"";
  for (; *text != '\0'; ++text) {
    const auto byte = static_cast<unsigned char>(*text);
    if (*text == '"' || *text == '\\') out += '\\';
    if (byte < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(byte));
      out += escape;
    } else {
      out += *text;
    }
  }
  return out + "\"";
}

std::string log_text(Simulator& sim) {
  std::string text = "{\"pid\": " + std::to_string(getpid()) + ", \"calls\": {";
  const char* separator = "";
  for (std::size_t i = 0; i < kSymbolCount; ++i) {
    const auto symbol = static_cast<Symbol>(i);
    if (sim.ledger.calls(symbol) == 0) continue;
    text += separator + quoted(symbol_row(symbol).symbol) + ": " + std::to_string(sim.ledger.calls(symbol));
    separator = ", ";
  }
  text += "}, \"violations\": [";
  separator = "";
  // Counted once: other threads may go on calling, and so violating, until the process is gone.
  const std::size_t count = sim.ledger.violation_count();
  const std::size_t kept = std::min(count, Ledger::kKeptViolations);
  for (std::size_t i = 0; i < kept; ++i) {
    text += separator + quoted(sim.ledger.violation(i));
    separator = ", ";
  }
  if (count > kept) text += separator + quoted(("and " + std::to_string(count - kept) + " violations more").c_str());
  text += "], \"devices\": [";
  separator = "";
  for (const auto& device : sim.devices) {
    text += separator + std::string("{\"used_bytes\": ") + std::to_string(device->memory.used_bytes()) +
            ", \"allocations\": " + std::to_string(device->memory.allocation_count()) + "}";
    separator = ", ";
  }
  return text + "]}\n";
}

}  // namespace

void write_exit_log() {
  Simulator& sim = Simulator::instance();
  if (sim.settings.log_path.empty() || sim.forked) return;
  // Other threads may go on calling until the process is gone; one that waits for the host keeps the lock.
  Lock lock(sim.mutex, std::try_to_lock);
  for (int tries = 0; tries < 2000 && !lock.owns_lock(); ++tries) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    static_cast<void>(lock.try_lock());
  }
  if (!lock.owns_lock()) return;
  std::string path = sim.settings.log_path;
  if (const std::size_t at = path.find("%p"); at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    std::perror("cusim: CUSIM_LOG");
    return;
  }
  const std::string text = log_text(sim);
  std::fwrite(text.data(), 1, text.size(), file);
  std::fclose(file);
}

}  // namespace cusim
