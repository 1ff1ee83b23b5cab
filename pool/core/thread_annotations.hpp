// Clang's thread-safety annotations under our names; nothing under other compilers.
//
// A member says which lock guards it, a function which lock it needs: -Wthread-safety makes a mistake an error.
#pragma once

#if defined(__clang__)
#define CUPOOL_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define CUPOOL_THREAD_ANNOTATION(x)
#endif

#define CUPOOL_CAPABILITY(name) CUPOOL_THREAD_ANNOTATION(capability(name))
#define CUPOOL_SCOPED_CAPABILITY CUPOOL_THREAD_ANNOTATION(scoped_lockable)
#define CUPOOL_GUARDED_BY(lock) CUPOOL_THREAD_ANNOTATION(guarded_by(lock))
#define CUPOOL_REQUIRES(...) CUPOOL_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define CUPOOL_EXCLUDES(...) CUPOOL_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define CUPOOL_ACQUIRE(...) CUPOOL_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define CUPOOL_TRY_ACQUIRE(...) CUPOOL_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define CUPOOL_RELEASE(...) CUPOOL_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
