// The unit tests of config/, which mirror its files.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
