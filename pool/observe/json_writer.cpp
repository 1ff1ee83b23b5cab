// Bytes, commas and quoting of the JSON stream. UTF-8 as in Unicode 15 table 3-7 (no surrogates, no overlong forms).
#include "pool/observe/json_writer.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>

#include <poll.h>
#include <unistd.h>

namespace cupool::observe {

namespace {

constexpr int kSlice_ms = 10;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool is_continuation(unsigned char c) { return (c & 0xC0) == 0x80; }

/// Length in bytes of the valid UTF-8 sequence at the start of `text`, 0 when there is none. Precondition: not empty.
std::size_t sequence_bytes(std::string_view text) {
  const auto at = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : static_cast<unsigned char>(0); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return is_continuation(at(1)) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const unsigned char low = lead == 0xE0 ? 0xA0 : 0x80;
    const unsigned char high = lead == 0xED ? 0x9F : 0xBF;
    return at(1) >= low && at(1) <= high && is_continuation(at(2)) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const unsigned char low = lead == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xF4 ? 0x8F : 0xBF;
    return at(1) >= low && at(1) <= high && is_continuation(at(2)) && is_continuation(at(3)) ? 4 : 0;
  }
  return 0;
}

}  // namespace

JsonWriter::JsonWriter(int fd, int patience_ms) : buffer_(kBuffer_bytes), fd_(fd), patience_ms_(patience_ms) {}
JsonWriter::JsonWriter(std::string* text) : buffer_(kBuffer_bytes), text_(text) {}

void JsonWriter::key(std::string_view name) {
  separate();
  quote(name);
  put(':');
  needs_comma_ = false;
}

void JsonWriter::value(std::string_view text) {
  separate();
  quote(text);
}

void JsonWriter::ratio(std::uint64_t numerator, std::uint64_t denominator) {
  if (denominator == 0) return null();
  constexpr double kScale = 1e9;
  constexpr std::uint64_t kOne = 1000000000;
  const double exact = static_cast<double>(numerator) / static_cast<double>(denominator);
  const std::uint64_t scaled = numerator >= denominator ? kOne : static_cast<std::uint64_t>(exact * kScale + 0.5);
  char digits[kLongestAtom] = "0.000000000";
  digits[0] = scaled >= kOne ? '1' : '0';
  std::uint64_t rest = scaled % kOne;
  for (std::size_t i = 10; i >= 2; --i, rest /= 10) digits[i] = static_cast<char>('0' + rest % 10);
  literal(digits);
}

int JsonWriter::finish() {
  put('\n');
  flush();
  return error_;
}

void JsonWriter::open(char bracket) {
  separate();
  put(bracket);
  needs_comma_ = false;
}

void JsonWriter::close(char bracket) {
  line_pending_ = false;
  put(bracket);
  needs_comma_ = true;
}

void JsonWriter::separate() {
  if (needs_comma_) put(',');
  needs_comma_ = true;
  if (line_pending_) {
    put('\n');
    line_pending_ = false;
  }
}

void JsonWriter::literal(std::string_view text) {
  separate();
  put(text);
}

void JsonWriter::quote(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  put('"');
  while (!text.empty()) {
    const std::size_t bytes = sequence_bytes(text);
    const char c = text.front();
    if (bytes == 0) {
      put(kReplacement);
    } else if (c == '"' || c == '\\') {
      put('\\');
      put(c);
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      const char escape[] = {'\\', 'u', '0', '0', kHex[c >> 4], kHex[c & 15]};
      put(std::string_view(escape, sizeof escape));
    } else {
      put(text.substr(0, bytes));
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  put('"');
}

void JsonWriter::put(char c) {
  reserve(1);
  buffer_[used_++] = c;
}

void JsonWriter::put(std::string_view text) {
  reserve(text.size());
  std::memcpy(buffer_.data() + used_, text.data(), text.size());
  used_ += text.size();
}

/// Waits for the reader; false: nobody has read for as long as may be waited. The wait is counted, not timed: the clock may stand still.
bool JsonWriter::await_reader() {
  if (patience_ms_ < 0) return true;
  pollfd asked{fd_, POLLOUT, 0};
  for (;;) {
    const int ready = ::poll(&asked, 1, std::min(patience_ms_, kSlice_ms));
    if (ready > 0 || (ready < 0 && errno != EINTR)) return true;  // a descriptor that cannot be polled reports its error when it is written to
    if (patience_ms_ == 0) return false;
    spend_patience(ready == 0 ? kSlice_ms : 1);
  }
}

void JsonWriter::flush() {
  const char* from = buffer_.data();
  std::size_t left = used_;
  used_ = 0;
  if (error_ != 0) return;
  if (text_ != nullptr) {
    text_->append(from, left);
    return;
  }
  while (left > 0) {
    if (!await_reader()) {
      error_ = EAGAIN;
      return;
    }
    // PIPE_BUF is what a pipe with room takes at once, without waiting.
    const ssize_t written = ::write(fd_, from, patience_ms_ < 0 ? left : std::min<std::size_t>(left, PIPE_BUF));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN && patience_ms_ > 0) {  // another writer was faster, or there is room for less
      constexpr timespec kPause{0, kSlice_ms * 1'000'000};
      nanosleep(&kPause, nullptr);
      spend_patience(kSlice_ms);
      continue;
    }
    if (written <= 0) {
      error_ = written < 0 ? errno : EIO;
      return;
    }
    from += written;
    left -= static_cast<std::size_t>(written);
  }
}

}  // namespace cupool::observe
