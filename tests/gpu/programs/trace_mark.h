/* What a traced program tells the tracer: "what was called since the last mark was `label`". `assumed`: the driver calls
 * about memory that cupool expects of it, or NULL. A NULL label only forgets. Absent (NULL) where no tracer is preloaded. */
#ifndef CUPOOL_TESTS_GPU_TRACE_MARK_H
#define CUPOOL_TESTS_GPU_TRACE_MARK_H
#ifdef __cplusplus
extern "C" {
#endif
__attribute__((weak)) void gpu_trace_mark(const char* label, const char* assumed);
#ifdef __cplusplus
}
#endif
#endif
