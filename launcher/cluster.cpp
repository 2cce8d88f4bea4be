// The part of Cluster that runs during a job: exchanges news between launchers, and agrees on how the job has ended.
#include "launcher/cluster.h"

#include "launcher/signals.h"
#include "transport/bootstrap/placement.h"
#include "transport/cause.h"
#include "transport/number.h"
#include "transport/tcp/pacing.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace tsprun::detail::launcher {

namespace {

/// Time beyond --timeout that node 0 waits, after a failure, for other tspruns to end their ranks.
constexpr std::uint64_t kOthersEnd_ns = 2'000'000'000;
/// Longest time between two calls of hear(), which usually comes many times a second. If more passes, this tsprun or its machine
/// was stopped.
constexpr std::uint64_t kClockJump_ns = 2'000'000'000;

}  // namespace

int Cluster::descriptor() const { return server_ ? server_->descriptor() : client_->link().descriptor(); }

void Cluster::say(const std::string& key, std::span<const std::byte> value) {
  if (server_) server_->set(key, value);
  else client_->set(key, value);
}

News::Say Cluster::sayer() {
  return [this](const std::string& key, std::span<const std::byte> value) { say(key, value); };
}

void Cluster::tell(Boards& boards) { news_.tell(boards, sayer()); }
void Cluster::tell_failure(const Failure& failure) { news_.tell_failure(failure, sayer()); }

void Cluster::tell_asked(int signal) {
  if (asked_ == 0) say(fmt::format("live/asked/{}", self_), bytes_of(std::to_string(signal)));
}

void Cluster::tell_bye(const Ending& own) {
  nodes_[static_cast<std::size_t>(self_)].bye = own;
  if (client_) say(fmt::format("live/bye/{}", self_), bytes_of(own.text()));
}

void Cluster::lose(int node, const std::string& why, Boards& boards) {
  Node& lost = nodes_[static_cast<std::size_t>(node)];
  if (lost.seen || lost.lost || (node == 0 && ending_)) return;
  lost.lost = true;
  boards.abort(cut_way(node).value_or(loss_of(node, why)));
}

/// Counts a node as lost whose link has ended. If that was for damage, both ends say the same, and blame no rank: neither can
/// tell on whose side it happened.
void Cluster::lose(const Gone& gone, Boards& boards) {
  Node& lost = nodes_[static_cast<std::size_t>(gone.node)];
  if (!gone.damaged) return lose(gone.node, fmt::format("its tsprun is gone ({})", gone.why), boards);
  if (lost.seen || lost.lost || (gone.node == 0 && ending_)) return;
  lost.lost = true;
  spdlog::warn("the link to node {}: {}", gone.node, gone.why);
  boards.abort(
      {.cause = Cause::corrupt,
       .detail = fmt::format("what the tspruns of node {} and node {} tell each other was changed on the way: it is damaged, "
                             "forged or replayed",
                             std::min(gone.node, self_), std::max(gone.node, self_))});
}

Failure Cluster::loss_of(int node, const std::string& why) const {
  const RankBlock block = block_of(ranks_, static_cast<int>(nodes_.size()), node);
  return {.cause = Cause::disconnected,
          .rank = block.first,
          .detail = fmt::format("node {} (ranks {} to {}) is lost: {}", node, block.first, block.first + block.count - 1, why)};
}

/// Notes, for each linked machine, since when it has acknowledged nothing.
void Cluster::watch_ways(std::uint64_t now) {
  if (now - watched_ns_ < kBeat_ns / 2) return;
  watched_ns_ = now;
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    // An ended link reports nothing, so its last state is kept.
    if (server_ ? links_[node] < 0 : node != 0 || client_->link().over()) continue;
    std::uint64_t& since = nodes_[node].unanswered_ns;
    if (!(server_ ? server_->is_unanswered(links_[node]) : client_->is_unanswered())) since = 0;
    else if (since == 0) since = now;
  }
}

