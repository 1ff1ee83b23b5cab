// The arguments that every row which takes one is tried with.
#include "battery.hpp"

namespace battery {
namespace {

template <class Handle> Handle garbage() {
  // Memory of our own that is no handle: a real driver may look into it.
  static std::uint64_t nothing[512] = {};
  return reinterpret_cast<Handle>(&nothing[8]);
}

}  // namespace

const std::vector<AddressKind>& address_kinds() {
  static const std::vector<AddressKind> kinds = {
      {"null", [](const World&) -> CUdeviceptr { return 0; }},
      {"never allocated", [](const World&) { return kNeverAllocated; }},
      {"all ones", [](const World&) -> CUdeviceptr { return ~CUdeviceptr{0}; }},
      {"block", [](const World& w) { return w.block; }},
      {"small", [](const World& w) { return w.small; }},
      {"interior", [](const World& w) { return w.interior(); }},
      {"end of small", [](const World& w) { return w.end_of_small(); }},
      {"freed", [](const World& w) { return w.freed; }},
      {"stream block", [](const World& w) { return w.stream_block; }},
      {"interior of stream block", [](const World& w) { return w.stream_block != 0 ? w.stream_block + 512 : 0; }},
      {"freed stream block", [](const World& w) { return w.freed_stream_block; }},
      {"plain pool block", [](const World& w) { return w.plain_pool_block; }},
      {"special pool block", [](const World& w) { return w.special_pool_block; }},
      {"block of other context", [](const World& w) { return w.block_of_other; }},
      {"block of other device", [](const World& w) { return w.block_elsewhere; }},
      {"block of dead context", [](const World& w) { return w.block_of_dead; }},
      {"managed", [](const World& w) { return w.managed; }},
      {"mapped", [](const World& w) { return w.mapped; }},
      {"reserved, not mapped", [](const World& w) { return w.reserved != 0 ? w.reserved + 2 * kMiB : 0; }},
      {"host", [](const World& w) { return reinterpret_cast<CUdeviceptr>(w.host); }},
      {"registered", [](const World& w) { return reinterpret_cast<CUdeviceptr>(w.registered); }}};
  return kinds;
}

const std::vector<StreamKind>& stream_kinds() {
  static const std::vector<StreamKind> kinds = {{"stream", [](const World& w) { return w.stream; }},
                                                {"second stream", [](const World& w) { return w.second_stream; }},
                                                {"null", [](const World&) -> CUstream { return nullptr; }},
                                                {"legacy", [](const World&) { return CU_STREAM_LEGACY; }},
                                                {"per thread", [](const World&) { return CU_STREAM_PER_THREAD; }},
                                                {"stream of other context", [](const World& w) { return w.stream_of_other; }},
                                                {"stream of other device", [](const World& w) { return w.stream_elsewhere; }},
                                                {"destroyed stream", [](const World& w) { return w.dead_stream; }},
                                                {"no stream", [](const World&) { return garbage<CUstream>(); }}};
  return kinds;
}

const std::vector<PoolKind>& pool_kinds() {
  static const std::vector<PoolKind> kinds = {{"null", [](const World&) -> CUmemoryPool { return nullptr; }},
                                              {"default pool", [](const World& w) { return w.default_pool; }},
                                              {"plain pool", [](const World& w) { return w.plain_pool; }},
                                              {"special pool", [](const World& w) { return w.special_pool; }},
                                              {"pool of other device", [](const World& w) { return w.pool_elsewhere; }},
                                              {"destroyed pool", [](const World& w) { return w.dead_pool; }},
                                              {"no pool", [](const World&) { return garbage<CUmemoryPool>(); }}};
  return kinds;
}

const std::vector<ContextKind>& context_kinds() {
  static const std::vector<ContextKind> kinds = {{"null", [](const World&) -> CUcontext { return nullptr; }},
                                                 {"current", [](const World& w) { return w.current; }},
                                                 {"other", [](const World& w) { return w.other; }},
                                                 {"of other device", [](const World& w) { return w.elsewhere; }},
                                                 {"destroyed", [](const World& w) { return w.dead_context; }},
                                                 {"no context", [](const World&) { return garbage<CUcontext>(); }}};
  return kinds;
}

}  // namespace battery
