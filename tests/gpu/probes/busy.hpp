// A stream with work on it, and whether a call made meanwhile waited for that work: the stream is asked afterwards, no
// threshold on time decides.
#pragma once

#include "tests/gpu/probes/streams.hpp"
#include "tests/gpu/probes/timing.hpp"
#include "tests/gpu/probes/work.hpp"

namespace probe {

inline constexpr std::uint64_t kWork_ns = 20'000'000;
inline constexpr const char* kReturned = "returned while the work ran";
inline constexpr const char* kWaited = "waited for the work";

/// Belongs to the context that is current when it is made; launch while that one is current.
class Busy {
 public:
  [[nodiscard]] CUstream stream() const { return stream_; }
  void launch() const { spin_.launch(stream_, kWork_ns); }
  [[nodiscard]] bool is_done() const { return CU(cuStreamQuery)(stream_) == CUDA_SUCCESS; }
  void synchronize() const { stream_.synchronize(); }
  void forget() { stream_.forget(); }

  /// What `call` did about the work, and how long it took.
  template <class Call> void ask(const std::string& name, const char* assumed, Call&& call) const {
    group(name.c_str(), [&] {
      launch();
      tell(name + " while another stream works", assumed, call);
    });
  }

  /// The same for work that is already there.
  template <class Call> void tell(const std::string& question, const char* assumed, Call&& call) const {
    const std::uint64_t start = now_ns();
    const CUresult code = call();
    const std::uint64_t taken_ns = now_ns() - start;
    const bool waited = is_done();
    synchronize();
    prepare(code, question.c_str());
    if (assumed != nullptr) answer(question, waited ? kWaited : kReturned, assumed);
    else answer(question, waited ? kWaited : kReturned);
    answer(question + ": host time in ns", taken_ns);
  }

 private:
  Spin spin_;
  Stream stream_;
};

}  // namespace probe
