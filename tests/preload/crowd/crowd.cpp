// Threads that are in the driver at once. Each prints what it was answered, in the order of its own steps.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#include "actor.hpp"

namespace crowd {

Crowd::Crowd(const Settings& settings) : settings_(settings) {
  for (int device = 0; device < settings.devices; ++device) {
    CUcontext context = nullptr;
    CUmemoryPool pool = nullptr;
    if (cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS || cuDeviceGetDefaultMemPool(&pool, device) != CUDA_SUCCESS) std::exit(3);
    primaries_.push_back(context);
    pools_.push_back(pool);
  }
}

void Crowd::post(int thread, int step, const Block& block) {
  const std::lock_guard lock(mutex_);
  boxes_[{thread, step}] = block;
  posted_.notify_all();
}

Block Crowd::take(int thread, int step) {
  std::unique_lock lock(mutex_);
  posted_.wait(lock, [&] { return boxes_.count({thread, step}) != 0; });
  const Block block = boxes_[{thread, step}];
  boxes_.erase({thread, step});
  return block;
}

bool Crowd::enter(const Block& block) {
  const std::lock_guard lock(mutex_);
  const auto next = live_.upper_bound(block.address);
  const bool is_free =
      (next == live_.end() || next->first >= block.address + block.bytes) && (next == live_.begin() || std::prev(next)->second <= block.address);
  live_[block.address] = block.address + block.bytes;
  return is_free;
}

void Crowd::leave(const Block& block) {
  const std::lock_guard lock(mutex_);
  live_.erase(block.address);
}

void Crowd::close() {
  for (int device = 0; device < settings_.devices; ++device) {
    std::printf("graph memory %d: %d\n", device, static_cast<int>(cuDeviceGraphMemTrim(device)));
    std::printf("primary %d: %d\n", device, static_cast<int>(cuDevicePrimaryCtxRelease(device)));
  }
}

}  // namespace crowd

int main(int count, char** arguments) {
  if (count != 7) {
    std::fprintf(stderr, "crowd SEED STEPS THREADS DEVICES MIB TIGHT: MIB that each thread holds at most\n");
    return 2;
  }
  const auto number = [&](int index) { return std::strtoull(arguments[index], nullptr, 10); };
  if (cuInit(0) != CUDA_SUCCESS) return 3;
  crowd::Settings settings{
      number(1), static_cast<int>(number(2)), static_cast<int>(number(3)), static_cast<int>(number(4)), number(5) * crowd::kMiB, number(6) != 0};
  crowd::Crowd crowd(settings);
  std::vector<std::unique_ptr<crowd::Actor>> actors;
  for (int i = 0; i < settings.threads; ++i) actors.push_back(std::make_unique<crowd::Actor>(crowd, i));
  std::vector<std::thread> threads;
  for (const auto& actor : actors) threads.emplace_back([&actor] { actor->run(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& actor : actors) std::fputs(actor->lines().c_str(), stdout);
  crowd.close();
  using Figure = std::size_t (*)();
  using Sentence = const char* (*)(std::size_t);
  using Used = std::uint64_t (*)(int);
  const auto violations = reinterpret_cast<Figure>(dlsym(RTLD_DEFAULT, "cusim_violation_count"));
  const auto sentence = reinterpret_cast<Sentence>(dlsym(RTLD_DEFAULT, "cusim_violation"));
  const auto used = reinterpret_cast<Used>(dlsym(RTLD_DEFAULT, "cusim_used_bytes"));
  for (std::size_t i = 0; i < violations() && i < 1000; ++i) std::printf("violation: %s\n", sentence(i));
  for (int device = 0; device < settings.devices; ++device)
    std::printf("end: device %d used %llu\n", device, static_cast<unsigned long long>(used(device)));
  std::fflush(stdout);
  if (settings.seed % 2 != 0) _exit(0);
  return 0;
}
