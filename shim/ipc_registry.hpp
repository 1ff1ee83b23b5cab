// IpcRegistry: the file behind a process's exports, and the reading of other processes' files. A file is named ipc.<pid>.<start ticks>, lies in the
// user's own folder in shared memory (or in /tmp, where that is missing or full), has mode 0600, is made at the first export and unlinked at a normal
// end.
//
// Space is reserved before it is written, so that a full /dev/shm makes an export fail and never kills the process. Files of others are read with
// pread, never mapped, and what they say is checked. Never calls the driver. Thread rule: guarded by the owner's lock, except retire() and read().
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "pool/ipc/registry_format.hpp"
#include "shim/file_identity.hpp"

namespace cupool::shim {

class IpcRegistry {
 public:
  /// Makes no file yet. `shared_memory`: the folder that holds every user's folder. `elsewhere`: used where that is missing or full, as the 64 MiB of
  /// a container are once data loaders have filled them. Only tests pass other folders.
  explicit IpcRegistry(const ipc::ProcessName& owner, const char* shared_memory = "/dev/shm", const char* elsewhere = "/tmp");
  IpcRegistry(const IpcRegistry&) = delete;
  IpcRegistry& operator=(const IpcRegistry&) = delete;

  const ipc::ProcessName& owner() const { return owner_; }

  /// Room for the entry `index` and all before it. False: no space, no trusted folder, or the name is another's.
  bool reserve(std::uint32_t index);
  /// The entry in the mapped file, which other processes read; nullptr: it was never reserved.
  ipc::RegistryEntry* entry(std::uint32_t index);

  /// Unlinks the file; processes that have it open keep it. Callable without the lock.
  void retire();

  /// Finds the block that `handle` names in the registry of its exporter, another process of this user. False: the block is gone, the entry is
  /// another export's, or the file cannot be trusted. Callable without the lock.
  bool read(const ipc::BlockHandle& handle, ipc::BlockPlace& place) const;

 private:
  bool create(const std::string& place);
  bool create_with_room();
  bool grow();
  bool add_room();
  bool read_in(const std::string& from, const ipc::BlockHandle& handle, ipc::BlockPlace& place) const;
  bool reopen();

  const ipc::ProcessName owner_;
  const std::array<std::string, 2> places_;
  const std::string name_;
  const std::string* place_ = &places_[0];  ///< where the file lies
  int file_ = -1;
  FileIdentity opened_;
  std::vector<std::byte*> chunks_;  ///< mappings of the file, one after the other
  std::atomic<bool> has_name_{false};
};

}  // namespace cupool::shim
