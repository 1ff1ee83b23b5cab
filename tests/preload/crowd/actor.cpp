// What a thread of the crowd does: choosing, and blocks.
#include "actor.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>

namespace crowd {
namespace {

using Fill = CUresult (*)(CUstream, CUdeviceptr, std::size_t, std::uint8_t, std::uint64_t);

Fill fill_kernel() {
  static const Fill found = reinterpret_cast<Fill>(dlsym(RTLD_DEFAULT, "cusim_launch_fill"));
  return found;
}

}  // namespace

const std::vector<Actor::Row>& Actor::rows() {
  static const std::vector<Row> all = {
      {24, "allocate", &Actor::allocate, true},
      {3, "allocate pitched", &Actor::allocate_pitched, true},
      {16, "allocate ordered", &Actor::allocate_ordered, true},
      {6, "allocate from pool", &Actor::allocate_from_pool, true},
      {36, "free", &Actor::release, true},
      {2, "free many", &Actor::release_many, true},
      {2, "free wrongly", &Actor::release_wrongly, true},
      {20, "write", &Actor::write, true},
      {16, "read", &Actor::read, true},
      {6, "ask", &Actor::ask, true},
      {3, "ask device", &Actor::ask_device, true},
      {4, "create stream", &Actor::create_stream, true},
      {3, "destroy stream", &Actor::destroy_stream, true},
      {4, "synchronise", &Actor::synchronise, true},
      {4, "event", &Actor::use_event, true},
      {4, "capture", &Actor::capture, false},
      {2, "own context", &Actor::own_context, true},
      {4, "own stream", &Actor::own_stream, true},
      {4, "own memory", &Actor::own_memory, true},
      {2, "own pool", &Actor::own_pool, false},
      {2, "trim", &Actor::trim, true},
      {2, "map", &Actor::map_own, false},
      {1, "managed", &Actor::managed, false},
      {3, "array", &Actor::array, true},
      {2, "module", &Actor::module, true},
      {1, "too much", &Actor::too_much, false},
      {2, "look up", &Actor::look_up, true},
      {2, "helper", &Actor::helper, true},
  };
  return all;
}

Actor::Actor(Crowd& crowd, int number) : crowd_(crowd), number_(number), device_(number % crowd.settings().devices) {}

void Actor::run() {
  const Settings& settings = crowd_.settings();
  random_.seed(settings.seed * 1'000'003 + static_cast<std::uint64_t>(number_));
  answered("primary", cuCtxSetCurrent(crowd_.primary(device_)));
  streams_ = {CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
  int total = 0;
  for (const Row& row : rows()) total += row.weight;
  for (step_ = 0; step_ < settings.steps; ++step_) {
    line_.clear();
    const char* name = "hand over";
    if (step_ % 40 == 39) {
      hand_over();
    } else {
      int left = static_cast<int>(below(static_cast<std::uint64_t>(total)));
      const Row* chosen = rows().data();
      while (left >= chosen->weight) left -= (chosen++)->weight;
      name = chosen->name;
      if (chosen->is_tight || !settings.is_tight) (this->*chosen->operation)();
    }
    if (!line_.empty()) lines_ += std::to_string(number_) + "." + std::to_string(step_) + " " + name + ":" + line_ + "\n";
  }
  line_ = " ";
  while (!blocks_.empty()) free_at(blocks_.size() - 1);
  for (CUarray array : arrays_) answered("array", cuArrayDestroy(array));
  for (CUmodule module : modules_) answered("module", cuModuleUnload(module));
  if (own_ != nullptr) answered("own context", cuCtxDestroy(own_));
  for (std::size_t i = 2; i < streams_.size(); ++i) {
    if (streams_[i] != nullptr) answered("stream", cuStreamDestroy(streams_[i]));
  }
  lines_ += std::to_string(number_) + " end:" + line_ + "\n";
}

std::size_t Actor::draw_bytes() {
  const std::uint64_t kind = below(10);
  if (kind < 4) return 512 * (1 + below(64));
  if (kind < 7) return 512 * (1 + below(2048));
  if (kind < 9) return 512 * (1 + below(8192));
  return 512 * (1 + below(crowd_.settings().bytes / 4 / 512));
}

int Actor::draw_block(bool is_written) {
  if (blocks_.empty()) return -1;
  const std::size_t first = below(blocks_.size());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const std::size_t at = (first + i) % blocks_.size();
    if (!is_written || blocks_[at].value >= 0) return static_cast<int>(at);
  }
  return -1;
}

bool Actor::answered(const char* what, CUresult result) {
  say(std::string(what) + "->" + std::to_string(result));
  return result == CUDA_SUCCESS;
}

bool Actor::use(const Block& block) {
  const CUresult result = cuCtxSetCurrent(block.is_private ? own_ : crowd_.primary(block.device));
  return result == CUDA_SUCCESS || answered("set current", result);
}

CUstream Actor::stream_of(const Block& block) const {
  return block.stream < 0 ? CU_STREAM_PER_THREAD : streams_[static_cast<std::size_t>(block.stream)];
}

/// Stream-ordered memory needs no context but its stream's, if that has a handle: seldom another than its own is current meanwhile, or none.
CUresult Actor::call_on(CUstream stream, const std::function<CUresult()>& call) {
  CUcontext here = nullptr;
  const bool is_default = stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  const bool is_elsewhere = !is_default && one_in(4) && cuCtxGetCurrent(&here) == CUDA_SUCCESS &&
                            cuCtxSetCurrent(one_in(2) ? nullptr : crowd_.primary(device_)) == CUDA_SUCCESS;
  const CUresult result = call();
  if (is_elsewhere && cuCtxSetCurrent(here) != CUDA_SUCCESS) say("NOT BACK");
  return result;
}

bool Actor::allocate_on(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool, CUstream stream) {
  return answered("", call_on(stream, [&] {
                    return pool == nullptr ? cuMemAllocAsync(address, bytes, stream) : cuMemAllocFromPoolAsync(address, bytes, pool, stream);
                  }));
}

void Actor::free_on(CUdeviceptr address, CUstream stream) {
  answered("free", call_on(stream, [&] { return cuMemFreeAsync(address, stream); }));
}

bool Actor::settle(const Block& block) {
  if (!use(block)) return false;
  const CUresult result = cuStreamSynchronize(stream_of(block));
  return result == CUDA_SUCCESS || answered("settle", result);
}

void Actor::keep(const Block& block) {
  held_ += block.bytes;
  if (!crowd_.enter(block)) say("OVERLAPS");
  blocks_.push_back(block);
}

void Actor::fill(Block& block) {
  const int value = static_cast<int>(below(256));
  const std::uint64_t duration_ns = 1 + below(one_in(4) ? 4'000'000 : 200'000);
  if (answered("fill", fill_kernel()(stream_of(block), block.address, block.bytes, static_cast<std::uint8_t>(value), duration_ns)))
    block.value = value;
}

void Actor::verify(const Block& block) {
  if (block.value < 0 || !settle(block)) return;
  const std::size_t bytes = std::min<std::size_t>(block.bytes, 2 * kMiB);
  bytes_.assign(bytes, 0);
  if (!answered("read", cuMemcpyDtoH(bytes_.data(), block.address + below(block.bytes - bytes + 1), bytes))) return;
  if (bytes_[0] == block.value && std::memcmp(bytes_.data(), bytes_.data() + 1, bytes - 1) == 0) return;
  const auto wrong = std::count_if(bytes_.begin(), bytes_.end(), [&](unsigned char byte) { return byte != block.value; });
  if (wrong != 0) say("WRONG=" + std::to_string(wrong));
}

void Actor::free_at(std::size_t index) {
  const Block block = blocks_[index];
  blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(index));
  held_ -= block.bytes;
  if (!use(block)) return;
  crowd_.leave(block);  // before: from the free on the address may be another's
  const bool is_at_once = block.stream < 0 || (one_in(8) && cuStreamSynchronize(stream_of(block)) == CUDA_SUCCESS);
  if (is_at_once) answered("free", cuMemFree(block.address));
  else free_on(block.address, stream_of(block));
}

void Actor::allocate() {
  Block block;
  block.bytes = draw_bytes();
  if (held_ + block.bytes > crowd_.settings().bytes) return;
  block.is_private = own_ != nullptr && one_in(4);
  block.device = block.is_private || !one_in(8) ? device_ : static_cast<int>(below(static_cast<std::uint64_t>(crowd_.settings().devices)));
  if (crowd_.settings().is_tight) block.device = device_;
  if (!use(block) || !answered("", cuMemAlloc(&block.address, block.bytes))) return;
  if (one_in(2)) fill(block);
  keep(block);
}

void Actor::allocate_pitched() {
  Block block;
  block.device = device_;
  std::size_t pitch = 0;
  const std::size_t rows = 1 + below(64);
  if (held_ + 64 * kKiB * rows > crowd_.settings().bytes || !use(block)) return;
  if (!answered("", cuMemAllocPitch(&block.address, &pitch, 1 + below(60 * kKiB), rows, 4))) return;
  say("pitch=" + std::to_string(pitch));
  block.bytes = pitch * rows;
  keep(block);
}

void Actor::allocate_ordered() { take_in_stream(nullptr); }
void Actor::allocate_from_pool() { take_in_stream(crowd_.pool(device_)); }

void Actor::take_in_stream(CUmemoryPool pool) {
  Block block;
  block.device = device_;
  block.bytes = draw_bytes();
  block.stream = static_cast<int>(below(streams_.size()));
  if (streams_[static_cast<std::size_t>(block.stream)] == nullptr || held_ + block.bytes > crowd_.settings().bytes || !use(block)) return;
  const CUstream stream = stream_of(block);
  if (!allocate_on(&block.address, block.bytes, pool, stream)) return;
  if (one_in(2)) fill(block);
  keep(block);
}

void Actor::release() {
  const int index = draw_block(false);
  if (index >= 0) free_at(static_cast<std::size_t>(index));
}

void Actor::release_many() {
  for (std::size_t left = blocks_.size() / 2; left > 0; --left) free_at(below(blocks_.size()));
}

void Actor::release_wrongly() {
  const int index = draw_block(false);
  if (index < 0) return;
  const Block& block = blocks_[static_cast<std::size_t>(index)];
  if (block.bytes > 1024 && use(block)) answered("", cuMemFree(block.address + 512));
}

void Actor::write() {
  const int index = draw_block(false);
  if (index < 0) return;
  Block& block = blocks_[static_cast<std::size_t>(index)];
  if (use(block)) fill(block);
}

void Actor::read() {
  const int index = draw_block(true);
  if (index >= 0) verify(blocks_[static_cast<std::size_t>(index)]);
}

void Actor::ask() {
  const int index = draw_block(false);
  if (index < 0) return;
  const Block& block = blocks_[static_cast<std::size_t>(index)];
  if (!use(block)) return;
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  if (answered("range", cuMemGetAddressRange(&base, &bytes, block.address + below(block.bytes)))) {
    say("offset=" + std::to_string(block.address - base) + " of=" + std::to_string(bytes));
  }
  CUcontext context = nullptr;
  int ordinal = -1;
  unsigned type = 0;
  void* values[] = {&context, &ordinal, &type};
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  if (answered("attributes", cuPointerGetAttributes(3, names, values, block.address))) {
    say(context == (block.is_private ? own_ : crowd_.primary(block.device)) ? "mine" : context == nullptr ? "nobody's" : "another's");
    say(std::to_string(ordinal) + " " + std::to_string(type));
  }
}

void Actor::ask_device() {
  std::size_t free = 0;
  std::size_t total = 0;
  if (answered("", cuMemGetInfo(&free, &total))) say(free <= total ? "" : "MORE THAN THERE IS");
  std::uint64_t threshold = 0;
  answered("threshold", cuMemPoolGetAttribute(crowd_.pool(device_), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  std::uint64_t used = 0;
  answered("used", cuMemPoolGetAttribute(crowd_.pool(device_), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
}

void Actor::hand_over() {
  const int index = draw_block(true);
  Block given;
  if (index >= 0 && !blocks_[static_cast<std::size_t>(index)].is_private && settle(blocks_[static_cast<std::size_t>(index)])) {
    given = blocks_[static_cast<std::size_t>(index)];
    held_ -= given.bytes;
    blocks_.erase(blocks_.begin() + index);
    given.stream = -1;
  }
  const int threads = crowd_.settings().threads;
  crowd_.post((number_ + 1) % threads, step_, given);
  const Block taken = crowd_.take(number_, step_);
  if (taken.bytes == 0) return;
  say("of=" + std::to_string(taken.bytes));
  verify(taken);
  held_ += taken.bytes;
  blocks_.push_back(taken);
  free_at(blocks_.size() - 1);
}

}  // namespace crowd
