// The trace's records: what was noted reads back, what found no room is counted, what was cut off is recognised.
//
// Read twice: here word by word, and by the replay's own reader (tests/bench/native_trace), which knows the published text only.
#include <catch2/catch.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "pool/observe/timeline.hpp"
#include "pool/observe/trace_format.hpp"
#include "pool/observe/trace_writer.hpp"
#include "samples.hpp"
#include "tests/bench/native_trace.hpp"

using namespace cupool::observe;

namespace {

constexpr std::size_t kHeaderBytes = 4096;
constexpr TraceIdentity kIdentity{7, 8, 9};

/// A trace file in memory, and the part of its owner.
class File {
 public:
  File() : header_memory_(kHeaderBytes / 8) {
    header = format_trace_header(header_memory_.data(), kHeaderBytes, kIdentity, {100, 200}, "{}");
    sink.count_in(header->dropped);
  }

  /// Offers a chunk of so many bytes.
  TraceChunk& add(std::size_t bytes) {
    memories_.emplace_back(bytes / 8);
    auto* memory = reinterpret_cast<std::byte*>(memories_.back().data());
    const auto index = static_cast<std::uint32_t>(chunks_.size());
    format_trace_chunk(memory, bytes, index);
    chunks_.push_back(std::make_unique<TraceChunk>(TraceChunk{memory, bytes, index, nullptr}));
    sink.offer(chunks_.back().get());
    return *chunks_.back();
  }

  std::vector<unsigned char> bytes() const {
    std::vector<unsigned char> all(kHeaderBytes);
    std::memcpy(all.data(), header_memory_.data(), kHeaderBytes);
    for (const auto& chunk : chunks_) {
      const auto* from = reinterpret_cast<const unsigned char*>(chunk->memory);
      all.insert(all.end(), from, from + chunk->bytes);
    }
    return all;
  }
  trace::Trace parse() const { return trace::parse_native("memory", bytes()); }

  TraceSink sink;
  TraceHeader* header = nullptr;

 private:
  std::vector<std::uint64_t> header_memory_;
  std::vector<std::vector<std::uint64_t>> memories_;
  std::vector<std::unique_ptr<TraceChunk>> chunks_;
};

struct Decoded {
  Event event;
  std::uint64_t stream = 0;
};

const TraceChunkHeader& header_of(const TraceChunk& chunk) { return *reinterpret_cast<const TraceChunkHeader*>(chunk.memory); }

/// The records of one chunk, by the rules of trace_format.hpp.
std::vector<Decoded> decode(const TraceChunk& chunk) {
  std::vector<Decoded> out;
  const auto* words = reinterpret_cast<const std::uint64_t*>(chunk.memory);
  std::uint64_t ticks = header_of(chunk).base_ticks;
  for (std::size_t at = kTraceRecordsOffset / 8; at < chunk.bytes / 8 && words[at] != 0;) {
    const std::uint64_t first = words[at++];
    const std::uint64_t fields = first >> kTraceFieldsShift & 0xff;
    const auto word = [&](std::uint64_t field, std::uint64_t otherwise) { return (fields & field) != 0 ? words[at++] : otherwise; };
    Decoded one;
    one.event.kind = static_cast<EventKind>((first & 0xff) - 1);
    one.event.thread = static_cast<std::uint16_t>(first >> kTraceThreadShift & 0xffff);
    one.event.address = word(kTraceAddress, 0);
    one.event.requested_bytes = word(kTraceRequestedBytes, 0);
    one.event.bytes = word(kTraceBytes, (one.event.requested_bytes + 511) / 512 * 512);
    one.stream = word(kTraceStream, 0);
    one.event.site = static_cast<std::uint32_t>(word(kTraceOrigin, 0));
    ticks = word(kTraceTicks, ticks + (first >> kTraceTicksShift));
    one.event.ticks = ticks;
    out.push_back(one);
  }
  return out;
}

Event event_of(EventKind kind, std::uint64_t address, std::uint64_t requested_bytes, std::uint64_t ticks = 1000) {
  Event event;
  event.kind = kind;
  event.ticks = ticks;
  event.address = address;
  event.requested_bytes = requested_bytes;
  event.bytes = (requested_bytes + 511) / 512 * 512;
  event.thread = 3;
  return event;
}

bool same(const Event& a, const Event& b) {
  return a.ticks == b.ticks && a.address == b.address && a.bytes == b.bytes && a.requested_bytes == b.requested_bytes && a.site == b.site &&
         a.thread == b.thread && a.kind == b.kind;
}

/// What a device's writer goes through: allocations and frees of one block after the other.
void record_pairs(TraceWriter& writer, int pairs) {
  for (int i = 0; i < pairs; ++i) {
    const auto address = static_cast<std::uint64_t>(i + 1) << 12;
    writer.record(event_of(EventKind::allocate, address, 700), 0);
    writer.record(event_of(EventKind::free_requested, address, 700), 0);
  }
}

}  // namespace

