// cuGetProcAddress in both forms, from every origin and through itself, with versions and flags: results, statuses and the symbol
// that is meant are the driver's own; the code is ours where we hook.
//! report absent
//! case same_as_natively
//! case ours_where_hooked
//! native skip
//! args objects
//! check all(("libcupool.so" in line) == any(word in line for word in ("cuMemAlloc", "cuMemFree", "cuGetProcAddress", "cuStreamBeginCapture")) for line in out.splitlines() if " at lib" in line)
//! check out.count("libcupool.so") >= 60
#include "resolve_object.h"
#include "victim.h"

typedef CUresult (*V1)(const char*, void**, int, cuuint64_t);
typedef CUresult (*V2)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
CUresult cuGetProcAddress_v2(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

static int with_objects;

static const struct {
  const char* name;
  int version;
  cuuint64_t flags;
} kQuestions[] = {{"cuMemAlloc", 3020, 0},
                  {"cuMemAlloc", 2000, 0},
                  {"cuMemAlloc", 1000, 0},
                  {"cuMemAlloc", 13000, 2},
                  {"cuMemAllocAsync", 11020, 0},
                  {"cuMemAllocAsync", 11020, 1},
                  {"cuMemAllocAsync", 11020, 2},
                  {"cuMemAllocAsync", 11010, 2},
                  {"cuMemFreeAsync", 13000, 2},
                  {"cuMemFree", 3020, 0},
                  {"cuMemcpyPeerAsync", 7000, 2},
                  {"cuMemcpyPeerAsync", 4000, 0},
                  {"cuMemAlloc_v2", 13000, 0},
                  {"cuNoSuchFunction", 13000, 0},
                  {"", 0, 0},
                  {"cuMemFree", 3020, 77},
                  {"cuGetProcAddress", 11030, 0},
                  {"cuGetProcAddress", 12000, 0},
                  {"cuGetProcAddress", 11020, 0},
                  {"cuStreamBeginCapture", 10000, 2},
                  {"cuStreamBeginCapture", 10010, 2},
                  {"cuInit", 2000, 0}};

static void print_answer(int result, int status, const void* found) {
  printf("  %d, status %d, %s%s%s\n", result, status, symbol_at(found), with_objects ? " at " : "", with_objects ? object_at(found) : "");
}

static void ask(const char* origin, V1 v1, V2 v2) {
  printf("%s\n", origin);
  for (size_t i = 0; i < sizeof kQuestions / sizeof kQuestions[0]; ++i) {
    void* found = NULL;
    CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)9;
    CUresult result = v1 != NULL ? v1(kQuestions[i].name, &found, kQuestions[i].version, kQuestions[i].flags)
                                 : v2(kQuestions[i].name, &found, kQuestions[i].version, kQuestions[i].flags, &status);
    print_answer(result, status, found);
  }
}

static void ask_wrongly(V2 v2) {
  void* found = NULL;
  CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)9;
  SAY(v2(NULL, &found, 13000, 0, &status));
  SAY(v2("cuMemAlloc", NULL, 13000, 0, &status));
  int code = v2("cuMemAlloc", &found, 13000, 0, NULL);
  print_answer(code, 0, found);
}

int main(int argc, char** argv) {
  (void)argv;
  with_objects = argc > 1;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  V1 v1 = (V1)dlsym(driver, "cuGetProcAddress");
  V2 v2 = (V2)dlsym(driver, "cuGetProcAddress_v2");
  ask("linked", NULL, cuGetProcAddress_v2);
  ask("dlsym, four arguments", v1, NULL);
  ask("dlsym, five arguments", NULL, v2);
  void* again = NULL;
  MUST(v2("cuGetProcAddress", &again, 11030, 0, NULL));
  ask("through itself, four arguments", (V1)again, NULL);
  MUST(((V1)again)("cuGetProcAddress", &again, 12000, 0));
  ask("through itself twice, five arguments", NULL, (V2)again);
  ask_wrongly((V2)again);
  return 0;
}
