// Virtual time: whoever pauses in this process moves the simulated GPU's clock instead, so that runs are fast and always the same.
//
// The program defines clock_gettime and nanosleep, which every library of the process then uses. A pause of the simulated driver itself means that a
// host call waits for work that waits for the host: somebody must let go of it.
#pragma once

#include <cstdint>

namespace explorer {

class Program;

namespace virtual_time {

/// Of the machine, for figures.
double real_seconds();
void attach(Program* program);
/// An operation begins: its pauses are counted from here.
void begin_operation();
/// Is `caller`, an address in code, the simulated driver's?
bool is_driver(const void* caller);
void pause(std::uint64_t duration_ns, void* caller);
std::uint64_t now_ns();
/// So long a thread pauses before somebody else lets go of what waits for him: work of other threads' frees is over some time.
inline constexpr std::uint64_t kOthersTime_ns = 1'500'000'000;
/// Longer than any bound that a library may have for its own waits, and for what others let go of.
inline constexpr std::uint64_t kLongestPause_ns = 10'000'000'000;

}  // namespace virtual_time
}  // namespace explorer
