// What every probe is written with: the driver by name (dlopen, nothing links libcuda) and answers as lines of JSON.
// An answer may carry what cupool's code assumes; gpu-check shows where the two differ. A probe asserts nothing: it
// records. Every line is one write(2), so that a probe that crashes or is killed has still told what it learnt before.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace probe {

/// This driver does not have the function: the rest of the probe that needs it is left out, visibly.
struct Missing : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// A step that only prepares a question failed, so that the question cannot be put.
struct Unprepared : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[nodiscard]] void* find_symbol(const char* name);

template <class Function> [[nodiscard]] Function* bind(const char* name) {
  void* found = find_symbol(name);
  if (found == nullptr) throw Missing(std::string("the driver has no ") + name);
  return reinterpret_cast<Function*>(found);
}
/// The driver's function of exactly this exported symbol. Throws Missing.
#define CU(symbol) (::probe::bind<std::remove_pointer_t<decltype(&::symbol)>>(#symbol))

[[nodiscard]] std::string error_name(CUresult code);
[[nodiscard]] std::string quoted(std::string_view text);

/// One JSON value. Implicit on purpose: answers are given in the driver's own types.
class Json {
 public:
  Json(CUresult code) : text_(quoted(error_name(code))) {}
  Json(bool value) : text_(value ? "true" : "false") {}
  Json(const char* text) : text_(quoted(text)) {}
  Json(const std::string& text) : text_(quoted(text)) {}
  template <class Integer, std::enable_if_t<std::is_integral_v<Integer> && !std::is_same_v<Integer, bool>, int> = 0> Json(Integer value)
      : text_(std::to_string(value)) {}
  template <class Integer> Json(const std::vector<Integer>& values) : text_("[") {
    for (const Integer value : values) text_ += (text_.size() > 1 ? ", " : "") + std::to_string(value);
    text_ += "]";
  }
  [[nodiscard]] static Json raw(std::string json) { return Json(std::move(json), 0); }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  Json(std::string json, int) : text_(std::move(json)) {}
  std::string text_;
};

void answer(std::string_view question, const Json& value);
/// As above, with what the code of this project assumes today.
void answer(std::string_view question, const Json& value, const Json& assumed);
/// A question that could not be put, and why.
void leave_out(std::string_view question, std::string_view reason);

/// Throws Unprepared with the code's name.
void prepare(CUresult code, const char* step);
/// Of the current context's device, by cuMemGetInfo.
std::size_t free_bytes();

/// cuInit, and device 0's primary context current in this thread. Never released: the process ends with the probe.
struct Session {
  CUdevice device = 0;
  CUcontext context = nullptr;
  Session();
};

/// Memory of one cuMemAlloc; freed at the end of scope with whatever context is current then.
class Memory {
 public:
  explicit Memory(std::size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] CUdeviceptr address() const { return address_; }
  /// Somebody else frees it.
  void forget() { address_ = 0; }

 private:
  CUdeviceptr address_ = 0;
};

/// Runs one group of questions; a group that cannot be prepared is left out and the next one runs.
template <class Group> void group(const char* name, Group&& ask) {
  try {
    ask();
  } catch (const std::runtime_error& error) {
    leave_out(name, error.what());
  }
}

/// Puts a probe's questions in a process of its own, because one of them may kill it; its answers come out with ours, and how it ended is one.
void ask_elsewhere(const char* probe_name);

struct Probe {
  const char* name;
  void (*run)(Session&);
};
/// Every probe of this binary, by name.
[[nodiscard]] const std::vector<Probe>& all_probes();

}  // namespace probe
