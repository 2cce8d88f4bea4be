// The main function of tsprun; cli.h does the work.
#include "launcher/cli.h"
#include "launcher/signals.h"
#include "transport/bootstrap/libcrypto_heap.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <sys/resource.h>

namespace {

/// Ignores the signals that ask for the board, since a scheduler or a script may send them at once. Their default action, which
/// ends the process, is then in force only during the loader's first milliseconds, not while libraries initialize.
void ignore_askers() {
  for (const int signal : tsprun::detail::launcher::kAskingSignals) std::signal(signal, SIG_IGN);
}

/// Least stack, in bytes, with which tsprun and its ranks get by.
constexpr rlim_t kLeastStack = rlim_t{1} << 20;

/// Raises the soft limit of the stack (`ulimit -s`) if it is too small. Returns false if the hard limit is too small, too: the
/// process would end by a segmentation fault that explains nothing.
bool has_stack() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kLeastStack) return true;
  limit.rlim_cur = std::min(limit.rlim_max, kLeastStack);
  return limit.rlim_cur >= kLeastStack && ::setrlimit(RLIMIT_STACK, &limit) == 0;
}

/// The loader runs these before any library's constructors.
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_all)() = ignore_askers;

}  // namespace

int main(int argc, char** argv) {
  if (!has_stack()) {
    std::fprintf(stderr, "tsprun: ulimit -s: the stack may not have the %llu KiB that are needed; raise the limit\n",
                 static_cast<unsigned long long>(kLeastStack >> 10));
    return 2;
  }
  if (!tsprun::detail::bootstrap::hide_heap_of_libcrypto())
    std::fputs("tsprun: warning: libcrypto was in use before main(): core dumps may hold keys of connections\n", stderr);
  return tsprun::detail::launcher::tsprun(argc, argv);
}
