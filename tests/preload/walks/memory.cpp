// Memory: taking it, asking about it, giving it back.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "walk.hpp"

namespace walks {
namespace {

CUmemLocation on_device(int device) {
  CUmemLocation location;
  std::memset(&location, 0, sizeof location);
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

}  // namespace

void Walk::keep(CUdeviceptr address, std::size_t bytes, Block::Kind kind, int stream, int pool) {
  Block block;
  block.address = address;
  block.bytes = bytes;
  block.kind = kind;
  block.stream = stream;
  block.pool = pool;
  block.context = stream != kNone ? streams_[static_cast<std::size_t>(stream)].context : current();
  block.device = block.context == kNone ? 0 : contexts_[static_cast<std::size_t>(block.context)].device;
  say(named('b', static_cast<int>(blocks_.size())));
  say("alignment", std::min<std::uint64_t>(address & (~address + 1), 512));
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& other = blocks_[i];
    if (other.is_alive && other.address < address + bytes && address < other.address + other.bytes) say("OVERLAPS b" + std::to_string(i));
  }
  blocks_.push_back(block);
  if (one_in(4)) say_attributes(blocks_.back());
}

void Walk::say_attributes(const Block& block) {
  constexpr std::pair<const char*, CUpointer_attribute> kFigures[] = {{"type", CU_POINTER_ATTRIBUTE_MEMORY_TYPE},
                                                                      {"sync", CU_POINTER_ATTRIBUTE_SYNC_MEMOPS},
                                                                      {"managed", CU_POINTER_ATTRIBUTE_IS_MANAGED},
                                                                      {"device", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL},
                                                                      {"ipc", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE},
                                                                      {"bytes", CU_POINTER_ATTRIBUTE_RANGE_SIZE},
                                                                      {"mapped", CU_POINTER_ATTRIBUTE_MAPPED},
                                                                      {"handles", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES},
                                                                      {"rdma", CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE}};
  const CUdeviceptr inside = block.address + (one_in(2) ? below(block.bytes) : 0);
  for (const auto& [name, attribute] : kFigures) {
    std::uint64_t value = 0;
    const CUresult result = on_thread([&] { return cuPointerGetAttribute(&value, attribute, inside); });
    say(name, result == CUDA_SUCCESS ? value : 100'000 + static_cast<std::uint64_t>(result));
  }
  CUcontext context = nullptr;
  CUmemoryPool pool = nullptr;
  CUdeviceptr start = 0, base = 0;
  std::size_t bytes = 0;
  unsigned ordinal = 77;
  void* data[] = {&context, &pool, &start, &ordinal};
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  answered("attributes", on_thread([&] { return cuPointerGetAttributes(4, attributes, data, inside); }));
  say("context=" + label(context) + " pool=" + label(pool));
  say("start", start == 0 ? 0 : inside - start);
  say("ordinal", ordinal);
  if (answered("range", on_thread([&] { return cuMemGetAddressRange(&base, &bytes, inside); }))) {
    say("before", inside - base);
    say("bytes", bytes);
  }
  say("inside", inside - block.address);
}

void Walk::allocate_plain() {
  if (is_forbidden()) return;
  if (!one_in(8)) {
    const int context = draw(contexts_);
    if (context == kNone || !use(context)) return;
  }
  CUdeviceptr address = 0;
  const std::size_t bytes = one_in(30) ? 0 : draw_bytes() - below(2) * below(511);
  say("bytes", bytes);
  if (answered("", on_thread([&] { return cuMemAlloc(&address, bytes); }))) keep(address, bytes, Block::plain, kNone, kNone);
}

void Walk::allocate_pitched() {
  const int context = draw(contexts_);
  if (is_forbidden() || context == kNone || !use(context)) return;
  CUdeviceptr address = 0;
  std::size_t pitch = 0;
  const std::size_t width = 1 + below(5000), height = 1 + below(300);
  say("width", width);
  say("height", height);
  if (!answered("", on_thread([&] { return cuMemAllocPitch(&address, &pitch, width, height, 4); }))) return;
  say("pitch", pitch);
  keep(address, pitch * height, Block::pitched, kNone, kNone);
}

void Walk::allocate_ordered() {
  const int index = draw_idle_stream();
  if (index == kNone) return;
  const Stream& stream = streams_[static_cast<std::size_t>(index)];
  if (stream.handle == CU_STREAM_LEGACY && is_captured(kNone)) return;
  if (!reach(stream) || is_forbidden()) return;
  CUdeviceptr address = 0;
  const std::size_t bytes = draw_bytes();
  say(named('s', index));
  say("bytes", bytes);
  if (answered("", on_thread([&] { return cuMemAllocAsync(&address, bytes, stream.handle); }))) keep(address, bytes, Block::ordered, index, kNone);
}

void Walk::allocate_from_pool() {
  const int index = draw_idle_stream(), pool = draw(pools_);
  if (index == kNone || pool == kNone) return;
  const Stream& stream = streams_[static_cast<std::size_t>(index)];
  if (stream.handle == CU_STREAM_LEGACY && is_captured(kNone)) return;
  if (contexts_[static_cast<std::size_t>(stream.context)].device != pools_[static_cast<std::size_t>(pool)].device || !reach(stream, true) ||
      is_forbidden())
    return;
  CUdeviceptr address = 0;
  const std::size_t bytes = draw_bytes();
  say(named('s', index) + " " + named('p', pool));
  say("bytes", bytes);
  if (answered("",
               on_thread([&] { return cuMemAllocFromPoolAsync(&address, bytes, pools_[static_cast<std::size_t>(pool)].handle, stream.handle); }))) {
    keep(address, bytes, Block::ordered, index, pool);
  }
}

void Walk::allocate_managed() {
  const int context = draw(contexts_);
  if (is_forbidden() || context == kNone || !use(context)) return;
  CUdeviceptr address = 0;
  const std::size_t bytes = draw_bytes();
  say("bytes", bytes);
  if (answered("", on_thread([&] { return cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL); })))
    keep(address, bytes, Block::managed, kNone, kNone);
}

/// The program's own virtual memory management.
void Walk::map_own() {
  const int context = draw(contexts_);
  if (is_captured(kNone) || context == kNone || !use(context)) return;
  CUmemAllocationProp properties;
  std::memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = on_device(contexts_[static_cast<std::size_t>(context)].device);
  std::size_t granularity = 0;
  if (!answered("granularity", on_thread([&] { return cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM); })))
    return;
  const std::size_t bytes = granularity * (1 + below(3));
  CUmemAccessDesc access;
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  const bool is_mapped = answered("reserve", on_thread([&] { return cuMemAddressReserve(&address, bytes, 0, 0, 0); })) &&
                         answered("create", on_thread([&] { return cuMemCreate(&handle, bytes, &properties, 0); })) &&
                         answered("map", on_thread([&] { return cuMemMap(address, bytes, 0, handle, 0); })) &&
                         answered("access", on_thread([&] { return cuMemSetAccess(address, bytes, &access, 1); }));
  if (!is_mapped) return;
  keep(address, bytes, Block::mapped, kNone, kNone);
  blocks_.back().handle = handle;
}