TEST_CASE("every figure of an event reads back") {
  File file;
  const TraceChunk& chunk = file.add(4096);
  TraceWriter writer(&file.sink, 5);
  std::vector<Decoded> noted;
  const auto note = [&](const Event& event, std::uint64_t stream) {
    writer.record(event, stream);
    noted.push_back({event, stream});
  };
  Event odd = event_of(EventKind::allocate, 1u << 20, 1000, 5000);
  odd.bytes = 2u << 20;  // a block of its own: not the request rounded
  odd.site = 0xffffffff;
  odd.thread = 0xffff;
  note(odd, UINT64_MAX);
  note(event_of(EventKind::allocate, 512, 1, 5001), 0);
  note(event_of(EventKind::allocate, 1024, 512, 4000), 9);                                 // timed before its turn
  note(event_of(EventKind::allocate, 2048, 513, 4000 + (std::uint64_t{1} << 32)), 0);      // long after it
  note(event_of(EventKind::allocate, 4096, 513, 4000 + (std::uint64_t{2} << 32) - 1), 0);  // just within a delta
  Event impossible = event_of(EventKind::oom, 77, UINT64_MAX, UINT64_MAX);
  impossible.bytes = 0;
  note(impossible, 0);
  const std::vector<Decoded> read = decode(chunk);
  REQUIRE(read.size() == noted.size());
  for (std::size_t i = 0; i < read.size(); ++i) {
    CAPTURE(i);
    CHECK(same(read[i].event, noted[i].event));
    CHECK(read[i].stream == noted[i].stream);
  }
  CHECK(header_of(chunk).device == 5);
  CHECK(header_of(chunk).sequence == 1);
}

TEST_CASE("frees and regions keep what is theirs: the address, and a region its size") {
  File file;
  const TraceChunk& chunk = file.add(4096);
  TraceWriter writer(&file.sink, 0);
  for (const EventKind kind : {EventKind::region_create, EventKind::free_requested, EventKind::free_completed, EventKind::region_release})
    writer.record(event_of(kind, 1u << 21, 1u << 21), 0);
  const std::vector<Decoded> read = decode(chunk);
  REQUIRE(read.size() == 4);
  for (const Decoded& one : read) CHECK(one.event.address == 1u << 21);
  CHECK(read[0].event.bytes == 1u << 21);
  CHECK(read[1].event.kind == EventKind::free_requested);
  CHECK(read[2].event.kind == EventKind::free_completed);
  CHECK(read[3].event.bytes == 1u << 21);
}

TEST_CASE("a block's life takes 56 bytes") {
  File file;
  const TraceChunk& chunk = file.add(4096);
  TraceWriter writer(&file.sink, 0);
  writer.record(event_of(EventKind::allocate, 512, 100), 0);
  writer.record(event_of(EventKind::free_requested, 512, 100), 0);
  writer.record(event_of(EventKind::free_completed, 512, 100), 0);
  const auto* words = reinterpret_cast<const std::uint64_t*>(chunk.memory + kTraceRecordsOffset);
  CHECK(words[56 / 8 - 2] != 0);
  CHECK(words[56 / 8] == 0);
}

