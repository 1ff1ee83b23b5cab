// What a peer's file defines: its allocators by name. peer_main.cpp is the program around it.
#pragma once

#include <memory>
#include <string>

#include "tests/bench/allocator.hpp"

namespace bench {

extern const char* const kPeerAllocators;  ///< their names, for the usage line

/// Null: the peer has no allocator of that name. Throws AllocatorFailure.
std::unique_ptr<Allocator> open_peer(const std::string& name);

}  // namespace bench
