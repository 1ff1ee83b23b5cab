/* How the workload calls the driver: every call is a numbered position with a result, in the same order in every run.
 *
 * DO(ready, function, arguments...) makes the call, or notes that it was left out because what it needs does not exist: positions never
 * shift. DO_FULL marks calls that run into the end of memory in a run without faults too, at a position that depends on who serves.
 * The results lie in memory shared with the parent process, so that a crash loses none. Nothing here knows of cupool.
 */
#ifndef FAULTS_CALLS_H
#define FAULTS_CALLS_H
#include <stdbool.h>
#include <stdint.h>

#include "cusim.h"
#include "victim.h"

enum { kPositions = 4096, kLeftOut = -1, kUnfinished = -2 };
enum { kLong_ns = 100000000 }; /* by then all work of the workload is over */
enum { kWritten_ns = 100000 }; /* by then what fills a new block is */

struct Position {
  const char* symbol;
  int32_t code;
  bool is_full;        /* DO_FULL */
  bool reached_driver; /* the driver saw a call of this very symbol meanwhile */
};

struct Outcome {
  uint32_t count;
  int32_t hit;            /* position during which the fault was met first; -1: none */
  uint64_t overlaps;      /* blocks handed out that another live block lies in */
  uint64_t mismatched;    /* bytes of live or just freed blocks that somebody else has written */
  uint64_t unended;       /* contexts that the driver refused to end */
  uint64_t uncertain;     /* blocks whose free answered with an error of earlier work */
  uint64_t kept;          /* blocks whose free was refused twice */
  uint64_t used_freed[2]; /* the driver's ledger when everything is freed and trimmed */
  uint64_t used_ended[2]; /* and when every context is gone */
  uint64_t second_life;   /* 1: the device could be used again after that */
  uint64_t allocated;     /* blocks that the program got */
  uint64_t host_requests; /* of the library, for host memory */
  struct Position positions[kPositions];
};

extern struct Outcome* g_outcome;
#define HOST_MEMORY "host"
extern char* g_watched; /* the symbol that fails, or HOST_MEMORY; NULL: none */
extern uint64_t g_nth;

/* The calling thread's pauses take no real time from here on, or do again (time.c). */
void be_virtual(bool is_virtual);

uint32_t begin_call(const char* symbol, bool is_full);
CUresult end_call(uint32_t position, CUresult code);

#define NAME_(function) #function
#define NAME(function) NAME_(function)
#define DO_AS(is_full, ready, function, ...)                                                        \
  ({                                                                                                \
    const uint32_t position_ = begin_call(NAME(function), is_full);                                 \
    (ready) ? end_call(position_, function(__VA_ARGS__)) : end_call(position_, (CUresult)kLeftOut); \
  })
#define DO(ready, function, ...) DO_AS(false, ready, function, __VA_ARGS__)
#define DO_FULL(ready, function, ...) DO_AS(true, ready, function, __VA_ARGS__)
#define OK(code) ((code) == CUDA_SUCCESS)

/* Errors that tell of earlier work or of the end of everything: whoever gets one from a free does not know whether it took place. */
bool is_about_earlier_work(CUresult code);

/* A block that the workload holds. What lies in it is checked behind its last use, while the block is already freed. */
struct Block {
  CUdeviceptr address;
  size_t bytes;
  uint8_t value;
  CUstream stream; /* where it was last used */
  bool is_ordered; /* a plain free does not wait for its work */
};

enum Way { kPlain, kPitch, kOrdered, kOrderedPerThread, kFromPool };

struct Block take(bool ready, enum Way way, size_t bytes, CUstream stream, CUmemoryPool pool);
struct Block take_full(bool ready, size_t bytes);
struct Block take_full_on(bool ready, size_t bytes, CUstream stream);
void give(struct Block block, enum Way way, CUstream stream);
void check(struct Block block);                                       /* by a kernel, in the current context */
void give_checked(struct Block block, enum Way way, CUstream stream); /* give() after check(), which may have run in another context */
void use(struct Block* block, CUstream stream, uint64_t duration_ns);
void lose(struct Block block); /* its context is gone */
void lose_all(void);

struct World {
  CUdevice devices[2];
  CUcontext contexts[2]; /* the primary contexts; NULL: could not be had */
  CUstream blocking, other;
  CUmodule module;
};

void enter(struct World* world); /* the primary context of the first device */
void plain_memory(struct World* world);
void questions(struct World* world, struct Block block);
void stream_ordered(struct World* world);
void kept_on_streams(struct World* world);
void full_streams(struct World* world);
void memory_pools(struct World* world);
void captures(struct World* world);
void shared_memory(struct World* world);
void second_context(struct World* world);
void green_context(struct World* world);
void second_device(struct World* world);
void outside_memory(struct World* world);
void full_device(struct World* world);

/* Ends what `function(argument)` ends; a second time when it is refused. */
#define END(ready, function, argument)                                          \
  ({                                                                            \
    bool is_ended_ = OK(DO(ready, function, argument));                         \
    is_ended_ = OK(DO((ready) && !is_ended_, function, argument)) || is_ended_; \
    !(ready) || is_ended_;                                                      \
  })
/* The same for a context. */
#define END_CONTEXT(ready, function, argument) (g_outcome->unended += !END(ready, function, argument))
#endif