TEST_CASE("a full chunk is retired, the next continues it, and the replay reads both") {
  File file;
  TraceChunk& first = file.add(512);
  TraceChunk& second = file.add(4096);
  file.sink.clear_work();
  TraceWriter writer(&file.sink, 0);
  record_pairs(writer, 40);
  CHECK(file.sink.has_work());
  CHECK(file.sink.take_retired() == &first);
  CHECK(first.next == nullptr);
  CHECK(header_of(second).sequence == 2);
  CHECK(file.sink.dropped() == 0);
  const trace::Trace read = file.parse();
  CHECK(read.allocations == 40);
  CHECK(read.frees == 40);
  CHECK(read.peak_live_bytes == 700);
  CHECK(read.metadata == "{}");
}

TEST_CASE("events that find no chunk are counted, in the file and before the next chunk") {
  File file;
  TraceWriter writer(&file.sink, 0);
  record_pairs(writer, 1);
  CHECK(file.sink.dropped() == 2);
  CHECK(file.header->dropped == 2);
  file.add(512);
  record_pairs(writer, 30);
  const std::uint64_t lost = file.sink.dropped();
  REQUIRE(lost > 2);
  const TraceChunk& late = file.add(4096);
  record_pairs(writer, 1);
  CHECK(header_of(late).dropped_before == lost - 2);
  CHECK(file.sink.dropped() == lost);
  CHECK(file.parse().events.size() == 62 - (lost - 2));
}

TEST_CASE("without a file nothing is counted as lost") {
  TraceSink sink;
  TraceWriter writer(&sink, 0);
  record_pairs(writer, 1);
  CHECK(sink.dropped() == 0);
}

TEST_CASE("wherever SIGKILL cuts a record off, all records before it are read and nothing else") {
  const int pairs = 5;
  File whole;
  whole.add(4096);
  TraceWriter writer(&whole.sink, 0);
  record_pairs(writer, pairs);
  const std::vector<unsigned char> bytes = whole.bytes();
  const std::size_t begin = kHeaderBytes + kTraceRecordsOffset;
  std::vector<std::size_t> starts;  // of the records
  for (std::size_t at = begin; starts.size() < 2 * pairs;) {
    starts.push_back(at);
    at += 8 + 8 * static_cast<std::size_t>(std::popcount(static_cast<unsigned>(bytes[at + 1])));
  }
  for (std::size_t cut = 0; cut < starts.size(); ++cut) {
    // The words behind a record's first are there already, the first is not, and nothing after it.
    std::vector<unsigned char> killed = bytes;
    std::fill_n(killed.begin() + static_cast<std::ptrdiff_t>(starts[cut]), 8, static_cast<unsigned char>(0));
    if (cut + 1 < starts.size())
      std::fill(killed.begin() + static_cast<std::ptrdiff_t>(starts[cut + 1]), killed.end(), static_cast<unsigned char>(0));
    CHECK(trace::parse_native("killed", killed).events.size() == cut);
  }
}

TEST_CASE("the header tells both clocks, and the latest reading is never torn") {
  File file;
  CHECK(file.header->magic == kTraceMagic);
  CHECK(file.header->readings == 0);
  for (std::uint64_t reading = 1; reading <= 5; ++reading) {
    add_trace_reading(*file.header, {reading * 10, reading * 20});
    const std::uint64_t readings = file.header->readings;
    CHECK(readings == reading);
    CHECK(file.header->later_readings[(readings - 1) % 2].unix_ns == reading * 20);
  }
  CHECK(file.header->first_reading.ticks == 100);
}

TEST_CASE("the timeline hands every event on, also when it keeps none itself") {
  const std::size_t capacity = GENERATE(std::size_t{0}, std::size_t{2});
  File file;
  const TraceChunk& chunk = file.add(4096);
  Timeline timeline(capacity, &file.sink, 1);
  for (std::uint64_t i = 1; i <= 5; ++i) timeline.record(event_of(EventKind::allocate, i * 512, i), i == 5 ? 42 : 0);
  CHECK(timeline.events().size() == capacity);
  const std::vector<Decoded> read = decode(chunk);
  REQUIRE(read.size() == 5);
  CHECK(read.back().stream == 42);
  CHECK(read.front().event.requested_bytes == 1);
}

