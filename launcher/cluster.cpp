#include "launcher/cluster.h"

#include "launcher/rank_process.h"
#include "layers/model/digest.h"
#include "transport/bootstrap/placement.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <poll.h>
#include <random>
#include <time.h>
#include <utility>

namespace tsp::launcher {

namespace {

constexpr std::uint64_t kBeat_ns = 200'000'000;
/// Node 0 gives up first and says who is missing.
constexpr std::uint64_t kGrace_ns = 3'000'000'000;
constexpr std::uint64_t kLinger_ns = 1'000'000'000;
/// A tsprun looks many times a second. One that sees more than this between two looks was itself stopped, or its machine was.
constexpr std::uint64_t kClockJump_ns = 2'000'000'000;
constexpr std::string_view kOk = "ok ";
/// To a node that is ahead: node 0 hasn't begun that attempt yet.
constexpr std::string_view kAgain = "again";
constexpr std::string_view kBegun = "a job has begun at this rendezvous already; another one needs another port";

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }
std::string text_of(const std::vector<std::byte>& value) { return {reinterpret_cast<const char*>(value.data()), value.size()}; }

/// The number behind a prefix; -1 if the key has another one, or none below `limit`.
int number_after(const std::string& key, std::string_view prefix, int limit) {
  if (!key.starts_with(prefix)) return -1;
  int number = -1;
  const char* end = key.data() + key.size();
  const auto parsed = std::from_chars(key.data() + prefix.size(), end, number);
  return parsed.ec == std::errc{} && parsed.ptr == end && number >= 0 && number < limit ? number : -1;
}

std::string failure_text(const Failure& failure) {
  nlohmann::json json = {{"cause", static_cast<int>(failure.cause)},
                         {"rank", failure.rank},
                         {"code", failure.code},
                         {"op", failure.op},
                         {"seq", failure.sequence},
                         {"detail", failure.detail}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Failure parse_failure(const std::string& text) {
  Failure failure;
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return failure;
  try {
    const int cause = json.value("cause", 0);
    if (cause <= 0 || cause > 255 || !is_cause(static_cast<std::uint8_t>(cause))) return failure;
    failure.rank = json.value("rank", -1);
    failure.code = json.value("code", 0);
    failure.op = json.value("op", std::string());
    failure.sequence = json.value("seq", 0U);
    failure.detail = json.value("detail", std::string());
    failure.cause = static_cast<Cause>(cause);
  } catch (const nlohmann::json::exception&) {
    return {};
  }
  return failure;
}

std::string list_of(const std::vector<int>& nodes) {
  std::string text;
  for (const int node : nodes) text += fmt::format("{}{}", text.empty() ? "" : ", ", node);
  return text;
}

/// Debian's installer names the machine 127.0.1.1 in /etc/hosts.
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

std::string Cluster::Arrival::text() const {
  const nlohmann::json json = {{"nonce", nonce}, {"attempt", attempt}, {"trouble", trouble}, {"options", options}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<Cluster::Arrival> Cluster::Arrival::parse(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  try {
    Arrival arrival{.nonce = json.at("nonce"), .attempt = json.at("attempt"), .trouble = json.at("trouble"), .options = {}};
    arrival.options = json.at("options").get<Agreement>();
    if (arrival.nonce.empty() || arrival.nonce.size() > 32) return std::nullopt;
    return arrival;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

Cluster::Cluster(const GlobalOptions& global, const std::string& command, const bootstrap::Secret& secret,
                 const std::string& trouble)
    : ranks_(global.ranks),
      self_(global.node_rank),
      rendezvous_(global.rendezvous),
      timeout_ns_(global.timeout_ns),
      nodes_(static_cast<std::size_t>(global.nodes)) {
  Arrival mine{.nonce = {}, .attempt = global.attempt, .trouble = trouble, .options = with_contents(global.typed)};
  mine.options["ranks"] = std::to_string(global.ranks);
  mine.options["--layout"] = global.layout.print();
  mine.options["--nnodes"] = std::to_string(global.nodes);
  mine.options["command"] = command;
  if (const char* algorithms = std::getenv("TSP_ALGORITHMS")) mine.options["TSP_ALGORITHMS"] = algorithms;
  if (const std::string text = nlohmann::json(mine.options).dump(); text.size() > bootstrap::kMostValueBytes / 2)
    mine.options = {{"options that are too long to list", hexadecimal(digest(bytes_of(text)))}};
  try {
    if (self_ == 0) {
      const bootstrap::HostPort place = bootstrap::parse_host_port("--rendezvous", rendezvous_);
      server_.emplace(place.host, place.port, secret);
      store_address_ = server_->address();
      warn_of_loopback(place.host, server_->addresses());
      serve(mine);
    } else {
      store_address_ = rendezvous_;
      const std::string go = begin_with(secret, mine);
      std::from_chars(go.data() + kOk.size(), go.data() + go.size(), master_port_);
      store_address_ = client_->reached();
      client_->subscribe("live/");
    }
  } catch (const Error& error) {
    throw Error(Cause::refused, fmt::format("--rendezvous {}: {}", rendezvous_, error.what()));
  }
  const std::uint64_t now = posix::now_ns();
  for (Node& node : nodes_) node.heard_ns = now;
}

void Cluster::answer(const std::string& nonce, std::string_view text) { server_->set("go/" + nonce, bytes_of(text)); }

/// Node 0: waits for all others, compares, says go.
void Cluster::serve(const Arrival& mine) {
  const auto count = static_cast<int>(nodes_.size());
  std::vector<std::optional<Arrival>> here(nodes_.size());
  here[0] = mine;
  links_.assign(nodes_.size(), -1);
  std::vector<std::string> asked;  // nonces that go answers
  std::string refusal;
  server_->on_set = [&](int client, const std::string& key, const std::vector<std::byte>& value) {
    const std::optional<Arrival> arrival = key.starts_with("node/") ? Arrival::parse(text_of(value)) : std::nullopt;
    if (!arrival) return;
    if (arrival->attempt != mine.attempt) {
      answer(arrival->nonce, arrival->attempt > mine.attempt ? kAgain : kBegun);
      return;
    }
    asked.push_back(arrival->nonce);
    const int node = number_after(key, "node/", count);
    if (node < 1) {
      refusal = fmt::format("a tsprun came as --node-rank {}; 1 to {} belong here", key.substr(5), count - 1);
      return;
    }
    std::optional<Arrival>& place = here[static_cast<std::size_t>(node)];
    if (place) refusal = fmt::format("two tspruns came as --node-rank {}: every node needs its own", node);
    place = arrival;
    links_[static_cast<std::size_t>(node)] = client;
    const std::string differs = difference(arrival->options, node, mine.options, 0);
    if (!arrival->trouble.empty()) refusal = fmt::format("node {}: {}", node, arrival->trouble);
    else if (!differs.empty()) refusal = fmt::format("the nodes were started differently: {}", differs);
  };
  server_->on_gone = [&](int client, const std::string& why) {
    const auto link = std::find(links_.begin(), links_.end(), client);
    if (link == links_.end()) return;
    spdlog::warn("node {} left before the job began ({})", link - links_.begin(), why);
    here[static_cast<std::size_t>(link - links_.begin())].reset();
    *link = -1;
  };
  const std::uint64_t deadline = posix::now_ns() + timeout_ns_;
  const auto missing = [&] {
    std::vector<int> list;
    for (std::size_t node = 0; node < here.size(); ++node) {
      if (!here[node]) list.push_back(static_cast<int>(node));
    }
    return list;
  };
  // With trouble of its own node 0 waits all the same: the others shall hear it.
  while (refusal.empty() && !missing().empty()) {
    if (posix::now_ns() >= deadline) {
      if (!mine.trouble.empty()) break;
      const std::vector<int> late = missing();
      refusal = fmt::format(
          "node{} {} of {} didn't come to {} within {:g} s (--timeout): start tsprun there with --node-rank, the same "
          "--rendezvous and the same secret",
          late.size() == 1 ? "" : "s", list_of(late), count, store_address_, static_cast<double>(timeout_ns_) * 1e-9);
      break;
    }
    pollfd watched{server_->descriptor(), POLLIN, 0};
    ::poll(&watched, 1, 50);
    server_->pump();
  }
  if (refusal.empty() && !mine.trouble.empty()) refusal = fmt::format("node 0: {}", mine.trouble);
  if (refusal.empty()) master_port_ = free_port();
  for (const std::string& nonce : asked) answer(nonce, refusal.empty() ? fmt::format("{}{}", kOk, master_port_) : refusal);
  server_->on_gone = nullptr;
  server_->on_set = nullptr;
  if (!refusal.empty()) {
    leave();
    throw Error(Cause::refused, refusal);
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
    } else if (const std::optional<Arrival> late = key.starts_with("node/") ? Arrival::parse(text_of(value)) : std::nullopt) {
      answer(late->nonce, late->attempt > attempt ? kAgain : kBegun);
      if (late->attempt <= attempt)
        spdlog::warn("a tsprun came as --node-rank {} while the job runs, and was refused", key.substr(5));
    }
  };
  server_->on_gone = [this](int client, const std::string& why) {
    const auto link = std::find(links_.begin(), links_.end(), client);
    if (link == links_.end()) return;
    gone_.emplace_back(static_cast<int>(link - links_.begin()), why);
    *link = -1;
  };
}

/// Node 0's answer to this node, "ok PORT". In a job's further attempts node 0 may still be ending the one before: tries again
/// until the deadline. Throws Error.
std::string Cluster::begin_with(const bootstrap::Secret& secret, Arrival mine) {
  const std::uint64_t deadline = posix::now_ns() + timeout_ns_;
  std::string trouble = "node 0 still ends the attempt before";
  for (;;) {
    const std::uint64_t now = posix::now_ns();
    const std::uint64_t left = deadline > now ? deadline - now : 1;
    try {
      client_.reset();
      client_.emplace(rendezvous_, secret, bootstrap::launcher_name(self_), left);
      mine.nonce = fmt::format("{:08x}{:08x}", std::random_device()(), std::random_device()());
      client_->set(fmt::format("node/{}", self_), bytes_of(mine.text()));
      std::string go = text_of(client_->get("go/" + mine.nonce, "node 0 to say that all nodes are there", kGrace_ns));
      if (go.starts_with(kOk)) {
        client_->endure(timeout_ns_);  // it was made with what was left of the deadline
        return go;
      }
      if (go != kAgain) throw Error(Cause::refused, go);
    } catch (const Error& error) {
      const bool may_pass = error.cause() == Cause::disconnected || error.cause() == Cause::corrupt;
      if (mine.attempt == 0 || !may_pass) throw;
      trouble = error.what();
    }
    if (posix::now_ns() >= deadline) throw Error(Cause::stalled, trouble);
    const timespec pause{0, 50'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

int Cluster::descriptor() const { return server_ ? server_->descriptor() : client_->link().descriptor(); }

void Cluster::say(const std::string& key, std::span<const std::byte> value) {
  if (server_) server_->set(key, value);
  else client_->set(key, value);
}

void Cluster::tell(Boards& boards) {
  const std::uint64_t now = posix::now_ns();
  boards.mirror([&](int rank, std::span<const std::byte> page) {
    std::vector<std::byte> value(sizeof now + page.size());
    std::memcpy(value.data(), &now, sizeof now);
    std::memcpy(value.data() + sizeof now, page.data(), page.size());
    say(fmt::format("live/page/{}", rank), value);
  });
  if (now - last_beat_ns_ < kBeat_ns) return;
  last_beat_ns_ = now;
  say(fmt::format("live/beat/{}", self_), {});
}

void Cluster::tell_failure(const Failure& failure) {
  if (told_failure_ || failure.cause == Cause::none) return;
  told_failure_ = true;
  say(fmt::format("live/abort/{}", self_), bytes_of(failure_text(failure)));
}

void Cluster::tell_bye() {
  nodes_[static_cast<std::size_t>(self_)].bye = true;
  say(fmt::format("live/bye/{}", self_), {});
}

bool Cluster::all_done() const {
  return std::all_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.bye || node.lost; });
}

void Cluster::lose(int node, const std::string& why, Boards& boards) {
  Node& lost = nodes_[static_cast<std::size_t>(node)];
  if (lost.bye || lost.lost) return;
  lost.lost = true;
  Failure failure;
  failure.cause = Cause::disconnected;
  const RankBlock block = block_of(ranks_, static_cast<int>(nodes_.size()), node);
  failure.rank = block.first;
  failure.detail = fmt::format("node {} (ranks {} to {}) is lost: {}", node, block.first, block.first + block.count - 1, why);
  boards.abort(failure);
}

void Cluster::heard(const std::string& key, const std::vector<std::byte>& value, Boards& boards) {
  const auto count = static_cast<int>(nodes_.size());
  const std::uint64_t now = posix::now_ns();
  if (const int rank = number_after(key, "live/page/", ranks_); rank >= 0) {
    const int node = node_of(ranks_, count, rank);
    std::uint64_t then = 0;
    if (node == self_ || value.size() < sizeof then || value.size() - sizeof then > sizeof(RankPage)) return;
    std::memcpy(&then, value.data(), sizeof then);
    boards.show(rank, std::span(value).subspan(sizeof then), static_cast<std::int64_t>(now - then));
    nodes_[static_cast<std::size_t>(node)].heard_ns = now;
  } else if (const int beating = number_after(key, "live/beat/", count); beating >= 0) {
    nodes_[static_cast<std::size_t>(beating)].heard_ns = now;
  } else if (const int leaving = number_after(key, "live/bye/", count); leaving >= 0) {
    nodes_[static_cast<std::size_t>(leaving)].bye = true;
  } else if (key.starts_with("live/way/")) {
    if (on_way) on_way(key, text_of(value));
  } else if (const int failing = number_after(key, "live/abort/", count); failing >= 0 && failing != self_) {
    const Failure failure = parse_failure(text_of(value));
    told_failure_ = true;  // it is known to all
    if (failure.cause != Cause::none) boards.abort(failure);
  }
}

void Cluster::hear(Boards& boards) {
  if (server_) {
    server_->pump();
    for (const auto& [key, value] : std::exchange(pending_, {})) heard(key, value, boards);
    for (const auto& [node, why] : std::exchange(gone_, {})) {
      if (node > 0 && node < static_cast<int>(nodes_.size())) lose(node, fmt::format("its tsprun is gone ({})", why), boards);
    }
  } else {
    const bool alive = client_->pump();
    for (bootstrap::StoreFrame frame; client_->next(frame);) heard(frame.key, frame.value, boards);
    if (!alive) lose(0, fmt::format("its tsprun is gone ({})", client_->link().why_over()), boards);
  }
  const std::uint64_t now = posix::now_ns();
  if (const std::uint64_t before = std::exchange(last_look_ns_, now); before != 0 && now - before > kClockJump_ns) {
    // Nothing was heard, for nobody listened: what the others have said meanwhile is still on its way.
    spdlog::warn("this node's tsprun stood still for {:.1f} s: it was stopped, or its machine was",
                 static_cast<double>(now - before) * 1e-9);
    for (Node& node : nodes_) node.heard_ns = now;
  }
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (static_cast<int>(node) == self_ || now - nodes_[node].heard_ns < timeout_ns_) continue;
    // Who hears nobody but node 0 hears nobody at all if node 0 is cut off.
    lose(server_ ? static_cast<int>(node) : (now - nodes_[0].heard_ns >= timeout_ns_ ? 0 : static_cast<int>(node)),
         fmt::format("nothing was heard of its tsprun for {:.1f} s", static_cast<double>(now - nodes_[node].heard_ns) * 1e-9),
         boards);
  }
}

void Cluster::leave() {
  const std::uint64_t ends = posix::now_ns() + kLinger_ns;
  if (client_) {
    // A machine that goes down right after its tsprun sends nothing again: what was lost on the way is awaited here.
    while (client_->link().unacknowledged() != 0 && posix::now_ns() < ends && client_->pump()) {
      const bool to_write = client_->link().backlog() != 0;
      pollfd watched{client_->link().descriptor(), static_cast<short>(to_write ? POLLOUT : 0), 0};
      ::poll(&watched, 1, to_write ? 20 : 1);
    }
    return;
  }
  // The others leave first: then nothing that they were told is lost.
  while (!server_->alone() && posix::now_ns() < ends) {
    server_->pump();
    pollfd watched{server_->descriptor(), POLLIN, 0};
    ::poll(&watched, 1, 20);
  }
}

}  // namespace tsp::launcher
