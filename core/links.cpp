// Chooses a transport for each other rank, and connects to it through the job's store.
#include "core/links.h"

#include "core/link_words.h"
#include "transport/bootstrap/store.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace tsprun::detail {

namespace {

constexpr std::uint64_t kPause_ns = 200'000;
/// Bytes of a reason that is reported, and of all of them: a value of the store has room for no more.
constexpr std::size_t kReasonBytes = 300;
constexpr std::size_t kReasonsBytes = 48 << 10;

}  // namespace

Links::Links(shm::NodeMemory& memory, const bootstrap::JobDescription& job, int local_rank, LinkOptions options)
    : memory_(&memory), job_(job), board_(memory), local_rank_(local_rank), options_(std::move(options)) {
  try {
    try {
      connect();
    } catch (const Error& error) {
      // Nothing came from the job's store, which rank 0 serves where there is no launcher.
      const bool of_store = error.rank() < 0 && (error.cause() == Cause::disconnected || error.cause() == Cause::stalled);
      if (!of_store || job_.supervised != 0 || rank() == 0) throw;
      fail(error.cause(), 0, error.what(), began_ns_);
    }
  } catch (const Error& error) {
    // Noted before the launcher sees how the process ends: the program may simply abort because of this exception.
    Failure failure = failure_of(error);
    board_.note_first_error(rank(), failure);
    if (failure.rank < 0) failure.rank = rank();
    if (job_.supervised == 0) board_.abort(failure);
    throw;
  }
  for (const auto& used : used_) decorate(*used);
}

/// Wraps a transport in a DelayTransport if a link speed is given or messages to this rank are to be slow or late, and in a
/// DamageTransport if they may be lost, damaged or cut.
void Links::decorate(Used& used) {
  std::vector<int> worlds;
  for (const Peer& peer : used.peers) {
    const auto number = static_cast<std::size_t>(peer.number);
    if (worlds.size() <= number) worlds.resize(number + 1, -1);
    worlds[number] = peer.rank;
  }
  std::vector<fault::SlowLink> slow;
  bool late = false;
  for (std::size_t i = 0; i < options_.faults.size(); ++i) {
    const fault::Spec& spec = options_.faults[i];
    if (spec.to != rank()) continue;
    late = late || spec.kind == fault::Kind::delay;
    const auto from = std::ranges::find(used.peers, spec.from, &Peer::rank);
    if (spec.kind == fault::Kind::slow && from != used.peers.end())
      slow.push_back({.peer = from->number, .from = spec.from, .bytes_per_ns = spec.gigabytes_per_s, .fault = i});
  }
  if (options_.gbps > 0 || !slow.empty() || late)
    used.slow.emplace(used.endpoint(), options_.gbps, std::move(slow), options_.strikes, worlds);
  if (options_.strikes == nullptr) return;
  used.damaged.emplace(*used.outermost(), *options_.strikes, std::move(worlds), used.arrivals);
}

Transport* Links::Used::outermost() {
  if (damaged) return &*damaged;
  return slow ? static_cast<Transport*>(&*slow) : made.endpoint.get();
}

Factory::Distance Links::distance(int rank) const {
  const int local = rank - static_cast<int>(job_.first_rank);
  if (local == local_rank_) return Factory::Distance::none;
  return local >= 0 && local < static_cast<int>(memory_->layout().local_ranks) ? Factory::Distance::node : Factory::Distance::job;
}

std::vector<Route> Links::routes() const {
  std::vector<Route> table(memory_->layout().world_size);
  for (const auto& used : used_) {
    for (const Peer& peer : used->peers) {
      table[static_cast<std::size_t>(peer.rank)] = {.transport = used->outermost(),
                                                    .peer = peer.number,
                                                    .kind = used->factory->name,
                                                    .delays = used->slow ? &*used->slow : nullptr};
    }
  }
  return table;
}

void Links::register_memory(std::span<std::byte> memory) {
  for (const auto& used : used_) used->endpoint().register_memory(memory);
}

std::span<std::byte> Links::registration_of(std::span<std::byte> memory) const {
  for (const auto& used : used_) memory = used->endpoint().registration_of(memory);
  return memory;
}

bool Links::pins_memory() const {
  return std::ranges::any_of(used_, [](const auto& used) { return used->endpoint().pins_memory(); });
}

std::vector<LinkTraffic> Links::traffic() const {
  std::vector<LinkTraffic> all;
  for (const auto& used : used_) all.push_back({used->factory->name, used->endpoint().counters()});
  return all;
}

bool Links::close() {
  bool all = true;
  for (const auto& used : used_) {
    used->endpoint().progress();
    for (const Peer& peer : used->peers) {
      // A rank that has ended needs nothing any more, and nobody answers in its place.
      if (board_.life(peer.rank) != Life::finished) all = used->endpoint().close(peer.number) && all;
    }
  }
  return all;
}

