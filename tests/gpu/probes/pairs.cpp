// Pair costs of the driver's own ways to allocate, on 1 and 16 threads; run again under the pool, the same calls are the
// pool's. Stream-ordered pairs are timed without and with a synchronisation every 64 pairs, since a pool that keeps
// nothing pays there.
#include "tests/gpu/probes/streams.hpp"
#include "tests/gpu/programs/pair_cost.hpp"

namespace probe {
namespace {

CUcontext g_context = nullptr;  // what worker threads make current

class Plain {
 public:
  explicit Plain(std::size_t bytes) : bytes_(bytes) { static_cast<void>(CU(cuCtxSetCurrent)(g_context)); }
  [[nodiscard]] std::uintptr_t take() const {
    CUdeviceptr address = 0;
    return allocate_(&address, bytes_) == CUDA_SUCCESS ? static_cast<std::uintptr_t>(address) : 0;
  }
  void give(std::uintptr_t block) const { static_cast<void>(release_(block)); }
  void settle() const {}

 private:
  std::size_t bytes_;
  decltype(&cuMemAlloc_v2) allocate_ = CU(cuMemAlloc_v2);
  decltype(&cuMemFree_v2) release_ = CU(cuMemFree_v2);
};

template <bool kSynchronise> class Ordered {
 public:
  explicit Ordered(std::size_t bytes) : bytes_(bytes) {
    static_cast<void>(CU(cuCtxSetCurrent)(g_context));
    static_cast<void>(CU(cuStreamCreate)(&stream_, CU_STREAM_NON_BLOCKING));
  }
  ~Ordered() { static_cast<void>(CU(cuStreamDestroy_v2)(stream_)); }
  Ordered(const Ordered&) = delete;
  Ordered& operator=(const Ordered&) = delete;
  [[nodiscard]] std::uintptr_t take() const {
    CUdeviceptr address = 0;
    return allocate_(&address, bytes_, stream_) == CUDA_SUCCESS ? static_cast<std::uintptr_t>(address) : 0;
  }
  void give(std::uintptr_t block) const { static_cast<void>(release_(block, stream_)); }
  void settle() const {
    if (kSynchronise) static_cast<void>(synchronize_(stream_));
  }

 private:
  std::size_t bytes_;
  CUstream stream_ = nullptr;
  decltype(&cuMemAllocAsync) allocate_ = CU(cuMemAllocAsync);
  decltype(&cuMemFreeAsync) release_ = CU(cuMemFreeAsync);
  decltype(&cuStreamSynchronize) synchronize_ = CU(cuStreamSynchronize);
};

void tell(const std::string& question, const std::string& figures) {
  if (figures.empty()) leave_out(question, "an allocation failed");
  else answer(question, Json::raw(figures));
}

}  // namespace

void ask_pairs(Session& session) {
  g_context = session.context;
  group("cuMemAlloc", [] { pair_cost::measure_all<Plain>("cuMemAlloc", tell); });
  for (const auto& [words, threshold] : {std::pair{"threshold 0", std::uint64_t{0}}, std::pair{"threshold unlimited", ~std::uint64_t{0}}}) {
    group(words, [&, name = std::string("cuMemAllocAsync, ") + words, bytes = threshold] {
      keep_freed_bytes(default_pool(session.device), bytes);
      pair_cost::measure_all<Ordered<false>>(name, tell);
      pair_cost::measure_all<Ordered<true>>(name + ", synchronised every 64", tell);
    });
  }
}

}  // namespace probe
