// The program around a peer's allocators: `play` is the recorded jobs of replay (player.hpp), `pairs` the pairs of hot_path (pairs.hpp),
// there each thread on a stream of its own. The words after it are theirs.
#include <cstdio>
#include <cstring>

#include "tests/bench/cuda_streams.hpp"
#include "tests/bench/pairs.hpp"
#include "tests/bench/peers/peer.hpp"
#include "tests/bench/player.hpp"

int main(int argc, char** argv) {
  using namespace bench;
  if (argc > 1 && std::strcmp(argv[1], "play") == 0) {
    return play_main(
        argc - 1, argv + 1, kPeerAllocators, [](const Order& order) { return open_peer(order.allocator); }, cuda_copies());
  }
  if (argc > 1 && std::strcmp(argv[1], "pairs") == 0) return pairs_main(argc - 1, argv + 1, &open_peer);
  std::fprintf(stderr, "usage: %s play|pairs ...\n", argv[0]);
  return kExitUsage;
}
