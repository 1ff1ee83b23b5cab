// See ipc_registry.hpp. The file grows by chunks of 64 KiB, each of which is a mapping of its own that never moves.
#include "shim/ipc_registry.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "pool/observe/report_file.hpp"
#include "shim/private_folder.hpp"

namespace cupool::shim {
namespace {

constexpr std::string_view kPrefix = "ipc.";
constexpr std::size_t kChunk_bytes = 64 * 1024;
static_assert(kChunk_bytes % ipc::kEntryStride_bytes == 0);

std::string process_text(const ipc::ProcessName& process) { return std::to_string(process.pid) + "." + std::to_string(process.start_ticks); }

/// Closes a descriptor at the end of a scope.
struct File {
  explicit File(int descriptor) : fd(descriptor) {}
  ~File() {
    if (fd >= 0) close(fd);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const int fd;
};

/// A regular file of this user that nobody else may touch.
bool is_private_file(int file) {
  struct stat facts {};
  return fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_uid == geteuid() && (facts.st_mode & 077) == 0;
}

template <class T> bool read_at(int file, std::uint64_t offset, T& out) {
  return pread(file, &out, sizeof out, static_cast<off_t>(offset)) == static_cast<ssize_t>(sizeof out);
}

}  // namespace

IpcRegistry::IpcRegistry(const ipc::ProcessName& owner, const char* shared_memory, const char* elsewhere)
    : owner_(owner), places_{shared_memory, elsewhere}, name_(std::string(kPrefix) + process_text(owner)) {}

bool IpcRegistry::create(const std::string& place) {
  const File folder(private_folder::open(place));
  if (folder.fd < 0) return false;
  constexpr int kFlags = O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC;
  int file = openat(folder.fd, name_.c_str(), kFlags, 0600);
  if (file < 0 && errno == EEXIST) {
    // Left by the program that this same process was before exec; unless its lock is held: then it belongs to a process of the same pid and start in
    // another pid namespace.
    const File left(openat(folder.fd, name_.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    if (left.fd >= 0 && fcntl(left.fd, F_SETLK, &lock) != 0) return false;
    unlinkat(folder.fd, name_.c_str(), 0);
    file = openat(folder.fd, name_.c_str(), kFlags, 0600);
  }
  struct stat facts {};
  if (file < 0 || fstat(file, &facts) != 0) return false;
  file_ = private_folder::move_high(file);
  opened_ = FileIdentity(facts);
  private_folder::lock_for_life(file_);
  place_ = &place;
  has_name_.store(true, std::memory_order_release);
  private_folder::remove_dead(folder.fd, kPrefix, name_, 0);  // nobody can open anything through them any more
  return true;
}

/// Opens the file again after the program has closed the descriptor.
bool IpcRegistry::reopen() {
  const File folder(private_folder::open_with(*place_, name_));
  file_ = folder.fd >= 0 ? openat(folder.fd, name_.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK) : -1;
  if (!opened_.is_of(file_)) {
    if (file_ >= 0) close(file_);
    file_ = -1;
    return false;
  }
  file_ = private_folder::move_high(file_);
  private_folder::lock_for_life(file_);
  return true;
}

bool IpcRegistry::add_room() {
  const observe::WriteSignals signals;  // RLIMIT_FSIZE: an error, not a SIGXFSZ
  return fallocate(file_, 0, static_cast<off_t>(chunks_.size() * kChunk_bytes), static_cast<off_t>(kChunk_bytes)) == 0;
}

/// Creates the file with its first chunk, in the first place that has room for it.
bool IpcRegistry::create_with_room() {
  for (const std::string& place : places_) {
    if (create(place) && add_room()) return true;
    retire();
    if (opened_.is_of(file_)) close(file_);
    file_ = -1;
  }
  return false;
}

bool IpcRegistry::grow() {
  chunks_.reserve(chunks_.size() + 1);
  const auto offset = static_cast<off_t>(chunks_.size() * kChunk_bytes);
  if (chunks_.empty() ? !create_with_room() : !(opened_.is_of(file_) || reopen()) || !add_room()) return false;
  void* chunk = mmap(nullptr, kChunk_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, offset);
  if (chunk == MAP_FAILED) return false;
  chunks_.push_back(static_cast<std::byte*>(chunk));
  if (chunks_.size() == 1) new (chunk) ipc::RegistryHeader(ipc::make_header(owner_));
  return true;
}

bool IpcRegistry::reserve(std::uint32_t index) {
  if (index >= ipc::kEntriesMax) return false;
  while (entry(index) == nullptr)
    if (!grow()) return false;
  return true;
}

ipc::RegistryEntry* IpcRegistry::entry(std::uint32_t index) {
  const std::uint64_t offset = ipc::entry_offset(index);
  const std::size_t chunk = offset / kChunk_bytes;
  if (chunk >= chunks_.size()) return nullptr;
  return reinterpret_cast<ipc::RegistryEntry*>(chunks_[chunk] + offset % kChunk_bytes);
}

void IpcRegistry::retire() {
  if (!has_name_.exchange(false, std::memory_order_acq_rel)) return;
  try {
    const File folder(private_folder::open_with(*place_, name_));
    if (folder.fd >= 0) unlinkat(folder.fd, name_.c_str(), 0);
  } catch (const std::bad_alloc&) {  // as after SIGKILL: the next exporter removes it
  }
}

bool IpcRegistry::read(const ipc::BlockHandle& handle, ipc::BlockPlace& place) const {
  if (handle.exporter == owner_ || handle.index >= ipc::kEntriesMax) return false;
  return std::any_of(places_.begin(), places_.end(), [&](const std::string& from) { return read_in(from, handle, place); });
}

bool IpcRegistry::read_in(const std::string& from, const ipc::BlockHandle& handle, ipc::BlockPlace& place) const {
  const std::string process = process_text(handle.exporter);
  const std::string name = std::string(kPrefix) + process;
  const File folder(private_folder::open_with(from, name));
  if (folder.fd < 0) return false;
  const File file(openat(folder.fd, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (file.fd < 0 || !is_private_file(file.fd)) return false;
  ipc::RegistryHeader header;
  ipc::RegistryEntry entry;
  if (!read_at(file.fd, 0, header) || !ipc::is_header_of(header, handle.exporter)) return false;
  if (!read_at(file.fd, ipc::entry_offset(handle.index), entry) || !ipc::judge(entry, handle.nonce, place)) return false;
  return !private_folder::is_dead(folder.fd, name.c_str(), process);
}

}  // namespace cupool::shim
