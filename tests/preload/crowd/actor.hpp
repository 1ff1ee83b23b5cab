// One thread of the crowd. What it does and what it must be answered follows from its seed alone, whatever the others do meanwhile:
// it uses its own blocks, streams, contexts and pools, and shares the devices, their primary contexts and their memory.
#pragma once

#include <cuda.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace crowd {

inline constexpr std::size_t kKiB = 1024;
inline constexpr std::size_t kMiB = 1024 * kKiB;

struct Settings {
  std::uint64_t seed = 0;
  int steps = 0;
  int threads = 0;
  int devices = 1;
  std::size_t bytes = 0;  ///< that each thread holds at most
  bool is_tight = false;  ///< nothing that keeps memory on purpose or takes it elsewhere
};

struct Block {
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  int device = 0;
  int stream = -1;          ///< of a stream-ordered one: all work on it goes there; -1: plain
  int value = -1;           ///< of every byte; -1: never written
  bool is_private = false;  ///< of the thread's own context; a stream-ordered one outlives it
};

/// What the threads share. A block goes from one thread to the next one's box and is verified and freed there.
class Crowd {
 public:
  explicit Crowd(const Settings& settings);
  const Settings& settings() const { return settings_; }
  CUcontext primary(int device) const { return primaries_[static_cast<std::size_t>(device)]; }
  CUmemoryPool pool(int device) const { return pools_[static_cast<std::size_t>(device)]; }
  void post(int thread, int step, const Block& block);
  Block take(int thread, int step);  ///< waits for it
  /// Two live blocks never overlap, whoever holds them. False: they do.
  bool enter(const Block& block);
  void leave(const Block& block);
  void close();

 private:
  Settings settings_;
  std::vector<CUcontext> primaries_;
  std::vector<CUmemoryPool> pools_;
  std::mutex mutex_;
  std::condition_variable posted_;
  std::map<std::pair<int, int>, Block> boxes_;
  std::map<CUdeviceptr, CUdeviceptr> live_;  ///< begin, end
};

class Actor {
 public:
  Actor(Crowd& crowd, int number);
  void run();
  const std::string& lines() const { return lines_; }

 private:
  using Operation = void (Actor::*)();
  struct Row {
    int weight;
    const char* name;
    Operation operation;
    bool is_tight;  ///< also where memory is tight
  };
  static const std::vector<Row>& rows();

  std::uint64_t below(std::uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  std::size_t draw_bytes();
  int draw_block(bool is_written);
  bool answered(const char* what, CUresult result);
  void say(const std::string& text) { line_ += " " + text; }
  bool use(const Block& block);
  CUresult call_on(CUstream stream, const std::function<CUresult()>& call);
  bool allocate_on(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool, CUstream stream);
  void free_on(CUdeviceptr address, CUstream stream);
  bool settle(const Block& block);
  void keep(const Block& block);
  void take_in_stream(CUmemoryPool pool);  ///< null: the device's current one
  void fill(Block& block);
  void verify(const Block& block);
  void free_at(std::size_t index);
  CUstream stream_of(const Block& block) const;

  void allocate();
  void allocate_pitched();
  void allocate_ordered();
  void allocate_from_pool();
  void release();
  void release_many();
  void release_wrongly();
  void write();
  void read();
  void ask();
  void ask_device();
  void hand_over();
  void create_stream();
  void destroy_stream();
  void synchronise();
  void use_event();
  void capture();
  void own_context();
  void own_stream();
  void own_memory();
  void own_pool();
  void trim();
  void map_own();
  void managed();
  void array();
  void module();
  void too_much();
  void look_up();
  void helper();

  Crowd& crowd_;
  int number_;
  int step_ = 0;
  int device_;
  std::mt19937_64 random_;
  std::size_t held_ = 0;
  CUcontext own_ = nullptr;
  std::vector<CUstream> own_streams_;  ///< of the own context; they end with it
  CUstream capturing_ = nullptr;       ///< in the own context; nobody else's call meets its capture
  std::vector<CUstream> streams_;
  std::vector<Block> blocks_;
  std::vector<CUarray> arrays_;
  std::vector<CUmodule> modules_;
  std::vector<unsigned char> bytes_;
  std::string line_;
  std::string lines_;
};

}  // namespace crowd
