// The part of Cluster that runs before a job: node 0 waits for all others, compares what each was started with, then the files
// that each would read, and starts all or none.
#include "launcher/cluster.h"

#include "launcher/admission.h"
#include "launcher/rank_process.h"
#include "transport/bootstrap/placement.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <poll.h>
#include <random>
#include <utility>

namespace tsprun::detail::launcher {

namespace {

/// Added to other nodes' timeout, so that node 0 gives up first and says who is missing.
constexpr std::uint64_t kGrace_ns = 3'000'000'000;

/// Warns if this machine's name means a loopback address: Debian's installer enters it as 127.0.1.1 in /etc/hosts.
void warn_of_loopback(const std::string& host, const std::vector<std::string>& addresses) {
  const bool loops = std::all_of(addresses.begin(), addresses.end(), [](const std::string& address) {
    return address.starts_with("127.") || address.starts_with("[::1]");
  });
  if (!loops || host == "localhost" || host == "::1" || host.starts_with("127.")) return;
  spdlog::warn(
      "--rendezvous {}: on this machine that is {}, which no other machine reaches; name an address that all do, or mend "
      "/etc/hosts here",
      host, fmt::join(addresses, " and "));
}

}  // namespace

Cluster::Cluster(const GlobalOptions& global, const std::string& command, const tls::Credentials& secret,
                 const std::string& trouble)
    : ranks_(global.ranks),
      self_(global.node_rank),
      rendezvous_(global.rendezvous),
      timeout_ns_(global.timeout_ns),
      nodes_(static_cast<std::size_t>(global.nodes)),
      news_(ranks_, global.nodes, self_) {
  JoinRequest mine{.nonce = {}, .attempt = global.attempt, .trouble = trouble, .options = global.typed};
  // Files are compared by content, not by path.
  for (const InputFile& file : global.inputs.files) mine.options.erase(file.option);
  try {
    mine.options.merge(machine_facts(global.inputs.kernels ? std::optional(global.kernel_level) : std::nullopt));
  } catch (const Error& error) {
    if (mine.trouble.empty()) mine.trouble = error.what();
  }
  mine.options["ranks"] = std::to_string(global.ranks.value);
  mine.options["--layout"] = global.layout->print();
  mine.options["--nnodes"] = std::to_string(global.nodes.value);
  mine.options["command"] = command;
  if (!global.algorithms.empty()) mine.options["TSP_ALGORITHMS"] = global.algorithms;
  mine.options = short_enough(std::move(mine.options), "options");
  try {
    if (self_ == 0) {
      const bootstrap::HostPort place = bootstrap::parse_host_port("--rendezvous", rendezvous_);
      server_.emplace(tcp::resolve_within(place.host, place.port, timeout_ns_), secret);
      server_->keep_free(descriptors_of_a_start(ranks_here(global).count));
      store_address_ = server_->address();
      warn_of_loopback(place.host, server_->addresses());
      serve(mine, global.inputs);
    } else {
      store_address_ = rendezvous_;
      const std::string go = begin_with(secret, mine, global.inputs);
      std::from_chars(go.data() + kOk.size(), go.data() + go.size(), master_port_);
      store_address_ = client_->reached();
      client_->subscribe("live/");
    }
  } catch (const Error& error) {
    // A node that took part in an earlier attempt and doesn't come again is a failure of the job.
    const bool lost = global.attempt > 0 && error.cause() != Cause::refused;
    throw Error(lost ? Cause::disconnected : Cause::refused, fmt::format("--rendezvous {}: {}", rendezvous_, error.what()),
                error.rank());
  }
  // hear() is called many times a second once the ranks have started; until then nothing was moved that could expire.
  if (server_) server_->pace(timeout_ns_);
  else client_->pace(timeout_ns_);
  const std::uint64_t now = posix::now_ns();
  for (Node& node : nodes_) node.heard_ns = now;
}

/// Node 0: waits for all others, compares, and answers them.
void Cluster::serve(const JoinRequest& mine, const Inputs& inputs) {
  const auto count = static_cast<int>(nodes_.size());
  {
    Admission admission(*server_, count, timeout_ns_, mine);
    const Refusal refusal = admission.wait(inputs);
    if (!refusal) master_port_ = free_port();
    admission.answer(refusal, master_port_);
    if (refusal && refusal.missing < 0) throw Error(Cause::refused, refusal.why);
    if (refusal) throw Error(Cause::stalled, refusal.why, block_of(ranks_, count, refusal.missing).first);
    links_ = admission.links();
  }
  // This node's ranks listen for those of others at the address by which they reach the store: of a host's several addresses the
  // first may be one that no other machine reaches.
  for (const int client : links_) {
    if (client < 0) continue;
    store_address_ = bootstrap::StoreServer::reached_at(client);
    break;
  }
  const std::uint64_t attempt = mine.attempt;
  server_->on_set = [this, attempt](int, const std::string& key, const std::vector<std::byte>& value) {
    if (key.starts_with("live/")) {
      pending_.emplace_back(key, value);
    } else if (const std::optional<JoinRequest> late =
                   key.starts_with("node/") ? JoinRequest::parse(text_of(value)) : std::nullopt) {
      server_->set("go/" + late->nonce, bytes_of(late->attempt > attempt ? std::string(kAgain) : begun_already().text()));
      if (late->attempt <= attempt)
        spdlog::warn("a tsprun came as --node-rank {} while the job runs, and was refused", key.substr(5));
    }
  };
  server_->on_gone = [this](int client, const std::string& why, bool damaged) {
    const auto link = std::find(links_.begin(), links_.end(), client);
    if (link == links_.end()) return;
    gone_.push_back({static_cast<int>(link - links_.begin()), why, damaged});
    *link = -1;
  };
}

/// Other nodes: sends what this node was started with, reads its files, and waits for node 0's answer as long as any node still
/// reads. `proof`: the digests of the files, once they are read. Throws Error.
std::string Cluster::answer_to(const JoinRequest& mine, const Inputs& inputs, std::optional<Agreement>& proof) {
  const std::string answered = "go/" + mine.nonce;
  client_->subscribe(answered);
  client_->subscribe("busy/");
  client_->set(fmt::format("node/{}", self_), bytes_of(mine.text()));
  std::string go;
  std::uint64_t deadline = posix::now_ns() + timeout_ns_ + kGrace_ns;
  const auto listen = [&] {
    const bool alive = client_->pump();
    for (bootstrap::StoreFrame frame; client_->next(frame);) {
      if (frame.key == answered) go = text_of(frame.value);
      else deadline = posix::now_ns() + timeout_ns_ + kGrace_ns;
    }
    if (!alive && go.empty()) {
      throw Error(Cause::disconnected, fmt::format("the way to the job's store is cut: {}", client_->link().why_over()), 0);
    }
    return !go.empty();
  };
  std::string trouble;
  if (!proof && mine.trouble.empty()) {
    std::uint64_t said_ns = 0;
    try {
      proof = short_enough(contents(inputs.files,
                                    [&] {
                                      if (listen()) throw Answered();
                                      if (posix::now_ns() - said_ns < kBusy_ns) return;
                                      said_ns = posix::now_ns();
                                      client_->set(fmt::format("busy/{}", self_), {});
                                    }),
                           "files");
    } catch (const Answered&) {
      return go;
    } catch (const Error& error) {
      if (error.cause() != Cause::refused) throw;
      trouble = error.what();
    }
    deadline = std::max(deadline, posix::now_ns() + timeout_ns_ + kGrace_ns);
  }
  JoinRequest proven{.nonce = mine.nonce, .attempt = mine.attempt, .trouble = trouble, .options = proof.value_or(Agreement())};
  client_->set(fmt::format("proof/{}", self_), bytes_of(proven.text()));
  while (!listen()) {
    if (posix::now_ns() >= deadline) {
      throw Error(
          Cause::stalled,
          fmt::format("waited {:.1f} s for node 0 to say that all nodes are there", static_cast<double>(timeout_ns_) * 1e-9), 0);
    }
    pollfd watched{client_->link().descriptor(), static_cast<short>(POLLIN | (client_->link().wants_room() ? POLLOUT : 0)), 0};
    ::poll(&watched, 1, kSlice_ms);
  }
  return go;
}

/// Returns node 0's answer to this node, "ok PORT". In a job's further attempts node 0 may still be ending the attempt before, so
/// this tries again until the deadline. Throws Error.
std::string Cluster::begin_with(const tls::Credentials& secret, JoinRequest mine, const Inputs& inputs) {
  const std::uint64_t deadline = posix::now_ns() + timeout_ns_;
  const bootstrap::HostPort place = bootstrap::parse_host_port("--rendezvous", rendezvous_);
  const std::vector<tcp::SocketAddress> addresses = tcp::resolve_within(place.host, place.port, timeout_ns_);
  std::string trouble = "node 0 still ends the attempt before";
  std::optional<Agreement> proof;
  for (;;) {
    const std::uint64_t now = posix::now_ns();
    const std::uint64_t left = deadline > now ? deadline - now : 1;
    std::string go;
    try {
      client_.reset();
      client_.emplace(addresses, secret, bootstrap::launcher_name(self_), left);
      client_->endure(timeout_ns_);  // the link was made with what was left of the deadline
      mine.nonce = fmt::format("{:08x}{:08x}", std::random_device()(), std::random_device()());
      go = answer_to(mine, inputs, proof);
    } catch (const Error& error) {
      const bool may_pass = error.cause() == Cause::disconnected || error.cause() == Cause::corrupt;
      if (mine.attempt == 0) throw;
      if (!may_pass) throw Error(error.cause(), error.what(), 0);
      trouble = error.what();
      go = kAgain;
    }
    if (go.starts_with(kOk)) return go;
    if (go != kAgain) {
      const Refusal refusal = Refusal::parse(go);
      if (refusal.missing < 0) throw Error(Cause::refused, refusal.why);
      const auto count = static_cast<int>(nodes_.size());
      throw Error(Cause::stalled, refusal.why, block_of(ranks_, count, std::min(refusal.missing, count - 1)).first);
    }
    if (posix::now_ns() >= deadline) throw Error(Cause::stalled, trouble, 0);
    posix::sleep_ns(50'000'000);
  }
}

}  // namespace tsprun::detail::launcher
