// explorer: runs a schedule, drawn from a seed or read from a file, and says what came of it as one line of JSON.
//
//   explorer --seed N --steps N [--route plain|ordered|mixed|steady] [--devices N] [--blocks N] [--sync-frees] [--page-sizes] [--times N] [--unlinked] [--may-be-kept] [--leaves] [--whole-operations] [--dump FILE]
//   explorer --replay FILE [--print] [...]
// Exit: 0 no hit; 3 a hit: `HIT <step> <what>` on stdout, and with --dump the operations up to it as a schedule.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <stdexcept>

#include <fcntl.h>
#include <sys/personality.h>
#include <unistd.h>

#include "actors.hpp"
#include "cusim.h"
#include "generator.hpp"
#include "interleave.hpp"
#include "program.hpp"
#include "virtual_time.hpp"

namespace explorer {
namespace {

constexpr unsigned kWatchdog_s = 30;  ///< real time for 1024 operations, which take milliseconds

struct Given {
  Settings program;
  std::uint64_t seed = 1;
  std::uint64_t steps = 10000;
  Route route = Route::mixed;
  std::size_t blocks = 48;
  bool page_sizes = false;
  std::uint32_t times = 1;        ///< as large are all blocks
  bool whole_operations = false;  ///< nobody is let in between
  std::string replay;
  std::string dump;
};

[[noreturn]] void usage(const std::string& why) {
  std::fprintf(stderr, "explorer: %s (see the head of tests/explorer/main.cpp)\n", why.c_str());
  std::exit(2);
}

Route route_of(const std::string& name) {
  if (name == "plain") return Route::plain;
  if (name == "ordered") return Route::ordered;
  if (name == "mixed") return Route::mixed;
  if (name == "steady") return Route::steady;
  usage("unknown route " + name);
}

Given read_arguments(int argc, char** argv) {
  Given given;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&]() -> std::string { return i + 1 < argc ? argv[++i] : (usage(name + " needs a value"), ""); };
    if (name == "--seed") given.seed = std::stoull(value());
    else if (name == "--steps") given.steps = std::stoull(value());
    else if (name == "--route") given.route = route_of(value());
    else if (name == "--devices") given.program.devices = std::stoul(value());
    else if (name == "--blocks") given.blocks = std::min(kBlocks, static_cast<std::size_t>(std::stoul(value())));
    else if (name == "--replay") given.replay = value();
    else if (name == "--dump") given.dump = value();
    else if (name == "--sync-frees") given.program.frees_wait_everywhere = true;
    else if (name == "--page-sizes") given.page_sizes = true;
    else if (name == "--times") given.times = static_cast<std::uint32_t>(std::clamp(std::stoul(value()), 1UL, 256UL));
    else if (name == "--may-be-kept") given.program.may_be_kept = true;
    else if (name == "--unlinked") given.program.is_unlinked = true;
    else if (name == "--whole-operations") given.whole_operations = true;
    else if (name == "--leaves") given.program.leaves = true;
    else if (name == "--print") given.program.print = true;
    else usage("unknown argument " + name);
  }
  if (given.program.devices < 1 || given.program.devices > kDevices) usage("1 to 3 devices");
  return given;
}

/// One run. A global because a crash must still tell what led to it.
struct Run {
  Given given;
  std::vector<Op> script;  ///< of --replay
  std::vector<Op> done;
  std::uint64_t step = 0;
};
Run* g_run = nullptr;

void dump(const char* what) {
  std::printf("HIT %llu %s\n", static_cast<unsigned long long>(g_run->step), what);
  std::fflush(stdout);
  if (g_run->given.dump.empty()) return;
  std::ofstream file(g_run->given.dump);
  file << "# " << what << "\n";
  for (const Op& op : g_run->done) file << to_text(op) << "\n";
}

void on_signal(int number) {
  std::signal(number, SIG_DFL);
  char what[64];
  std::snprintf(what, sizeof what, number == SIGALRM ? "a call does not return" : "a crash by signal %d", number);
  dump(what);
  _exit(3);
}

std::uint64_t all_records() { return cusim_calls("cuEventRecord") + cusim_calls("cuEventRecord_ptsz") + cusim_calls("cuCtxRecordEvent"); }

/// What frees cost in event calls that are not the program's own, from a moment on: under the steady route from the middle, where nothing is new any
/// more.
struct Costs {
  std::uint64_t frees = 0, records = 0, queries = 0;

  static Costs now(const Totals& totals) {
    return {totals.frees, all_records() - totals.own_records, cusim_calls("cuEventQuery") - totals.own_queries};
  }
  Costs since(const Costs& before) const { return {frees - before.frees, records - before.records, queries - before.queries}; }
};

void print_totals(const Program& program, double seconds, const Costs& before) {
  const Totals& totals = program.totals();
  const Costs costs = Costs::now(totals).since(before);
  std::uint64_t left_out = 0;
  for (const std::uint64_t count : totals.left_out) left_out += count;
  const auto number = [](const char* name, std::uint64_t value) { std::printf("\"%s\": %llu, ", name, static_cast<unsigned long long>(value)); };
  std::printf("{");
  number("steps", g_run->step), number("left_out", left_out), number("allocations", totals.allocations), number("frees", costs.frees);
  number("refused", totals.refused), number("pool_records", costs.records), number("pool_queries", costs.queries);
  std::printf("\"seconds\": %.3f, \"digest\": \"%016llx\", \"done\": {", seconds, static_cast<unsigned long long>(totals.digest));
  for (std::size_t i = 0; i < kKinds; ++i)
    std::printf("%s\"%s\": %llu", i == 0 ? "" : ", ", name_of(static_cast<Kind>(i)), static_cast<unsigned long long>(totals.done[i]));
  std::printf("}}\n");
}

