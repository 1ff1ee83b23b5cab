// The block on stderr.
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "samples.hpp"

using namespace cupool::observe;
using samples::kGiB;

namespace {

std::string message_of(const OomRecord& oom, const DeviceSnapshot* device, const std::string& path) {
  ProcessFacts process;
  process.pid = 4711;
  process.rank = 3;
  return oom_message(oom, classify(oom.evidence, samples::default_options()), process, device, path);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t start = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', start)) {
    lines.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  CHECK(start == text.size());
  return lines;
}

OomRecord oom_of(OomCause cause) { return samples::one_of_each_cause()[static_cast<std::size_t>(cause)]; }

}  // namespace

TEST_CASE("the block names request, cause, holders, elsewhere, advice and report, in at most ten prefixed lines") {
  DeviceSnapshot device = samples::empty_device(80 * kGiB);
  samples::add_region(device, {{'l', 3 * kGiB}, {'f', kGiB}});
  samples::settle(device);
  for (const OomCause cause : kOomCauses) {
    const std::string text = message_of(oom_of(cause), &device, "/jobs/17/report.oom1.json");
    const std::vector<std::string> lines = lines_of(text);
    CHECK(lines.size() >= 6);
    CHECK(lines.size() <= 10);
    CHECK(lines[0].rfind("cupool[4711]: out of memory on GPU 0 (rank 3): wanted ", 0) == 0);
    for (std::size_t i = 1; i < lines.size(); ++i) CHECK(lines[i].rfind("  ", 0) == 0);
    CHECK(lines[1].rfind(std::string("  cause      ") + name_of(cause), 0) == 0);
    CHECK(lines.back() == "  report     /jobs/17/report.oom1.json");
  }
}

TEST_CASE("the wording of one block") {
  DeviceSnapshot device = samples::empty_device(80 * kGiB);
  samples::add_region(device, {{'l', 3 * kGiB}, {'f', kGiB}});
  samples::settle(device);
  CHECK(message_of(oom_of(OomCause::true_exhaustion), &device, "r.json") ==
        "cupool[4711]: out of memory on GPU 0 (rank 3): wanted 2.00 GiB (cuMemAlloc_v2)\n"
        "  cause      true_exhaustion: short by 1.00 GiB even fully defragmented\n"
        "  holds      pool: 3.00 GiB live in 1 block, 0 bytes free (largest hole 0 bytes), 0 bytes waiting for the GPU\n"
        "  elsewhere  driver free 1.00 GiB, other processes 0 bytes, this process outside the pool 0 bytes\n"
        "  try        the memory is really in use: the job needs less (smaller batch, recomputation, offloading), more devices, or a leak found "
        "(leaks[])\n"
        "  report     r.json\n");
}

TEST_CASE("a size that holds a quarter of what is live has a line, and the block still has ten at most") {
  DeviceSnapshot device = samples::empty_device(80 * kGiB);
  samples::add_region(device, std::vector<samples::Piece>(200, {'l', 3 << 20}));
  samples::settle(device);
  for (const OomCause cause : kOomCauses) {
    const std::string text = message_of(oom_of(cause), &device, "r.json");
    CHECK(text.find("\n  holds most 200 blocks of 2.99 MiB, 600.00 MiB\n") != std::string::npos);  // a sample's request is a byte less
    CHECK(lines_of(text).size() <= 10);
  }
}

TEST_CASE("unknown is said to be unknown, doubt is said, and absent parts have no line") {
  OomRecord oom = oom_of(OomCause::true_exhaustion);
  oom.evidence.driver_free_bytes.reset();
  oom.evidence.other_process_bytes.reset();
  const std::string text = message_of(oom, nullptr, "");
  CHECK(text.find("driver free unknown, other processes unknown") != std::string::npos);
  CHECK(text.find("(confidence low)") != std::string::npos);
  CHECK(text.find("  holds") == std::string::npos);
  CHECK(text.find("  report") == std::string::npos);
}

TEST_CASE("memory in pieces that cannot move is told by what they are: pages, or larger handles") {
  const DeviceSnapshot device = samples::empty_device(80 * kGiB);
  OomRecord oom = oom_of(OomCause::external_fragmentation);
  oom.evidence.can_remap = true;
  oom.evidence.page_bytes = oom.evidence.stranding_handle_bytes = std::uint64_t{2} << 20;
  CHECK(message_of(oom, &device, "").find("enough is free but in pages that hold something else: what can move is short by ") != std::string::npos);
  oom.evidence.stranding_handle_bytes = std::uint64_t{16} << 20;
  CHECK(message_of(oom, &device, "").find("enough is free but in pieces of up to 16.00 MiB that hold something else: what can move is short by ") !=
        std::string::npos);
}