bool Links::parted(int rank) const {
  for (const auto& used : used_) {
    for (const Peer& peer : used->peers) {
      if (peer.rank == rank) return used->endpoint().parted(peer.number);
    }
  }
  return false;
}

std::vector<Links::Unreceived> Links::unreceived() {
  constexpr int kMostRounds = 1 << 16;
  std::vector<Unreceived> all;
  for (const auto& used : used_) {
    // What has come is taken in; a peer that goes on sending doesn't keep this rank.
    for (int round = 0; round < kMostRounds && used->endpoint().progress(); ++round) {
    }
    for (const Peer& peer : used->peers) {
      for (int i = 0; i < kQueues; ++i) {
        const auto stream = static_cast<Stream>(i);
        if (auto found = used->endpoint().unreceived({peer.number, stream}))
          all.push_back({peer.rank, stream, std::move(*found)});
      }
    }
  }
  return all;
}

// --- finding each other ------------------------------------------------------------------------------------------------------

void Links::note(std::string_view kind, const std::string& why, int rank) {
  const auto same = std::find_if(choices_.begin(), choices_.end(),
                                 [&](const LinkChoice& choice) { return choice.kind == kind && choice.why == why; });
  if (same != choices_.end()) same->ranks.push_back(rank);
  else choices_.push_back({kind, why, {rank}});
}

void Links::connect() {
  began_ns_ = posix::now_ns();
  const std::string store(job_.store_address());
  std::unique_ptr<bootstrap::StoreClient> client;
  const auto ranks = static_cast<int>(memory_->layout().world_size);
  std::vector<Unreached> left;
  left.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) left.push_back({rank, {}});
  for (const Factory* factory : kFactories) {
    const std::vector<Unreached> candidates = accepted(*factory, left);
    if (candidates.empty()) continue;
    if (const std::size_t most = most_ranks(factory->own_bytes); most != 0 && static_cast<std::size_t>(ranks) > most) {
      // So all ranks decide, before any of them has an address.
      for (const Unreached& each : candidates)
        leave(each, fmt::format("{} connects jobs of {} ranks at most", factory->name, most), left);
      continue;
    }
    if (!factory->to_tell.empty() && !client) {
      if (store.empty()) return;
      if (rank() != 0 && job_.supervised == 0) note_wait(0);  // whose process serves it
      client = std::make_unique<bootstrap::StoreClient>(store, tls::Credentials{bootstrap::secret_of(*memory_), job_.tls != 0},
                                                        rank(), options_.timeout_ns, [this] {
                                                          // While this rank waits for others, it accepts connections, so that
                                                          // peers are not stuck in the listening queue behind strangers.
                                                          for (const auto& used : used_) used->endpoint().progress();
                                                          if (options_.check) options_.check();
                                                        });
    }
    choose(*factory, client.get(), candidates, left);
  }
  if (!client) return;
  tell(*client);
  for (const auto& used : used_) {
    if (!used->factory->to_tell.empty() && used->factory->to_link.empty()) meet(*used, *client);
  }
  note_wait(-1);
}

/// Moves out of `left` the ranks that this kind of transport may connect to this one, and notes why it doesn't connect the rest.
std::vector<Links::Unreached> Links::accepted(const Factory& factory, std::vector<Unreached>& left) const {
  std::vector<Unreached> candidates;
  candidates.reserve(left.size());
  for (Unreached& each : left) {
    const Factory::Distance far = distance(each.rank);
    each.claim = factory.claim(far == Factory::Distance::job ? job_.inter : job_.intra, far);
    if (each.claim.answer != Factory::Claim::Answer::no) candidates.push_back(each);
    else if (!each.claim.why.empty()) each.why = each.claim.why;
  }
  std::erase_if(left, [](const Unreached& each) { return each.claim.answer != Factory::Claim::Answer::no; });
  return candidates;
}

/// Puts a candidate that a kind can't connect back into `left`. Throws Error(refused) if an option demands this kind.
void Links::leave(const Unreached& candidate, const std::string& why, std::vector<Unreached>& left) const {
  if (candidate.claim.answer == Factory::Claim::Answer::or_not_at_all) {
    throw Error(Cause::refused,
                fmt::format("{}: rank {} on node {} can't reach rank {}: {}", candidate.claim.why, rank(), job_.node,
                            candidate.rank, why),
                rank());
  }
  left.push_back({candidate.rank, fmt::format("{}: {}", candidate.claim.why, why)});
}

