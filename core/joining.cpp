// Opens the job's store at rank 0, and connects the other nodes' first ranks to it.
#include "core/joining.h"

#include "transport/bootstrap/placement.h"
#include "transport/bootstrap/roll_call.h"
#include "transport/cause.h"
#include "transport/posix.h"
#include "transport/tcp/address.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <string>
#include <utility>

namespace tsprun::detail {

namespace {

using bootstrap::JobDescription;
using bootstrap::Plan;

constexpr int kPoll_ms = 20;
/// Most addresses that rank 0 offers: a process manager's store takes some hundred bytes.
constexpr std::size_t kMostPoints = 8;
/// Connections between nodes are encrypted.
constexpr bool kTls = true;

/// Returns the addresses of this machine at which other nodes may reach it, that which MASTER_ADDR names first.
std::vector<tcp::SocketAddress> meeting_points(bool one_machine) {
  if (one_machine) return tcp::resolve_all("127.0.0.1", 0);
  std::vector<tcp::SocketAddress> addresses = tcp::own_addresses();
  std::vector<tcp::SocketAddress> preferred;
  try {
    if (const char* const master = std::getenv("MASTER_ADDR")) preferred = tcp::resolve_all(master, 0);
  } catch (const Error&) {
    // It may be a name that only other machines know.
  }
  std::stable_partition(addresses.begin(), addresses.end(), [&](const tcp::SocketAddress& own) {
    return std::ranges::any_of(preferred, [&](const tcp::SocketAddress& each) { return each.host() == own.host(); });
  });
  if (addresses.size() > kMostPoints) addresses.resize(kMostPoints);
  return addresses;
}

/// Opens the job's store, at rank 0.
NodeLink serve(Plan& plan) {
  const std::vector<tcp::SocketAddress> points = meeting_points(plan.one_machine);
  if (points.empty())
    throw Error(Cause::refused, "this machine has no address but loopback, so no other node can reach rank 0", 0);
  NodeLink link;
  link.server = std::make_unique<bootstrap::StoreServer>(points, tls::Credentials{plan.secret, kTls});
  plan.stores = link.server->addresses();
  return link;
}

/// Waits until the other nodes are connected to the store. Throws Error(stalled) naming those that aren't.
void await_nodes(NodeLink& link, const Plan& plan, int ranks, std::uint64_t timeout_ns) {
  std::string left;
  link.server->on_set = [&](int client, const std::string& key, const std::vector<std::byte>& value) {
    if (const int node = number_after(key, "node/", plan.nodes); node > 0) link.nodes[node] = client;
    else link.heard.emplace_back(key, value);
  };
  link.server->on_gone = [&](int client, const std::string& why, bool) {
    if (std::ranges::find(link.nodes, client, &std::pair<const int, int>::second) != link.nodes.end()) left = why;
  };
  const std::uint64_t deadline = posix::now_ns() + timeout_ns;
  while (static_cast<int>(link.nodes.size()) < plan.nodes - 1) {
    if (posix::now_ns() >= deadline) {
      int missing = 1;
      while (link.nodes.contains(missing)) ++missing;
      const bootstrap::RankBlock block = bootstrap::block_of(ranks, plan.nodes, missing);
      throw Error(
          Cause::stalled,
          fmt::format("node {} of {} (ranks {} to {}) didn't connect to rank 0 within {:g} s (TSP_TIMEOUT), which listens at "
                      "{}",
                      missing, plan.nodes, block.first, block.first + block.count - 1, static_cast<double>(timeout_ns) * 1e-9,
                      fmt::join(plan.stores, ", ")),
          block.first);
    }
    pollfd watched{link.server->descriptor(), POLLIN, 0};
    ::poll(&watched, 1, kPoll_ms);
    link.server->pump();
    if (!left.empty())
      throw Error(Cause::exited, fmt::format("the first rank of another node ended before all nodes were connected: {}", left));
  }
  link.server->on_set = nullptr;
  link.server->on_gone = nullptr;
}

NodeLink connect(const Plan& plan, int node, std::uint64_t timeout_ns) {
  std::vector<tcp::SocketAddress> addresses;
  for (const std::string& store : plan.stores) {
    for (const tcp::SocketAddress& each : bootstrap::addresses_of("rank 0's address", store)) addresses.push_back(each);
  }
  NodeLink link;
  link.client = std::make_unique<bootstrap::StoreClient>(addresses, tls::Credentials{plan.secret, kTls},
                                                         bootstrap::launcher_name(node), timeout_ns);
  link.client->subscribe(kNewsPrefix);
  link.client->set(fmt::format("node/{}", node), {});
  return link;
}

}  // namespace

Joined join_by(KeyValue& store, int rank, int size, const Environment& environment) {
  const std::uint64_t timeout_ns = environment.timeout_ns();
  const bootstrap::Demand inter = environment.inter();
  const std::string_view rdma = environment.rdma();
  NodeLink link;
  const Plan plan = bootstrap::call_roll(rank, size, bootstrap::machine_name(environment.text("TSP_NODE").value_or("")), store,
                                         timeout_ns, [&](Plan& to_all) {
                                           link = serve(to_all);
                                           to_all.inter = inter;
                                         });
  const int node = bootstrap::node_of(size, plan.nodes, rank);
  const bootstrap::RankBlock block = bootstrap::block_of(size, plan.nodes, node);
  const bootstrap::Identity identity{.rank = rank,
                                     .size = size,
                                     .local_rank = rank - block.first,
                                     .local_size = block.count,
                                     .starter = "a program",
                                     .job_id = fmt::format("{}-{}", plan.job, node)};
  const bootstrap::OtherNodes others = [&](JobDescription& job, bootstrap::Secret& secret) {
    if (node == 0) await_nodes(link, plan, size, timeout_ns);
    else link = connect(plan, node, timeout_ns);
    const std::string address =
        node == 0 ? bootstrap::StoreServer::reached_at(link.nodes.begin()->second) : link.client->reached();
    job.node = static_cast<std::uint32_t>(node);
    job.nodes = static_cast<std::uint32_t>(plan.nodes);
    job.tls = kTls ? 1 : 0;
    job.inter = plan.inter;
    rdma.copy(job.rdma, sizeof job.rdma - 1);
    if (address.size() >= sizeof job.store) throw Error(Cause::refused, fmt::format("rank 0's address {} is too long", address));
    address.copy(job.store, sizeof job.store - 1);
    secret = plan.secret;
  };
  const auto meet = [&] {
    try {
      return bootstrap::meet(identity, timeout_ns, plan.nodes > 1 ? others : bootstrap::OtherNodes());
    } catch (const Error& error) {
      if (link.server || link.client) News(size, plan.nodes, node).tell_failure(failure_of(error), sayer(link));
      throw;
    }
  };
  Joined joined{meet(), identity.local_rank, {}};
  if (plan.nodes > 1 && identity.local_rank == 0) {
    posix::UniqueFd again(::fcntl(joined.meeting.memory.descriptor(), F_DUPFD_CLOEXEC, 0));
    if (!again) throw system_error(Cause::refused, "duplicating the descriptor of the node's memory", errno);
    joined.courier = std::make_unique<Courier>(shm::NodeMemory::attach(std::move(again)), std::move(link), joined.meeting.pids);
  }
  return joined;
}

}  // namespace tsprun::detail
