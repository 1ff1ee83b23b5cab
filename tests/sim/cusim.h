/* Control surface of the simulated driver: exported from sim/libcuda.so.1, and linked in-process (target cusim).
 *
 * C, so that victims can dlsym it. The simulated driver keeps a virtual clock that only these calls and
 * synchronising driver calls move; work completes when the clock passes it or a host call waits for it.
 * A query never completes work. Configuration by environment, read at load and at cusim_reset():
 *   CUSIM_DEVICES=1..64          CUSIM_MEMORY=80GiB (per device; or a list "80GiB,24GiB")
 *   CUSIM_DRIVER_VERSION=13000   functions newer than this do not exist (dlsym NULL, cuGetProcAddress not found)
 *   CUSIM_MISSING=cuA,cuB        functions (by the names that cuGetProcAddress takes, all versions of each) that do not exist either
 *   CUSIM_VMM=1|0                CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
 *   CUSIM_GRANULARITY=2MiB       of virtual memory management; or "minimum,recommended": "4MiB,32MiB"
 *   CUSIM_NOTE_SYNC=1            cuMemUnmap and cuMemSetAccess wait for all work of all contexts, as their note_sync allows; else they wait for none
 *   CUSIM_VMM_FD=1|0|refused     handles with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; 0: the attribute says no, refused: it says yes; cuMemCreate refuses
 *   CUSIM_VMM_RDMA=1|0|refused|unopened  the same for CUmemAllocationProp::allocFlags.gpuDirectRDMACapable; unopened: cuMemSetAccess answers UNKNOWN, as under WSL2 (pytorch issue 192330)
 *   CUSIM_DECOMPRESSION=0|1|refused  a device that decompresses (CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK), and handles and pools that ask for it [?]
 *   CUSIM_ADDRESSES=0            most that cuMemAddressReserve gives in all (an address space may be limited: RLIMIT_AS); 0: no bound
 *   CUSIM_VMM_RANGE=1|0          cuMemGetAddressRange of mapped memory: the mapping, or CUDA_ERROR_NOT_FOUND
 *   CUSIM_PEERS=1|0              0: no device can reach another's memory (copies through the host still work)
 *   CUSIM_CONTEXT_BYTES=0        device memory that each context costs
 *   CUSIM_POOL_STEP=0            by which memory pools grow, and which their blocks divide (32MiB on an H100 and an H200, driver 580); 0: a piece for each block
 *   CUSIM_VARIABLE_BYTES=0       of the one __device__ variable that each module and library has, under any name; taken by the first question for it [?]
 *   CUSIM_FAIL=symbol:nth:code[:times],…   fault injection; "sticky" for times: the call fails, and the context that is current then is broken
 *   CUSIM_LOG=path               at exit: one JSON object: calls by symbol, violations, bytes still allocated; "%p" is the process id
 *   CUSIM_COPY_NS=1000           virtual duration of each asynchronous copy and set
 *   CUSIM_CLOCK=virtual|real     real: the clock also follows real time, so that work completes by itself (queries then see it)
 *   CUSIM_REUSE_HANDLES=1        the handle of a destroyed stream, event or context is the next one's, as happens natively; otherwise none returns
 *   CUSIM_RESET_LEAVES_POOLS=1   memory of pools outlives the reset and the last release of a primary context, as on an H100 (driver 580); else it goes, as documented
 *   CUSIM_END_ERRORS=1           ending a broken context ends it and returns its error, as documented for cuCtxDestroy; else success, as an H100 answers (driver 580)
 *   CUSIM_THREAD_STREAMS=stay|end  what becomes of a thread's own default stream, and of its capture, when the thread ends [?]
 *   CUSIM_MIG=1                  the devices are MIG instances of one GPU, of which only the first visible one is used; named MIG-<uuid>
 *   CUDA_VISIBLE_DEVICES         as the real driver reads it: numbers and GPU-<uuid>, MIG-<uuid>
 *   CUSIM_NO_DEVICE=1            cuInit returns CUDA_ERROR_NO_DEVICE
 */
#ifndef CUSIM_H
#define CUSIM_H
#include <cuda.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#define CUSIM_API __attribute__((visibility("default")))

/* As at load: no context, no memory, clock 0, no faults, environment read again. In-process tests only. */
CUSIM_API void cusim_reset(void);
/* Sets one of the variables above without the prefix ("MEMORY", "8GiB") for the next cusim_reset(); overrides the environment. NULL unsets. */
CUSIM_API void cusim_configure(const char* name, const char* value);

CUSIM_API uint64_t cusim_now_ns(void);
CUSIM_API void cusim_advance_ns(uint64_t duration_ns);

/* Test kernels, enqueued on `stream` of the current context; they touch memory when they COMPLETE, duration_ns after they could start. */
CUSIM_API CUresult cusim_launch_fill(CUstream stream, CUdeviceptr address, size_t bytes, uint8_t value, uint64_t duration_ns);
CUSIM_API CUresult cusim_launch_check(CUstream stream, CUdeviceptr address, size_t bytes, uint8_t expected, uint64_t duration_ns);
CUSIM_API CUresult cusim_launch_spin(CUstream stream, uint64_t duration_ns);
/* Completes only once *flag is not 0 (work that waits for the host); a host call that waits for it really waits. */
CUSIM_API CUresult cusim_launch_wait_host(CUstream stream, volatile uint32_t* flag);
/* Bytes that check kernels found different from what they expected. */
CUSIM_API uint64_t cusim_mismatched_bytes(void);
/* Every later call in a context of the device that reports errors returns `code`, and none can be created: what an illegal access does (of
 * kernels and copies here, too). */
CUSIM_API void cusim_break_device(int device, CUresult code);
/* The same for this context alone, until it is reset: what an H100 does not do (driver 580), and a program must not rely on either way. */
CUSIM_API void cusim_break_context(CUcontext context, CUresult code);

/* Calls of an exported symbol since load/reset, whoever made them; and of all symbols. */
CUSIM_API uint64_t cusim_calls(const char* exported_symbol);
CUSIM_API uint64_t cusim_total_calls(void);
/* The nth call from now (1 = the next) of `exported_symbol`, and the times-1 after it, fail with `code` without any effect. times 0: from now on none
 * fails, whatever was asked for before. */
CUSIM_API void cusim_fail(const char* exported_symbol, uint64_t nth, CUresult code, uint64_t times);

/* Violations: things that a correct program never does (double free, free of memory with pending work without a wait, use after destroy,
 * access without rights, calls after deinit). Count, and the index-th as a sentence (valid until the next reset);
 * the sentences of the first 1000 are kept. */
CUSIM_API size_t cusim_violation_count(void);
CUSIM_API const char* cusim_violation(size_t index);

/* Ledger. */
CUSIM_API uint64_t cusim_used_bytes(int device);
CUSIM_API uint64_t cusim_allocation_count(int device);
/* From here on the driver is deinitialised: calls return CUDA_ERROR_DEINITIALIZED, and are violations when made by `cusim` clients that should know. */
CUSIM_API void cusim_deinitialize(void);

#ifdef __cplusplus
}
#endif
#endif