/// Returns the failure of the way between this node and another, if nothing was acknowledged for half of --timeout. If only one
/// of two nodes hears the other, both see this: one hears no answers, and the other's answers are lost. Neither can tell on which
/// side the fault is, nor tell the other anything, so both must say the same, and blame no rank.
std::optional<Failure> Cluster::cut_way(int node) const {
  const int other = server_ ? node : 0;
  const std::uint64_t since = nodes_[static_cast<std::size_t>(other)].unanswered_ns;
  if (since == 0 || posix::now_ns() - since < timeout_ns_ / 2) return std::nullopt;
  return Failure{
      .cause = Cause::disconnected,
      .detail = fmt::format(
          "the way between node {} and node {} is cut: what one sends, the other hasn't acknowledged for more than half of "
          "--timeout {:g}. The network fails between them, in one direction or in both, or one of the machines is down",
          std::min(other, self_), std::max(other, self_), static_cast<double>(timeout_ns_) * 1e-9)};
}

std::optional<Failure> Cluster::cut_off(int rank) const {
  const auto count = static_cast<int>(nodes_.size());
  if (rank < 0 || rank >= ranks_) {
    for (int node = 0; node < count; ++node) {
      if (std::optional<Failure> cut = node != self_ ? cut_off_node(node) : std::nullopt) return cut;
    }
    return std::nullopt;
  }
  const int node = node_of(ranks_, count, rank);
  return node != self_ ? cut_off_node(node) : std::nullopt;
}

std::optional<Failure> Cluster::cut_off_node(int node) const {
  const Node& its = nodes_[static_cast<std::size_t>(node)];
  if (its.bye) return std::nullopt;
  if (std::optional<Failure> cut = cut_way(node)) return cut;
  const std::uint64_t silence = posix::now_ns() - its.heard_ns;
  if (silence < timeout_ns_ / 2) return std::nullopt;
  return loss_of(node, fmt::format("nothing was heard of its tsprun for {:.1f} s", static_cast<double>(silence) * 1e-9));
}

void Cluster::heard(const std::string& key, const std::vector<std::byte>& value, Boards& boards) {
  const auto count = static_cast<int>(nodes_.size());
  const std::uint64_t now = posix::now_ns();
  if (const int node = news_.hear(key, value, boards); node >= 0) {
    nodes_[static_cast<std::size_t>(node)].heard_ns = now;
  } else if (const int leaving = number_after(key, "live/bye/", count); leaving > 0) {
    nodes_[static_cast<std::size_t>(leaving)].bye = Ending::parse(text_of(value));
  } else if (const int knowing = number_after(key, "live/seen/", count); knowing > 0) {
    nodes_[static_cast<std::size_t>(knowing)].seen = true;
  } else if (const int asking = number_after(key, "live/asked/", count); asking >= 0 && asking != self_) {
    const int signal = number_from<int>(text_of(value)).value_or(0);
    if (asks_to_end(signal)) asked_ = signal;
  } else if (key == "live/end" && client_) {
    ending_ = Ending::parse(text_of(value));
    if (!ending_) return;
    if (ending_ns_ == 0) ending_ns_ = now;
    if (ending_->failure.cause != Cause::none) boards.abort(ending_->failure);
    say(fmt::format("live/seen/{}", self_), {});
  } else if (key.starts_with("live/way/")) {
    if (on_choice) on_choice(key, text_of(value));
  }
}