TEST_CASE("the spare that lies first is taken first, and what is withdrawn no writer gets") {
  File file;
  TraceChunk& first = file.add(512);
  TraceChunk& second = file.add(512);
  CHECK_FALSE(file.sink.has_room());
  CHECK(file.sink.take() == &first);
  CHECK(file.sink.has_room());
  TraceChunk& third = file.add(512);
  CHECK(file.sink.take() == &second);
  CHECK(file.sink.withdraw() == &third);
  CHECK(file.sink.withdraw() == nullptr);
  CHECK(file.sink.take() == nullptr);
}

TEST_CASE("devices that write at once lose nothing but what is counted") {
  constexpr int kDevices = 3;
  constexpr int kPairs = 20000;
  constexpr int kPairsAtOnce = 40;
  constexpr std::size_t kBytes = 4096;
  struct Memory {
    alignas(64) std::byte bytes[kBytes];
  };
  std::vector<std::unique_ptr<Memory>> memories;
  std::vector<std::unique_ptr<TraceChunk>> chunks;
  TraceSink sink;
  std::atomic<std::uint64_t> dropped{0};
  sink.count_in(dropped);
  std::vector<TraceChunk*> used;
  const auto collect = [&] {
    for (TraceChunk* chunk = sink.take_retired(); chunk != nullptr; chunk = chunk->next) used.push_back(chunk);
  };
  const auto fill = [&] {
    while (sink.has_room()) {
      memories.push_back(std::make_unique<Memory>());
      const auto index = static_cast<std::uint32_t>(chunks.size());
      format_trace_chunk(memories.back()->bytes, kBytes, index);
      chunks.push_back(std::make_unique<TraceChunk>(TraceChunk{memories.back()->bytes, kBytes, index, nullptr}));
      sink.offer(chunks.back().get());
    }
  };
  fill();
  std::atomic<int> running{kDevices};
  std::vector<std::thread> devices;
  for (int device = 0; device < kDevices; ++device) {
    devices.emplace_back([&, device] {
      TraceWriter writer(&sink, device);
      for (int done = 0; done < kPairs; done += kPairsAtOnce) {
        record_pairs(writer, kPairsAtOnce);
        std::this_thread::yield();
      }
      --running;
    });
  }
  while (running != 0) {
    sink.clear_work();
    collect();
    fill();
  }
  for (std::thread& device : devices) device.join();
  collect();
  std::uint64_t written = 0;
  std::vector<std::vector<std::uint64_t>> sequences(kDevices);
  for (const auto& chunk : chunks) {
    const TraceChunkHeader& header = header_of(*chunk);
    if (header.sequence == 0) continue;
    written += decode(*chunk).size();
    sequences[static_cast<std::size_t>(header.device)].push_back(header.sequence);
  }
  CHECK(written + dropped == std::uint64_t{2} * kDevices * kPairs);
  CHECK(written > 0);
  for (std::vector<std::uint64_t>& of_device : sequences) {
    std::sort(of_device.begin(), of_device.end());
    for (std::size_t i = 0; i < of_device.size(); ++i) REQUIRE(of_device[i] == i + 1);
  }
  for (const TraceChunk* chunk : used) CHECK(header_of(*chunk).sequence != 0);
}

TEST_CASE("tracing an event takes at most 20 ns more than recording it") {
  constexpr std::size_t kBytes = std::size_t{8} << 20;
  constexpr int kEvents = 200000;
  constexpr int kMostRounds = 300;  // a second and a half
  std::vector<double> rounds;
  double best = 1e9;
  for (int round = 0; round < 11 || (samples::kTimesCount && round < kMostRounds && best > 20.0); ++round) {
    File file;
    file.add(kBytes);
    TraceWriter writer(&file.sink, 0);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kEvents; ++i)
      writer.record(event_of(EventKind::allocate, static_cast<std::uint64_t>(i) << 9, 700, static_cast<std::uint64_t>(i)), 0);
    rounds.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kEvents);
    best = std::min(best, rounds.back());
    CHECK(file.sink.dropped() == 0);
  }
  std::sort(rounds.begin(), rounds.end());
  WARN("trace: " << rounds[rounds.size() / 2] << " ns per event (median of " << rounds.size() << "), best " << best);
  if (samples::kTimesCount) CHECK(best <= 20.0);  // neighbours on the machine only add, so the best round counts
}
