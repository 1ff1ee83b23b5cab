// A sandbox that kills the process at clone, linkat and renameat, from after its last allocation on: where no report is wanted, the library calls none of them at the exit.
//! env CUPOOL_REPORT=none
//! report absent
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "victim.h"

#define KILLS(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

int main(void) {
  struct sock_filter rules[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                                KILLS(SYS_clone),
                                KILLS(SYS_clone3),
                                KILLS(SYS_renameat),
                                KILLS(SYS_linkat),
                                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const struct sock_fprog filter = {sizeof rules / sizeof rules[0], rules};
  enter_device(0);
  MUST(cuMemFree(allocate(MIB)));
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) return 2;
  return 0;
}
