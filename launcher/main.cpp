// The main function of tsprun; cli.h does the work.
#include "launcher/cli.h"
#include "launcher/signals.h"
#include "transport/bootstrap/libcrypto_heap.h"

#include <csignal>

namespace {

/// Ignores the signals that ask for the board, since a scheduler or a script may send them at once. Their default action, which
/// ends the process, is then in force only during the loader's first milliseconds, not while libraries initialize.
void ignore_askers() {
  for (const int signal : tsprun::launcher::kAskingSignals) std::signal(signal, SIG_IGN);
}

/// The loader runs these before any library's constructors.
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_all)() = ignore_askers;

}  // namespace

int main(int argc, char** argv) {
  tsprun::bootstrap::hide_heap_of_libcrypto();
  return tsprun::launcher::tsprun(argc, argv);
}
