// Serves many clients from one epoll set, and limits unproven ones and what waits for slow ones.
#include "transport/bootstrap/store.h"

#include "transport/cause.h"
#include "transport/machine.h"
#include "transport/tcp/dial.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <sys/epoll.h>
#include <sys/socket.h>

namespace tsprun::detail::bootstrap {

namespace {

/// Limits for accepted sockets before their proof: how long they may be silent; how much longer those may take that have sent a
/// valid greeting, such as ranks of a machine that has more to do than it can; how many may wait that haven't sent one, and how
/// many that have (such as the ranks of a large node); how many are accepted before other clients are served.
constexpr std::uint64_t kSilence_ns = 5'000'000'000;
constexpr std::uint64_t kProof_ns = 55'000'000'000;
constexpr std::size_t kMostStrangers = 64;
constexpr std::size_t kMostGreeted = 1024;
constexpr int kAcceptAtOnce = 16;
constexpr std::size_t kMostKeys = 1 << 20;
/// Most bytes that may wait for a client. One that leaves more unread is dropped.
constexpr std::size_t kMostBacklog = 64 << 20;
/// Bytes that wait for a client while its gather isn't answered any further. A frame more may wait then, but not all values of a
/// job for each of its ranks.
constexpr std::size_t kMostAhead = 64 << 10;
constexpr std::size_t kJobBytes = 32;

/// Returns the node that a client claims to be, as text for the log, if it claims to be a launcher; empty for ranks, because
/// unproven clients have the number 0, too.
std::string claimed(int name) {
  return name < launcher_name(0) ? fmt::format(" (it says it is node {})", launcher_name(0) - name) : std::string();
}

std::string too_much(const StoreLink& link) { return fmt::format("it left {} MiB unread", link.backlog() >> 20); }

}  // namespace

Secret lanes_secret(const Secret& secret, std::span<const std::byte> job) { return derive(secret, "tsprun lanes", job); }

StoreServer::StoreServer(const std::string& host, std::uint16_t port, const tls::Credentials& credentials)
    : StoreServer(tcp::resolve_all(host, port), credentials) {}

StoreServer::StoreServer(const std::vector<tcp::SocketAddress>& addresses, const tls::Credentials& credentials)
    : credentials_(credentials), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw system_error(Cause::refused, "the store: epoll_create", errno);
  listeners_ = tcp::listen_on(addresses);
  for (const posix::UniqueFd& listener : listeners_) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = listener.get()}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener.get(), &event) != 0)
      throw system_error(Cause::refused, "the store: epoll_ctl", errno);
  }
  std::array<std::byte, kJobBytes> job{};
  fill_random(job);
  set(std::string(kJobKey), job);
}

std::vector<std::string> StoreServer::addresses() const {
  std::vector<std::string> texts;
  for (const posix::UniqueFd& listener : listeners_) texts.push_back(tcp::local_address(listener.get()).print());
  return texts;
}

void StoreServer::pace(std::uint64_t outage_ns) {
  pacing_.emplace(outage_ns);
  for (const auto& each : clients_) pacing_->add(each.first);
}

void StoreServer::pump() {
  if (pacing_) pacing_->look();
  epoll_event events[64];
  const int count = ::epoll_wait(epoll_.get(), events, 64, 0);
  std::vector<int> at_the_door;
  for (int i = 0; i < count; ++i) {
    const int descriptor = events[i].data.fd;
    const bool listens = std::any_of(listeners_.begin(), listeners_.end(),
                                     [&](const posix::UniqueFd& listener) { return listener.get() == descriptor; });
    if (listens) at_the_door.push_back(descriptor);
    else serve(descriptor);
  }
  // Last, so that waiting clients are heard before a new one could displace them.
  for (const int listener : at_the_door) accept(listener);
  const std::uint64_t now = posix::now_ns();
  std::vector<int> late;
  std::erase_if(unproven_, [this](int descriptor) { return clients_.at(descriptor).link.ready(); });
  for (const int descriptor : unproven_) {
    const Client& client = clients_.at(descriptor);
    if (client.deadline_ns + (client.link.greeted() ? kProof_ns : 0) <= now) late.push_back(descriptor);
  }
  for (const int descriptor : late) {
    refusals_.refused(clients_.at(descriptor).address, "it didn't prove itself in time");
    drop(descriptor, {});
  }
  for (const int descriptor : std::exchange(overfull_, {})) serve(descriptor);
  refusals_.tick();
}