/// Makes a transport and begins to connect it to those of the candidates that it reaches; puts the others back into `left`.
void Links::choose(const Factory& factory, bootstrap::StoreClient* client, const std::vector<Unreached>& candidates,
                   std::vector<Unreached>& left) {
  std::vector<int> ranks;
  for (const Unreached& each : candidates) ranks.push_back(each.rank);
  auto fresh = std::make_unique<Used>();
  const Factory::Setup setup{.memory = *memory_,
                             .job = job_,
                             .local_rank = local_rank_,
                             .peers = ranks,
                             .timeout_ns = options_.timeout_ns,
                             .heap_expected = options_.heap_expected,
                             .check = fresh->arrivals,
                             .store = client};
  fresh->factory = &factory;
  fresh->made = factory.make(setup);
  Used& used = *used_.emplace_back(std::move(fresh));
  const std::vector<int>& numbers = used.made.numbers;
  used.peers.reserve(ranks.size());
  if (factory.to_tell.empty()) {
    for (std::size_t i = 0; i < ranks.size(); ++i) used.peers.push_back({ranks[i], numbers[i], true});
    return;
  }
  publish(used, *client, ranks);
  std::vector<int> asked;
  for (const Unreached& each : candidates) {
    if (each.claim.answer != Factory::Claim::Answer::yes) asked.push_back(each.rank);
  }
  std::map<int, std::vector<std::byte>> addresses = ask_addresses(used, *client, asked);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Unreached& each = candidates[i];
    if (each.claim.answer == Factory::Claim::Answer::yes) {
      used.peers.push_back({each.rank, numbers[i], false});
      used.why[each.rank] = each.why;
      continue;
    }
    const std::vector<std::byte>& address = addresses[each.rank];
    const Reach reach = used.endpoint().can_reach(numbers[i], address);
    if (reach.possible) {
      const bool free = each.claim.answer == Factory::Claim::Answer::if_reachable;
      used.peers.push_back({each.rank, numbers[i], true, free});
      used.why[each.rank] = reach.why;
      try {
        used.endpoint().connect(numbers[i], address);
      } catch (const Error& error) {
        if (!free) throw;
        used.lost[each.rank] = error.what();
      }
    } else {
      leave(each, reach.why, left);
    }
  }
  if (!factory.to_link.empty() && !used.peers.empty()) try_out(used, *client, left);
  for (const Peer& peer : used.peers) note(factory.name, used.why[peer.rank], peer.rank);
  used.why.clear();
  if (used.peers.empty()) used_.pop_back();
}

/// Leaves this rank's address for these peers in the store.
void Links::publish(const Used& used, bootstrap::StoreClient& client, const std::vector<int>& ranks) const {
  const std::size_t own = used.factory->own_bytes;
  std::vector<std::byte> value(own * memory_->layout().world_size);
  std::vector<std::byte> address;
  for (std::size_t i = 0; i < (own == 0 ? 1 : ranks.size()); ++i) {
    address = used.endpoint().address(used.made.numbers[i]);
    std::copy_n(address.begin(), own, value.begin() + static_cast<std::ptrdiff_t>(own) * ranks[i]);
  }
  value.insert(value.end(), address.begin() + static_cast<std::ptrdiff_t>(own), address.end());
  client.set(fmt::format("{}/{}", used.factory->name, rank()), value);
}

void Links::note_wait(int peer) const { board_.page(rank()).connecting_to.store(peer + 1, relaxed); }

/// Throws the error of a failed wait for a peer. After the deadline, blames the root of the wait chain, as the peer may itself
/// wait for another rank.
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
    posix::sleep_ns(kPause_ns);
  }
  board_.abort(failure);
  if (options_.check) options_.check();
  throw Error(failure.cause, failure.detail, failure.rank);
}

/// Writes this rank's choices to the store, and waits until they have arrived.
void Links::tell(bootstrap::StoreClient& client) const {
  std::string text;
  for (const LinkChoice& choice : choices_) {
    const std::string why = text.size() < kReasonsBytes ? one_field(choice.why, kReasonBytes) : std::string();
    text += fmt::format("{}\t{}\t{}\n", choice.kind, why, fmt::join(choice.ranks, ","));
  }
  const std::string key = fmt::format("live/way/{}", rank());
  client.set(key, bytes_of(text));
  client.get(key, "the job's store to repeat what it was told");
}

std::map<int, std::vector<std::byte>> Links::ask_addresses(const Used& used, bootstrap::StoreClient& client,
                                                           const std::vector<int>& peers) const {
  const auto own = static_cast<std::uint32_t>(used.factory->own_bytes);
  const bootstrap::GatherCut cut{
      .from = own * static_cast<std::uint32_t>(rank()), .bytes = own, .rest = own * memory_->layout().world_size};
  return ask_all(client, fmt::format("{}/", used.factory->name), peers, used.factory->to_tell, cut);
}

