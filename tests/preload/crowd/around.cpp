// What a thread of the crowd does around its blocks: streams, captures, contexts, pools, mappings.
#include <dlfcn.h>

#include <thread>

#include "actor.hpp"

extern "C" CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device);  // every driver has it; <cuda.h> names a newer one

namespace crowd {
namespace {
constexpr std::size_t kArray_bytes = 4 * kMiB;
constexpr std::size_t kModule_bytes = 2 * kMiB;  ///< what the simulated driver takes for one
}  // namespace

void Actor::create_stream() {
  if (streams_.size() > 40 || cuCtxSetCurrent(crowd_.primary(device_)) != CUDA_SUCCESS) return;
  CUstream stream = nullptr;
  if (answered("", cuStreamCreate(&stream, one_in(3) ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING))) streams_.push_back(stream);
}

void Actor::destroy_stream() {
  const std::size_t index = below(streams_.size());
  if (index < 2 || streams_[index] == nullptr || !answered("", cuStreamDestroy(streams_[index]))) return;
  for (Block& block : blocks_) {
    if (block.stream == static_cast<int>(index)) block.stream = 0;  // the legacy stream comes after it only once it is waited for
  }
  streams_[index] = nullptr;
  answered("all", cuCtxSynchronize());
}

void Actor::synchronise() {
  if (cuCtxSetCurrent(crowd_.primary(device_)) == CUDA_SUCCESS) answered("", cuCtxSynchronize());
}

/// A block of one stream goes on in another, behind an event.
void Actor::use_event() {
  const int index = draw_block(false);
  const std::size_t to = below(streams_.size());
  if (index < 0 || streams_[to] == nullptr) return;
  Block& block = blocks_[static_cast<std::size_t>(index)];
  if (block.stream < 0 || block.is_private || !use(block)) return;
  CUevent event = nullptr;
  if (!answered("create", cuEventCreate(&event, CU_EVENT_DISABLE_TIMING))) return;
  if (answered("record", cuEventRecord(event, stream_of(block))) && answered("wait", cuStreamWaitEvent(streams_[to], event, 0)))
    block.stream = static_cast<int>(to);
  answered("destroy", cuEventDestroy(event));
}

void Actor::capture() {
  if (own_ == nullptr || cuCtxSetCurrent(own_) != CUDA_SUCCESS) return;
  if (capturing_ == nullptr && !answered("stream", cuStreamCreate(&capturing_, CU_STREAM_NON_BLOCKING))) return;
  Block block;
  block.is_private = true;
  block.device = device_;
  block.bytes = 512 * (1 + below(512));
  if (held_ + block.bytes > crowd_.settings().bytes || !answered("", cuMemAlloc(&block.address, block.bytes))) return;
  if (!answered("begin", cuStreamBeginCapture(capturing_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))) return;
  CUdeviceptr node = 0;
  if (answered("node", cuMemAllocAsync(&node, 512 * (1 + below(64)), capturing_))) answered("free", cuMemFreeAsync(node, capturing_));
  answered("set", cuMemsetD8Async(block.address, 7, block.bytes, capturing_));
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  if (!answered("end", cuStreamEndCapture(capturing_, &graph))) return;
  if (answered("instantiate", cuGraphInstantiateWithFlags(&executable, graph, 0))) {
    for (std::uint64_t i = below(3); i-- > 0;) answered("launch", cuGraphLaunch(executable, capturing_));
    if (answered("launch", cuGraphLaunch(executable, capturing_)) && answered("synchronise", cuStreamSynchronize(capturing_))) block.value = 7;
    answered("destroy", cuGraphExecDestroy(executable));
  }
  answered("graph", cuGraphDestroy(graph));
  keep(block);
  verify(blocks_.back());
}

/// Begins one, or ends it with what is in it. Stream-ordered memory goes on in the primary context.
void Actor::own_context() {
  if (own_ == nullptr) {
    answered("create", cuCtxCreate_v2(&own_, 0, device_));
    return;
  }
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    if (!blocks_[i].is_private) continue;
    if (blocks_[i].stream >= 0) {
      blocks_[i].is_private = false;
      continue;
    }
    held_ -= blocks_[i].bytes;
    crowd_.leave(blocks_[i]);
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  answered("destroy", cuCtxDestroy(own_));
  own_ = nullptr;
  own_streams_.clear();
  capturing_ = nullptr;
}

/// Memory that comes and goes in the order of a stream of the own context; when that ends nobody has waited for it.
void Actor::own_stream() {
  constexpr std::size_t kMost = 3;
  Block block;
  block.bytes = draw_bytes();
  if (own_ == nullptr || held_ + block.bytes > crowd_.settings().bytes || cuCtxSetCurrent(own_) != CUDA_SUCCESS) return;
  if (own_streams_.size() < kMost) {
    CUstream stream = nullptr;
    if (!answered("stream", cuStreamCreate(&stream, one_in(3) ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING))) return;
    own_streams_.push_back(stream);
  }
  const CUstream stream = own_streams_[below(own_streams_.size())];
  if (!allocate_on(&block.address, block.bytes, nullptr, stream)) return;
  answered("set", cuMemsetD8Async(block.address, 9, block.bytes, stream));
  if (one_in(3)) {
    unsigned char last = 0;
    if (answered("copy", cuMemcpyDtoHAsync(&last, block.address + block.bytes - 1, 1, stream)) &&
        answered("synchronise", cuStreamSynchronize(stream)) && last != 9)
      say("WRONG");
  }
  free_on(block.address, stream);
}

/// Stream-ordered memory of the own context.
void Actor::own_memory() {
  Block block;
  block.bytes = draw_bytes();
  block.device = device_;
  block.is_private = true;
  block.stream = 1;
  if (own_ == nullptr || held_ + block.bytes > crowd_.settings().bytes || !use(block)) return;
  if (!allocate_on(&block.address, block.bytes, one_in(3) ? crowd_.pool(device_) : nullptr, CU_STREAM_PER_THREAD)) return;
  if (one_in(2)) fill(block);
  keep(block);
}

void Actor::own_pool() {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
  CUmemoryPool pool = nullptr;
  Block block;
  block.device = device_;
  block.bytes = 512 * (1 + below(512));
  if (!use(block) || held_ + block.bytes > crowd_.settings().bytes || !answered("create", cuMemPoolCreate(&pool, &properties))) return;
  block.stream = 1;
  if (answered("allocate", cuMemAllocFromPoolAsync(&block.address, block.bytes, pool, CU_STREAM_PER_THREAD))) {
    fill(block);
    std::uint64_t used = 0;
    if (answered("used", cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used))) say(std::to_string(used));
    verify(block);
    answered("free", cuMemFreeAsync(block.address, CU_STREAM_PER_THREAD));
  }
  answered("destroy", cuMemPoolDestroy(pool));
}

