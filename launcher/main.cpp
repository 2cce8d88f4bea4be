// The main function of tsprun; cli.h does the work.
#include "launcher/cli.h"
#include "launcher/signals.h"
#include "transport/bootstrap/libcrypto_heap.h"

#include <csignal>
#include <cstdio>

namespace {

/// Ignores the signals that ask for the board, since a scheduler or a script may send them at once. Their default action, which
/// ends the process, is then in force only during the loader's first milliseconds, not while libraries initialize.
void ignore_askers() {
  for (const int signal : tsprun::detail::launcher::kAskingSignals) std::signal(signal, SIG_IGN);
}

/// The loader runs these before any library's constructors.
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_all)() = ignore_askers;

}  // namespace

int main(int argc, char** argv) {
  if (!tsprun::detail::bootstrap::hide_heap_of_libcrypto())
    std::fputs("tsprun: warning: libcrypto was in use before main(): core dumps may hold keys of connections\n", stderr);
  return tsprun::detail::launcher::tsprun(argc, argv);
}
