// Reads what CUPOOL_TRACE recorded. The format is published in pool/observe/trace_format.hpp; nothing of cupool is included, as
// the programs that use this are ordinary CUDA programs.
//
// The bytes may be anything: every length is checked before it is used. Thread rule: pure function.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "trace.hpp"

namespace trace {

/// The first byte of such a file; a text trace begins with '#'.
inline constexpr char kNativeFirstByte = 'C';

/// The allocations and frees in `bytes`, in their order; `name` is for messages. A free of an unknown block (events were dropped)
/// is left out, a block whose place is taken anew is freed first. Throws BadTrace ("NAME: byte OFFSET: what is wrong"), also when
/// there are events of several devices.
Trace parse_native(const std::string& name, const std::vector<unsigned char>& bytes);

}  // namespace trace