TEST_CASE("memory in pieces is told otherwise to who needs it outside the pool, where only what goes back to the driver counts") {
  const DeviceSnapshot device = samples::empty_device(80 * kGiB);
  OomRecord oom = oom_of(OomCause::external_fragmentation);
  oom.evidence.is_outside_pool = true;
  const std::string text = message_of(oom, &device, "");
  CHECK(text.find("free, but beside other blocks: what could go back to the driver is short by ") != std::string::npos);
  CHECK(text.find("the largest hole is short") == std::string::npos);
}

TEST_CASE("memory that may be another process's is said where it would cover the shortfall") {
  OomRecord oom = oom_of(OomCause::true_exhaustion);
  oom.evidence.other_process_bytes.reset();
  oom.evidence.unattributed_bytes = 79 * kGiB;
  oom.evidence.held_bytes = kGiB;
  const std::string text = message_of(oom, nullptr, "");
  CHECK(text.find("true_exhaustion: short by 1.00 GiB even fully defragmented, unless other processes hold it (confidence medium)") !=
        std::string::npos);
  CHECK(text.find("other processes unknown (with contexts and the driver's rounding 79.00 GiB)") != std::string::npos);
  CHECK(text.find("nvidia-smi") != std::string::npos);
  CHECK(text.find("the memory is really in use") == std::string::npos);
  oom.evidence.unattributed_bytes = kGiB - 1;
  CHECK(message_of(oom, nullptr, "").find("unless") == std::string::npos);
  oom.evidence.unattributed_bytes = 0;
  CHECK(message_of(oom, nullptr, "").find("other processes unknown, this process") != std::string::npos);
}

TEST_CASE("what is missing even with nothing of this process's own there is what is said to be missing") {
  OomRecord oom = oom_of(OomCause::true_exhaustion);
  oom.evidence.held_bytes = 10 * kGiB;
  oom.evidence.request_bytes = 12 * kGiB;
  CHECK(message_of(oom, nullptr, "").find("true_exhaustion: short by 1.00 GiB even with all freed that this process has allocated") !=
        std::string::npos);
  CHECK(message_of(oom, nullptr, "").find("leak") == std::string::npos);
}

TEST_CASE("what this process holds outside the pool is told by its kinds") {
  DeviceSnapshot device = samples::empty_device(80 * kGiB);
  OomRecord oom = oom_of(OomCause::non_pool_memory);
  device.outside.program_vmm = 7 * kGiB;
  oom.evidence.own_outside_bytes = 7 * kGiB;
  CHECK(message_of(oom, &device, "").find("this process outside the pool 7.00 GiB (cuMemCreate 7.00 GiB)") != std::string::npos);
  device.outside.arrays = kGiB;
  device.outside.host = kGiB;  // of the device it is nothing
  oom.evidence.own_outside_bytes = 8 * kGiB;
  CHECK(message_of(oom, &device, "").find("this process outside the pool 8.00 GiB (arrays 1.00 GiB, cuMemCreate 7.00 GiB)") != std::string::npos);
  CHECK(message_of(oom, nullptr, "").find("this process outside the pool 8.00 GiB\n") != std::string::npos);
}

TEST_CASE("where nothing is held a request above the limit is not said to lack anything with what is held") {
  OomRecord oom = oom_of(OomCause::impossible_request);
  oom.evidence.device_total_bytes = 80 * kGiB;
  oom.evidence.driver_free_bytes = 80 * kGiB;
  oom.evidence.request_bytes = 3 * kGiB;
  oom.evidence.limit_bytes = 2 * kGiB;
  oom.evidence.held_bytes = oom.evidence.releasable_bytes = 0;
  CHECK(message_of(oom, nullptr, "").find("1.00 GiB more than CUPOOL_LIMIT alone, 1.00 GiB more are enough\n") != std::string::npos);
  oom.evidence.held_bytes = kGiB;
  CHECK(message_of(oom, nullptr, "").find("1.00 GiB more than CUPOOL_LIMIT alone, 2.00 GiB with what is held\n") != std::string::npos);
}

