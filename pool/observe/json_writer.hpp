// JsonWriter: streams one JSON document to a descriptor or a string, through a buffer of its own.
//
// The output is valid JSON as long as begin and end calls are paired: commas are kept track of, text that is not UTF-8 becomes U+FFFD, and there are
// no floating point values (ratios are fixed point). After the first error nothing more is written.
// Thread rule: owned by one thread. Allocates its buffer once.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cupool::observe {

class JsonWriter {
 public:
  /// `patience_ms`: how long it waits in all for the reader of a full pipe, socket or terminal, before it gives up with EAGAIN. -1: without end.
  explicit JsonWriter(int fd, int patience_ms = -1);
  explicit JsonWriter(std::string* text);
  JsonWriter(const JsonWriter&) = delete;
  JsonWriter& operator=(const JsonWriter&) = delete;

  void begin_object() { open('{'); }
  void end_object() { close('}'); }
  void begin_array() { open('['); }
  void end_array() { close(']'); }
  void begin_object(std::string_view name) {
    key(name);
    open('{');
  }
  void begin_array(std::string_view name) {
    key(name);
    open('[');
  }
  void key(std::string_view name);
  /// White space that keeps a large array readable and greppable: the next value begins a line.
  void new_line() { line_pending_ = true; }

  void value(std::string_view text);
  void value(const char* text) { value(std::string_view(text)); }
  void value(const std::string& text) { value(std::string_view(text)); }
  void value(bool truth) { literal(truth ? "true" : "false"); }
  void value(std::uint64_t number) { integer(number); }
  void value(std::int64_t number) { integer(number); }
  void value(std::uint32_t number) { integer(number); }
  void value(std::int32_t number) { integer(number); }
  void null() { literal("null"); }
  template <class T> void value(const std::optional<T>& maybe) { maybe ? value(*maybe) : null(); }
  template <class T> void member(std::string_view name, const T& what) {
    key(name);
    value(what);
  }
  void null_member(std::string_view name) {
    key(name);
    null();
  }
  /// numerator / denominator in [0, 1] with nine decimals, rounded to nearest; null when the denominator is 0.
  /// A numerator above the denominator counts as 1.
  void ratio(std::uint64_t numerator, std::uint64_t denominator);

  /// Writes everything out. Returns 0, or the errno of the first write that failed.
  int finish();
  int error() const { return error_; }

 private:
  static constexpr std::size_t kBuffer_bytes = 256 * 1024;
  static constexpr std::size_t kLongestAtom = 32;

  void open(char bracket);
  void close(char bracket);
  void separate();
  void literal(std::string_view text);
  template <class T> void integer(T number) {
    separate();
    reserve(kLongestAtom);
    used_ = static_cast<std::size_t>(std::to_chars(buffer_.data() + used_, buffer_.data() + buffer_.size(), number).ptr - buffer_.data());
  }
  void quote(std::string_view text);
  void put(char c);
  void put(std::string_view text);
  void reserve(std::size_t bytes) {
    if (buffer_.size() - used_ < bytes) flush();
  }
  void flush();
  bool await_reader();
  void spend_patience(int ms) { patience_ms_ -= ms < patience_ms_ ? ms : patience_ms_; }

  std::vector<char> buffer_;
  std::size_t used_ = 0;
  std::string* text_ = nullptr;
  int fd_ = -1;
  int patience_ms_ = -1;
  int error_ = 0;
  bool needs_comma_ = false;
  bool line_pending_ = false;
};

}  // namespace cupool::observe
