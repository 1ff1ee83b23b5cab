// Interleave: an operation of one thread in the middle of another's, at a chosen call of the driver.
//
// The library lets go of its locks before it calls the driver; so what other threads can do in between is explored by letting them run just there.
// The program defines the locking functions of libpthread, which every library of the process then uses: a thread that would block gives the
// baton back instead, and tries again when the other has gone on. Both blocked is a deadlock, and a hit. Thread rule: the baton's holder.
#pragma once

#include <cstddef>
#include <functional>

#include "actors.hpp"

namespace explorer::interleave {

/// Before the first thread is made.
void attach(Actors* actors, std::function<void(const char*)> on_deadlock);

/// The next operation of `parent` is to be interrupted at its `at_call`-th driver call between open() and close(), by `child`.
void arm(std::size_t parent, std::size_t child, unsigned at_call);
/// The part of an operation that others may interrupt.
void open();
void close();
/// A driver call.
void point();
/// A library waits: counts like a driver call; where both are under way, the other goes on meanwhile.
void pausing();

/// The driver keeps the caller: the other goes on, if it is in the middle of an operation in the middle of the caller's. False: it is not.
bool kept_by_driver();

/// `child`, whose turn it is: is it here because of arm()? Then it does its operation and calls finished().
bool is_inside(std::size_t actor);
void finished();
/// The parent's operation is over: lets a blocked child go on. False: the child has not run at all.
bool disarm();

/// A call of the program that others may interrupt.
template <class Call> auto interruptible(Call&& call) {
  open();
  const auto result = call();
  close();
  return result;
}

}  // namespace explorer::interleave

namespace explorer {
using interleave::interruptible;
}
