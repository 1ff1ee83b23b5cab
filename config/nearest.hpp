// The known word that a mistyped one was probably meant to be.
//
// Distance: Damerau-Levenshtein in its restricted form (insert, delete, replace, swap two neighbours; no part is edited
// twice), ignoring case. Thread rule: plain values.
#pragma once

#include <cstddef>
#include <string_view>

namespace cupool::config {

/// Number of edits between two words; of each word only the first 64 characters count, so the cost is bounded.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Keeps the nearest of the candidates that it is shown; the first wins a tie.
class Nearest {
 public:
  explicit Nearest(std::string_view wanted) : wanted_(wanted) {}
  void offer(std::string_view candidate);
  std::string_view best() const { return best_; }
  /// Near enough to be what was meant: at most a third of the letters differ, or one.
  bool is_close() const;

 private:
  std::string_view wanted_;
  std::string_view best_;
  std::size_t distance_ = static_cast<std::size_t>(-1);
};

}  // namespace cupool::config
