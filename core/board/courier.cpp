// The courier's thread: it hears what others say, says what has changed here, and looks for processes and nodes that are gone.
#include "core/board/courier.h"

#include "transport/bootstrap/placement.h"
#include "transport/cause.h"
#include "transport/signals_blocked.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <numeric>
#include <poll.h>

namespace tsprun::detail {

namespace {

/// Longest time in which the thread doesn't look at its node's board.
constexpr int kSlice_ms = 20;
/// Time between two tellings of this node's pages, which change all the time while ranks communicate.
constexpr std::uint64_t kBetweenTellings_ns = 50'000'000;
/// Time between two looks at processes and silent nodes.
constexpr std::uint64_t kBetweenLooks_ns = 100'000'000;
/// Longest time between two rounds. If more passes, this process or its machine was stopped, and others' silence proves nothing.
constexpr std::uint64_t kClockJump_ns = 2'000'000'000;
/// Longest time that a courier waits until others have heard its last news.
constexpr std::uint64_t kLastWords_ns = 2'000'000'000;

}  // namespace

News::Say sayer(NodeLink& link) {
  return [&link](const std::string& key, std::span<const std::byte> value) {
    if (link.server) link.server->set(key, value);
    else link.client->set(key, value);
  };
}

Courier::Courier(shm::NodeMemory memory, NodeLink link, const std::vector<int>& pids)
    : boards_([&] {
        std::vector<shm::NodeMemory> one;
        one.push_back(std::move(memory));
        return one;
      }()),
      job_(bootstrap::job_of(boards_.memory(0))),
      ranks_(static_cast<int>(boards_.memory(0).layout().world_size)),
      first_(static_cast<int>(job_.first_rank)),
      local_ranks_(static_cast<int>(boards_.memory(0).layout().local_ranks)),
      link_(std::move(link)),
      news_(ranks_, static_cast<int>(job_.nodes), static_cast<int>(job_.node)),
      watch_(boards_.board(), first_, pids),
      sign_ns_(job_.nodes, posix::now_ns()),
      lost_(job_.nodes) {
  if (link_.server) {
    link_.server->on_set = [this](int, const std::string& key, const std::vector<std::byte>& value) {
      link_.heard.emplace_back(key, value);
    };
    link_.server->on_gone = [this](int client, const std::string& why, bool damaged) {
      for (const auto& [node, number] : link_.nodes) {
        if (number == client) gone_.push_back({node, damaged ? Cause::corrupt : Cause::exited, why});
      }
      std::erase_if(link_.nodes, [client](const auto& each) { return each.second == client; });
    };
    link_.server->pace(job_.timeout_ns);
  } else {
    link_.client->pace(job_.timeout_ns);
  }
  boards_.board().node().untold.store(1);
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
}

Courier::~Courier() {
  if (::getpid() == process_) part();
  else new (std::nothrow) std::thread(std::move(thread_));  // the thread isn't in this process, so it can't be joined here
}

void Courier::part() {
  parting_.store(true);
  if (thread_.joinable()) thread_.join();
}

void Courier::run() {
  try {
    while (needed()) round();
    part_from_others();
  } catch (const std::exception& error) {
    boards_.abort(failure_of(
        Error(Cause::disconnected, fmt::format("rank {} can't tell other nodes the news: {}", first_, error.what()), first_)));
  }
  boards_.board().node().untold.store(0);
}

/// Sees to it that the last news isn't lost: a connection that is closed with unread input is reset, and what was sent last with
/// it. A client waits until its farewell comes back, the server, after a failure, until the clients have gone.
void Courier::part_from_others() {
  told_ns_ = 0;
  round();
  if (link_.client && !link_.client->link().over()) link_.client->set(fmt::format("live/bye/{}", job_.node), {});
  const std::uint64_t ends = posix::now_ns() + kLastWords_ns;
  const auto heard = [&] {
    return link_.server ? link_.nodes.empty() || !boards_.aborted() : parted_ || link_.client->link().over();
  };
  while (!heard() && posix::now_ns() < ends) round();
}

/// Returns whether these ranks have all left the job, or ended.
bool Courier::all_gone(int first, int count) const {
  for (int rank = first; rank < first + count; ++rank) {
    if (boards_.board().life(rank) <= Life::alive) return false;
  }
  return true;
}

bool Courier::needed() const {
  if (!parting_.load()) return true;
  if (boards_.aborted() || boards_.board().life(first_) <= Life::alive) return false;
  if (link_.client) return !link_.client->link().over() && !all_gone(first_, local_ranks_);
  return !link_.nodes.empty() && !all_gone(0, ranks_);
}

void Courier::round() {
  // A client's link that is over would be readable all the time.
  const bool is_cut = link_.client && link_.client->link().over();
  std::vector<pollfd> watched = {{is_cut         ? -1
                                  : link_.server ? link_.server->descriptor()
                                                 : link_.client->link().descriptor(),
                                  POLLIN, 0}};
  watch_.add_living(watched);
  ::poll(watched.data(), watched.size(), kSlice_ms);
  // A death is told at once, before whoever started the ranks ends this one, too.
  if (std::any_of(watched.begin() + 1, watched.end(), [](const pollfd& process) { return process.revents != 0; }))
    looked_ns_ = told_ns_ = 0;
  hear();
  const std::uint64_t now = posix::now_ns();
  if (round_ns_ != 0 && now - round_ns_ > kClockJump_ns) sign_ns_.assign(sign_ns_.size(), now);
  round_ns_ = now;
  if (now - looked_ns_ >= kBetweenLooks_ns) {
    looked_ns_ = now;
    look_at_processes();
    look_for_silence();
  }
  const News::Say say = sayer(link_);
  if (now - told_ns_ >= std::min(kBetweenTellings_ns, job_.timeout_ns / 8)) {
    told_ns_ = now;
    news_.tell(boards_, say);
  }
  if (const Failure failure = boards_.failure(); failure.cause != Cause::none) {
    news_.tell_failure(failure, say);
    boards_.board().node().untold.store(0);
  }
}

void Courier::hear() {
  const auto take = [this](const std::string& key, const std::vector<std::byte>& value) {
    if (const int node = news_.hear(key, value, boards_); node >= 0) sign_ns_[static_cast<std::size_t>(node)] = posix::now_ns();
  };
  if (link_.server) {
    link_.server->pump();
    for (const auto& [key, value] : std::exchange(link_.heard, {})) take(key, value);
    for (const Gone& gone : std::exchange(gone_, {})) lose(gone.node, gone.cause, gone.why);
    return;
  }
  const bool alive = link_.client->pump();
  for (bootstrap::StoreFrame frame; link_.client->next(frame);) {
    take(frame.key, frame.value);
    parted_ = parted_ || number_after(frame.key, "live/bye/", static_cast<int>(job_.nodes)) == static_cast<int>(job_.node);
  }
  const bootstrap::StoreLink& way = link_.client->link();
  if (!alive) lose(0, way.damaged() ? Cause::corrupt : Cause::exited, way.why_over());
}

void Courier::look_at_processes() {
  watch_.look();
  std::vector<int> here(static_cast<std::size_t>(local_ranks_));
  std::iota(here.begin(), here.end(), first_);
  watch_.note_stopped(here);
  // Ranks that wait in operations find out by themselves who is gone; those that still connect don't.
  const FlightBoard& board = boards_.board();
  bool connecting = false;
  for (int rank = 0; rank < ranks_; ++rank) connecting = connecting || board.life(rank) == Life::unborn;
  if (!connecting) return;
  for (const int rank : here) {
    if (board.life(rank) <= Life::finished) continue;
    boards_.abort(failure_of(Error(
        Cause::exited,
        fmt::format("rank {} is gone (how it ended isn't known: no tsprun watches it); not all ranks were known to be connected",
                    rank),
        rank)));
  }
}

void Courier::look_for_silence() {
  for (int node = 0; node < static_cast<int>(job_.nodes); ++node) {
    const bool heard_directly = link_.server ? link_.nodes.contains(node) : node == 0;
    const std::uint64_t silence = posix::now_ns() - sign_ns_[static_cast<std::size_t>(node)];
    if (heard_directly && silence >= job_.timeout_ns)
      lose(node, Cause::stalled, fmt::format("nothing was heard of it for {:.1f} s", static_cast<double>(silence) * 1e-9));
  }
}

/// Ends the job because a node's first rank is gone, unless that node's ranks have all left in good order. If it has told that
/// another of them had ended before, that one is named: whoever started the ranks may have ended the others because of it.
void Courier::lose(int node, Cause cause, const std::string& why) {
  if (lost_[static_cast<std::size_t>(node)]) return;
  lost_[static_cast<std::size_t>(node)] = true;
  const bootstrap::RankBlock block = bootstrap::block_of(ranks_, static_cast<int>(job_.nodes), node);
  if (all_gone(block.first, block.count)) return;
  if (cause == Cause::corrupt) {  // both ends say the same, and blame no rank: neither can tell on whose side it happened
    const auto here = static_cast<int>(job_.node);
    return boards_.abort(
        {.cause = cause,
         .detail = fmt::format("what the first ranks of node {} and node {} tell each other was changed on the way: "
                               "it is damaged, forged or replayed",
                               std::min(here, node), std::max(here, node))});
  }
  int ended = block.first;
  while (ended < block.first + block.count && boards_.board().life(ended) != Life::exited) ++ended;
  const bool is_known = ended < block.first + block.count;
  boards_.abort(failure_of(
      is_known
          ? Error(Cause::exited, fmt::format("rank {} is gone (how it ended isn't known: no tsprun watches it)", ended), ended)
          : Error(cause,
                  fmt::format("rank {} is gone, or the way to its machine is cut (how it ended isn't known: no tsprun "
                              "watches it): {}",
                              block.first, why),
                  block.first)));
}

}  // namespace tsprun::detail