TEST_CASE("a largest hole that nobody knows is said to be unknown") {
  DeviceSnapshot device = samples::empty_device(80 * kGiB);
  OomRecord oom = oom_of(OomCause::external_fragmentation);
  oom.evidence.holes_known = false;
  const std::string text = message_of(oom, &device, "");
  CHECK(text.find("(largest hole unknown)") != std::string::npos);
  CHECK(text.find("in the driver's own pool but in pieces") != std::string::npos);
}

TEST_CASE("on pages what can be gathered is told, not the largest hole") {
  DeviceSnapshot device = samples::empty_device(80 * kGiB);
  OomRecord oom = oom_of(OomCause::external_fragmentation);
  oom.evidence.can_remap = true;
  oom.evidence.largest_free_bytes = 0;
  oom.evidence.largest_free_remapped_bytes = kGiB;
  CHECK(message_of(oom, &device, "").find("5.00 GiB free (of which can be gathered 1.00 GiB)") != std::string::npos);
  oom.evidence.can_remap = false;
  CHECK(message_of(oom, &device, "").find("(largest hole 0 bytes)") != std::string::npos);
}

TEST_CASE("a memory pool with a maxSize is named where that is what the driver refused by") {
  OomRecord oom = oom_of(OomCause::driver_refused);
  oom.evidence.mempool_max_bytes = 3 * kGiB;
  oom.evidence.mempool_used_bytes = 2 * kGiB;
  CHECK(message_of(oom, nullptr, "").find("maxSize of 3.00 GiB, 2.00 GiB of it used: short by 1.00 GiB") != std::string::npos);
  oom.evidence.mempool_used_bytes = kGiB;
  CHECK(message_of(oom, nullptr, "").find("maxSize of 3.00 GiB, 1.00 GiB of it used; the device has enough") != std::string::npos);
  CHECK(message_of(oom_of(OomCause::driver_refused), nullptr, "").find("the driver refused, and a moment later enough was free") !=
        std::string::npos);
}

TEST_CASE("paths and names cannot break the block into more lines") {
  OomRecord oom = oom_of(OomCause::limit);
  oom.api = "cu\nMem\x1b[31m";
  const std::string text = message_of(oom, nullptr, "/a\nb\r" + std::string(5000, 'x'));
  CHECK(lines_of(text).size() <= 10);
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(text.find('\r') == std::string::npos);
  CHECK(text.size() < 4096 + 1024);
}

TEST_CASE("the report's path is told whole") {
  const std::string path = "/" + std::string(1000, 'x') + "/report.json";
  CHECK(message_of(oom_of(OomCause::limit), nullptr, path).find(path) != std::string::npos);
}

TEST_CASE("what is missing is rounded up in its unit: who adds what is said has enough") {
  const auto short_by = [](std::uint64_t bytes) {
    OomRecord oom = oom_of(OomCause::true_exhaustion);
    oom.evidence.request_bytes = oom.evidence.driver_free_bytes.value() + bytes;
    const std::string text = message_of(oom, nullptr, "");
    const std::size_t start = text.find("short by ") + 9;
    return text.substr(start, text.find(" even", start) - start);
  };
  CHECK(short_by(512) == "512 bytes");
  CHECK(short_by(1024) == "1.00 KiB");
  CHECK(short_by(1025) == "1.01 KiB");
  CHECK(short_by(67980800) == "64.84 MiB");  // 64.8315
  CHECK(short_by(kGiB / 2 * 3) == "1.50 GiB");
  CHECK(short_by(kGiB - 512) == "1024.00 MiB");
}

TEST_CASE("sizes are rounded down in their unit") {
  const auto wanted = [](std::uint64_t bytes) {
    OomRecord oom = oom_of(OomCause::true_exhaustion);
    oom.requested_bytes = bytes;
    const std::string text = message_of(oom, nullptr, "");
    const std::size_t start = text.find("wanted ") + 7;
    return text.substr(start, text.find(" (", start) - start);
  };
  CHECK(wanted(0) == "0 bytes");
  CHECK(wanted(1) == "1 byte");
  CHECK(wanted(1023) == "1023 bytes");
  CHECK(wanted(1024) == "1.00 KiB");
  CHECK(wanted(kGiB - 1) == "1023.99 MiB");
  CHECK(wanted(1536 * kGiB) == "1.50 TiB");
  CHECK(wanted(UINT64_MAX) == "16777215.99 TiB");
}