void Cluster::hear(Boards& boards) {
  if (server_) {
    server_->pump();
    for (const auto& [key, value] : std::exchange(pending_, {})) heard(key, value, boards);
    for (const Gone& gone : std::exchange(gone_, {})) {
      if (gone.node > 0 && gone.node < static_cast<int>(nodes_.size())) lose(gone, boards);
    }
  } else {
    const bool alive = client_->pump();
    for (bootstrap::StoreFrame frame; client_->next(frame);) heard(frame.key, frame.value, boards);
    if (!alive) lose({.node = 0, .why = client_->link().why_over(), .damaged = client_->link().damaged()}, boards);
  }
  const std::uint64_t now = posix::now_ns();
  if (const std::uint64_t before = std::exchange(last_look_ns_, now); before != 0 && now - before > kClockJump_ns) {
    // This process was stopped; messages sent meanwhile are still queued.
    spdlog::warn("this node's tsprun stood still for {:.1f} s: it was stopped, or its machine was",
                 static_cast<double>(now - before) * 1e-9);
    for (Node& node : nodes_) {
      node.heard_ns = now;
      node.unanswered_ns = 0;
    }
  }
  watch_ways(now);
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (static_cast<int>(node) == self_ || now - nodes_[node].heard_ns < timeout_ns_) continue;
    // A client hears the others only through node 0. If node 0 is silent too, node 0 is the one that is lost.
    lose(server_ ? static_cast<int>(node) : (now - nodes_[0].heard_ns >= timeout_ns_ ? 0 : static_cast<int>(node)),
         fmt::format("nothing was heard of its tsprun for {:.1f} s", static_cast<double>(now - nodes_[node].heard_ns) * 1e-9),
         boards);
  }
}

/// Node 0: returns true if every other node has said bye or is lost. After a failure, ranks get some time to be ended.
bool Cluster::all_said_bye(Boards& boards) {
  const std::uint64_t now = posix::now_ns();
  if (failed_ns_ == 0 && boards.failure().cause != Cause::none) failed_ns_ = now;
  bool all = true;
  for (int node = 1; node < static_cast<int>(nodes_.size()); ++node) {
    const Node& other = nodes_[static_cast<std::size_t>(node)];
    if (other.bye || other.lost) continue;
    if (failed_ns_ != 0 && now - failed_ns_ >= timeout_ns_ + kOthersEnd_ns + patience_ns) {
      lose(node, "its ranks haven't ended after the job had failed", boards);
    } else {
      all = false;
    }
  }
  return all;
}

/// Returns how the job ended, as the node of the failing rank told it: that node knows more about it than what others were told.
Ending Cluster::judged(const Failure& first) const {
  Ending ending{.failure = first};
  const std::optional<Ending>& own = nodes_[static_cast<std::size_t>(self_)].bye;
  if (first.cause == Cause::none) {
    if (own) ending.trouble = own->trouble;
    return ending;
  }
  const auto count = static_cast<int>(nodes_.size());
  const int home = first.rank >= 0 && first.rank < ranks_ ? node_of(ranks_, count, first.rank) : self_;
  const std::optional<Ending>& told = nodes_[static_cast<std::size_t>(home)].bye;
  if (told && told->failure.rank == first.rank && told->failure.cause != Cause::none) return *told;
  if (own && own->failure.cause != Cause::none) ending.code = own->code;
  return ending;
}

bool Cluster::settled(Boards& boards) {
  const std::uint64_t now = posix::now_ns();
  if (client_) {
    if (nodes_[0].lost) return true;
    if (!ending_) return false;
    // Node 0 leaves when it has heard that all nodes know. Until then, what was lost on the way can be sent again.
    return client_->link().over() || now - ending_ns_ >= timeout_ns_;
  }
  if (!ending_) {
    if (!all_said_bye(boards)) return false;
    ending_ = judged(boards.failure());
    ending_ns_ = now;
    say("live/end", bytes_of(ending_->text()));
  }
  bool all = true;
  for (int node = 1; node < static_cast<int>(nodes_.size()); ++node) {
    const Node& other = nodes_[static_cast<std::size_t>(node)];
    if (other.seen || other.lost) continue;
    if (now - ending_ns_ < timeout_ns_) {
      all = false;
      continue;
    }
    lose(node,
         fmt::format("its ranks have ended, but within {:g} s (--timeout) it hasn't acknowledged how the job did",
                     static_cast<double>(timeout_ns_) * 1e-9),
         boards);
  }
  if (all && ending_->failure.cause == Cause::none && boards.failure().cause != Cause::none) {
    // A node never acknowledged the end. The others still listen.
    ending_ = Ending{.failure = boards.failure()};
    say("live/end", bytes_of(ending_->text()));
  }
  return all;
}

}  // namespace tsprun::detail::launcher
