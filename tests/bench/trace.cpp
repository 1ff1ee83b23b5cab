// Reading of traces: zlib in, checked events out.
#include "trace.hpp"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "native_trace.hpp"

namespace trace {

namespace {

constexpr std::size_t kMaxLineBytes = 64 * 1024;
constexpr std::size_t kMaxEvents = 100'000'000;
constexpr std::size_t kMaxNativeBytes = std::size_t{4} << 30;

/// One line after the other, with their numbers.
class LineReader {
 public:
  explicit LineReader(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb"), &gzclose), buffer_(kMaxLineBytes) {
    if (!file_) throw BadTrace(path + ": " + std::strerror(errno));
  }

  /// The next line without its end; nullopt at the end of the file. The text is valid until the next call.
  std::optional<std::string_view> next() {
    ++line_;
    if (gzgets(file_.get(), buffer_.data(), static_cast<int>(buffer_.size())) == nullptr) {
      check_stream();
      return std::nullopt;
    }
    std::string_view text(buffer_.data());
    if (!text.empty() && text.back() == '\n') {
      text.remove_suffix(1);
      return text;
    }
    check_stream();  // a file that was cut short ends in a piece of a line
    if (gzeof(file_.get()) == 0) {
      fail("a line longer than " + std::to_string(kMaxLineBytes) + " bytes, or a zero byte");
    }
    return text;
  }

  bool is_native() {
    const int first = gzgetc(file_.get());
    if (first >= 0) gzungetc(first, file_.get());
    return first == kNativeFirstByte;
  }

  /// Everything from here on.
  std::vector<unsigned char> rest() {
    std::vector<unsigned char> bytes;
    for (int got = 1; got > 0;) {
      const std::size_t held = bytes.size();
      if (held > kMaxNativeBytes) fail("more than " + std::to_string(kMaxNativeBytes >> 30) + " GiB");
      const std::size_t piece = std::clamp(held, kPieceBytesMin, kPieceBytesMax);
      bytes.resize(held + piece);
      got = gzread(file_.get(), bytes.data() + held, static_cast<unsigned>(piece));
      bytes.resize(held + static_cast<std::size_t>(std::max(got, 0)));
    }
    check_stream();
    return bytes;
  }

  [[noreturn]] void fail(const std::string& what) const { throw BadTrace(path_ + ":" + std::to_string(line_) + ": " + what); }

 private:
  static constexpr std::size_t kPieceBytesMin = std::size_t{1} << 13;
  static constexpr std::size_t kPieceBytesMax = std::size_t{1} << 24;

  void check_stream() const {
    int code = Z_OK;
    const char* const message = gzerror(file_.get(), &code);
    if (code == Z_ERRNO) fail(std::strerror(errno));
    if (code != Z_OK && code != Z_STREAM_END) fail(std::string("the compressed data is damaged or cut short (") + message + ")");
  }

  std::string path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
  std::vector<char> buffer_;
  std::size_t line_ = 0;
};

/// Takes " <number>" from the front of `text`.
std::optional<std::uint64_t> take_number(std::string_view& text) {
  if (text.empty() || text.front() != ' ') return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + 1, text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

/// Builds a Trace; knows which ids are live.
class Builder {
 public:
  explicit Builder(const LineReader& reader) : reader_(reader) {}

  void add(std::string_view line) {
    const char kind = line.empty() ? '\0' : line.front();
    if (kind != 'a' && kind != 'f') reader_.fail("expected 'a <id> <bytes> <stream>' or 'f <id>'");
    if (result_.events.size() == kMaxEvents) reader_.fail("more events than " + std::to_string(kMaxEvents));
    line.remove_prefix(1);
    const auto id = take_number(line);
    if (!id) reader_.fail("no block id");
    if (kind == 'a') {
      allocate(*id, line);
    } else {
      release(*id, line);
    }
  }

  Trace take() { return std::move(result_); }
  Trace& result() { return result_; }

 private:
  void allocate(std::uint64_t id, std::string_view rest) {
    const auto bytes = take_number(rest);
    const auto stream = take_number(rest);
    if (!bytes || !stream || !rest.empty()) reader_.fail("expected 'a <id> <bytes> <stream>'");
    if (*bytes == 0 || *bytes > kMaxBlockBytes) reader_.fail("a block of " + std::to_string(*bytes) + " bytes");
    const auto slot = static_cast<std::uint32_t>(result_.allocations);
    if (!slots_.emplace(id, Block{slot, *bytes}).second) reader_.fail("block " + std::to_string(id) + " is allocated twice");
    result_.events.push_back({*bytes, slot, false, static_cast<std::uint32_t>(*stream)});
    ++result_.allocations;
    live_bytes_ += *bytes;
    result_.peak_live_bytes = std::max(result_.peak_live_bytes, live_bytes_);
  }

  void release(std::uint64_t id, std::string_view rest) {
    if (!rest.empty()) reader_.fail("expected 'f <id>'");
    const auto found = slots_.find(id);
    if (found == slots_.end()) reader_.fail("block " + std::to_string(id) + " is freed but was not allocated");
    if (!found->second.live) reader_.fail("block " + std::to_string(id) + " is freed twice");
    found->second.live = false;
    live_bytes_ -= found->second.bytes;
    result_.events.push_back({0, found->second.slot, true, 0});
    ++result_.frees;
  }

  struct Block {
    std::uint32_t slot;
    std::uint64_t bytes;
    bool live = true;
  };
  const LineReader& reader_;
  Trace result_;
  std::unordered_map<std::uint64_t, Block> slots_;
  std::uint64_t live_bytes_ = 0;
};

}  // namespace

Trace load(const std::string& path) {
  LineReader reader(path);
  if (reader.is_native()) return parse_native(path, reader.rest());
  Builder builder(reader);
  const auto first = reader.next();
  if (!first || first->substr(0, 3) != "# {") reader.fail("not a trace: the first line must be '# {metadata}'");
  builder.result().metadata = first->substr(2);
  while (const auto line = reader.next()) builder.add(*line);
  return builder.take();
}

}  // namespace trace
