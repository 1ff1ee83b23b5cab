// Catch's main, for a system whose Catch2 package has no library with it. Compiled once, without optimisation.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
