// See nearest.hpp.
#include "config/nearest.hpp"

#include <algorithm>
#include <array>

#include "config/units.hpp"

namespace cupool::config {
namespace {

constexpr std::size_t kMostLetters = 64;
using Distances = std::array<std::size_t, kMostLetters + 1>;

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  a = a.substr(0, kMostLetters);
  b = b.substr(0, kMostLetters);
  std::array<Distances, 3> rows{};  // i - 2, i - 1, i, in turn
  for (std::size_t j = 0; j <= b.size(); ++j) rows[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    const Distances& before = rows[(i - 1) % 3];
    Distances& now = rows[i % 3];
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = to_lower(a[i - 1]) == to_lower(b[j - 1]);
      now[j] = std::min({before[j] + 1, now[j - 1] + 1, before[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && to_lower(a[i - 1]) == to_lower(b[j - 2]) && to_lower(a[i - 2]) == to_lower(b[j - 1]);
      if (swapped) now[j] = std::min(now[j], rows[(i - 2) % 3][j - 2] + 1);
    }
  }
  return rows[a.size() % 3][b.size()];
}

void Nearest::offer(std::string_view candidate) {
  const std::size_t distance = edit_distance(wanted_, candidate);
  if (distance >= distance_) return;
  distance_ = distance;
  best_ = candidate;
}

bool Nearest::is_close() const { return !best_.empty() && distance_ <= std::max<std::size_t>(1, std::max(wanted_.size(), best_.size()) / 3); }

}  // namespace cupool::config