/// Operations of one actor until another's turn comes.
class Stage {
 public:
  Stage(Run& run, Program& program)
      : run_(run),
        program_(program),
        generator_(run.given.seed, run.given.route, run.given.program.devices, run.given.blocks, run.given.page_sizes, run.given.times) {}

  std::size_t turn(std::size_t actor) {
    if (interleave::is_inside(actor)) {
      do_inside();
      return inside_parent_;
    }
    for (;;) {
      if (!has_next_ && !draw()) return wind_up(actor);
      if (next_.thread != actor) return next_.thread;
      has_next_ = false;
      do_next();
      if ((++run_.step & 1023) == 0) alarm(kWatchdog_s);
      if (run_.given.route == Route::steady && run_.step == run_.given.steps / 2) before_ = Costs::now(program_.totals());
    }
  }

  const Costs& before() const { return before_; }

 private:
  void tell(const Op& op) const {
    if (run_.given.program.print) std::printf("%llu  %s\n", static_cast<unsigned long long>(run_.step), to_text(op).c_str());
  }

  /// The drawn operation, and the one in the middle of it if there is one.
  void do_next() {
    const Op op = next_;
    virtual_time::begin_operation();
    const bool has_inside = draw_inside(op);
    if (has_inside) interleave::arm(op.thread, inside_.thread, inside_.after_calls);
    tell(op);
    run_.done.push_back(op);
    const std::size_t place = run_.done.size() - 1;
    const bool done = program_.act(op);
    const bool did_inside = has_inside && interleave::disarm();
    if (has_inside && !did_inside) next_ = inside_, has_next_ = true;  // there were not so many calls: after it, then
    if (!done && !did_inside && !program_.is_hit()) run_.done.erase(run_.done.begin() + static_cast<std::ptrdiff_t>(place));
  }

  void do_inside() {
    ++run_.step;
    tell(inside_);
    run_.done.push_back(inside_);
    program_.act(inside_);
    interleave::finished();
  }

  bool draw_inside(const Op& parent) {
    if (run_.given.whole_operations) return false;
    if (run_.given.replay.empty()) {
      if (!generator_.next_inside(program_, parent, &inside_)) return false;
    } else {
      if (at_ >= run_.script.size() || run_.script[at_].after_calls == 0) return false;
      inside_ = run_.script[at_];
      if (!program_.may_interrupt(parent, inside_)) return false;
      ++at_;
    }
    inside_parent_ = parent.thread;
    return true;
  }

  bool draw() {
    if (program_.is_hit() || is_winding_up_) return false;
    if (run_.given.replay.empty()) {
      if (run_.step >= run_.given.steps) return false;
      next_ = generator_.next(program_);
    } else {
      if (at_ >= run_.script.size()) return false;
      next_ = run_.script[at_++];
      if (next_.thread >= kThreads) usage("there are three threads");
    }
    has_next_ = true;
    return true;
  }

  /// Everybody's turn once more: each ends its own captures.
  std::size_t wind_up(std::size_t actor) {
    is_winding_up_ = true;
    virtual_time::begin_operation();
    if (!program_.is_hit()) program_.wind_up(actor);
    return wound_up_ < kThreads ? wound_up_++ : kThreads;
  }

  Run& run_;
  Program& program_;
  Generator generator_;
  Op next_;
  Op inside_;
  std::size_t inside_parent_ = 0;
  bool has_next_ = false;
  bool is_winding_up_ = false;
  std::size_t wound_up_ = 0;
  std::size_t at_ = 0;
  Costs before_ = Costs::now(program_.totals());
};

int explore(Run& run) {
  Program program(run.given.program);
  virtual_time::attach(&program);
  const double began = virtual_time::real_seconds();
  program.start();
  Stage stage(run, program);
  Actors actors(kThreads);
  interleave::attach(&actors, [](const char* what) {
    dump(what);
    _exit(3);
  });
  actors.run([&](std::size_t actor) { return stage.turn(actor); });
  virtual_time::begin_operation();
  const double seconds = virtual_time::real_seconds() - began;
  if (!program.is_hit()) print_totals(program, seconds, stage.before());
  if (!program.is_hit()) program.finish();
  virtual_time::attach(nullptr);
  alarm(0);
  if (!program.is_hit()) return 0;
  dump(program.hit_text().c_str());
  return 3;
}

/// A context's handle is an address, and caches are keyed by handles: the same run has the same addresses, where the system allows it.
void fix_addresses(char** argv) {
  const int before = personality(0xffffffff);
  if (before == -1 || (before & ADDR_NO_RANDOMIZE) != 0) return;
  if (personality(static_cast<unsigned long>(before) | ADDR_NO_RANDOMIZE) != -1) execv("/proc/self/exe", argv);
}

}  // namespace
}  // namespace explorer

int main(int argc, char** argv) {
  using namespace explorer;
  fix_addresses(argv);
  static Run run;
  g_run = &run;
  run.given = read_arguments(argc, argv);
  try {
    if (!run.given.replay.empty()) {
      std::ifstream file(run.given.replay);
      if (!file) usage("cannot read " + run.given.replay);
      run.script = read_schedule(file);
    }
  } catch (const std::exception& error) {
    usage(error.what());
  }
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM}) std::signal(number, on_signal);
  alarm(kWatchdog_s);
  return explore(run);
}
