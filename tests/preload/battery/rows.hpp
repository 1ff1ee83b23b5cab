// For the files that fill rows.
#pragma once

#include "battery.hpp"

/// The cases of an entry point that `fill(cases, function)` makes.
#define ROW(symbol, fill) \
  void cases_##symbol(Cases& cases) { fill(cases, &::symbol); }
