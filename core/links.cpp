// How a rank chooses a transport for each other rank and connects to it, with the job's store as the meeting place.
#include "core/links.h"

#include "transport/bootstrap/store.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <time.h>

namespace tsprun {

namespace {

constexpr long kPause_ns = 200'000;

void pause_a_moment() {
  const timespec pause{0, kPause_ns};
  ::nanosleep(&pause, nullptr);
}

/// Returns a text field of NodeLayout, which may lack the terminator.
template <std::size_t size>
std::string text_of(const char (&field)[size]) {
  return {field, ::strnlen(field, size)};
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

Links::Links(shm::NodeMemory& memory, int local_rank, LinkOptions options)
    : memory_(&memory), board_(memory), local_rank_(local_rank), options_(std::move(options)), shm_(memory, local_rank) {
  try {
    connect();
  } catch (const Error& error) {
    // Noted before the launcher sees how the process ends: the program may simply abort because of this exception.
    board_.note_first_error(rank(), failure_of(error));
    throw;
  }
  decorate(around_shm_, &shm_);
  decorate(around_verbs_, verbs_.get());
  decorate(around_tcp_, tcp_.get(), [this](LaneId lane) { tcp_->damage_next(lane); });
}

/// Wraps a transport in a DelayTransport if a link speed is given or messages to this rank are to be slow or late, and in a
/// DamageTransport if they may be lost, damaged or cut.
void Links::decorate(Decorated& decorated, Transport* inner, fault::DamageTransport::BelowCheck below_check) {
  if (inner == nullptr) return;
  std::vector<int> worlds;
  for (int rank = 0; rank < static_cast<int>(memory_->layout().world_size); ++rank) {
    const Route route = inner_route(rank);
    if (route.transport != inner) continue;
    const auto peer = static_cast<std::size_t>(route.peer);
    if (worlds.size() <= peer) worlds.resize(peer + 1, -1);
    worlds[peer] = rank;
  }
  std::vector<fault::SlowLink> slow;
  bool late = false;
  for (std::size_t i = 0; i < options_.faults.size(); ++i) {
    const fault::Spec& spec = options_.faults[i];
    if (spec.to != rank()) continue;
    late = late || spec.kind == fault::Kind::delay;
    const Route route = inner_route(spec.from);
    if (spec.kind == fault::Kind::slow && route.transport == inner)
      slow.push_back({.peer = route.peer, .from = spec.from, .bytes_per_ns = spec.gigabytes_per_s, .fault = i});
  }
  if (options_.gbps > 0 || !slow.empty() || late)
    decorated.slow.emplace(*inner, fault::LinkSpeed{options_.gbps, 0}, std::move(slow), options_.strikes, worlds);
  if (options_.strikes == nullptr) return;
  decorated.damaged.emplace(*decorated.outermost(inner), *options_.strikes, std::move(worlds), std::move(below_check));
}

bool Links::is_here(int rank) const {
  const shm::NodeLayout& layout = memory_->layout();
  const int local = rank - static_cast<int>(layout.first_rank);
  return local >= 0 && local < static_cast<int>(layout.local_ranks);
}

Route Links::inner_route(int rank) {
  if (shares_memory(rank)) {
    const int first = static_cast<int>(memory_->layout().first_rank);
    return {.transport = &shm_, .peer = rank - first};
  }
  for (const auto& [peer, number] : verbs_peers_) {
    if (peer == rank) return {.transport = verbs_.get(), .peer = number};
  }
  if (tcp_) return {.transport = tcp_.get(), .peer = rank};
  return {};
}

std::vector<Route> Links::routes() {
  std::vector<Route> table(memory_->layout().world_size);
  for (int rank = 0; rank < static_cast<int>(table.size()); ++rank) {
    Route& route = table[static_cast<std::size_t>(rank)];
    route = inner_route(rank);
    if (route.transport == nullptr) continue;
    Decorated& around = route.transport == &shm_ ? around_shm_ : route.transport == tcp_.get() ? around_tcp_ : around_verbs_;
    route.kind = route.transport == &shm_ ? "shm" : route.transport == tcp_.get() ? "tcp" : "verbs";
    route.delays = around.slow ? &*around.slow : nullptr;
    route.transport = around.outermost(route.transport);
  }
  return table;
}

void Links::register_memory(std::span<std::byte> memory) {
  if (verbs_) verbs_->register_memory(memory);
}

std::vector<LinkTraffic> Links::traffic() const {
  std::vector<LinkTraffic> all = {{"shm", shm_.counters()}};
  if (verbs_) all.push_back({"verbs", verbs_->counters()});
  if (tcp_) all.push_back({"tcp", tcp_->counters()});
  return all;
}

bool Links::close() {
  const bool sent_by_verbs = !verbs_ || verbs_->close();
  const bool sent_by_tcp = !tcp_ || tcp_->close();
  return sent_by_verbs && sent_by_tcp;
}

// --- finding each other ------------------------------------------------------------------------------------------------------

void Links::note(std::string_view kind, const std::string& why, int rank) {
  const auto same = std::find_if(ways_.begin(), ways_.end(), [&](const Way& way) { return way.kind == kind && way.why == why; });
  if (same != ways_.end()) same->ranks.push_back(rank);
  else ways_.push_back({std::string(kind), why, {rank}});
}

void Links::connect() {
  began_ns_ = posix::now_ns();
  const shm::NodeLayout& layout = memory_->layout();
  std::vector<int> by_tcp;
  std::vector<int> far;  // on other nodes
  for (int rank = 0; rank < static_cast<int>(layout.world_size); ++rank) {
    if (shares_memory(rank)) continue;
    if (!is_here(rank)) {
      far.push_back(rank);
    } else {
      by_tcp.push_back(rank);
      note("tcp", "same node, but --intra tcp", rank);
    }
  }
  const std::string store = text_of(layout.store);
  if ((by_tcp.empty() && far.empty()) || store.empty()) return;
  bootstrap::StoreClient client(store, {layout.secret, layout.tls != 0}, rank(), options_.timeout_ns, [this] {
    // While this rank waits for others, it accepts connections, so that peers are not stuck in the listening queue behind
    // strangers.
    if (tcp_) tcp_->progress();
    if (options_.check) options_.check();
  });
  if (!far.empty()) {
    const std::vector<int> rest = choose_verbs(client, far);
    by_tcp.insert(by_tcp.end(), rest.begin(), rest.end());
  }
  tell(client);
  if (!verbs_peers_.empty()) connect_verbs(client);
  if (!by_tcp.empty()) connect_tcp(client, by_tcp);
  note_wait(-1);
}

void Links::note_wait(int peer) const { board_.page(rank()).connecting_to.store(peer + 1, relaxed); }

std::vector<std::byte> Links::ask(bootstrap::StoreClient& client, const std::string& key, int peer,
                                  const std::string& what) const {
  note_wait(peer);
  const std::uint64_t began = posix::now_ns();
  try {
    return client.get(key, fmt::format("rank {} {}", peer, what));
  } catch (const Error& error) {
    if (error.cause() != Cause::stalled) throw;
    fail(Cause::stalled, peer, error.what(), began);
  }
}

/// If the deadline has passed, blames the root of the wait chain, as the peer may itself wait for another rank.
void Links::fail(Cause cause, int peer, const std::string& what, std::uint64_t began_ns) const {
  const std::uint64_t now = posix::now_ns();
  Failure failure{.cause = cause, .rank = peer, .code = 0, .op = {}, .sequence = 0, .detail = what};
  if (now - began_ns >= options_.timeout_ns) {
    const FlightBoard::Chain chain = board_.up_to_silent(board_.wait_chain(rank()), now - options_.timeout_ns / 2);
    const int root = chain.ranks.back();
    if (!chain.cycle && (root != peer || board_.stopped(root))) {
      failure.cause = Cause::stalled;
      failure.rank = root;
    }
    failure.detail = fmt::format("{}; {}", what, board_.describe(chain, now));
  }
  // The peer may have died, or have ended with the job: the launchers report that in a moment.
  while (failure.cause == Cause::disconnected && posix::now_ns() - now < wait_for_word_ns(options_.timeout_ns)) {
    if (options_.check) options_.check();
    pause_a_moment();
  }
  board_.abort(failure);
  if (options_.check) options_.check();
  throw Error(failure.cause, failure.detail, failure.rank);
}

/// Begins to connect to those ranks of `far` whose RDMA device this rank's can reach; returns the others.
std::vector<int> Links::choose_verbs(bootstrap::StoreClient& client, const std::vector<int>& far) {
  const shm::NodeLayout& layout = memory_->layout();
  std::vector<int> rest;
  if (layout.inter == shm::Inter::tcp) {
    for (const int peer : far) note("tcp", "--inter tcp", peer);
    return far;
  }
  const std::string here = fmt::format("node {}", layout.node);
  try {
    verbs_ = std::make_unique<verbs::VerbsTransport>(verbs::VerbsOptions{.device = text_of(layout.rdma),
                                                                         .local_rank = local_rank_,
                                                                         .timeout_ns = options_.timeout_ns,
                                                                         .peers = static_cast<int>(far.size()),
                                                                         .heap = memory_->heap(local_rank_),
                                                                         .heap_expected = options_.heap_expected,
                                                                         .place = here});
  } catch (const Error& error) {
    throw Error(error.cause(), fmt::format("rank {} on {}: {}", rank(), here, error.what()), rank());
  }
  for (std::size_t i = 0; i < far.size(); ++i)
    client.set(fmt::format("verbs/{}/{}", rank(), far[i]), verbs_->address(static_cast<int>(i)));
  for (std::size_t i = 0; i < far.size(); ++i) {
    const int peer = far[i];
    const int number = static_cast<int>(i);
    const std::vector<std::byte> address =
        ask(client, fmt::format("verbs/{}/{}", peer, rank()), peer, "to say which RDMA device it has");
    const Reach reach = verbs_->can_reach(number, address);
    if (reach.possible) {
      verbs_->connect(number, address);
      verbs_peers_.emplace_back(peer, number);
      note("verbs", reach.why, peer);
    } else if (layout.inter == shm::Inter::verbs) {
      throw Error(Cause::refused,
                  fmt::format("--inter verbs: rank {} on {} can't reach rank {}: {}", rank(), here, peer, reach.why), rank());
    } else {
      rest.push_back(peer);
      note("tcp", "no RDMA: " + reach.why, peer);
    }
  }
  if (verbs_peers_.empty()) verbs_.reset();
  return rest;
}

/// Writes this rank's choices to the store before it connects: its later requests to the store prove that this one has arrived.
void Links::tell(bootstrap::StoreClient& client) const {
  std::string text;
  for (const Way& way : ways_) text += fmt::format("{}\t{}\t{}\n", way.kind, way.why, fmt::join(way.ranks, ","));
  client.set(fmt::format("live/way/{}", rank()), bytes_of(text));
}

void Links::await(const std::vector<int>& peers, std::string_view transport, const std::function<bool(int rank)>& connected,
                  const std::function<std::string(int rank)>& why_broken) const {
  const std::uint64_t began = posix::now_ns();
  for (const int peer : peers) {
    note_wait(peer);
    while (!connected(peer)) {
      if (options_.check) options_.check();
      if (const std::string why = why_broken(peer); !why.empty())
        fail(Cause::disconnected, peer, fmt::format("no connection to rank {}: {}", peer, why), began_ns_);
      if (posix::now_ns() - began >= options_.timeout_ns) {
        fail(Cause::stalled, peer, fmt::format("rank {} didn't connect to rank {} over {} in time", peer, rank(), transport),
             began);
      }
      pause_a_moment();
    }
  }
}

void Links::connect_verbs(bootstrap::StoreClient& client) {
  std::vector<int> peers;
  std::vector<int> numbers(memory_->layout().world_size);
  for (const auto& [peer, number] : verbs_peers_) {
    peers.push_back(peer);
    numbers[static_cast<std::size_t>(peer)] = number;
  }
  const auto number_of = [&](int peer) { return numbers[static_cast<std::size_t>(peer)]; };
  const auto why_broken = [&](int peer) { return verbs_->broken(number_of(peer)); };
  await(
      peers, "verbs", [&](int peer) { return verbs_->linked(number_of(peer)); }, why_broken);
  client.set(fmt::format("verbs/{}", rank()), {});
  for (const int peer : peers) ask(client, fmt::format("verbs/{}", peer), peer, "to connect its queue pairs");
  await(
      peers, "verbs", [&](int peer) { return verbs_->connected(number_of(peer)); }, why_broken);
}

void Links::connect_tcp(bootstrap::StoreClient& client, const std::vector<int>& peers) {
  const shm::NodeLayout& layout = memory_->layout();
  const std::vector<std::byte> job = client.get(std::string(bootstrap::kJobKey), "the store to say which job this is");
  tcp_ = std::make_unique<tcp::TcpTransport>(tcp::TcpOptions{.rank = rank(),
                                                             .world_size = static_cast<int>(layout.world_size),
                                                             .host = client.local_host(),
                                                             .secret = bootstrap::lanes_secret(layout.secret, job),
                                                             .tls = layout.tls != 0,
                                                             .timeout_ns = options_.timeout_ns});
  client.also_watch(tcp_->descriptor());
  client.set(fmt::format("tcp/{}", rank()), tcp_->address(-1));
  for (const int peer : peers) tcp_->connect(peer, ask(client, fmt::format("tcp/{}", peer), peer, "to say where it listens"));
  await(
      peers, "tcp", [&](int peer) { return tcp_->connected(peer); }, [&](int peer) { return tcp_->broken(peer); });
}

}  // namespace tsprun