void Actor::trim() { answered("", cuMemPoolTrimTo(crowd_.pool(device_), below(2) * kMiB)); }

void Actor::map_own() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  if (!answered("granularity", cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM))) return;
  if (!answered("create", cuMemCreate(&handle, bytes, &properties, 0))) return;
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (answered("reserve", cuMemAddressReserve(&address, bytes, 0, 0, 0))) {
    if (answered("map", cuMemMap(address, bytes, 0, handle, 0))) {
      if (answered("access", cuMemSetAccess(address, bytes, &access, 1)) && cuCtxSetCurrent(crowd_.primary(device_)) == CUDA_SUCCESS) {
        answered("set", cuMemsetD8Async(address, 1, bytes, CU_STREAM_PER_THREAD));
        answered("synchronise", cuStreamSynchronize(CU_STREAM_PER_THREAD));
      }
      answered("unmap", cuMemUnmap(address, bytes));
    }
    answered("free", cuMemAddressFree(address, bytes));
  }
  answered("release", cuMemRelease(handle));
}

void Actor::managed() {
  if (cuCtxSetCurrent(crowd_.primary(device_)) != CUDA_SUCCESS) return;
  CUdeviceptr address = 0;
  if (answered("", cuMemAllocManaged(&address, 512 * (1 + below(512)), CU_MEM_ATTACH_GLOBAL))) answered("free", cuMemFree(address));
}

/// Beside the pool, which has to make room for it. In the primary context, as code is.
void Actor::array() {
  if (cuCtxSetCurrent(crowd_.primary(device_)) != CUDA_SUCCESS) return;
  if (!arrays_.empty() && one_in(2)) {
    answered("destroy", cuArrayDestroy(arrays_.back()));
    arrays_.pop_back();
    held_ -= kArray_bytes;
    return;
  }
  CUDA_ARRAY_DESCRIPTOR description{};
  description.Width = 1024;
  description.Height = kArray_bytes / 4096;
  description.Format = CU_AD_FORMAT_FLOAT;
  description.NumChannels = 1;
  CUarray array = nullptr;
  if (held_ + kArray_bytes > crowd_.settings().bytes || !answered("", cuArrayCreate(&array, &description))) return;
  arrays_.push_back(array);
  held_ += kArray_bytes;
}

void Actor::module() {
  if (cuCtxSetCurrent(crowd_.primary(device_)) != CUDA_SUCCESS) return;
  if (!modules_.empty() && one_in(2)) {
    answered("unload", cuModuleUnload(modules_.back()));
    modules_.pop_back();
    held_ -= kModule_bytes;
    return;
  }
  CUmodule module = nullptr;
  if (held_ + kModule_bytes > crowd_.settings().bytes || !answered("", cuModuleLoadData(&module, "image"))) return;
  modules_.push_back(module);
  held_ += kModule_bytes;
}

void Actor::too_much() {
  if (cuCtxSetCurrent(crowd_.primary(device_)) != CUDA_SUCCESS) return;
  CUdeviceptr address = 0;
  answered("", one_in(2) ? cuMemAlloc(&address, std::size_t{1} << 45) : cuMemAllocAsync(&address, std::size_t{1} << 45, CU_STREAM_PER_THREAD));
}

void Actor::look_up() {
  using LookUp = CUresult (*)(const char*, void**, int, cuuint64_t);
  const auto look_up = reinterpret_cast<LookUp>(dlsym(RTLD_DEFAULT, "cuGetProcAddress"));
  void* found = nullptr;
  answered("", look_up("cuMemAlloc", &found, 11030, 0));
  say(found == dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") ? "the same" : "another");
}

/// A thread that lives as long as one operation.
void Actor::helper() {
  Block block;
  block.device = device_;
  block.bytes = draw_bytes();
  if (held_ + 2 * block.bytes > crowd_.settings().bytes) return;
  CUresult results[4] = {CUDA_SUCCESS, CUDA_SUCCESS, CUDA_SUCCESS, CUDA_SUCCESS};
  std::thread([&] {
    CUdeviceptr other = 0;
    results[0] = cuCtxSetCurrent(crowd_.primary(device_));
    results[1] = cuMemAlloc(&other, block.bytes);
    results[2] = cuMemAlloc(&block.address, block.bytes);
    if (results[1] == CUDA_SUCCESS) results[3] = cuMemFree(other);
  }).join();
  for (const CUresult result : results) answered("", result);
  if (results[2] == CUDA_SUCCESS) keep(block);
}

}  // namespace crowd
