// What is drawn, and how often.
#include "generator.hpp"

namespace explorer {
namespace {

constexpr std::uint32_t kSizes[] = {512, 512, 1024, 1024, 2048, 4096, 4096, 8192, 12345, 16384, 16384, 65536, 65536, 300'000, 2 << 20, 5 << 20};

constexpr std::uint32_t kPageSizes[] = {4096, 65536, 300'000, 1 << 20, 1'400'000, 2 << 20, 2'600'000, 3 << 20, 4 << 20, 5 << 20, 7 << 20, 9 << 20};

struct Weight {
  Kind kind;
  std::uint32_t weight;
};

// Per 10,000. Those of allocations and frees follow in the constructor, so that about half of the slots are live.
constexpr Weight kWeights[] = {
    {Kind::write, 1500},
    {Kind::read, 1300},
    {Kind::copy, 450},
    {Kind::ask, 60},
    {Kind::info, 20},
    {Kind::record, 350},
    {Kind::wait, 350},
    {Kind::query, 250},
    {Kind::sync_event, 60},
    {Kind::query_stream, 120},
    {Kind::sync_stream, 80},
    {Kind::sync_context, 20},
    {Kind::record_context, 40},
    {Kind::wait_context, 20},
    {Kind::advance, 700},
    {Kind::spin, 150},
    {Kind::hold, 60},
    {Kind::release, 60},
    {Kind::stream_create, 70},
    {Kind::stream_destroy, 50},
    {Kind::begin, 90},
    {Kind::fork, 80},
    {Kind::graph_memory, 40},
    {Kind::end, 160},
    {Kind::launch, 250},
    {Kind::graph_destroy, 50},
    {Kind::thread_mode, 40},
    {Kind::context_create, 30},
    {Kind::context_destroy, 10},
    {Kind::peer, 60},
    {Kind::pool_create, 6},
    {Kind::pool_destroy, 4},
    {Kind::trim, 8},
};

}  // namespace

Generator::Generator(std::uint64_t seed, Route route, std::size_t devices, std::size_t most_blocks, bool page_sizes, std::uint32_t times)
    : state_(seed * 0x9e37'79b9'7f4a'7c15ULL + 0x1234'5678'9abc'def1ULL),
      route_(route),
      devices_(devices),
      most_blocks_(most_blocks),
      page_sizes_(page_sizes),
      times_(times) {
  const std::uint32_t plain = route == Route::ordered ? 0 : 1, ordered = route == Route::plain ? 0 : 1;
  const std::uint32_t share = plain != 0 && ordered != 0 ? 1 : 2;
  weights_ = {{Kind::alloc_plain, 650 * plain * share},  {Kind::alloc_pitch, 60 * plain * share}, {Kind::alloc_ordered, 600 * ordered * share},
              {Kind::alloc_pool, 100 * ordered * share}, {Kind::free_plain, 600 * plain * share}, {Kind::free_ordered, 600 * ordered * share}};
  for (const Weight& row : kWeights) weights_.emplace_back(row.kind, row.weight);
  for (const auto& row : weights_) total_weight_ += row.second;
}

std::uint32_t Generator::below(std::uint32_t limit) {
  state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
  return static_cast<std::uint32_t>((state_ >> 33) % limit);
}

/// Often what was freed last: the same place, then, for somebody else. Of the sizes of pages seldom: what is in pieces must be moved.
std::uint32_t Generator::bytes() {
  if (page_sizes_ && chance(500)) return times_ * (chance(300) ? 1 + below(6'000'000) : kPageSizes[below(std::size(kPageSizes))]);
  if (freed_bytes_ != 0 && chance(400)) return freed_bytes_;
  return times_ * (chance(150) ? 1 + below(chance(100) ? 3'000'000 : 40'000) : kSizes[below(std::size(kSizes))]);
}

std::uint32_t Generator::duration_ns() { return chance(30) ? below(100'000) : chance(500) ? below(200) : below(25'000); }

/// Often what was touched last: its work is not over yet.
std::uint32_t Generator::block_to_free(const Program& program) {
  const std::uint32_t slot = chance(400) ? touched_ : block(program, true);
  if (program.block(slot).live) freed_bytes_ = static_cast<std::uint32_t>(program.block(slot).bytes);
  return slot;
}

std::uint8_t Generator::context(const Program& program) {
  for (int i = 0; i < 8; ++i) {
    const std::size_t slot = chance(500) ? below(static_cast<std::uint32_t>(devices_)) : below(kContexts);
    if (program.context(slot).live) return static_cast<std::uint8_t>(slot);
  }
  return 0;
}

std::uint32_t Generator::stream(const Program& program, bool may_capture) {
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t name = chance(750) ? below(kStreams) : kStreams + below(2);
    if (name >= kStreams) return name;
    if (program.stream(name).live && (may_capture || program.stream(name).capture < 0)) return name;
  }
  return kThreadsStream;
}

/// Mostly the stream's own context, sometimes another.
std::uint8_t Generator::context_of(const Program& program, std::uint32_t name) {
  if (name < kStreams && program.stream(name).live && !chance(40)) return static_cast<std::uint8_t>(program.stream(name).context);
  return context(program);
}

std::uint32_t Generator::block(const Program& program, bool live) {
  std::uint32_t slot = 0;
  for (int i = 0; i < 12; ++i) {
    slot = below(static_cast<std::uint32_t>(most_blocks_));
    if (program.block(slot).live == live) break;
  }
  return slot;
}

void Generator::fill(const Program& program, Op* op) {
  const auto on_stream = [&](std::size_t at, bool may_capture) {
    op->args[at] = stream(program, may_capture);
    op->context = context_of(program, op->args[at]);
  };
  switch (op->kind) {
    case Kind::alloc_plain:
    case Kind::alloc_pitch: op->args = {block(program, false), bytes(), 0, 0}; break;
    case Kind::alloc_ordered:
    case Kind::alloc_pool:
      on_stream(2, false);
      op->args[0] = block(program, false), op->args[1] = bytes(), op->args[3] = below(kPools);
      break;
    case Kind::write:
    case Kind::read:
      op->args[0] = touched_ = block(program, true), op->args[2] = duration_ns(), op->args[3] = below(255);
      for (int i = 0; i < 4; ++i) {
        on_stream(1, true);
        if (program.may_reach(op->args[1] < kStreams ? program.stream(op->args[1]).context : op->context, program.block(op->args[0]))) break;
      }
      break;
    case Kind::copy:
      on_stream(1, false);
      op->args[0] = block(program, true);
      for (int i = 0; i < 12; ++i) {
        op->args[2] = block(program, true);
        if (op->args[2] != op->args[0] && program.block(op->args[2]).bytes == program.block(op->args[0]).bytes) break;
      }
      break;
    case Kind::ask: op->args[0] = block(program, true); break;
    case Kind::free_plain:
      op->args[0] = block_to_free(program);
      // Often where the last work on it is: the native free waits for that context too.
      if (const int used_in = program.last_used_in(op->args[0]); used_in >= 0 && chance(500)) op->context = static_cast<std::uint8_t>(used_in);
      break;
    case Kind::free_ordered: on_stream(1, false), op->args[0] = block_to_free(program); break;
    case Kind::record:
    case Kind::wait: on_stream(1, false), op->args[0] = below(kEvents); break;
    case Kind::query:
    case Kind::sync_event:
    case Kind::record_context:
    case Kind::wait_context: op->args[0] = below(kEvents); break;
    case Kind::query_stream:
    case Kind::sync_stream: on_stream(0, false); break;
    case Kind::advance: op->args[0] = chance(100) ? below(50'000) : below(3000); break;
    case Kind::spin: on_stream(0, false), op->args[1] = duration_ns(); break;
    case Kind::hold: on_stream(0, false), op->args[2] = below(2); break;
    case Kind::release: op->args[0] = below(2); break;
    case Kind::stream_create: op->args = {below(kStreams), below(2), 0, 0}; break;
    case Kind::stream_destroy: op->args[0] = below(kStreams); break;
    case Kind::begin: on_stream(0, false), op->args[1] = below(kCaptures), op->args[2] = below(3); break;
    case Kind::fork: op->args = {below(kCaptures), below(kStreams), 0, 0}; break;
    case Kind::graph_memory: op->args = {below(kCaptures), bytes(), below(3000), 0}; break;
    case Kind::end:
      op->args = {below(kCaptures), below(kGraphs), 0, 0};
      if (chance(800)) op->thread = static_cast<std::uint8_t>(program.capture(op->args[0]).thread);
      break;
    case Kind::launch: on_stream(1, false), op->args[0] = below(kGraphs); break;
    case Kind::graph_destroy: op->args[0] = below(kGraphs); break;
    case Kind::thread_mode: op->args[0] = chance(600) ? 0 : below(3); break;
    case Kind::context_create:
    case Kind::context_destroy:
      op->args[0] = op->kind == Kind::context_destroy ? below(2) : 0;
      op->context = static_cast<std::uint8_t>(chance(150) ? below(kDevices) : kDevices + below(kContexts - kDevices));
      break;
    case Kind::peer: op->args[0] = below(kContexts); break;
    case Kind::pool_create:
    case Kind::pool_destroy: op->args[0] = below(kPools); break;
    case Kind::trim: op->args[0] = chance(500) ? 0 : below(8 << 20); break;
    case Kind::info:
    case Kind::sync_context: break;
  }
}

/// One thread, one context, memory in plenty: what a training step looks like to the pool.
Op Generator::steady(const Program& program) {
  Op op;
  const std::uint32_t slot = static_cast<std::uint32_t>(count_ / 4 % most_blocks_);
  const bool live = program.block(slot).live;
  op.args = {slot, kThreadsStream, 1000, 0};
  switch (count_++ % 4) {
    case 0: op.kind = live ? Kind::free_plain : Kind::advance; break;
    case 1: op.kind = Kind::alloc_plain, op.args[1] = kSizes[slot % 11]; break;
    case 2: op.kind = Kind::write; break;
    default: op.kind = Kind::advance, op.args[0] = 900;
  }
  return op;
}

bool Generator::next_inside(const Program& program, const Op& parent, Op* inside) {
  if (route_ == Route::steady || !chance(120)) return false;
  Op op;
  const Kind kinds[] = {Kind::begin, Kind::end, Kind::free_plain, Kind::alloc_plain, Kind::stream_destroy};
  const std::uint8_t kept = thread_;
  thread_ = static_cast<std::uint8_t>((parent.thread + 1 + below(kThreads - 1)) % kThreads);
  op = next_op(program);
  if (route_ == Route::mixed && chance(400)) op.kind = kinds[below(std::size(kinds))];
  else if (chance(300)) op.kind = chance(600) ? Kind::begin : Kind::end;
  op.args = {};
  fill(program, &op);
  thread_ = kept;
  op.after_calls = static_cast<std::uint16_t>(1 + below(8));
  *inside = op;
  return program.may_interrupt(parent, op);
}

/// The new owner of a place does not wait for long, and is quick.
Op Generator::first_write() {
  Op op;
  op.kind = Kind::write;
  op.thread = thread_;
  op.context = fresh_context_;
  const std::uint32_t on = fresh_stream_ < kStreamNames && chance(700) ? fresh_stream_ : kLegacyStream + below(2);
  op.args = {fresh_, on, below(100), below(255)};
  return op;
}

/// An operation of the thread whose turn it is.
Op Generator::next_op(const Program& program) {
  if (program.block(fresh_).live && !program.block(fresh_).written && chance(400)) return first_write();
  std::uint32_t drawn = below(total_weight_);
  std::size_t row = 0;
  while (drawn >= weights_[row].second) drawn -= weights_[row++].second;
  Op op;
  op.kind = weights_[row].first;
  op.thread = thread_;
  op.context = context(program);
  fill(program, &op);
  const bool is_ordered = op.kind == Kind::alloc_ordered || op.kind == Kind::alloc_pool;
  if (is_ordered || op.kind == Kind::alloc_plain || op.kind == Kind::alloc_pitch) {
    fresh_ = op.args[0], fresh_context_ = op.context;
    fresh_stream_ = is_ordered ? op.args[2] : stream(program, false);
  }
  return op;
}

Op Generator::next(const Program& program) {
  if (route_ == Route::steady) return steady(program);
  if (chance(60)) thread_ = static_cast<std::uint8_t>(below(kThreads));
  return next_op(program);
}

}  // namespace explorer
