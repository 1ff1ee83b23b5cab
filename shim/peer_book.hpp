// PeerBook: peer access that cupool has enabled itself, and what it needs to know for that. Where the program gives a device access to a memory pool
// that we serve, the pool's blocks lie in memory that a peer reaches only through cuCtxEnablePeerAccess.
//
// To the program, cuCtxEnablePeerAccess and cuCtxDisablePeerAccess answer as if we had enabled nothing. Thread-safe. Never calls the driver. Links
// between contexts are written only by the thread that holds turn(), which includes the driver's part of the call: its answer depends on who is
// first.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace cupool::shim {

class PeerBook {
 public:
  /// Held around each driver call that enables or disables peer access, and around booking its result. Taken before every other lock except a primary
  /// context's turn.
  [[nodiscard]] std::unique_lock<std::mutex> turn() { return std::unique_lock(turn_); }

  /// We enabled access of `from` to memory of `to`.
  void enabled_by_us(CUcontext from, CUcontext to) {
    const std::lock_guard lock(mutex_);
    if (find(from, to) == nullptr) links_.push_back({from, to, false});
  }
  /// The program had enabled it before us: from now on a memory pool needs it, too, so that the program's disable must not end it.
  void enabled_by_program(CUcontext from, CUcontext to) {
    const std::lock_guard lock(mutex_);
    if (find(from, to) == nullptr) links_.push_back({from, to, true});
  }
  /// The program enables access. True: only we had enabled it, and the program is told success; from now on it is the program's as well.
  bool program_enables(CUcontext from, CUcontext to) {
    const std::lock_guard lock(mutex_);
    Link* link = find(from, to);
    if (link == nullptr || link->program) return false;
    link->program = true;
    return true;
  }
  enum class Disable { ask_driver, success, not_enabled };
  /// What the program's disable is answered. Access that is linked here stays enabled, because a memory pool needs it.
  Disable program_disables(CUcontext from, CUcontext to) {
    const std::lock_guard lock(mutex_);
    Link* link = find(from, to);
    if (link == nullptr) return Disable::ask_driver;
    if (!link->program) return Disable::not_enabled;
    link->program = false;
    return Disable::success;
  }
  void context_ended(CUcontext context) {
    const std::lock_guard lock(mutex_);
    std::erase_if(links_, [context](const Link& link) { return link.from == context || link.to == context; });
    const auto ended = std::find_if(contexts_.begin(), contexts_.end(), [context](const Context& known) { return known.context == context; });
    if (ended == contexts_.end()) return;
    const int device = ended->device;
    contexts_.erase(ended);  // nothing here may need host memory
    if (std::any_of(contexts_.begin(), contexts_.end(), [device](const Context& known) { return known.device == device; })) return;
    // [?] Whether a device's pool keeps its access when the last context ends: it is asked for again.
    std::erase_if(granted_, [device](const auto& pair) { return pair.first == device || pair.second == device; });
  }

  void context_seen(CUcontext context, int device) {
    const std::lock_guard lock(mutex_);
    contexts_.push_back({context, device});  // before anything is forgotten
    contexts_.erase(std::remove_if(contexts_.begin(), contexts_.end() - 1, [context](const Context& known) { return known.context == context; }),
                    contexts_.end() - 1);
  }
  std::vector<CUcontext> contexts_of(int device) {
    const std::lock_guard lock(mutex_);
    std::vector<CUcontext> found;
    for (const Context& known : contexts_)
      if (known.device == device) found.push_back(known.context);
    return found;
  }

  /// The device of a context; -1: it was not seen.
  int device_of(CUcontext context) {
    const std::lock_guard lock(mutex_);
    for (const Context& known : contexts_)
      if (known.context == context) return known.device;
    return -1;
  }

  /// Does a context of any other device live? Needs no host memory.
  bool has_others(int device) {
    const std::lock_guard lock(mutex_);
    return std::any_of(contexts_.begin(), contexts_.end(), [device](const Context& known) { return known.device != device; });
  }
  /// Devices with a live context, each once.
  std::vector<int> devices() {
    const std::lock_guard lock(mutex_);
    std::vector<int> found;
    for (const Context& known : contexts_)
      if (std::find(found.begin(), found.end(), known.device) == found.end()) found.push_back(known.device);
    return found;
  }

  /// Under the policy `async`: work of device `from` has access to the driver's default pool of `to`.
  void grants(int from, int to) {
    const std::lock_guard lock(mutex_);
    granted_.emplace(from, to);
  }
  bool is_granted(int from, int to) {
    const std::lock_guard lock(mutex_);
    return granted_.contains({from, to});
  }

  /// The program has given `peer` access to a memory pool of `device`.
  struct Share {
    int device;
    int peer;
  };
  std::vector<Share> shares() {
    const std::lock_guard lock(mutex_);
    return shares_;
  }
  bool is_shared(int device, int peer) {
    const std::lock_guard lock(mutex_);
    return std::any_of(shares_.begin(), shares_.end(), [&](const Share& share) { return share.device == device && share.peer == peer; });
  }
  /// `peer` may use all blocks of `device`, those to come included; `on` false: no longer.
  void share(int device, int peer, bool on) {
    const std::lock_guard lock(mutex_);
    std::erase_if(shares_, [&](const Share& share) { return share.device == device && share.peer == peer; });
    if (on) shares_.push_back({device, peer});
  }

 private:
  struct Link {
    CUcontext from;
    CUcontext to;
    bool program;  ///< the program has enabled it itself
  };
  struct Context {
    CUcontext context;
    int device;
  };
  Link* find(CUcontext from, CUcontext to) {
    const auto found = std::find_if(links_.begin(), links_.end(), [&](const Link& link) { return link.from == from && link.to == to; });
    return found != links_.end() ? &*found : nullptr;
  }

  std::mutex turn_;
  std::mutex mutex_;
  std::vector<Link> links_;
  std::set<std::pair<int, int>> granted_;  ///< from, to
  std::vector<Share> shares_;
  std::vector<Context> contexts_;
};

}  // namespace cupool::shim
