// Message: one line to the user, without prefix.
#pragma once

#include <string>

#include "config/choices.hpp"

namespace cupool {

struct Message {
  config::LogLevel level = config::LogLevel::warn;  ///< a warning is in the report too
  std::string text;
};

}  // namespace cupool
