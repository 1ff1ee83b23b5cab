// LivePage: the file behind the live page, <pid>.<start ticks> in the user's own folder in shared memory, which can be read after SIGKILL.
//
// It is mapped when the process goes live, gets its name only when device memory is first asked for (publish), and loses it at a normal end (retire).
// Its space is reserved up front: where /dev/shm is full the page is anonymous memory without a file, and there is never a SIGBUS. The file is locked
// while its owner lives, so that nobody in another pid namespace takes it for a dead process's. Never calls the driver. Thread rule: publish and
// retire may be called by any thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>

#include "pool/observe/live_page.hpp"
#include "shim/file_identity.hpp"

namespace cupool::shim {

class LivePage {
 public:
  /// `shared_memory`: the folder that holds every user's folder of pages; only tests pass another one. Throws std::bad_alloc.
  LivePage(const observe::LiveIdentity& identity, std::string_view process_json, const char* shared_memory = "/dev/shm");
  LivePage(const LivePage&) = delete;
  LivePage& operator=(const LivePage&) = delete;

  observe::LiveHeader& header() { return *header_; }
  observe::LiveDevice* devices() { return observe::live_devices(header_); }

  /// Gives the page its name, once; cheap afterwards. Also removes the pages of long dead processes.
  void publish() {
    if (!is_published_.load(std::memory_order_relaxed)) publish_once();
  }
  void set_state(observe::LiveState state);
  /// Removes the name; readers that have the page open keep it.
  void retire();

 private:
  void publish_once();
  void* map(std::size_t bytes);

  std::string shared_memory_;
  observe::LiveHeader* header_ = nullptr;
  std::string name_;
  int file_ = -1;
  FileIdentity opened_;
  std::atomic<bool> is_published_{false};
};

}  // namespace cupool::shim
