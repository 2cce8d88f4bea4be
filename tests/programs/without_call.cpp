// Runs a program to which a filter forbids one system call (EPERM), as containers' profiles do: without_call NAME PROGRAM…
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc < 3) return 3;
  const unsigned forbidden = std::strcmp(argv[1], "waitid") == 0              ? SYS_waitid
                             : std::strcmp(argv[1], "sched_getaffinity") == 0 ? SYS_sched_getaffinity
                                                                              : 0U;
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, forbidden, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = sizeof rules / sizeof rules[0], .filter = rules};
  if (forbidden == 0 || ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    std::perror("without_call");
    return 3;
  }
  ::execvp(argv[2], argv + 2);
  std::perror(argv[2]);
  return 3;
}