std::map<int, std::vector<std::byte>> Links::ask_all(bootstrap::StoreClient& client, const std::string& prefix,
                                                     const std::vector<int>& peers, std::string_view what,
                                                     const bootstrap::GatherCut& cut) const {
  int lacked = -1;
  std::uint64_t began = 0;
  try {
    const auto lacking = [&](int peer) {
      note_wait(lacked = peer);
      began = posix::now_ns();
      return fmt::format("rank {} {}", peer, what);
    };
    std::vector<std::vector<std::byte>> values = client.gather(prefix, peers, lacking, cut);
    std::map<int, std::vector<std::byte>> by_rank;
    for (std::size_t i = 0; i < peers.size(); ++i) by_rank[peers[i]] = std::move(values[i]);
    return by_rank;
  } catch (const Error& error) {
    if (error.cause() != Cause::stalled) throw;
    fail(Cause::stalled, lacked, error.what(), began);
  }
}

void Links::await(Used& used, const std::function<bool(int number)>& done, std::uint64_t patience_ns) const {
  const std::uint64_t began = posix::now_ns();
  for (Peer& peer : used.peers) {
    if (used.lost.contains(peer.rank)) continue;
    note_wait(peer.rank);
    const auto is_done = [&] {
      try {
        return done(peer.number);
      } catch (const Error& error) {
        if (!peer.free) throw;
        used.lost[peer.rank] = error.what();
        return false;
      }
    };
    while (!is_done() && !used.lost.contains(peer.rank)) {
      if (options_.check) options_.check();
      const std::uint64_t now = posix::now_ns();
      if (const std::string why = used.endpoint().broken(peer.number); !why.empty()) {
        if (!peer.free)
          fail(Cause::disconnected, peer.rank, fmt::format("no connection to rank {}: {}", peer.rank, why), began_ns_);
        used.lost[peer.rank] = why;
      } else if (now - began >= options_.timeout_ns || (peer.free && now - began >= patience_ns)) {
        const std::string what =
            fmt::format("rank {} didn't connect to rank {} over {} in time", peer.rank, rank(), used.factory->name);
        if (!peer.free) fail(Cause::stalled, peer.rank, what, began);
        used.lost[peer.rank] = fmt::format("it didn't connect over {} in time", used.factory->name);  // one text for all peers
      }
      posix::sleep_ns(kPause_ns);
    }
  }
}

/// Connects a transport to all its peers.
void Links::meet(Used& used, bootstrap::StoreClient& client) {
  Endpoint& endpoint = used.endpoint();
  std::vector<int> waiting;
  for (const Peer& peer : used.peers) {
    if (!peer.begun) waiting.push_back(peer.rank);
  }
  std::map<int, std::vector<std::byte>> addresses = ask_addresses(used, client, waiting);
  for (Peer& peer : used.peers) {
    if (!std::exchange(peer.begun, true)) endpoint.connect(peer.number, addresses[peer.rank]);
  }
  await(
      used, [&](int number) { return endpoint.linked(number); }, options_.timeout_ns);
  await(
      used, [&](int number) { return endpoint.connected(number); }, options_.timeout_ns);
}

void Links::try_out(Used& used, bootstrap::StoreClient& client, std::vector<Unreached>& left) {
  Endpoint& endpoint = used.endpoint();
  await(
      used, [&](int number) { return endpoint.linked(number); }, options_.timeout_ns / 2);
  compare_notes(used, client, "linked");
  // All probes are on their way before any is waited for: one that isn't answered costs the others no time.
  for (Peer& peer : used.peers) {
    if (used.lost.contains(peer.rank)) continue;
    try {
      endpoint.connected(peer.number);
    } catch (const Error& error) {
      if (!peer.free) throw;
      used.lost[peer.rank] = error.what();
    }
  }
  await(
      used, [&](int number) { return endpoint.connected(number); }, options_.timeout_ns / 4);
  compare_notes(used, client, "probed");
  std::erase_if(used.peers, [&](const Peer& peer) {
    const auto lost = used.lost.find(peer.rank);
    if (lost == used.lost.end()) return false;
    endpoint.forget(peer.number);
    left.push_back({peer.rank, fmt::format("{}: {}", used.factory->missing, lost->second)});
    return true;
  });
}

void Links::compare_notes(Used& used, bootstrap::StoreClient& client, std::string_view stage) const {
  const std::string prefix = fmt::format("{}/{}/", used.factory->name, stage);
  const std::size_t world = memory_->layout().world_size;
  client.set(fmt::format("{}{}", prefix, rank()), write_notes(used.lost, world));
  std::vector<int> ranks;
  for (const Peer& peer : used.peers) ranks.push_back(peer.rank);
  const auto notes = ask_all(client, prefix, ranks, used.factory->to_link, notes_for(rank(), world));
  for (const int peer : ranks) {
    const std::optional<std::string> why = read_note(notes.at(peer));
    if (why && !used.lost.contains(peer)) used.lost[peer] = fmt::format("rank {}: {}", peer, *why);
  }
}

}  // namespace tsprun::detail
