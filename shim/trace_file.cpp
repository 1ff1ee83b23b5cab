// See trace_file.hpp. All of it happens once per chunk at most, so that system calls are affordable.
#include "shim/trace_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "pool/core/bytes.hpp"
#include "pool/core/clock.hpp"
#include "pool/observe/trusted_path.hpp"
#include "shim/log.hpp"
#include "shim/private_folder.hpp"
#include "shim/unnoticed.hpp"

namespace cupool::shim {
namespace {

constexpr std::size_t kFirstChunkBytes = 64 * kKiB;  ///< small, so that a short run leaves a small file; each chunk is twice as large as the last
constexpr std::size_t kChunkBytesMax = kMiB;         ///< the events of some 18,000 blocks
constexpr unsigned kDoublings = 4;
constexpr int kInterruptionsMax = 100;

std::size_t chunk_bytes(std::uint32_t index) { return std::min(kFirstChunkBytes << std::min(index, kDoublings), kChunkBytesMax); }

observe::TraceReading read_now() {
  const TickConverter::Moment now = TickConverter::now();
  return {now.ticks, now.unix_ns};
}

}  // namespace

TraceFile::TraceFile(std::string path, const observe::TraceIdentity& identity, std::string process_json)
    : path_(std::move(path)), identity_(identity), process_json_(std::move(process_json)), first_reading_(read_now()), is_begun_(path_.empty()) {}

void TraceFile::begin_once() noexcept {
  const Unnoticed unnoticed;
  const std::lock_guard lock(mutex_);
  if (is_begun_.load(std::memory_order_relaxed)) return;
  if (const int error = make(); error != 0) give_up("no trace", error);
  is_begun_.store(true, std::memory_order_release);
}

int TraceFile::make() try {
  if (const int error = create(); error != 0) return error;
  int error = map_header();
  if (error == 0) error = add_chunk();
  if (error == 0) {
    sink_.count_in(header_->dropped);
    fill_spares();
    return 0;
  }
  if (header_ != nullptr) munmap(header_, file_bytes_);
  header_ = nullptr;
  observe::remove_file(path_);  // it was not there before create(), which made it
  close(file_);
  file_ = -1;
  return error;
} catch (const std::bad_alloc&) {
  return ENOMEM;
}

int TraceFile::create() {
  const int file = observe::open_file(path_, O_RDWR | O_CREAT | O_EXCL | O_NOCTTY, observe::Missing::make);
  if (file < 0) return -file;
  struct stat facts {};
  if (fstat(file, &facts) != 0) {
    const int error = errno;
    close(file);
    return error;
  }
  file_ = private_folder::move_high(file);
  opened_ = FileIdentity(facts);
  return 0;
}

/// Reserves space on the disk up to `end_bytes` of the file; returns 0 or the error.
int TraceFile::reserve(std::size_t end_bytes) {
  int error = EINTR;
  for (int i = 0; error == EINTR && i < kInterruptionsMax; ++i)
    error = posix_fallocate(file_, static_cast<off_t>(file_bytes_), static_cast<off_t>(end_bytes - file_bytes_));
  if (error != 0 && ftruncate(file_, static_cast<off_t>(file_bytes_)) != 0) return error;  // what was reserved is given back: nothing of it is mapped
  return error;
}

void* TraceFile::map(std::size_t offset_bytes, std::size_t bytes, int* error) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, static_cast<off_t>(offset_bytes));
  if (memory == MAP_FAILED) {
    *error = errno;
    return nullptr;
  }
  madvise(memory, bytes, MADV_DONTFORK);
#ifdef MADV_POPULATE_WRITE
  // Linux 5.14: no page fault under a device's lock. EFAULT is what a store would get as SIGBUS; EINVAL, an older kernel.
  if (madvise(memory, bytes, MADV_POPULATE_WRITE) != 0 && errno == EFAULT) {
    munmap(memory, bytes);
    *error = EIO;
    return nullptr;
  }
#endif
  return memory;
}

