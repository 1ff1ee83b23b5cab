// battery [SYMBOL...]: runs every row (or those named), each in a process of its own, and prints one line per case:
//   <symbol> | <situation> | <case> | <outcome> | <what holds afterwards> | <violations that the driver noted>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <new>

#include "battery.hpp"

namespace {

using namespace battery;

struct Row {
  const char* symbol;
  void (*cases)(Cases&);
};

constexpr Row kRows[] = {
#define HOOK(name, symbol, since, role, method) {#symbol, &cases_##symbol},
#include "shim/entry_points.def"
#undef HOOK
};

using Count = std::size_t (*)();

/// False: as leave().
bool run_case(const Row& row, Situation situation, const Case& one) {
  static const Count violations = reinterpret_cast<Count>(dlsym(RTLD_DEFAULT, "cusim_violation_count"));
  static const Count now_ns = reinterpret_cast<Count>(dlsym(RTLD_DEFAULT, "cusim_now_ns"));
  World world;
  enter(world, situation);
  Line line(world);
  const std::size_t violations_before = violations();
  const std::size_t before_ns = now_ns();
  one.body(world, line);
  const std::size_t waited_ns = now_ns() - before_ns;
  const std::size_t noted = violations() - violations_before;
  std::printf("%s | %s | %s | %s | waited=%zu %s | %zu\n", row.symbol, name_of(situation), one.name.c_str(), line.str().c_str(), waited_ns,
              aftermath(world).c_str(), noted);
  return leave(world, line.given());
}

constexpr int kDeviceLost = 77;  // the exit code of a process that another is to go on for

/// From case `*done` on, counted through all situations.
int run_row(const Row& row, std::size_t* done) {
  Cases cases;
  row.cases(cases);
  if (cases.all().empty()) {
    std::printf("%s has no cases\n", row.symbol);
    return 1;
  }
  const std::size_t all = static_cast<std::size_t>(Situation::kCount) * cases.all().size();
  while (*done < all) {
    const std::size_t number = (*done)++;
    const bool goes_on = run_case(row, static_cast<Situation>(number / cases.all().size()), cases.all()[number % cases.all().size()]);
    if (!goes_on && *done < all) return kDeviceLost;
  }
  return 0;
}

bool is_wanted(const Row& row, int count, char** names) {
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(names[i], row.symbol) == 0) return true;
  }
  return count == 1;
}

struct Running {
  const Row* row;
  pid_t child;
  std::FILE* lines;
  std::size_t* done;  // shared with the child
};

/// Many rows wait, up to a second by the clock, for what only time can tell.
constexpr std::size_t kAtOnce = 16;

/// Before CUDA is used: the child is a process like any other.
pid_t go_on(const Row& row, std::FILE* lines, std::size_t* done) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child != 0) return child;
  dup2(fileno(lines), STDOUT_FILENO);
  const int code = run_row(row, done);
  std::fflush(stdout);
  _exit(code);
}

Running start(const Row& row) {
  std::FILE* const lines = std::tmpfile();
  void* const shared = mmap(nullptr, sizeof(std::size_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (lines == nullptr || shared == MAP_FAILED) std::abort();
  auto* const done = new (shared) std::size_t{0};
  return {&row, go_on(row, lines, done), lines, done};
}

bool finish(const Running& running) {
  int status = -1;
  waitpid(running.child, &status, 0);
  while (WIFEXITED(status) && WEXITSTATUS(status) == kDeviceLost) waitpid(go_on(*running.row, running.lines, running.done), &status, 0);
  std::rewind(running.lines);
  char part[4096];
  for (std::size_t bytes = 0; (bytes = std::fread(part, 1, sizeof part, running.lines)) != 0;) std::fwrite(part, 1, bytes, stdout);
  std::fclose(running.lines);
  if (status != 0) std::printf("%s ended with status %#x\n", running.row->symbol, status);
  return status == 0;
}

}  // namespace

int main(int count, char** names) {
  std::deque<Running> running;
  int failed = 0;
  const auto finish_oldest = [&] {
    failed += finish(running.front()) ? 0 : 1;
    running.pop_front();
  };
  for (const Row& row : kRows) {
    if (!is_wanted(row, count, names)) continue;
    if (running.size() == kAtOnce) finish_oldest();
    running.push_back(start(row));
  }
  while (!running.empty()) finish_oldest();
  return failed != 0 ? 1 : 0;
}
