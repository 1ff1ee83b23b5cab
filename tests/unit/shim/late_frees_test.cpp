// Frees that had to wait: each is booked exactly once.
#include "shim/late_frees.hpp"

#include <catch2/catch.hpp>

#include <map>
#include <thread>
#include <vector>

using cupool::shim::LateFrees;

TEST_CASE("a drained list is empty and every address came once") {
  LateFrees late;
  CHECK(late.empty());
  late.push(1);
  late.push(2);
  CHECK_FALSE(late.empty());
  std::vector<CUdeviceptr> seen;
  late.drain([&](CUdeviceptr address) { seen.push_back(address); });
  CHECK(late.empty());
  CHECK(seen == std::vector<CUdeviceptr>{2, 1});
}

TEST_CASE("pushes and drains of several threads lose nothing and double nothing") {
  constexpr int kThreads = 4;
  constexpr int kEach = 5000;
  LateFrees late;
  std::vector<std::vector<CUdeviceptr>> taken(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        late.push(static_cast<CUdeviceptr>(t * kEach + i + 1));
        if (i % 7 == 0) late.drain([&](CUdeviceptr address) { taken[static_cast<std::size_t>(t)].push_back(address); });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  late.drain([&](CUdeviceptr address) { taken[0].push_back(address); });
  std::map<CUdeviceptr, int> count;
  for (const auto& part : taken) {
    for (const CUdeviceptr address : part) ++count[address];
  }
  CHECK(count.size() == static_cast<std::size_t>(kThreads * kEach));
  bool each_once = true;
  for (const auto& [address, times] : count) each_once = each_once && times == 1;
  CHECK(each_once);
}
