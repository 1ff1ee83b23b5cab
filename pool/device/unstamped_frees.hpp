// UnstampedFrees: blocks that a stream has freed where no event could be recorded on it, on drivers without events that cover a context.
//
// While something captures, a stream that may have come into the capture gets no event. With events of whole contexts such a block joins the open
// batch. Without them nothing but a plain free would ever close that, so the block waits here until an event can be recorded on its very stream, or
// what the program does shows that the stream's work is over.
// Bookkeeping only: no driver call. Where frees are taken, a thread is in the driver with their stream, which must not end meanwhile.
// Thread rule: the device's lock.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "pool/device/stream_name.hpp"
#include "pool/heap/extent.hpp"

namespace cupool::device {

struct ContextPool;

class UnstampedFrees {
 public:
  struct Free {
    heap::Extent* extent = nullptr;     ///< deferred
    const ContextPool* home = nullptr;  ///< of the block
    ContextPool* of_stream = nullptr;   ///< the stream's context,
    std::uint64_t life = 0;             ///< and which of its lives
    bool is_own = false;                ///< the block is of that context's heap: it may go back into the stream's lane
    StreamName stream;                  ///< identity 0: it has ended
    std::uint64_t fill = 0;             ///< a wait of the program that began at this value of StreamLanes::fills, or later, covers the free
    std::uint64_t number = 0;           ///< counts frees, from 1
    std::uint64_t taken = 0;            ///< not 0: which take() of all
    std::uint64_t round = 0;            ///< in which it was last taken

    bool is_of_same(const Free& other) const {
      return of_stream == other.of_stream && life == other.life && stream.identity == other.stream.identity && is_own == other.is_own;
    }
  };

  bool empty() const { return frees_.empty(); }
  const std::vector<Free>& all() const { return frees_; }
  /// The number of the newest one, or of one that was newer.
  std::uint64_t last_number() const { return last_number_; }
  /// Can any be stamped by any thread as soon as nothing captures?
  bool may_be_stamped() const;
  bool holds(const ContextPool* home) const;

  /// False, with nothing changed, where host memory is out.
  bool add(Free free) noexcept;
  std::uint64_t begin_round() { return ++rounds_; }
  /// Takes all that one stream has freed, of what was not taken yet in this round. Returns one of them, or nothing.
  std::optional<Free> take(std::uint64_t round);
  void put_back(std::uint64_t taken);
  /// Is a thread in the driver with this stream (0: with any)?
  bool is_taken(std::uint64_t identity) const;
  /// The stream has ended, and its handle may come again; with 0 any that is named by a handle. Precondition: none of them is taken.
  void forget_stream(std::uint64_t identity);
  /// Removes those for which `is_meant(const Free&)`, and calls `visit(Extent*)` for each.
  template <class Is, class Visit> void remove_if(Is&& is_meant, Visit&& visit);

 private:
  std::vector<Free> frees_;
  std::uint64_t last_number_ = 0;
  std::uint64_t rounds_ = 0;
  std::uint64_t takes_ = 0;
};

template <class Is, class Visit> void UnstampedFrees::remove_if(Is&& is_meant, Visit&& visit) {
  std::erase_if(frees_, [&](const Free& free) {
    if (!is_meant(free)) return false;
    visit(free.extent);
    return true;
  });
}

}  // namespace cupool::device
