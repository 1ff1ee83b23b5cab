// The distance between words, and which one counts as near.
#include <catch2/catch.hpp>

#include <string>

#include "config/nearest.hpp"

using namespace cupool::config;

TEST_CASE("the distance counts inserts, deletes, replacements and swaps", "[nearest]") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("limit", "limit") == 0);
  CHECK(edit_distance("limt", "limit") == 1);
  CHECK(edit_distance("limmit", "limit") == 1);
  CHECK(edit_distance("lamit", "limit") == 1);
  CHECK(edit_distance("ilmit", "limit") == 1);  // a swap, not two replacements
  CHECK(edit_distance("polciy", "policy") == 1);
  CHECK(edit_distance("ca", "abc") == 3);  // restricted: the swapped pair is not edited again
  CHECK(edit_distance("kitten", "sitting") == 3);
}

TEST_CASE("the distance is symmetric and ignores case", "[nearest]") {
  CHECK(edit_distance("LIMIT", "limit") == 0);
  CHECK(edit_distance("release_threshold", "relase_treshold") == edit_distance("relase_treshold", "release_threshold"));
}

TEST_CASE("of very long words only the first 64 characters count", "[nearest]") {
  CHECK(edit_distance(std::string(100000, 'a'), std::string(100000, 'b')) == 64);
  CHECK(edit_distance(std::string(64, 'a') + "x", std::string(64, 'a') + "yz") == 0);
}

TEST_CASE("the first of the nearest candidates wins, and only a near one is close", "[nearest]") {
  Nearest nearest("timelin");
  CHECK_FALSE(nearest.is_close());
  nearest.offer("limit");
  nearest.offer("timeline");
  nearest.offer("timelina");
  CHECK(nearest.best() == "timeline");
  CHECK(nearest.is_close());
  Nearest far("zzzzzz");
  far.offer("limit");
  CHECK(far.best() == "limit");
  CHECK_FALSE(far.is_close());
}
