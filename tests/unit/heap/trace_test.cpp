// Recorded jobs: what the heap costs in host memory, and how small a single arena may be. The full table, with every
// trace and the growing regions, comes from tests/bench/heap_model.cpp.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/heap/extent_heap.hpp"
#include "tests/bench/trace.hpp"

using namespace cupool;
using namespace cupool::heap;

namespace {

constexpr std::uint64_t kBase = std::uint64_t{1} << 41;

trace::Trace load(const std::string& name) { return trace::load(std::string(CUPOOL_TRACES) + "/" + name + ".trace.gz"); }

bool completes(const trace::Trace& job, std::uint64_t capacity_bytes) {
  ExtentHeap heap;
  heap.add_region(kBase, capacity_bytes / 512 * 512, nullptr);
  std::vector<Extent*> blocks(job.allocations);
  for (const trace::Event& event : job.events) {
    Extent*& block = blocks[event.slot];
    if (event.is_free) {
      heap.free(block);
    } else if (block = heap.allocate(event.bytes); block == nullptr) {
      return false;
    }
  }
  return heap.check().empty();
}

/// Bytes live at the peak, rounded as blocks are.
std::uint64_t peak_bytes(const trace::Trace& job) {
  std::vector<std::uint64_t> sizes(job.allocations);
  std::uint64_t live = 0;
  std::uint64_t peak = 0;
  for (const trace::Event& event : job.events) {
    if (!event.is_free) sizes[event.slot] = round_request(event.bytes);
    live += event.is_free ? -sizes[event.slot] : sizes[event.slot];
    peak = std::max(peak, live);
  }
  return peak;
}

}  // namespace

TEST_CASE("a 64 GiB pool full of recorded jobs costs at most 0.1% of it in host memory") {
  for (const char* name :
       {"a2_gpt_fixed_real", "c3_resnet50_train_eval_real", "d3_llm_hf_generate_real", "e3_gpt_ckpt_accum_real", "f2_dlrm_sparse_real"}) {
    const trace::Trace job = load(name);
    const std::size_t copies = 60 * kGiB / peak_bytes(job);
    ExtentHeap heap;
    heap.add_region(kBase, 64 * kGiB, nullptr);
    std::vector<Extent*> blocks(job.allocations * copies);
    std::uint64_t worst_bytes = 0;
    std::uint64_t most_live_bytes = 0;
    // Every copy a little behind the one before, so that their peaks and their small blocks mix.
    const std::size_t last = std::min<std::size_t>(job.events.size(), 3'000'000 / copies);
    for (std::size_t tick = 0; tick < last + copies; ++tick) {
      for (std::size_t copy = 0; copy < copies; ++copy) {
        if (tick < copy || tick - copy >= last) continue;
        const trace::Event& event = job.events[tick - copy];
        Extent*& block = blocks[event.slot * copies + copy];
        if (event.is_free) {
          heap.free(block);
        } else {
          REQUIRE((block = heap.allocate(event.bytes)) != nullptr);
        }
      }
      most_live_bytes = std::max(most_live_bytes, heap.region_bytes() - heap.free_bytes());
      if (tick % 64 == 0) worst_bytes = std::max(worst_bytes, heap.metadata_bytes());
    }
    INFO(name << ": " << worst_bytes << " bytes of metadata, " << most_live_bytes << " live at most, " << copies << " copies");
    CHECK(worst_bytes <= 64 * kGiB / 1000);
    CHECK(most_live_bytes > 16 * kGiB);  // or the figure says nothing
  }
}

TEST_CASE("a pool of blocks of 160 KiB each costs at most 0.1% of it in host memory, holes included") {
  ExtentHeap heap;
  heap.add_region(kBase, 64 * kGiB, nullptr);
  std::size_t live = 0;
  while (heap.allocate(live % 2 == 0 ? 8 * kKiB : 312 * kKiB) != nullptr) ++live;
  CHECK(live > 400'000);
  CHECK(heap.metadata_bytes() <= 64 * kGiB / 1000);
}

TEST_CASE("recorded jobs complete in an arena no larger than best fit needs, within a percent") {
  // The column BF of the traces' table, + 1%.
  CHECK(completes(load("a2_gpt_fixed_real"), peak_bytes(load("a2_gpt_fixed_real")) * 1021 / 1000));
  for (const auto& [name, permille] : {std::pair{"b4_gpt2small_varlen_real", 1038},
                                       {"c3_resnet50_train_eval_real", 1021},
                                       {"d3_llm_hf_generate_real", 1145},
                                       {"e3_gpt_ckpt_accum_real", 1052},
                                       {"f2_dlrm_sparse_real", 1105}}) {
    const trace::Trace job = load(name);
    INFO(name);
    CHECK(completes(job, peak_bytes(job) * static_cast<std::uint64_t>(permille) / 1000));
  }
}