int TraceFile::map_header() {
  const std::size_t bytes = observe::trace_header_bytes(process_json_.size(), static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
  int error = reserve(bytes);
  if (error != 0) return error;
  void* memory = map(0, bytes, &error);
  if (memory == nullptr) return error;
  header_ = observe::format_trace_header(memory, bytes, identity_, first_reading_, process_json_);
  file_bytes_ = bytes;
  return 0;
}

/// Is file_ the trace, if need be opened again? A program that closes all descriptors it does not know may have closed it and reused its number.
bool TraceFile::has_descriptor() {
  if (opened_.is_of(file_)) return true;
  file_ = -1;
  const int file = observe::open_file(path_, O_RDWR | O_NOCTTY | O_NONBLOCK);
  if (file < 0) return false;
  if (!opened_.is_of(file)) {
    close(file);
    return false;
  }
  file_ = private_folder::move_high(file);
  return true;
}

int TraceFile::add_chunk() {
  const std::size_t bytes = chunk_bytes(chunks_);
  if (!has_descriptor()) return EBADF;
  int error = reserve(file_bytes_ + bytes);
  void* memory = error == 0 ? map(file_bytes_, bytes, &error) : nullptr;
  if (memory == nullptr) return error;
  try {
    nodes_.push_back({static_cast<std::byte*>(memory), bytes, chunks_, nullptr});
  } catch (const std::bad_alloc&) {
    munmap(memory, bytes);
    return ENOMEM;
  }
  observe::format_trace_chunk(memory, bytes, chunks_);
  file_bytes_ += bytes;
  ++chunks_;
  sink_.offer(&nodes_.back());
  return 0;
}

void TraceFile::fill_spares() {
  while (!has_ended_ && sink_.has_room()) {
    if (const int error = add_chunk(); error != 0) give_up("the trace ends here", error);
  }
}

/// Precondition: mutex_ is held.
void TraceFile::give_up(const char* what, int error) {
  has_ended_ = true;
  try {
    const bool is_taken = error == EEXIST;  // another process's trace, or a link: it is not touched
    const char* why = is_taken ? "there is such a file; with %p in CUPOOL_TRACE each process writes its own" : observe::reason_of(error);
    warning_ = std::string(what) + ": " + path_ + ": " + why;
    log::warn(warning_);
  } catch (const std::bad_alloc&) {  // no memory for a line: it is lost
  }
}

void TraceFile::read_clocks() { observe::add_trace_reading(*header_, read_now()); }

void TraceFile::refill() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || header_ == nullptr) return;  // another thread is at it
  const Unnoticed unnoticed;
  sink_.clear_work();  // before looking, so that chunks which are taken from now on call for another refill
  for (observe::TraceChunk* chunk = sink_.take_retired(); chunk != nullptr; chunk = chunk->next) munmap(chunk->memory, chunk->bytes);
  if (has_ended_) return;
  read_clocks();
  fill_spares();
}

/// Cuts the unused chunks at the file's end off. A chunk that a writer may have taken is never cut, because a store there would be a SIGBUS.
void TraceFile::give_spares_back() {
  std::size_t bytes = 0;
  std::uint32_t count = 0;
  std::uint32_t first = chunks_;
  while (observe::TraceChunk* chunk = sink_.withdraw()) {
    munmap(chunk->memory, chunk->bytes);
    bytes += chunk->bytes;
    first = std::min(first, chunk->index);
    ++count;
  }
  if (first + count != chunks_ || count == 0 || !has_descriptor()) return;
  if (ftruncate(file_, static_cast<off_t>(file_bytes_ - bytes)) == 0) file_bytes_ -= bytes;
}

void TraceFile::finish() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || header_ == nullptr) return;
  const Unnoticed unnoticed;
  has_ended_ = true;
  give_spares_back();
  read_clocks();
  header_->state.store(static_cast<std::uint32_t>(observe::TraceState::closed), std::memory_order_release);
}

std::string TraceFile::warning() {
  const std::unique_lock lock(mutex_, std::try_to_lock);  // a report does not wait for a slow disk
  return lock.owns_lock() ? warning_ : std::string();
}

}  // namespace cupool::shim
