// All commands of tsprun. A new command is one entry here.
#include "launcher/commands/command.h"

// X(NAME): make_NAME() makes the command NAME. --help lists them in this order.
#define TSPRUN_COMMANDS(X) \
  X(train)                 \
  X(eval) X(generate) X(chat) X(tokenize) X(block) X(run) X(compare) X(bench) X(plan) X(simulate) X(calibrate) X(doctor) X(status)

namespace tsprun::detail::launcher {

#define TSPRUN_DECLARE(name) std::unique_ptr<Command> make_##name();
TSPRUN_COMMANDS(TSPRUN_DECLARE)
#undef TSPRUN_DECLARE

std::vector<std::unique_ptr<Command>> all_commands() {
  std::vector<std::unique_ptr<Command>> commands;
#define TSPRUN_MAKE(name) commands.push_back(make_##name());
  TSPRUN_COMMANDS(TSPRUN_MAKE)
#undef TSPRUN_MAKE
  return commands;
}

}  // namespace tsprun::detail::launcher