void Walk::free_at(int index) {
  Block& block = blocks_[static_cast<std::size_t>(index)];
  say(named('b', index));
  if (block.kind == Block::mapped) {
    if (is_captured(kNone) || !settle(block)) return;
    block.is_alive = false;
    answered("unmap", on_thread([&] { return cuMemUnmap(block.address, block.bytes); }));
    answered("release", on_thread([&] { return cuMemRelease(block.handle); }));
    answered("address", on_thread([&] { return cuMemAddressFree(block.address, block.bytes); }));
    return;
  }
  const int home = block.stream;
  const bool is_in_order = home != kNone && is_usable(streams_[static_cast<std::size_t>(home)]) &&
                           streams_[static_cast<std::size_t>(home)].capture == kNone && (block.kind == Block::ordered ? !one_in(5) : false);
  if (is_in_order) {
    const Stream& stream = streams_[static_cast<std::size_t>(home)];
    if (stream.handle == CU_STREAM_LEGACY && is_captured(kNone)) return;
    if (!reach(stream) || is_forbidden()) return;
    if (answered("ordered", on_thread([&] { return cuMemFreeAsync(block.address, stream.handle); }))) block.is_alive = false;
    return;
  }
  if (is_forbidden()) return;
  const bool is_waited_for = block.kind == Block::plain || block.kind == Block::pitched;  // natively, by the free
  if (!is_waited_for && !settle(block)) return;
  if (one_in(3) && block.context != kNone && contexts_[static_cast<std::size_t>(block.context)].is_alive && !use(block.context)) return;
  if (answered("plain", on_thread([&] { return cuMemFree(block.address); }))) block.is_alive = false;
}

