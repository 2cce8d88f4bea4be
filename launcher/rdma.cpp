#include "launcher/rdma.h"

#include "transport/cause.h"
#include "transport/verbs/device.h"
#include "transport/verbs/memory.h"

#include <fmt/format.h>

namespace tsprun::detail::launcher {

std::string rdma_trouble(const GlobalOptions& options) {
  const bool demanded = options.inter == "verbs" || !options.rdma.empty();
  if (!demanded || options.nodes == 1) return {};
  const std::string option = options.inter == "verbs" ? "--inter verbs" : fmt::format("--rdma {}", options.rdma);
  try {
    const verbs::Ports ports = verbs::list_ports();
    const RankBlock here = ranks_here(options);
    for (int local = 0; local < here.count; ++local) verbs::choose_port(ports, verbs::DeviceChoice::parse(options.rdma), local);
    const std::string shortage = verbs::locked_memory_shortage(options.ranks - 1);
    return shortage.empty() ? shortage : fmt::format("{}: {}", option, shortage);
  } catch (const Error& error) {
    const std::string what = error.what();
    return what.starts_with("--rdma") ? what : fmt::format("{}: {}", option, what);
  }
}

}  // namespace tsprun::detail::launcher
