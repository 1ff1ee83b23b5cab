// A variant of a function that the library knows, newer than the library: other arguments, so it stays the driver's. An older version asked for is ours.
//! report absent
//! env CUSIM_DRIVER_VERSION=13060
//! check "13060: 0, cuGraphAddNode_v4" in out and "13050: 0, cuGraphAddNode_v3" in out and "12030: 0, cuGraphAddNode_v2" in out
//! case same_as_natively
//! case whose_code
//! native skip
//! args objects
//! check "cuGraphAddNode_v4 at libcuda.so.1" in out and "cuGraphAddNode_v3 at libcupool.so" in out and "cuGraphAddNode_v2 at libcupool.so" in out
#include "resolve_object.h"
#include "victim.h"

typedef CUresult (*V1)(const char*, void**, int, cuuint64_t);
typedef CUresult (*V2)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

int main(int argc, char** argv) {
  (void)argv;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  V1 v1 = (V1)dlsym(driver, "cuGetProcAddress");
  V2 v2 = (V2)dlsym(driver, "cuGetProcAddress_v2");
  const int versions[] = {12020, 12030, 13000, 13040, 13050, 13060};
  for (size_t i = 0; i < sizeof versions / sizeof versions[0]; ++i) {
    void *first = NULL, *second = NULL;
    CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)9;
    const CUresult code = v1("cuGraphAddNode", &first, versions[i], 0);
    printf("%d: %d, %s", versions[i], code, symbol_at(first));
    if (argc > 1) printf(" at %s", object_at(first));
    printf("; %d, status %d, the same %d\n", v2("cuGraphAddNode", &second, versions[i], 0, &status), status, first == second);
  }
  return 0;
}