void Walk::free_block() {
  const int index = draw(blocks_);
  if (index != kNone) free_at(index);
}

void Walk::free_many() {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].is_alive && one_in(2)) free_at(static_cast<int>(i));
  }
}

void Walk::free_wrongly() {
  const int index = draw(blocks_, [](const Block& b) { return b.is_alive && b.bytes > 512 && b.kind != Block::mapped && b.kind != Block::managed; });
  const int stream = draw_idle_stream();
  if (index == kNone || stream == kNone || is_captured(kNone) || !reach(streams_[static_cast<std::size_t>(stream)], true)) return;
  const CUdeviceptr wrong[] = {blocks_[static_cast<std::size_t>(index)].address + 256, 0, 0x1234, reinterpret_cast<CUdeviceptr>(this)};
  const std::uint64_t kind = below(4);
  say("kind", kind);
  say(named('b', index));
  answered("plain", on_thread([&] { return cuMemFree(wrong[kind]); }));
  answered("ordered", on_thread([&] { return cuMemFreeAsync(wrong[kind], handle_of_stream(stream)); }));
}

void Walk::create_pool() {
  if (is_captured(kNone) || pools_.size() > 12) return;
  Pool pool;
  pool.device = static_cast<int>(below(static_cast<std::uint64_t>(devices_)));
  CUmemPoolProps properties;
  std::memset(&properties, 0, sizeof properties);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = on_device(pool.device);
  if (one_in(4)) properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  say("handles", static_cast<std::uint64_t>(properties.handleTypes));
  if (answered("", on_thread([&] { return cuMemPoolCreate(&pool.handle, &properties); }))) pools_.push_back(pool);
}

void Walk::destroy_pool() {
  const int index = draw(pools_);
  if (index < devices_ || is_captured(kNone)) return;
  say(named('p', index));
  if (answered("", on_thread([&] { return cuMemPoolDestroy(pools_[static_cast<std::size_t>(index)].handle); })))
    pools_[static_cast<std::size_t>(index)].is_alive = false;
}

void Walk::set_pool() {
  const int index = draw(pools_);
  if (index == kNone || is_captured(kNone)) return;
  const Pool& pool = pools_[static_cast<std::size_t>(index)];
  say(named('p', index));
  answered("", on_thread([&] { return cuDeviceSetMemPool(pool.device, pool.handle); }));
}

void Walk::trim_pool() {
  const int index = draw(pools_);
  if (index == kNone || is_captured(kNone)) return;
  say(named('p', index));
  answered("", on_thread([&] { return cuMemPoolTrimTo(pools_[static_cast<std::size_t>(index)].handle, below(4 * kMiB)); }));
}

/// Access for another device. Nothing of it is in flight.
void Walk::share_pool() {
  const int index = draw(pools_);
  if (index == kNone || is_captured(kNone)) return;
  CUmemAccessDesc access;
  access.location = on_device(static_cast<int>(below(static_cast<std::uint64_t>(devices_))));
  access.flags = one_in(3) ? CU_MEM_ACCESS_FLAGS_PROT_NONE : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  say(named('p', index));
  say("to", static_cast<std::uint64_t>(access.location.id));
  say("flags", static_cast<std::uint64_t>(access.flags));
  answered("", on_thread([&] { return cuMemPoolSetAccess(pools_[static_cast<std::size_t>(index)].handle, &access, 1); }));
}

void Walk::ask_pool() {
  const int index = draw(pools_);
  if (index == kNone) return;
  say(named('p', index));
  const CUmemoryPool pool = pools_[static_cast<std::size_t>(index)].handle;
  cuuint64_t used = 77;
  answered("", on_thread([&] { return cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used); }));
  say("used", used);
  if (one_in(4)) {
    cuuint64_t threshold = below(2) * 64 * kMiB;
    answered("threshold", on_thread([&] { return cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold); }));
    threshold = 77;
    answered("threshold", on_thread([&] { return cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold); }));
    say("threshold", threshold);
  }
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  CUmemLocation location = on_device(static_cast<int>(below(static_cast<std::uint64_t>(devices_))));
  answered("access", on_thread([&] { return cuMemPoolGetAccess(&flags, pool, &location); }));
  say("pool_access", static_cast<std::uint64_t>(flags));
}

