// The file behind a process's exports: ipc.<pid>.<start ticks> in the user's own folder of shared memory (or of /tmp, where that is missing or full),
// 0600, made at the first export and unlinked at a normal end; and the reading of other processes' files, of which nothing is believed unseen.
//
// Its space is reserved before it is written (a full /dev/shm refuses an export, never kills); others' files are read,
// never mapped. Never calls the driver. Thread rule: guarded by the owner's lock, but for retire() and read().
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
  /// Makes no file. `shared_memory`: the folder that holds every user's folder; `elsewhere`: the one where that is missing or full, as a container's
  /// of 64 MiB may be, which loaders of data fill. Others only in tests.
  explicit IpcRegistry(const ipc::ProcessName& owner, const char* shared_memory = "/dev/shm", const char* elsewhere = "/tmp");
  IpcRegistry(const IpcRegistry&) = delete;
  IpcRegistry& operator=(const IpcRegistry&) = delete;

  const ipc::ProcessName& owner() const { return owner_; }

  /// Room for the entry `index` and all before it. False: no space, no trusted folder, or the name is another's.
  bool reserve(std::uint32_t index);
  /// In the mapping that others read; nullptr when there was never room for it.
  ipc::RegistryEntry* entry(std::uint32_t index);

  /// The name goes; who has the file open keeps it. Callable without the lock.
  void retire();

  /// The block that `handle` names in the registry of its exporter, another process of this user. False: it is gone, the
  /// export was another, or the file is not to be believed.
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
