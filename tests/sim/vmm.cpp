// Where the bytes of physical handles are, and how another process gets them.
#include "tests/sim/vmm.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "tests/sim/device_memory.hpp"

namespace cusim {
namespace {

constexpr std::uint64_t kFileBytes = 1ULL << 48;
constexpr std::uint64_t kRecords = 1ULL << 47;               ///< behind the bytes: one record per 2 MiB, of the handle that starts there
constexpr std::uint64_t kRecordMagic = 0x63757369'6d766d6d;  // "cusimvmm"

struct Record {
  std::uint64_t magic;
  std::uint64_t bytes;
  std::int64_t device;
  std::uint64_t unused;
};

/// The bytes of a handle, as a lock of an open file: whoever has a descriptor of it, in whatever process, holds it.
struct flock shared_lock(const PhysicalMemory& memory, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(memory.file_offset);
  lock.l_len = static_cast<off_t>(memory.bytes);
  return lock;
}

off_t record_offset(std::uint64_t file_offset) { return static_cast<off_t>(kRecords + file_offset / kGranuleBytes * sizeof(Record)); }

}  // namespace

int PhysicalStore::fd() {
  if (fd_ < 0) fd_ = create_sparse_file("cusim-physical", kFileBytes);
  return fd_;
}

void PhysicalStore::place(PhysicalMemory& memory) { memory.file_offset = offsets_.take(memory.bytes, kGranuleBytes, 0); }

void PhysicalStore::give_back(PhysicalMemory& memory) {
  if (memory.imported) {
    close(memory.fd);
    return;
  }
  const Record gone{};
  if (memory.exported && pwrite(fd_, &gone, sizeof gone, record_offset(memory.file_offset)) < 0) return;
  if (fd_ >= 0) fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(memory.file_offset), static_cast<off_t>(memory.bytes));
  offsets_.give(memory.file_offset, memory.bytes);
}

int PhysicalStore::export_descriptor(const PhysicalMemory& memory) {
  const Record record{kRecordMagic, memory.bytes, memory.device, 0};
  const int file = memory.imported ? memory.fd : fd();
  if (pwrite(file, &record, sizeof record, record_offset(memory.file_offset)) < 0) return -1;
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return descriptor;
  struct flock lock = shared_lock(memory, F_RDLCK);
  if (lseek(descriptor, static_cast<off_t>(memory.file_offset), SEEK_SET) >= 0 && fcntl(descriptor, F_OFD_SETLK, &lock) == 0) return descriptor;
  close(descriptor);
  return -1;
}

bool PhysicalStore::is_held_elsewhere(const PhysicalMemory& memory) const {
  struct flock lock = shared_lock(memory, F_WRLCK);
  return memory.exported && !memory.imported && fcntl(fd_, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool PhysicalStore::import_descriptor(int descriptor, PhysicalMemory& memory) {
  const off_t position = lseek(descriptor, 0, SEEK_CUR);
  if (position <= 0) return false;
  Record record{};
  const auto offset = static_cast<std::uint64_t>(position);
  if (pread(descriptor, &record, sizeof record, record_offset(offset)) != ssize_t{sizeof record}) return false;
  if (record.magic != kRecordMagic) return false;
  memory.fd = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  memory.file_offset = offset;
  memory.bytes = record.bytes;
  memory.device = static_cast<int>(record.device);
  memory.imported = true;
  return memory.fd >= 0;
}

void PhysicalStore::clear() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  offsets_ = AddressSpace{2ULL << 20, 1ULL << 46};
}

}  // namespace cusim