void StoreServer::accept(int listener) {
  for (int i = 0; i < kAcceptAtOnce; ++i) {
    tcp::Accepted arrival = tcp::accept(listener);
    if (!arrival.socket) {
      if (arrival.no_descriptor) make_room(true);
      return;
    }
    make_room(false);
    while (!machine::can_open(kept_free_) && make_room(true)) {
    }
    tcp::set_option(arrival.socket.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
    const int descriptor = arrival.socket.get();
    epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) continue;
    try {
      clients_.emplace(descriptor,
                       Client{StoreLink(tls::Channel::acceptor(std::move(arrival.socket), credentials_, ConnectionUse::store, 0)),
                              arrival.from.print(), posix::now_ns() + kSilence_ns});
    } catch (const Error& error) {
      refusals_.refused(arrival.from.print(), error.what());  // this connection can't be served; the job goes on
      continue;
    }
    unproven_.insert(descriptor);
    if (pacing_) pacing_->add(descriptor);
    serve(descriptor);  // a client has sent its greeting by now
  }
}

/// Makes room for one more accepted socket: if too many wait for their proof, or no descriptor is left, drops the oldest.
/// Silent strangers never displace those that have sent a valid greeting. Returns whether a descriptor became free.
bool StoreServer::make_room(bool no_descriptors) {
  for (const bool greeted : {false, true}) {
    std::size_t count = 0;
    const std::pair<const int, Client>* oldest = nullptr;
    for (const int descriptor : unproven_) {
      const auto& each = *clients_.find(descriptor);
      const StoreLink& link = each.second.link;
      if (link.ready() || link.greeted() != greeted) continue;
      ++count;
      if (oldest == nullptr || each.second.deadline_ns < oldest->second.deadline_ns) oldest = &each;
    }
    if (count == 0 || (count < (greeted ? kMostGreeted : kMostStrangers) && !no_descriptors)) continue;
    refusals_.refused(oldest->second.address, no_descriptors ? "no file descriptor is left" : "too many try at once");
    drop(oldest->first, {});
    if (no_descriptors) return true;
  }
  return false;
}

void StoreServer::drop(int descriptor, const std::string& why) {
  const auto node = clients_.extract(descriptor);
  if (node.empty()) return;
  if (pacing_) pacing_->remove(descriptor);
  for (auto& [key, who] : waiting_) who.erase(descriptor);
  gatherings_.forget(descriptor);
  unproven_.erase(descriptor);
  subscribers_.erase(descriptor);
  overfull_.erase(descriptor);
  const StoreLink& link = node.mapped().link;
  if (link.ready() && on_gone) on_gone(descriptor, why, link.damaged());
}

void StoreServer::serve(int descriptor) {
  const auto found = clients_.find(descriptor);
  if (found == clients_.end()) return;
  Client& client = found->second;
  bool alive = false;
  std::string trouble;
  try {
    alive = client.link.pump();
  } catch (const Error& error) {
    trouble = error.what();  // such as no memory for its handshake: this link ends, not the job
  }
  StoreFrame frame;
  while (client.asked_too_much.empty() && client.link.backlog() <= kMostBacklog && client.link.next(frame)) obey(client, frame);
  if (!client.asked_too_much.empty()) {
    const std::string why = client.asked_too_much;
    refusals_.refused(client.address, why);
    drop(descriptor, why);
    return;
  }
  if (!alive || client.link.backlog() > kMostBacklog) {
    const std::string why = alive ? too_much(client.link) : !trouble.empty() ? trouble : client.link.why_over();
    if (!client.link.ready() || client.link.broke_rules()) {
      const std::string who = claimed(client.link.peer());
      refusals_.refused(client.address + who, why);
      if (!who.empty()) refused_node_ = fmt::format("a connection from {}{} was refused: {}", client.address, who, why);
    }
    drop(descriptor, why);
    return;
  }
  answer_gather(client);
}

