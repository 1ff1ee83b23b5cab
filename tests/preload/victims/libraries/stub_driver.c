/* The toolkit's stubs/libcuda.so: for the linker only. Every function answers CUDA_ERROR_STUB_LIBRARY. */
enum { STUB_LIBRARY = 34 };
int cuInit(unsigned flags) { return (void)flags, STUB_LIBRARY; }
int cuDriverGetVersion(int* version) { return (void)version, STUB_LIBRARY; }
int cuMemAlloc_v2(void* address, unsigned long bytes) { return (void)address, (void)bytes, STUB_LIBRARY; }
int cuMemFree_v2(unsigned long long address) { return (void)address, STUB_LIBRARY; }
int cuGetProcAddress(const char* name, void** function, int version, unsigned long long flags) {
  return (void)name, (void)function, (void)version, (void)flags, STUB_LIBRARY;
}
