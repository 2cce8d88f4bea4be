// Connects a client to the job's store, and waits for what it asks for.
#include "transport/bootstrap/store.h"
#include "transport/cause.h"
#include "transport/number.h"
#include "transport/tcp/dial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <utility>

namespace tsprun::detail::bootstrap {

namespace {

/// Attempts of a client that the server drops unheard, and the pause between them.
constexpr int kMostTries = 10;
constexpr int kTryAgain_ms = 20;
constexpr int kSlice_ms = 50;
/// Time after which a client to which nothing comes asks again for what it lacks of a gather.
constexpr std::uint64_t kAskAgain_ns = 1'000'000'000;

}  // namespace

StoreClient::StoreClient(const std::string& address, const tls::Credentials& credentials, int name, std::uint64_t timeout_ns,
                         Check check)
    : StoreClient(addresses_of("the store's address", address), credentials, name, timeout_ns, std::move(check)) {}

StoreClient::StoreClient(const std::vector<tcp::SocketAddress>& addresses, const tls::Credentials& credentials, int name,
                         std::uint64_t timeout_ns, Check check)
    : timeout_ns_(timeout_ns), check_(std::move(check)) {
  const std::uint64_t deadline = posix::now_ns() + timeout_ns;
  std::uint64_t left_ns = timeout_ns;
  for (int tries = 1;; ++tries) {
    posix::UniqueFd socket = tcp::dial(addresses, left_ns, check_);
    local_host_ = tcp::local_address(socket.get()).host();
    reached_ = tcp::peer_address(socket.get()).print();
    link_ = std::make_unique<StoreLink>(tls::Channel::connector(std::move(socket), credentials, ConnectionUse::store, name, 0));
    bool alive = link_->pump();
    for (; alive && !link_->ready(); alive = link_->pump())
      wait(deadline, fmt::format("the store at {} to answer: something listens there, but is it tsprun?", reached_));
    if (alive) {
      endure(timeout_ns);
      return;
    }
    const std::uint64_t now = posix::now_ns();
    // A server to which many strangers connect may have dropped this end as one too many.
    if (!link_->turned_away() || tries == kMostTries || now >= deadline)
      throw Error(Cause::disconnected,
                  fmt::format("the store at {} and this end refuse each other: {}", reached_, link_->why_over()));
    left_ns = deadline - now;
    ::poll(nullptr, 0, kTryAgain_ms);
  }
}

void StoreClient::endure(std::uint64_t silence_ns) {
  tcp::set_option(link_->descriptor(), IPPROTO_TCP, TCP_USER_TIMEOUT,
                  static_cast<int>(std::min<std::uint64_t>(silence_ns / 1'000'000, 1 << 30)));
}

void StoreClient::pace(std::uint64_t outage_ns) {
  pacing_.emplace(outage_ns);
  pacing_->add(link_->descriptor());
}

bool StoreClient::pump() {
  if (pacing_) pacing_->look();
  return link_->pump();
}

/// Calls the check. Throws Error(stalled), naming `what`, at the deadline.
void StoreClient::look(std::uint64_t deadline_ns, const std::string& what) const {
  if (check_) check_();
  if (posix::now_ns() >= deadline_ns) {
    throw Error(Cause::stalled, fmt::format("waited {:.1f} s for {}", static_cast<double>(timeout_ns_) * 1e-9, what));
  }
}

/// Looks, and waits for the socket for up to 50 ms.
void StoreClient::wait(std::uint64_t deadline_ns, const std::string& what) const {
  look(deadline_ns, what);
  pollfd watched[] = {{link_->descriptor(), static_cast<short>(POLLIN | (link_->wants_room() ? POLLOUT : 0)), 0},
                      {also_watched_, POLLIN, 0}};  // poll() skips -1
  ::poll(watched, 2, kSlice_ms);
}

void StoreClient::set(std::string_view key, std::span<const std::byte> value) {
  link_->send(StoreOp::set, key, value);
  link_->pump();
}

void StoreClient::subscribe(std::string_view prefix) {
  link_->send(StoreOp::subscribe, prefix, {});
  link_->pump();
}

std::vector<std::byte> StoreClient::get(const std::string& key, const std::string& what, std::uint64_t grace_ns) {
  link_->send(StoreOp::get, key, {});
  const std::uint64_t deadline = posix::now_ns() + timeout_ns_ + grace_ns;
  for (;;) {
    const bool alive = link_->pump();
    if (std::optional<std::vector<std::byte>> value = link_->take(key)) return *std::move(value);
    if (!alive)
      throw Error(link_->damaged() ? Cause::corrupt : Cause::disconnected,
                  fmt::format("the way to the job's store is cut: {}", link_->why_over()));
    wait(deadline, what);
  }
}

std::vector<std::vector<std::byte>> StoreClient::gather(const std::string& prefix, const std::vector<int>& numbers,
                                                        const std::function<std::string(int)>& lacking, const GatherCut& cut) {
  std::vector<int> place;  // by number: its place in the answer + 1; 0: it isn't wanted, or is there
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto number = static_cast<std::size_t>(numbers[i]);
    if (place.size() <= number) place.resize(number + 1);
    place[number] = static_cast<int>(i) + 1;
  }
  std::size_t left = numbers.size();
  int first = 0;  // the lowest that is missing, or below it
  std::vector<std::vector<std::byte>> values(numbers.size());
  const std::uint64_t again_ns = std::min(kAskAgain_ns, timeout_ns_ / 8);
  std::uint64_t ask_ns = 0;
  std::uint64_t deadline = 0;
  std::string waited_for;
  int lacked = -1;
  const std::uint32_t id = ++gathers_;
  link_->discard(StoreOp::gathered);
  while (left != 0) {
    const std::uint64_t now = posix::now_ns();
    while (place[static_cast<std::size_t>(first)] == 0) ++first;
    if (first != lacked) {
      lacked = first;
      waited_for = lacking(first);
      deadline = now + timeout_ns_;
    }
    if (now >= ask_ns) {
      // Asked again, the server tells what has come meanwhile, and so for whom this client waits.
      std::vector<int> wanted;
      for (const int number : numbers) {
        if (place[static_cast<std::size_t>(number)] != 0) wanted.push_back(number);
      }
      link_->send(StoreOp::gather, prefix, gather_request(cut, id, wanted));
      ask_ns = now + again_ns;
    }
    const bool alive = link_->pump();
    bool came = false;
    while (const std::optional<std::vector<std::byte>> frame = link_->take(prefix, StoreOp::gathered)) {
      came = true;
      const bool whole = each_entry(*frame, id, [&](int number, std::span<const std::byte> value) {
        if (static_cast<std::size_t>(number) >= place.size()) return;
        const int at = std::exchange(place[static_cast<std::size_t>(number)], 0);
        if (at == 0) return;
        values[static_cast<std::size_t>(at) - 1].assign(value.begin(), value.end());
        --left;
      });
      if (!whole)
        throw Error(Cause::corrupt,
                    fmt::format("the job's store at {} answers with something that is no list of values", reached_));
    }
    if (left == 0) break;
    if (!alive)
      throw Error(link_->damaged() ? Cause::corrupt : Cause::disconnected,
                  fmt::format("the way to the job's store is cut: {}", link_->why_over()));
    if (came) {
      look(deadline, waited_for);
      ask_ns = posix::now_ns() + again_ns;  // what is on its way needn't be sent again
    } else {
      wait(deadline, waited_for);
    }
  }
  return values;
}

std::vector<tcp::SocketAddress> addresses_of(const std::string& option, const std::string& text) {
  const HostPort place = parse_host_port(option, text);
  return tcp::resolve_all(place.host, place.port);
}

HostPort parse_host_port(const std::string& option, const std::string& text) {
  const std::size_t colon = text.rfind(':');
  HostPort place{};
  if (colon != std::string::npos) {
    place.host = text.substr(0, colon);
    if (place.host.size() >= 2 && place.host.front() == '[' && place.host.back() == ']')
      place.host = place.host.substr(1, place.host.size() - 2);
    place.port = number_from<decltype(place.port)>(std::string_view(text).substr(colon + 1)).value_or(0);
    if (!place.host.empty() && place.port != 0) return place;
  }
  throw Error(Cause::refused, fmt::format("{} {}: HOST:PORT is expected, such as 10.0.0.1:29500", option, text));
}

}  // namespace tsprun::detail::bootstrap
