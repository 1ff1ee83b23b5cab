// Plays a recorded job through an allocator: the main program of replay and of the peers' players.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "allocator.hpp"

namespace bench {

constexpr int kExitBadTrace = 1;
constexpr int kExitUsage = 2;
constexpr int kExitOutOfMemory = 3;
constexpr int kExitCorrupt = 4;
constexpr int kExitCudaError = 5;

/// What the program was asked for.
struct Order {
  std::string path;
  std::string allocator;   ///< "" where none was named
  bool verify = false;     ///< stamp every block and check it before its free
  bool free_rest = false;  ///< free what the job left
  bool json = false;
  std::uint64_t frees_behind = 0;  ///< see DeviceWork; 0: no work on the device
  std::uint64_t steps = 1;         ///< the job is played so often; what the first time leaves stays, and is not allocated again
  bool wait_each_step = false;     ///< for the device, at the end of each
};

/// How --verify reaches a block's bytes.
struct Copies {
  std::function<void(void* device, const void* host, std::size_t bytes)> to_device;
  std::function<void(void* host, const void* device, std::size_t bytes)> to_host;
};

/// Parses the arguments, plays, prints one line. `open` makes the allocator and whatever it needs; null: no allocator has that name.
int play_main(int argc, char** argv, const char* allocator_names, const std::function<std::unique_ptr<Allocator>(const Order&)>& open,
              const Copies& copies);

}  // namespace bench
