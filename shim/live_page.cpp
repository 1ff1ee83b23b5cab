// Creates, names and removes the live page. By O_TMPFILE and linkat (Linux), the page is complete before it has a name.
#include "shim/live_page.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "pool/observe/report_file.hpp"
#include "shim/log.hpp"
#include "shim/private_folder.hpp"
#include "shim/unnoticed.hpp"

namespace cupool::shim {
namespace {

/// Pages of dead processes that are kept for a reader after a crash. The oldest beyond that are removed: shared memory may be small, and is
/// everybody's.
constexpr std::size_t kDeadPagesKept = 16;

}  // namespace

LivePage::LivePage(const observe::LiveIdentity& identity, std::string_view process_json, const char* shared_memory)
    : shared_memory_(shared_memory), name_(std::to_string(identity.pid) + "." + std::to_string(identity.process_start_ticks)) {
  const std::size_t bytes = observe::live_page_bytes(process_json.size());
  void* memory = map(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  header_ = observe::format_live_page(memory, bytes, identity, process_json);
  if (header_ == nullptr) throw std::bad_alloc();
}

void* LivePage::map(std::size_t bytes) {
  const int file = open(shared_memory_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  struct stat facts {};
  const observe::WriteSignals signals;  // RLIMIT_FSIZE: an error, not a SIGXFSZ
  if (file >= 0 && fallocate(file, 0, 0, static_cast<off_t>(bytes)) == 0 && fstat(file, &facts) == 0) {
    void* shared = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED) {
      file_ = private_folder::move_high(file);
      opened_ = FileIdentity(facts);
      return shared;
    }
  }
  if (file >= 0) close(file);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory != MAP_FAILED ? memory : nullptr;
}

void LivePage::publish_once() {
  if (is_published_.exchange(true)) return;
  const Unnoticed unnoticed;
  const int folder = private_folder::open(shared_memory_);
  if (folder < 0 || !opened_.is_of(file_)) {
    log::debug(std::string("no live page: ") + (folder < 0 ? "no folder of ours in " : "no space in ") + shared_memory_);
    if (folder >= 0) close(folder);
    return;
  }
  const std::string source = "/proc/self/fd/" + std::to_string(file_);
  unlinkat(folder, name_.c_str(), 0);  // if there is one, the program that this same process was before exec has left it
  if (linkat(AT_FDCWD, source.c_str(), folder, name_.c_str(), AT_SYMLINK_FOLLOW) == 0) private_folder::lock_for_life(file_);
  private_folder::remove_dead(folder, "", name_, kDeadPagesKept);
  close(folder);
}

void LivePage::set_state(observe::LiveState state) { header_->state.store(static_cast<std::uint32_t>(state), std::memory_order_release); }

void LivePage::retire() {
  if (file_ < 0 || !is_published_.load(std::memory_order_relaxed)) return;
  int folder = -1;
  try {
    folder = private_folder::open_with(shared_memory_, name_);
  } catch (const std::bad_alloc&) {  // it stays, as after SIGKILL, and a later process removes it
  }
  if (folder < 0) return;
  unlinkat(folder, name_.c_str(), 0);
  close(folder);
}

}  // namespace cupool::shim
