// Rules: one method for each cause, and what they share. Internal to the suggestions; see suggestions.hpp.
//
// suggestions.cpp chooses the rules and has those that need few words, advice_on_limit.cpp has what a limit refuses, advice_on_pieces.cpp what is
// free in pieces. Messages carry no numbers: those are in `evidence` as name=integer, for the code that formats them. What is named a `fix` makes the
// job complete when it is followed; where only the pieces decide, nothing but a hint (`info`) can be given.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pool/observe/suggestions.hpp"

namespace cupool::observe {

/// The settings in force, and the list under construction.
class Rules {
 public:
  using Numbers = std::initializer_list<std::pair<std::string_view, std::uint64_t>>;

  Rules(const OomVerdict& verdict, const OomEvidence& evidence, const std::vector<OptionFact>& options)
      : verdict_(verdict), e_(evidence), options_(options) {}

  std::vector<Suggestion> apply();

 private:
  // suggestions.cpp
  std::string_view value(std::string_view option) const;
  bool is_set(std::string_view option) const;
  const OptionFact* find(std::string_view option) const;
  bool preallocates() const;
  bool has(std::string_view rule) const;
  Suggestion& add(const char* rule, const char* level, std::string message, Numbers numbers);
  void add_already(const char* rule, const char* message, Numbers numbers);
  bool exceeds_device() const;
  bool exceeds_own_maximum() const;
  void raise_own_maximum();
  void put_own_maximum_first();
  void refused();
  void deferred();
  void others();
  void outside();
  void mempool_idle();
  void exhausted();
  void native_rounding();
  void pool_of_ours();
  void ask_for_less();
  void other_devices();
  void other_contexts();
  void put_before_hints();

  // advice_on_limit.cpp
  void impossible();
  void limit();
  bool deferred_would_do() const;
  void raise_limit();
  void pages_under_limit();

  // advice_on_pieces.cpp
  void fragmented();
  void fragmented_driver_pool();
  void fragmented_pages();
  void pages_would_join();
  bool pages_surely_join() const;
  void nearly_all_in_use();
  void preallocate_less();
  bool one_region_would_do() const;
  bool joined_would_do(std::uint64_t bytes) const;

  const OomVerdict& verdict_;
  const OomEvidence& e_;
  const std::vector<OptionFact>& options_;
  std::vector<Suggestion> out_;
};

}  // namespace cupool::observe
