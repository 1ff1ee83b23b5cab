// exit() from a thread that is not the main one, while the main thread waits in a driver-free sleep.
//! exit 7
//! check report["process"]["exit"]["code"] == 7 and c["allocations"] == 1
#include <pthread.h>

#include "victim.h"

static void* leave(void* context) {
  MUST(cuCtxSetCurrent(context));
  allocate(MIB);
  exit(7);
}

int main(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, leave, enter_device(0));
  for (;;) pause();
}
