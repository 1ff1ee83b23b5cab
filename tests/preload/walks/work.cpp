// Work on blocks: filling, copying, reading back.
#include <algorithm>
#include <cstring>

#include "walk.hpp"

namespace walks {

/// All work on a block goes into one stream of its context.
void Walk::fill() {
  const int index = draw(blocks_, [&](const Block& b) { return b.is_alive && b.bytes != 0 && b.kind != Block::managed; });
  if (index == kNone) return;
  Block& block = blocks_[static_cast<std::size_t>(index)];
  adopt(block);
  if (block.stream == kNone) {
    block.stream = draw(streams_, [&](const Stream& s) { return is_usable(s) && s.context == block.context; });
    if (block.stream == kNone) return;
  }
  Stream& stream = streams_[static_cast<std::size_t>(block.stream)];
  if (!is_usable(stream)) {
    if (!contexts_[static_cast<std::size_t>(stream.context)].is_alive || !settle(block)) return;
    return;
  }
  if (stream.handle == CU_STREAM_LEGACY && is_captured(kNone)) return;
  if (!reach(stream)) return;
  const int value = static_cast<int>(below(256));
  say(named('b', index) + " " + named('s', block.stream));
  if (!answered("", on_thread([&] { return cuMemsetD8Async(block.address, static_cast<unsigned char>(value), block.bytes, stream.handle); }))) return;
  if (stream.capture != kNone) captures_[static_cast<std::size_t>(stream.capture)].writes.emplace_back(index, value);
  else block.value = value;
}

void Walk::fill_now() {
  const int index = draw(blocks_, [&](const Block& b) { return b.is_alive && b.bytes != 0; });
  if (index == kNone || is_captured(kNone)) return;
  Block& block = blocks_[static_cast<std::size_t>(index)];
  adopt(block);
  if (block.context == kNone || !contexts_[static_cast<std::size_t>(block.context)].is_alive || !settle(block) || !use(block.context)) return;
  const int value = static_cast<int>(below(256));
  say(named('b', index));
  if (!answered("", on_thread([&] { return cuMemsetD8(block.address, static_cast<unsigned char>(value), block.bytes); }))) return;
  block.value = value;
  answered("synchronise", on_thread([] { return cuCtxSynchronize(); }));
}

void Walk::copy() {
  const auto is_fit = [&](const Block& b) {
    return b.is_alive && b.stream != kNone && is_usable(streams_[static_cast<std::size_t>(b.stream)]) &&
           streams_[static_cast<std::size_t>(b.stream)].capture == kNone;
  };
  const int from = draw(blocks_, [&](const Block& b) { return is_fit(b) && b.value != kNone; });
  if (from == kNone) return;
  const Block& source = blocks_[static_cast<std::size_t>(from)];
  const int to = draw(blocks_, [&](const Block& b) { return is_fit(b) && b.stream == source.stream && &b != &source && b.bytes <= source.bytes; });
  if (to == kNone) return;
  const Stream& stream = streams_[static_cast<std::size_t>(source.stream)];
  if (stream.handle == CU_STREAM_LEGACY && is_captured(kNone)) return;
  if (!reach(stream, true)) return;
  Block& target = blocks_[static_cast<std::size_t>(to)];
  say(named('b', from) + " " + named('b', to));
  if (answered("", on_thread([&] { return cuMemcpyDtoDAsync(target.address, source.address, target.bytes, stream.handle); })))
    target.value = source.value;
}

/// Rows of one block into another of the same context, by the calls with a pitch.
void Walk::copy_rows() {
  const auto is_fit = [&](const Block& b) {
    return b.is_alive && b.context != kNone && contexts_[static_cast<std::size_t>(b.context)].is_alive && b.bytes >= 4096;
  };
  const int from = draw(blocks_, [&](const Block& b) { return is_fit(b) && b.value != kNone; });
  if (from == kNone || is_captured(kNone)) return;
  Block& source = blocks_[static_cast<std::size_t>(from)];
  const int to = draw(blocks_, [&](const Block& b) { return is_fit(b) && b.context == source.context && b.bytes <= source.bytes && &b != &source; });
  if (to == kNone) return;
  Block& target = blocks_[static_cast<std::size_t>(to)];
  if (!settle(source) || !settle(target) || !use(source.context)) return;
  CUDA_MEMCPY2D shape;
  std::memset(&shape, 0, sizeof shape);
  shape.srcMemoryType = shape.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  shape.srcDevice = source.address;
  shape.dstDevice = target.address;
  shape.srcPitch = shape.dstPitch = 1024;
  shape.WidthInBytes = 1 + below(1024);
  shape.Height = target.bytes / 1024;
  const std::uint64_t kind = below(3);
  say("kind", kind);
  say(named('b', from) + " " + named('b', to));
  const CUresult result = on_thread([&] {
    switch (kind) {
      case 0: return cuMemcpy2D(&shape);
      case 1: return cuMemcpy2DUnaligned(&shape);
      default: return cuMemcpy2DAsync(&shape, CU_STREAM_LEGACY);
    }
  });
  if (!answered("", result)) return;
  target.value = kNone;
  answered("synchronise", on_thread([] { return cuCtxSynchronize(); }));
  bytes_.assign(2048, 0);
  if (!answered("read", on_thread([&] { return cuMemcpyDtoH(bytes_.data(), target.address, bytes_.size()); }))) return;
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < bytes_.size(); ++i) wrong += i % 1024 < shape.WidthInBytes && bytes_[i] != source.value;
  if (wrong != 0) say("WRONG", wrong);
}