void Walk::ask_block() {
  const int index = draw(blocks_);
  if (index == kNone || blocks_[static_cast<std::size_t>(index)].bytes == 0) return;
  say(named('b', index));
  say_attributes(blocks_[static_cast<std::size_t>(index)]);
}

void Walk::ask_device() {
  const int device = static_cast<int>(below(static_cast<std::uint64_t>(devices_)));
  std::size_t left = 0, total = 0, bytes = 0;
  CUcontext context = nullptr;
  CUmemoryPool set = nullptr, standard = nullptr;
  unsigned flags = 77;
  int is_active = 77;
  answered("info", on_thread([&] { return cuMemGetInfo(&left, &total); }));
  answered("total", on_thread([&] { return cuDeviceTotalMem(&bytes, device); }));
  say("total", total);
  say("bytes", bytes);
  answered("current", on_thread([&] { return cuCtxGetCurrent(&context); }));
  say(label(context));
  answered("pool", on_thread([&] { return cuDeviceGetMemPool(&set, device); }));
  answered("pool", on_thread([&] { return cuDeviceGetDefaultMemPool(&standard, device); }));
  say(label(set) + " " + label(standard));
  answered("state", on_thread([&] { return cuDevicePrimaryCtxGetState(device, &flags, &is_active); }));
  say("active", static_cast<std::uint64_t>(is_active));
}

void Walk::array() {
  const int context = draw(contexts_);
  if (is_captured(kNone) || context == kNone || !use(context)) return;
  CUDA_ARRAY3D_DESCRIPTOR description;
  std::memset(&description, 0, sizeof description);
  description.Width = 1 + below(500);
  description.Height = 1 + below(500);
  description.Format = CU_AD_FORMAT_FLOAT;
  description.NumChannels = 1;
  CUarray array = nullptr;
  if (answered("", on_thread([&] { return cuArray3DCreate(&array, &description); })))
    answered("destroy", on_thread([&] { return cuArrayDestroy(array); }));
}

void Walk::registered_memory() {
  const int context = draw(contexts_);
  if (is_captured(kNone) || context == kNone || !use(context)) return;
  registered_.resize(64 * 4096);
  unsigned char* const page = registered_.data() + (4096 - reinterpret_cast<std::uintptr_t>(registered_.data()) % 4096);
  const std::size_t bytes = 4096 * (1 + below(32));
  if (answered("", on_thread([&] { return cuMemHostRegister(page, bytes, 0); })))
    answered("unregister", on_thread([&] { return cuMemHostUnregister(page); }));
}

/// Code, which the driver takes device memory for.
void Walk::module() {
  const int loaded = draw(modules_, [](const auto& one) { return one.first != nullptr; });
  if (loaded != kNone && one_in(2)) {
    auto& [module, context] = modules_[static_cast<std::size_t>(loaded)];
    if (is_captured(kNone) || !use(context)) return;
    if (answered("unload", on_thread([&] { return cuModuleUnload(module); }))) module = nullptr;
    return;
  }
  const int context = draw(contexts_);
  if (context == kNone || !use(context)) return;
  CUmodule module = nullptr;
  if (answered("load", on_thread([&] { return cuModuleLoadData(&module, "image"); }))) modules_.emplace_back(module, context);
}

void Walk::mark_synchronous() {
  const int index = draw(blocks_, [](const Block& b) { return b.is_alive && b.kind != Block::mapped; });
  if (index == kNone || is_tight_) return;  // its pages are never given to others
  const unsigned value = static_cast<unsigned>(below(2));
  say(named('b', index));
  say("value", value);
  answered("", on_thread([&] {
             return cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, blocks_[static_cast<std::size_t>(index)].address);
           }));
}

void Walk::host_memory() {
  const int context = draw(contexts_);
  if (is_captured(kNone) || context == kNone || !use(context)) return;
  void* host = nullptr;
  if (answered("", on_thread([&] { return cuMemHostAlloc(&host, 4096 * (1 + below(64)), 0); })))
    answered("free", on_thread([&] { return cuMemFreeHost(host); }));
}

}  // namespace walks
