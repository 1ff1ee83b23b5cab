// cuPointerGetAttributes: several at once, of a block, of a foreign and of a freed address, with bad lists.
#include "victim.h"

static void ask(const char* what, CUdeviceptr address, CUdeviceptr block, CUcontext current) {
  CUmemorytype type = 77;
  int ordinal = 77;
  unsigned managed = 77;
  CUdeviceptr start = 77;
  size_t size = 77;
  CUcontext context = NULL;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_CONTEXT};
  void* values[] = {&type, &ordinal, &managed, &start, &size, &context};
  int code = cuPointerGetAttributes(6, names, values, address);
  printf("%s: %d, type %u ordinal %d managed %u size %zu own %d start %lld\n", what, code, (unsigned)type, ordinal, managed, size, context == current,
         start >= block ? (long long)(start - block) : (long long)start);
}

int main(void) {
  CUcontext current = enter_device(0);
  CUdeviceptr block = allocate(3000);
  ask("block", block, block, current);
  ask("inside", block + 2999, block, current);
  ask("null", 0, block, current);
  ask("nowhere", 0x1234, block, current);
  CUpointer_attribute bad = (CUpointer_attribute)9999;
  CUpointer_attribute good = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  uint64_t value = 0;
  void* values[] = {&value};
  SAY(cuPointerGetAttributes(1, &bad, values, block));
  SAY(cuPointerGetAttributes(0, &good, values, block));
  SAY(cuPointerGetAttributes(1, NULL, values, block));
  SAY(cuPointerGetAttributes(1, &good, NULL, block));
  /* What comes before the refused one has been answered, and of the block. */
  CUdeviceptr start = 0;
  size_t size = 0;
  CUpointer_attribute ends_badly[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE, bad};
  void* answers[] = {&start, &size, &value};
  SAY(cuPointerGetAttributes(3, ends_badly, answers, block + 1000));
  printf("told before the refusal: own %d size %zu\n", start == block, size);
  MUST(cuMemFree(block));
  ask("freed", block, block, current);
  return 0;
}
