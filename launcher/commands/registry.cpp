// All commands of tsprun. A new command is one line here.
#include "launcher/commands/command.h"

namespace tsprun::detail::launcher {

std::vector<std::unique_ptr<Command>> all_commands() {
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(make_train());
  commands.push_back(make_eval());
  commands.push_back(make_generate());
  commands.push_back(make_block());
  commands.push_back(make_run());
  commands.push_back(make_compare());
  commands.push_back(make_bench());
  commands.push_back(make_plan());
  commands.push_back(make_doctor());
  commands.push_back(make_status());
  return commands;
}

}  // namespace tsprun::detail::launcher
