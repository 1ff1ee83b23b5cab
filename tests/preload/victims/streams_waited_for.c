// What was freed on a stream that the program has waited for is another stream's: at once where that stream is a non-blocking one, and not while legacy work
// that the free came after still runs, of which a wait for a blocking stream need not know.
//! case non_blocking
//! args 1
//! env CUPOOL_BACKING=segments
//! check c["reserved_bytes"]["peak"] <= 384 << 20
//! case non_blocking_on_pages
//! args 1
//! env CUPOOL_BACKING=pages
//! check c["reserved_bytes"]["peak"] <= 384 << 20
//! case blocking
//! args 0
//! env CUPOOL_BACKING=segments
//! case blocking_on_pages
//! args 0
//! env CUPOOL_BACKING=pages
#include "cusim.h"
#include "victim.h"

enum { kWork_ns = 50000000 };

int main(int count, char** arguments) {
  const unsigned flags = count > 1 ? (unsigned)atoi(arguments[1]) : 0;
  CUstream waited, other;
  CUdeviceptr block = 0;
  enter_device(0);
  MUST(cuStreamCreate(&waited, flags));
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  MUST(cuMemAllocAsync(&block, 64 * MIB, other)); /* both streams have freed something */
  MUST(cuMemFreeAsync(block, other));
  for (int by_query = 0; by_query < 2; ++by_query) {
    CUstream works = flags == CU_STREAM_NON_BLOCKING ? waited : CU_STREAM_LEGACY;
    CUdeviceptr used = 0, given = 0;
    MUST(cuMemAllocAsync(&used, 256 * MIB, waited));
    MUST(cuStreamSynchronize(waited));
    MUST(cusim_launch_spin(works, kWork_ns)); /* uses the block */
    MUST(cuMemFreeAsync(used, waited));
    if (!by_query) MUST(cuStreamSynchronize(waited));
    while (by_query && cuStreamQuery(waited) == CUDA_ERROR_NOT_READY) cusim_advance_ns(kWork_ns / 10);
    if (works == waited) MUST(cusim_launch_spin(waited, kWork_ns)); /* on it goes: to ask whether it is idle now is no use */
    MUST(cuMemAllocAsync(&given, 256 * MIB, other));
    int is_used = cuStreamQuery(CU_STREAM_LEGACY) == CUDA_ERROR_NOT_READY;
    printf("asked %d: given while legacy work uses it %d\n", by_query, is_used && given < used + 256 * MIB && used < given + 256 * MIB);
    MUST(cuMemFreeAsync(given, other));
    MUST(cuCtxSynchronize());
  }
  return 0;
}
