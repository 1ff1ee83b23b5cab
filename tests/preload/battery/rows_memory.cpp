// Plain and stream-ordered allocations and frees.
#include "rows.hpp"

namespace battery {
namespace {

/// Sizes that an allocation is tried with: {name, bytes}.
constexpr std::pair<const char*, std::size_t> kSizes[] = {{"0 bytes", 0},
                                                          {"1 byte", 1},
                                                          {"511 bytes", 511},
                                                          {"1 MiB", kMiB},
                                                          {"3 MiB + 1", 3 * kMiB + 1},
                                                          {"512 MiB", 512 * kMiB},
                                                          {"too much", 2 * kGiB},
                                                          {"impossible", 1ULL << 50},
                                                          {"all ones", ~std::size_t{0}},
                                                          {"nearly all ones", ~std::size_t{0} - 511}};

template <class Call> void allocation_cases(Cases& cases, Call allocate) {
  for (const auto& [name, bytes] : kSizes) {
    cases.add(name, [allocate, bytes = bytes](World&, Line& line) {
      CUdeviceptr out = kUntouched;
      line.code(allocate(&out, bytes)).memory("out", out);
    });
  }
  cases.add("null output", [allocate](World&, Line& line) { line.code(allocate(nullptr, kMiB)); });
  cases.add("null output, 0 bytes", [allocate](World&, Line& line) { line.code(allocate(nullptr, 0)); });
  cases.add("two, and both again", [allocate](World&, Line& line) {
    CUdeviceptr first = kUntouched, second = kUntouched;
    line.code(allocate(&first, kMiB)).code(allocate(&second, kMiB)).number("distinct", first != second);
    line.code(cuMemFree_v2(first)).code(cuMemFree_v2(second)).code(cuMemFree_v2(first));
    line.code(allocate(&first, kMiB)).memory("out", first);
  });
}

template <class Call> void pitch_cases(Cases& cases, Call allocate) {
  using Size = std::size_t;
  struct Shape {
    const char* name;
    Size width, height;
    unsigned element;
  };
  for (const Shape& shape :
       {Shape{"usual", 1000, 100, 4}, Shape{"elements of 8", 1, 1, 8}, Shape{"elements of 16", 512, 3, 16}, Shape{"no width", 0, 100, 4},
        Shape{"no height", 1000, 0, 4}, Shape{"elements of 3", 1000, 100, 3}, Shape{"elements of 0", 1000, 100, 0}, Shape{"wide", ~Size{0}, 1, 4},
        Shape{"nearly wide", ~Size{0} - 511, 1, 4}, Shape{"high", 1000, ~Size{0}, 4}, Shape{"product overflows", Size{1} << 33, Size{1} << 33, 4},
        Shape{"too much", Size{1} << 20, Size{1} << 12, 4}}) {
    cases.add(shape.name, [allocate, shape](World&, Line& line) {
      CUdeviceptr out = kUntouched;
      Size pitch = kUntouched;
      line.code(allocate(&out, &pitch, shape.width, shape.height, shape.element)).number("pitch", pitch).memory("out", out);
    });
  }
  cases.add("null output", [allocate](World&, Line& line) {
    Size pitch = kUntouched;
    line.code(allocate(nullptr, &pitch, 1000, 100, 4)).number("pitch", pitch);
  });
  cases.add("null pitch", [allocate](World&, Line& line) {
    CUdeviceptr out = kUntouched;
    line.code(allocate(&out, nullptr, 1000, 100, 4)).address("out", out);
  });
}

/// What a second free of the same address says, and what is known of it then.
template <class Call> void free_cases(Cases& cases, Call free_it) {
  for (const AddressKind& kind : address_kinds()) {
    cases.add(kind.name, [free_it, &kind](World& w, Line& line) { line.code(free_it(w, kind.of(w))); });
    cases.add(std::string(kind.name) + ", twice", [free_it, &kind](World& w, Line& line) {
      const CUdeviceptr address = kind.of(w);
      line.code(free_it(w, address)).code(free_it(w, address));
    });
  }
  cases.add("block, after its stream's work",
            [free_it](World& w, Line& line) { line.code(cuMemsetD8Async(w.block, 1, kMiB, w.stream)).code(free_it(w, w.block)); });
}

template <class Call> void async_allocation_cases(Cases& cases, Call allocate) {
  allocation_cases(cases, [allocate](CUdeviceptr* out, std::size_t bytes) { return allocate(out, bytes, nullptr); });
  for (const StreamKind& kind : stream_kinds()) {
    cases.add(std::string("in ") + kind.name, [allocate, &kind](World& w, Line& line) {
      CUdeviceptr out = kUntouched;
      line.code(allocate(&out, kMiB, kind.of(w))).memory("out", out);
    });
    cases.add(std::string("0 bytes in ") + kind.name, [allocate, &kind](World& w, Line& line) {
      CUdeviceptr out = kUntouched;
      line.code(allocate(&out, 0, kind.of(w))).address("out", out);
    });
    cases.add(std::string("null output in ") + kind.name,
              [allocate, &kind](World& w, Line& line) { line.code(allocate(nullptr, kMiB, kind.of(w))); });
    cases.add(std::string("too much in ") + kind.name, [allocate, &kind](World& w, Line& line) {
      CUdeviceptr out = kUntouched;
      line.code(allocate(&out, 2 * kGiB, kind.of(w))).address("out", out);
    });
  }
}

template <class Call> void pool_allocation_cases(Cases& cases, Call allocate) {
  for (const PoolKind& kind : pool_kinds()) {
    cases.add(std::string("from ") + kind.name, [allocate, &kind](World& w, Line& line) {
      CUdeviceptr out = kUntouched;
      line.code(allocate(&out, kMiB, kind.of(w), w.stream)).memory("out", out);
    });
    cases.add(std::string("0 bytes from ") + kind.name, [allocate, &kind](World& w, Line& line) {
      CUdeviceptr out = kUntouched;
      line.code(allocate(&out, 0, kind.of(w), w.stream)).address("out", out);
    });
    cases.add(std::string("null output from ") + kind.name,
              [allocate, &kind](World& w, Line& line) { line.code(allocate(nullptr, kMiB, kind.of(w), w.stream)); });
  }
  for (const StreamKind& kind : stream_kinds()) {
    cases.add(std::string("in ") + kind.name, [allocate, &kind](World& w, Line& line) {
      CUdeviceptr out = kUntouched;
      line.code(allocate(&out, kMiB, w.plain_pool, kind.of(w))).memory("out", out);
    });
  }
  for (const auto& [name, bytes] : kSizes) {
    cases.add(name, [allocate, bytes = bytes](World& w, Line& line) {
      CUdeviceptr out = kUntouched;
      line.code(allocate(&out, bytes, w.default_pool, w.stream)).memory("out", out);
    });
  }
}

template <class Call> void async_free_cases(Cases& cases, Call free_it) {
  free_cases(cases, [free_it](World& w, CUdeviceptr address) { return free_it(address, w.stream); });
  for (const StreamKind& kind : stream_kinds()) {
    cases.add(std::string("block in ") + kind.name, [free_it, &kind](World& w, Line& line) { line.code(free_it(w.block, kind.of(w))); });
    cases.add(std::string("stream block in ") + kind.name,
              [free_it, &kind](World& w, Line& line) { line.code(free_it(w.stream_block, kind.of(w))); });
    cases.add(std::string("null in ") + kind.name, [free_it, &kind](World& w, Line& line) { line.code(free_it(0, kind.of(w))); });
    cases.add(std::string("unknown in ") + kind.name, [free_it, &kind](World& w, Line& line) { line.code(free_it(kNeverAllocated, kind.of(w))); });
  }
  cases.add("stream block, then plain",
            [free_it](World& w, Line& line) { line.code(free_it(w.stream_block, w.stream)).code(cuMemFree_v2(w.stream_block)); });
  cases.add("stream block, plain first",
            [free_it](World& w, Line& line) { line.code(cuMemFree_v2(w.stream_block)).code(free_it(w.stream_block, w.stream)); });
}

}  // namespace

ROW(cuMemAlloc_v2, allocation_cases)
ROW(cuMemAllocPitch_v2, pitch_cases)
void cases_cuMemFree_v2(Cases& cases) {
  free_cases(cases, [](World&, CUdeviceptr address) { return cuMemFree_v2(address); });
}
ROW(cuMemAllocAsync, async_allocation_cases)
ROW(cuMemAllocAsync_ptsz, async_allocation_cases)
ROW(cuMemAllocFromPoolAsync, pool_allocation_cases)
ROW(cuMemAllocFromPoolAsync_ptsz, pool_allocation_cases)
ROW(cuMemFreeAsync, async_free_cases)
ROW(cuMemFreeAsync_ptsz, async_free_cases)

void cases_cuMemAlloc(Cases& cases) {
  for (unsigned bytes : {0U, 1U, 1U << 20, ~0U}) {
    cases.add(std::to_string(bytes) + " bytes", [bytes](World&, Line& line) {
      CUdeviceptr_v1 out = kUntouched;
      line.code(cuMemAlloc(&out, bytes)).number("out", out);
    });
  }
  cases.add("null output", [](World&, Line& line) { line.code(cuMemAlloc(nullptr, 1)); });
}

void cases_cuMemAllocPitch(Cases& cases) {
  cases.add("usual", [](World&, Line& line) {
    CUdeviceptr_v1 out = kUntouched;
    unsigned pitch = kUntouched;
    line.code(cuMemAllocPitch(&out, &pitch, 1000, 100, 4)).number("out", out).number("pitch", pitch);
  });
  cases.add("nulls", [](World&, Line& line) { line.code(cuMemAllocPitch(nullptr, nullptr, 0, 0, 0)); });
}

}  // namespace battery
