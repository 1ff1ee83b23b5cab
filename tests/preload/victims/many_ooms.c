// A program that runs into the wall again and again: the number of reports and of messages is capped, the counter is not. The last report is the newest
// refusal's: one that ends the job after a search for the largest size must not be missing.
//! ooms 8
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report) .*)
//! check "impossible_request" == ooms[0]["ooms"][0]["cause"]
//! case default
//! check c["failed_allocations"] == 100
//! check len(err.splitlines()) <= 8 * 10 + 1
//! case the_last_one_counts
//! args last
//! signal SIGKILL
//! report absent
//! page left
//! check [ooms[7]["ooms"][-1][key] for key in ("requested_bytes", "cause")] == [777 * GiB, "impossible_request"]
//! case and_comes_at_once
//! args burst
//! signal SIGKILL
//! report absent
//! page left
//! check [ooms[7]["ooms"][-1][key] for key in ("requested_bytes", "cause")] == [777 * GiB, "impossible_request"]
#include <signal.h>

#include "victim.h"

/* Is `bytes` in the report with this name, which stands in the working folder? */
static int tells_of(const char* name, unsigned long long bytes) {
  static char text[1 << 20], number[32];
  FILE* file = fopen(name, "r");
  if (file == NULL) return 0;
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  fclose(file);
  snprintf(number, sizeof number, "%llu", bytes);
  return strstr(text, number) != NULL;
}

static void die_of_the_last(void) {
  CUdeviceptr address = 0;
  char host[64] = "", name[128];
  gethostname(host, sizeof host - 1);
  snprintf(name, sizeof name, "cupool-report.%s.%d.oom8.json", host, (int)getpid());
  do { /* those that come at once after another are not written */
    if (cuMemAlloc(&address, 777 * GIB) != CUDA_ERROR_OUT_OF_MEMORY) printf("not refused\n");
  } while (getenv("LD_PRELOAD") != NULL && !tells_of(name, 777 * GIB));
  fflush(stdout);
  kill(getpid(), SIGKILL);
}

int main(int argc, char** argv) {
  enter_device(0);
  CUdeviceptr address = 0;
  allocate(MIB);
  int refused = 0;
  const int burst = argc > 1 && strcmp(argv[1], "burst") == 0;
  for (int i = 0; i < (burst ? 10 : 100); ++i) refused += cuMemAlloc(&address, 100 * GIB) == CUDA_ERROR_OUT_OF_MEMORY;
  printf("refused %d\n", refused);
  if (burst) {
    if (cuMemAlloc(&address, 777 * GIB) != CUDA_ERROR_OUT_OF_MEMORY) printf("not refused\n");
    fflush(stdout);
    kill(getpid(), SIGKILL);
  }
  if (argc > 1 && strcmp(argv[1], "last") == 0) die_of_the_last();
  return 0;
}
