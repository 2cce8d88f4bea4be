#include "launcher/commands/doctor_rdma.h"

#include "transport/cause.h"
#include "transport/verbs/device.h"
#include "transport/verbs/memory.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;

ordered_json port_json(const verbs::Port& port, const std::optional<verbs::Gid>& chosen) {
  ordered_json gids = ordered_json::array();
  for (const verbs::Gid& gid : port.gids) {
    gids.push_back({{"index", gid.index},
                    {"gid", gid.text()},
                    {"type", std::string(verbs::name(gid.type))},
                    {"link_local", gid.is_link_local()},
                    {"chosen", chosen && chosen->index == gid.index}});
  }
  return {{"device", port.device},
          {"port", port.number},
          {"state", port.state},
          {"active", port.active},
          {"ethernet", port.ethernet},
          {"mtu_bytes", port.mtu_bytes},
          {"max_message_bytes", port.max_bytes},
          {"gids", std::move(gids)}};
}

void print_port(std::vector<std::string>& lines, const verbs::Port& port, const std::optional<verbs::Gid>& chosen) {
  lines.push_back(
      fmt::format("  {:<10} {}, {}, MTU {}", port.text(), port.state, port.ethernet ? "Ethernet" : "InfiniBand", port.mtu_bytes));
  for (const verbs::Gid& gid : port.gids) {
    lines.push_back(fmt::format("    GID {:<3} {} ({}{}){}", gid.index, gid.text(), verbs::name(gid.type),
                                gid.is_link_local() ? ", link-local" : "",
                                chosen && chosen->index == gid.index ? "  <- chosen" : ""));
  }
}

}  // namespace

RdmaFindings find_rdma(const GlobalOptions& options) {
  RdmaFindings found;
  const verbs::Ports here = verbs::list_ports();
  const std::vector<verbs::Port>& ports = here.ports;
  const verbs::DeviceChoice choice = verbs::DeviceChoice::parse(options.rdma);
  if (!choice.device.empty()) verbs::choose_port(here, choice, 0);  // refuses what there isn't
  ordered_json list = ordered_json::array();
  for (const verbs::Port& port : ports) {
    std::optional<verbs::Gid> chosen;
    try {
      chosen = verbs::choose_port({{port}, {}}, choice, 0).gid;
    } catch (const Error&) {
      // Not active, not named, or without a GID: it is listed all the same.
    }
    print_port(found.lines, port, chosen);
    list.push_back(port_json(port, chosen));
  }
  ordered_json left_out = ordered_json::array();
  for (const verbs::BadDevice& bad : here.bad) {
    found.lines.push_back(fmt::format("  {:<10} left out: {}", bad.device, bad.why));
    left_out.push_back({{"device", bad.device}, {"why", bad.why}});
  }
  if (ports.empty() && here.bad.empty()) {
    const std::string none = "there is no RDMA device on this machine";
    found.lines.push_back("  " + none);
    found.verbs = {false, none};
  } else {
    found.verbs = try_verbs(options.rdma);
  }
  const std::string shortage = ports.empty() ? std::string() : verbs::locked_memory_shortage(1);
  if (!shortage.empty()) found.lines.push_back("  " + shortage);
  found.json = {{"ports", std::move(list)},
                {"left_out", std::move(left_out)},
                {"self_test", {{"possible", found.verbs.possible}, {"why", found.verbs.why}}},
                {"locked_memory", shortage.empty() ? ordered_json(nullptr) : ordered_json(shortage)}};
  return found;
}

std::vector<WayRow> likely_ways(const GlobalOptions& options, const Trial& shm, const Trial& verbs, const Trial& tcp) {
  const auto by_tcp = [&](const std::string& why) { return tcp.possible ? WayRow{"", "tcp", why} : WayRow{"", "none", tcp.why}; };
  WayRow near = options.intra == "tcp" ? by_tcp("--intra tcp")
                : shm.possible         ? WayRow{"", "shm", "they share this node's memory"}
                                       : WayRow{"", "none", shm.why};
  near.between = "same node";
  WayRow far;
  if (options.inter == "tcp") far = by_tcp("--inter tcp");
  else if (verbs.possible)
    far = {"", "verbs", "with nodes whose RDMA self-test is as good; tcp with others, unless --inter verbs"};
  else if (options.inter == "verbs") far = {"", "none", "--inter verbs: " + verbs.why};
  else far = by_tcp("no RDMA: " + verbs.why);
  far.between = "other nodes";
  return {near, far};
}

}  // namespace tsprun::detail::launcher
