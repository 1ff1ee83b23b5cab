// page_model FILE...: how much memory a page heap needs for recorded jobs, and how many driver calls, by rule; no device behind it.
// --help says how it is called, and what the columns are.
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/bench/page_model/page_figures.hpp"
#include "tests/bench/trace.hpp"

namespace {

using namespace page_model;

constexpr std::uint64_t kPending[] = {0, 256};
bool check_invariants = false;

struct Job {
  std::string name;
  trace::Trace trace;
  bool is_adversarial() const { return name.rfind("minimalloc", 0) == 0; }
};

/// What stands in the row of a rule for one length of pending work.
struct Summary {
  double jobs = 0, ratio = 0, worst_ratio = 0, calls = 0, worst_calls = 0, later = 0, waits = 0, fresh = 0, adversarial = 0;
  unsigned over_capacity = 0, over_calls = 0, over_later = 0, failed = 0;

  void add(const Job& job, const Figures& figures) {
    failed += !figures.completes;
    if (job.is_adversarial()) {
      adversarial = std::max(adversarial, figures.ratio);
      return;
    }
    ++jobs;
    ratio += figures.ratio;
    worst_ratio = std::max(worst_ratio, figures.ratio);
    calls += figures.calls;
    worst_calls = std::max(worst_calls, figures.calls);
    later += figures.later;
    waits += figures.waits;
    fresh = std::max(fresh, figures.fresh);
    over_capacity += figures.over_capacity;
    over_calls += figures.calls > 0.1;
    over_later += figures.later > 0.1;
  }
  void print() const {
    const double n = std::max(jobs, 1.0);
    std::printf(" %.4f · %.3f · %u | %.3f · %u | %.3f · %u | %.3f | %.1f | %.3f |", ratio / n, worst_ratio, over_capacity, calls / n, over_calls,
                later / n, over_later, waits / n, fresh, adversarial);
    if (failed > 0) std::printf(" %u fail at 1.05 |", failed);
  }
};

class Json {
 public:
  explicit Json(const std::string& path) : file_(path.empty() ? nullptr : std::fopen(path.c_str(), "w")) {
    if (!path.empty() && file_ == nullptr) throw std::runtime_error(path + ": cannot be written");
  }
  ~Json() {
    if (file_ == nullptr) return;
    std::fprintf(file_, "\n]\n");
    std::fclose(file_);
  }
  Json(const Json&) = delete;
  Json& operator=(const Json&) = delete;
  void add(const Rule& rule, const Job& job, std::uint64_t pending, const Figures& f) {
    if (file_ == nullptr) return;
    std::fprintf(file_, "%s\n  {\"rule\": \"%s\", \"trace\": \"%s\", \"pending\": %" PRIu64 ", \"ratio\": ", is_first_ ? "[" : ",", rule.name.c_str(),
                 job.name.c_str(), pending);
    std::fprintf(file_, std::isnan(f.ratio) ? "null" : "%.5f", f.ratio);
    std::fprintf(file_, ", \"completes\": %s, \"calls\": %.5f, \"later_calls\": %.5f, \"waits\": %.5f, \"moved_pages\": %.5f, \"fresh\": %.3f}",
                 f.completes ? "true" : "false", f.calls, f.later, f.waits, f.moved, f.fresh);
    is_first_ = false;
  }

