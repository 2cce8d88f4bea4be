// tsprun.
#include "launcher/cli.h"
#include "launcher/signals.h"

#include <csignal>

namespace {

/// Who asks for the board may ask at once (a scheduler, a script's loop): what that signal does otherwise, to end the process,
/// holds for the loader's few milliseconds alone, not while libraries prepare themselves.
void ignore_askers() {
  for (const int signal : tsprun::launcher::kAskingSignals) std::signal(signal, SIG_IGN);
}

/// The loader runs these before any library's constructors.
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_all)() = ignore_askers;

}  // namespace

int main(int argc, char** argv) { return tsprun::launcher::tsprun(argc, argv); }
