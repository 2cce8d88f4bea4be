// Prints tasks in GOAL.
#include "launcher/exports/goal.h"

#include "launcher/refuse.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

namespace tsprun::detail::launcher {

void write_goal(std::span<const RankTasks> ranks, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  fmt::memory_buffer text;
  const auto out = std::back_inserter(text);
  const auto write = [&] {
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    text.clear();
  };
  fmt::format_to(out, "num_ranks {}\n", ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    fmt::format_to(out, "\nrank {} {{\n", rank);
    for (std::size_t i = 0; i < ranks[rank].tasks.size(); ++i) {
      const PlayedTask& task = ranks[rank].tasks[i];
      if (task.kind == PlayedTask::Kind::calc) {
        fmt::format_to(out, "l{}: calc {}", i, task.amount);
      } else {
        const bool sends = task.kind == PlayedTask::Kind::send;
        fmt::format_to(out, "l{}: {} {}b {} {} tag {}", i, sends ? "send" : "recv", std::max<std::uint64_t>(1, task.amount),
                       sends ? "to" : "from", task.peer, task.tag);
      }
      if (task.row != PlayedTask::kCompute) fmt::format_to(out, " cpu {}", task.row);
      text.push_back('\n');
      for (const std::uint32_t need : ranks[rank].needs(i)) fmt::format_to(out, "l{} requires l{}\n", i, need);
      if (text.size() > std::size_t{1} << 20) write();
    }
    fmt::format_to(out, "}}\n");
    write();
  }
  file.flush();
  if (!file) refuse(fmt::format("--export goal:{}: writing it failed", path));
}

}  // namespace tsprun::detail::launcher