/// Between contexts, also of different devices.
void Walk::copy_between() {
  const auto is_fit = [&](const Block& b) {
    return b.is_alive && b.kind != Block::managed && b.kind != Block::mapped && b.context != kNone &&
           contexts_[static_cast<std::size_t>(b.context)].is_alive;
  };
  const int from = draw(blocks_, [&](const Block& b) { return is_fit(b) && b.value != kNone; });
  if (from == kNone || is_captured(kNone)) return;
  Block& source = blocks_[static_cast<std::size_t>(from)];
  const int to = draw(blocks_, [&](const Block& b) { return is_fit(b) && b.context != source.context && b.bytes <= source.bytes && b.bytes != 0; });
  if (to == kNone) return;
  Block& target = blocks_[static_cast<std::size_t>(to)];
  if (!settle(source) || !settle(target)) return;
  const int by = one_in(2) ? source.context : target.context;
  if (!use(by)) return;
  const CUcontext source_context = handle_of(source.context), target_context = handle_of(target.context);
  // Stream-ordered memory is open to another device only where its pool is: ours always, so what is refused natively may succeed.
  const bool is_plain = source.kind != Block::ordered && target.kind != Block::ordered;
  const std::uint64_t kind = below(is_plain ? 4 : 2);
  say("kind", kind);
  say(named('b', from) + " " + named('b', to));
  const int stream = draw(streams_, [&](const Stream& s) { return is_usable(s) && s.context == by && s.thread == kNone; });
  const CUresult result = on_thread([&] {
    switch (kind) {
      case 0: return cuMemcpyPeer(target.address, target_context, source.address, source_context, target.bytes);
      case 1: return cuMemcpyPeerAsync(target.address, target_context, source.address, source_context, target.bytes, handle_of_stream(stream));
      case 2: return cuMemcpyDtoD(target.address, source.address, target.bytes);
      default: return cuMemcpy(target.address, source.address, target.bytes);
    }
  });
  if (!answered("", result)) return;
  target.value = source.value;
  answered("synchronise", on_thread([] { return cuCtxSynchronize(); }));
}

void Walk::read_back() {
  const int index = draw(blocks_, [&](const Block& b) { return b.is_alive && b.value != kNone; });
  if (index == kNone || is_forbidden()) return;
  Block& block = blocks_[static_cast<std::size_t>(index)];
  adopt(block);
  if (block.context == kNone || !contexts_[static_cast<std::size_t>(block.context)].is_alive || is_captured(kNone)) return;
  say(named('b', index));
  if (!settle(block) || !use(block.context)) return;
  const std::size_t bytes = std::min<std::size_t>(block.bytes, 4 * kMiB);
  const std::size_t offset = below(block.bytes - bytes + 1);
  bytes_.assign(bytes, 0);
  if (!answered("", on_thread([&] { return cuMemcpyDtoH(bytes_.data(), block.address + offset, bytes); }))) return;
  if (bytes_[0] == block.value && std::memcmp(bytes_.data(), bytes_.data() + 1, bytes - 1) == 0) return;
  const auto wrong = std::count_if(bytes_.begin(), bytes_.end(), [&](unsigned char byte) { return byte != block.value; });
  if (wrong != 0) say("WRONG", static_cast<std::uint64_t>(wrong));
}

/// Memory that a graph owns.
void Walk::node_memory() {
  const int index = draw(streams_, [&](const Stream& s) { return is_usable(s) && s.capture != kNone; });
  if (index == kNone) return;
  const CUstream stream = handle_of_stream(index);
  if (!reach(streams_[static_cast<std::size_t>(index)], true)) return;
  CUdeviceptr address = 0;
  const std::size_t bytes = draw_bytes();
  say(named('s', index));
  if (!answered("", on_thread([&] { return cuMemAllocAsync(&address, bytes, stream); }))) return;
  answered("fill", on_thread([&] { return cuMemsetD8Async(address, 1, bytes, stream); }));
  answered("free", on_thread([&] { return cuMemFreeAsync(address, stream); }));
}

}  // namespace walks
