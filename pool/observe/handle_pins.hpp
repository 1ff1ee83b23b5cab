// Which blocks keep physical handles (backing pages) from being empty: a handle moves and goes back only whole.
//
// Pure; O(rows + handles log handles). Internal to the address map. Preconditions: as there.
#pragma once

#include <vector>

#include "pool/observe/address_map.hpp"

namespace cupool::observe {

/// Handles by address, to ask which one holds an address.
class HandleIndex {
 public:
  explicit HandleIndex(const std::vector<HandleRow>& handles);
  const std::vector<HandleRow>& sorted() const { return handles_; }
  bool covers(std::uint64_t address) const;

 private:
  std::vector<HandleRow> handles_;
};

/// Appends a pin for each handle that blocks hold: those blocks, and every handle that would be empty without them.
void add_handle_pins(const std::vector<BlockRow>& rows, const HandleIndex& handles, std::vector<Pin>& out);

}  // namespace cupool::observe
