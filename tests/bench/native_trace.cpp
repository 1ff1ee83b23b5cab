// See native_trace.hpp.
#include "native_trace.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace trace {

namespace {

constexpr std::uint64_t kMagic = 0x314352544c505543;       // "CUPLTRC1"
constexpr std::uint64_t kChunkMagic = 0x314b48434c505543;  // "CUPLCHK1"
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeaderBytesMin = 128;
constexpr std::size_t kHeaderBytesMax = std::size_t{1} << 24;
constexpr std::size_t kChunkUnit = 64;
constexpr std::size_t kChunkBytesMax = std::size_t{1} << 28;
constexpr std::size_t kRecordsOffset = 64;
constexpr std::uint64_t kAllocate = 1;
constexpr std::uint64_t kFreeRequested = 2;
constexpr unsigned kAddress = 1;
constexpr unsigned kRequestedBytes = 2;

struct Chunk {
  std::size_t offset;
  std::size_t bytes;
  std::uint64_t sequence;
};

class Parser {
 public:
  Parser(const std::string& name, const std::vector<unsigned char>& bytes) : name_(name), bytes_(bytes) {}

  Trace parse() {
    const std::size_t first_chunk = read_header();
    find_chunks(first_chunk);
    for (const Chunk& chunk : chunks_) read_events(chunk);
    return std::move(result_);
  }

 private:
  struct Block {
    std::uint32_t slot;
    std::uint64_t bytes;
  };

  [[noreturn]] void fail(std::size_t offset, const std::string& what) const {
    throw BadTrace(name_ + ": byte " + std::to_string(offset) + ": " + what);
  }

  template <class T> T at(std::size_t offset) const {
    T value{};
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof value) fail(bytes_.size(), "the file ends here, cut short");
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }

  /// Where the first chunk begins.
  std::size_t read_header() {
    if (at<std::uint64_t>(0) != kMagic) fail(0, "not a trace: the magic number is wrong");
    if (const auto version = at<std::uint32_t>(8); version != kVersion) fail(8, "version " + std::to_string(version) + " is not known");
    const auto header_bytes = at<std::uint32_t>(12);
    if (header_bytes < kHeaderBytesMin || header_bytes > kHeaderBytesMax || header_bytes % 8 != 0)
      fail(12, "a header of " + std::to_string(header_bytes) + " bytes");
    const auto text_offset = at<std::uint32_t>(48);
    const auto text_bytes = at<std::uint32_t>(52);
    if (text_offset < kHeaderBytesMin || text_offset > header_bytes || text_bytes > header_bytes - text_offset)
      fail(48, "the process facts lie outside the header");
    if (header_bytes > bytes_.size()) fail(bytes_.size(), "the file ends inside its header");
    result_.metadata.assign(bytes_.begin() + text_offset, bytes_.begin() + text_offset + text_bytes);
    return header_bytes;
  }

  void find_chunks(std::size_t offset) {
    std::optional<std::int32_t> device;
    while (bytes_.size() >= offset && bytes_.size() - offset >= kRecordsOffset) {
      const auto magic = at<std::uint64_t>(offset);
      if (magic == 0) break;
      const auto chunk_bytes = at<std::uint32_t>(offset + 8);
      if (magic != kChunkMagic || chunk_bytes < kChunkUnit || chunk_bytes > kChunkBytesMax || chunk_bytes % kChunkUnit != 0)
        fail(offset, "no chunk begins here");
      if (const auto sequence = at<std::uint64_t>(offset + 40); sequence != 0) {
        const auto chunk_device = at<std::int32_t>(offset + 16);
        if (device && *device != chunk_device)
          fail(offset + 16, "events of several devices: choose one with `cupool trace --device`, and replay that");
        device = chunk_device;
        if (bytes_.size() - offset < chunk_bytes) fail(bytes_.size(), "the file ends inside a chunk");
        chunks_.push_back({offset, chunk_bytes, sequence});
      }
      offset += chunk_bytes;
    }
    std::sort(chunks_.begin(), chunks_.end(), [](const Chunk& a, const Chunk& b) { return a.sequence < b.sequence; });
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      if (chunks_[i].sequence != i + 1)
        fail(chunks_[i].offset + 40, "chunk " + std::to_string(chunks_[i].sequence) + " where " + std::to_string(i + 1) + " is expected");
    }
  }

  void read_events(const Chunk& chunk) {
    const std::size_t end = chunk.offset + chunk.bytes;
    for (std::size_t offset = chunk.offset + kRecordsOffset; offset < end;) {
      const auto first = at<std::uint64_t>(offset);
      if (first == 0) return;  // the end, or a record that was cut off
      const std::uint64_t kind = first & 0xff;
      const auto fields = static_cast<unsigned>(first >> 8 & 0xff);
      const std::size_t record_bytes = 8 + 8 * static_cast<std::size_t>(__builtin_popcount(fields));
      if (kind == 0 || record_bytes > end - offset) fail(offset, "no record begins here");
      if (kind == kAllocate) allocate(offset, fields);
      if (kind == kFreeRequested) release(offset, fields);
      offset += record_bytes;
    }
  }

  std::uint64_t address_at(std::size_t offset, unsigned fields) const {
    if ((fields & kAddress) == 0) fail(offset, "an event without an address");
    return at<std::uint64_t>(offset + 8);
  }

  void allocate(std::size_t offset, unsigned fields) {
    const std::uint64_t address = address_at(offset, fields);
    const std::uint64_t requested = (fields & kRequestedBytes) != 0 ? at<std::uint64_t>(offset + 16) : 0;
    if (requested == 0 || requested > kMaxBlockBytes) fail(offset, "a block of " + std::to_string(requested) + " bytes");
    release_at(address);
    if (result_.allocations == UINT32_MAX) fail(offset, "too many blocks");
    const auto slot = static_cast<std::uint32_t>(result_.allocations++);
    live_.emplace(address, Block{slot, requested});
    result_.events.push_back({requested, slot, false, 0});
    live_bytes_ += requested;
    result_.peak_live_bytes = std::max(result_.peak_live_bytes, live_bytes_);
  }

  void release(std::size_t offset, unsigned fields) { release_at(address_at(offset, fields)); }

  void release_at(std::uint64_t address) {
    const auto found = live_.find(address);
    if (found == live_.end()) return;
    live_bytes_ -= found->second.bytes;
    result_.events.push_back({0, found->second.slot, true, 0});
    ++result_.frees;
    live_.erase(found);
  }

  const std::string& name_;
  const std::vector<unsigned char>& bytes_;
  std::vector<Chunk> chunks_;
  Trace result_;
  std::unordered_map<std::uint64_t, Block> live_;
  std::uint64_t live_bytes_ = 0;
};

}  // namespace

Trace parse_native(const std::string& name, const std::vector<unsigned char>& bytes) { return Parser(name, bytes).parse(); }

}  // namespace trace