void StoreServer::arrange(Client& client) {
  if (client.link.wants_room() == client.room_wanted || client.link.over()) return;
  client.room_wanted = !client.room_wanted;
  epoll_event event{.events = EPOLLIN | (client.room_wanted ? EPOLLOUT : 0U), .data = {.fd = client.link.descriptor()}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, client.link.descriptor(), &event);
}

void StoreServer::obey(Client& client, const StoreFrame& frame) {
  ++requests_;
  switch (frame.op) {
    case StoreOp::set:
      if (values_.size() >= kMostKeys && !values_.contains(frame.key)) {
        client.asked_too_much = fmt::format("the store is full: it holds {} keys and takes no other", kMostKeys);
        return;
      }
      set(frame.key, frame.value);
      if (on_set) on_set(client.link.descriptor(), frame.key, frame.value);
      break;
    case StoreOp::get:
      if (const auto* value = find(frame.key)) client.link.send(StoreOp::value, frame.key, *value);
      else waiting_[frame.key].insert(client.link.descriptor());
      break;
    case StoreOp::subscribe:
      client.prefixes.push_back(frame.key);
      subscribers_.insert(client.link.descriptor());
      for (auto each = values_.lower_bound(frame.key); each != values_.end() && each->first.starts_with(frame.key); ++each)
        client.link.send(StoreOp::value, each->first, each->second);
      break;
    case StoreOp::gather:
      client.asked_too_much = gatherings_.ask(client.link.descriptor(), frame.key, frame.value);
      answer_gather(client);
      return;
    case StoreOp::damaged:
    case StoreOp::gathered:
    case StoreOp::value: break;  // of these one ends the link, and only servers send the others: ignored
  }
  client.link.flush();
  arrange(client);
}

void StoreServer::publish(const std::string& key, const std::vector<std::byte>& value) {
  std::set<int> to;
  if (auto waiting = waiting_.extract(key); !waiting.empty()) to = std::move(waiting.mapped());
  for (const int descriptor : subscribers_) {
    const std::vector<std::string>& prefixes = clients_.at(descriptor).prefixes;
    if (std::ranges::any_of(prefixes, [&](const std::string& prefix) { return key.starts_with(prefix); })) to.insert(descriptor);
  }
  for (const int descriptor : to) {
    Client& client = clients_.at(descriptor);
    if (client.link.backlog() > kMostBacklog) {
      client.asked_too_much = too_much(client.link);
      overfull_.insert(descriptor);  // pump() drops it: here it may be in use
      continue;
    }
    client.link.send(StoreOp::value, key, value);
    client.link.flush();  // if the client has gone, serve() will find that
    arrange(client);
  }
}

/// Sends a client as much of its gather as it takes. What is left follows when its socket has room.
void StoreServer::answer_gather(Client& client) {
  while (client.link.backlog() < kMostAhead && !client.link.over()) {
    const std::optional<Gatherings::Frame> frame = gatherings_.next(client.link.descriptor());
    if (!frame) break;
    client.link.send(StoreOp::gathered, frame->prefix, frame->value);
    client.link.flush();  // if the client has gone, serve() will find that
  }
  arrange(client);
}

void StoreServer::set(const std::string& key, std::span<const std::byte> value) {
  std::vector<std::byte>& mine = values_[key];
  mine.assign(value.begin(), value.end());
  publish(key, mine);
  for (const int descriptor : gatherings_.set(key, mine)) answer_gather(clients_.at(descriptor));
}

std::size_t StoreServer::unread() const {
  std::size_t bytes = 0;
  for (const auto& each : clients_) bytes += each.second.link.held();
  return bytes;
}

const std::vector<std::byte>* StoreServer::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

}  // namespace tsprun::detail::bootstrap
