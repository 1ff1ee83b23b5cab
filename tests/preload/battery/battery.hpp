// The transparency battery: every hooked entry point, with legal and illegal arguments, in every situation that a program can
// be in. One line is printed per case; the same program runs on the bare driver and under the library, and compare.py judges.
//
// A row of shim/entry_points.def without a function cases_<symbol> does not link. Nothing here knows what the library does.
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL  // every variant under its exported name
#endif
#include <cuda.h>

#include "shim/newer_api.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace battery {

inline constexpr std::size_t kKiB = 1024;
inline constexpr std::size_t kMiB = 1024 * kKiB;
inline constexpr std::size_t kGiB = 1024 * kMiB;
inline constexpr CUdeviceptr kUntouched = 0xdead;  ///< what outputs hold before a call
inline constexpr CUdeviceptr kNeverAllocated = 0x1234;

/// Where a program stands when it makes the call.
enum class Situation {
  uninitialised,       ///< before cuInit
  no_context,          ///< initialised, nothing current
  primary,             ///< the primary context of device 0
  created,             ///< a second context of device 0
  second_device,       ///< the primary context of device 1
  green,               ///< the context of a green context of device 0
  busy,                ///< as primary, and a kernel of one virtual millisecond runs in the stream
  captured_global,     ///< another stream captures, begun by this thread
  captured_thread,     ///< the same, thread-local
  captured_relaxed,    ///< the same, relaxed
  captured_elsewhere,  ///< another stream captures, global, begun by another thread
  capturing_global,    ///< the stream that the call names captures
  capturing_relaxed,
  destroyed,  ///< the current context was destroyed by another thread
  broken,     ///< the current context has met an illegal address
  kCount
};
const char* name_of(Situation situation);

/// What a case can use. All of it is made anew for each case.
struct World {
  Situation situation{};
  CUcontext current = nullptr;    ///< null: none
  CUcontext other = nullptr;      ///< a context of the other kind, on device 0
  CUcontext elsewhere = nullptr;  ///< the primary context of the other device
  CUcontext dead_context = nullptr;
  CUgreenCtx green = nullptr;
  CUdevice device = 0;
  CUdevice other_device = 1;
  CUstream stream = nullptr;         ///< of the current context; captures in capturing_*
  CUstream second_stream = nullptr;  ///< of the current context; captures in captured_*
  CUstream stream_of_other = nullptr;
  CUstream stream_elsewhere = nullptr;
  CUstream dead_stream = nullptr;
  CUmemoryPool default_pool = nullptr;
  CUmemoryPool plain_pool = nullptr;
  CUmemoryPool special_pool = nullptr;  ///< may be exported
  CUmemoryPool pool_elsewhere = nullptr;
  CUmemoryPool dead_pool = nullptr;
  CUdeviceptr block = 0;  ///< 1 MiB of cuMemAlloc
  CUdeviceptr small = 0;  ///< 1000 bytes of cuMemAlloc
  CUdeviceptr freed = 0;
  CUdeviceptr stream_block = 0;  ///< 1 MiB of cuMemAllocAsync, in `stream` before it captures
  CUdeviceptr freed_stream_block = 0;
  CUdeviceptr plain_pool_block = 0;
  CUdeviceptr special_pool_block = 0;
  CUdeviceptr block_of_other = 0;
  CUdeviceptr block_elsewhere = 0;
  CUdeviceptr block_of_dead = 0;  ///< its context is destroyed
  CUdeviceptr managed = 0;
  CUdeviceptr mapped = 0;    ///< 2 MiB of the program's own virtual memory management
  CUdeviceptr reserved = 0;  ///< 4 MiB of addresses, the first half mapped
  CUmemGenericAllocationHandle physical = 0;
  void* host = nullptr;
  void* registered = nullptr;
  CUarray array = nullptr;
  CUmipmappedArray mipmap = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;

  CUdeviceptr interior() const { return block != 0 ? block + 4096 : 0; }
  CUdeviceptr end_of_small() const { return small != 0 ? small + 1000 : 0; }
  std::string label(CUdeviceptr address) const;
  std::string label(const void* handle) const;
};

/// Every kind of address that a program could hand in.
struct AddressKind {
  const char* name;
  CUdeviceptr (*of)(const World&);
};
const std::vector<AddressKind>& address_kinds();
struct StreamKind {
  const char* name;
  CUstream (*of)(const World&);
};
const std::vector<StreamKind>& stream_kinds();
struct PoolKind {
  const char* name;
  CUmemoryPool (*of)(const World&);
};
const std::vector<PoolKind>& pool_kinds();
struct ContextKind {
  const char* name;
  CUcontext (*of)(const World&);
};
const std::vector<ContextKind>& context_kinds();

/// What one case prints.
class Line {
 public:
  explicit Line(const World& world) : world_(world) {}
  Line& code(CUresult result);
  Line& address(const char* what, CUdeviceptr value);
  Line& handle(const char* what, const void* value);
  Line& number(const char* what, std::uint64_t value);
  Line& text(const char* what, const std::string& value);
  /// What an allocation gave: everything that the driver says about it.
  Line& memory(const char* what, CUdeviceptr address);
  const std::string& str() const { return text_; }
  /// Memory that the case got and leaves; so is what memory() is asked about.
  void got(CUdeviceptr address) { given_.push_back(address); }
  const std::vector<CUdeviceptr>& given() const { return given_; }

 private:
  const World& world_;
  std::string text_;
  std::vector<CUdeviceptr> given_;
};

using Body = std::function<void(World&, Line&)>;
struct Case {
  std::string name;
  Body body;
};
class Cases {
 public:
  void add(std::string name, Body body) { all_.push_back({std::move(name), std::move(body)}); }
  const std::vector<Case>& all() const { return all_; }

 private:
  std::vector<Case> all_;
};

/// Makes the situation, and takes it down again. A step that fails is the battery's own fault: exit code 99.
void enter(World& world, Situation situation);
/// `given`: memory that the case got. False: the device gives this process no context any more, because an illegal address was met.
bool leave(World& world, const std::vector<CUdeviceptr>& given);
/// One virtual second: every kernel of the battery is over.
void let_gpu_finish();
/// The capture status of both streams and the current context, after the call.
std::string aftermath(const World& world);

#define HOOK(name, symbol, since, role, method) void cases_##symbol(Cases& cases);
#include "shim/entry_points.def"
#undef HOOK

}  // namespace battery