 private:
  std::FILE* file_;
  bool is_first_ = true;
};

/// The largest ratio; not a number when a job did not complete.
double print_traces(const std::vector<Job>& jobs, const Rule& rule, Json* json) {
  double worst = 0;
  std::printf("| trace | peak MiB | ratio | calls | later | moved | fresh | ratio, 256 pending | calls | later | waits | moved | fresh |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  Summary sums[2];
  for (const Job& job : jobs) {
    std::printf("| %s | %" PRIu64 " |", job.name.c_str(), job.trace.peak_live_bytes >> 20);
    for (const std::uint64_t pending : kPending) {
      const Figures f = measure(job.trace, rule, pending, check_invariants);
      sums[pending != 0].add(job, f);
      worst = std::isnan(f.ratio) || std::isnan(worst) ? std::nan("") : std::max(worst, f.ratio);
      json->add(rule, job, pending, f);
      std::printf(" %.3f%s | %.3f | %.3f |", f.ratio, f.over_capacity ? " (!)" : "", f.calls, f.later);
      if (pending != 0) std::printf(" %.3f |", f.waits);
      std::printf(" %.3f | %.1f |", f.moved, f.fresh);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  std::printf(
      "\nJobs, idle and 256 pending: ratio: mean · worst · above 1.02 + 8 MiB | calls: mean · above 0.1 | later: mean · above 0.1 | waits | "
      "fresh | minimalloc, worst |\n");
  for (const Summary& sum : sums) {
    sum.print();
    std::printf("\n");
  }
  return worst;
}

void print_rules(const std::vector<Job>& jobs, const Rule& best, Json* json) {
  std::printf(
      "| rule | pending | ratio: mean · worst · above 1.02 + 8 MiB | calls: mean · above 0.1 | later: mean · above 0.1 | waits | fresh | "
      "minimalloc, worst |\n|---|---|---|---|---|---|---|---|\n");
  for (const Rule& rule : rules_to_compare(best)) {
    for (const std::uint64_t pending : kPending) {
      Summary sum;
      for (const Job& job : jobs) {
        const Figures figures = measure(job.trace, rule, pending, check_invariants);
        sum.add(job, figures);
        json->add(rule, job, pending, figures);
      }
      std::printf("| %s | %" PRIu64 " |", rule.name.c_str(), pending);
      sum.print();
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}

constexpr const char* kUsage =
    "Usage: page_model [--compare] [--check] [--within RATIO] [--json OUT] [--set FIELD=VALUE]... TRACE.gz...\n"
    "The rules of a page heap on recorded jobs, without a device. A Markdown table: one row per trace for the best rule, idle and with 256 frees "
    "pending.\n"
    "  --compare          one row per rule instead: mean and worst over the jobs\n"
    "  --set FIELD=VALUE  changes the best rule: the fields of Rule in page_pool.hpp\n"
    "  --within RATIO     fails when a job needs more, with or without pending work\n"
    "  --check            looks at the model's own invariants at 64 points of each run\n"
    "  --json OUT         writes the figures to this file\n"
    "ratio: smallest capacity (bisected to 2 MiB or 0.1% of the peak) / peak of the requested bytes. The rest is at 1.05 times that capacity, per "
    "allocation.\n"
    "calls: creates, releases and maps (one per handle), unmaps and set-accesses (one per run), waits; later: without creating handles and mapping "
    "them for the\n"
    "first time; moved: pages; fresh: addresses bound for the first time / capacity.\n";

bool set_field(Rule* rule, const std::string& text) {
  const std::size_t equals = text.find('=');
  double* const member = field(rule, text.substr(0, equals));
  if (equals == std::string::npos || member == nullptr) return false;
  *member = std::strtod(text.c_str() + equals + 1, nullptr);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && (std::strcmp(argv[1], "--help") == 0 || std::strcmp(argv[1], "-h") == 0)) return std::fputs(kUsage, stdout) < 0 ? 1 : 0;
  Rule best;
  best.name = "best";
  std::string json_path;
  bool compare = false;
  double within = 0;
  std::vector<Job> jobs;
  try {
    for (int i = 1; i < argc; ++i) {
      const std::string argument = argv[i];
      if (argument == "--compare") {
        compare = true;
      } else if (argument == "--check") {
        check_invariants = true;
      } else if (argument == "--within" && i + 1 < argc) {
        within = std::strtod(argv[++i], nullptr);
      } else if (argument == "--json" && i + 1 < argc) {
        json_path = argv[++i];
      } else if (argument == "--set" && i + 1 < argc && set_field(&best, argv[i + 1])) {
        ++i;
      } else if (argument.rfind("--", 0) != 0) {
        const std::string file = argument.substr(argument.rfind('/') + 1);
        jobs.push_back({file.substr(0, file.rfind(".trace")), trace::load(argument)});
      } else {
        std::fprintf(stderr, "page_model: what is %s?\n", argument.c_str());
        return 2;
      }
    }
    if (jobs.empty()) {
      std::fprintf(stderr, "page_model: no traces: see --help\n");
      return 2;
    }
    Json json(json_path);
    if (compare) {
      print_rules(jobs, best, &json);
    } else if (const double worst = print_traces(jobs, best, &json); within > 0 && !(worst <= within)) {
      std::fprintf(stderr, "page_model: a job needs %.3f times its peak\n", worst);
      return 1;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "page_model: %s\n", error.what());
    return 1;
  }
}
