// Relays bytes both ways in a thread.
#include "tests/support/on_path.h"

#include "transport/tcp/dial.h"

#include <poll.h>
#include <sys/socket.h>

namespace tsprun::detail::test {

OnPath::OnPath(const tcp::SocketAddress& victim, Meddle outward, Meddle back)
    : listener_(std::move(tcp::listen_on({tcp::resolve("127.0.0.1", 0)}).front())),
      outward_(std::move(outward)),
      back_(std::move(back)),
      thread_([this, victim] { work(victim); }) {}

OnPath::~OnPath() {
  over_ = true;
  thread_.join();
}

void OnPath::work(const tcp::SocketAddress& victim) {
  std::vector<Way> ways;
  bool is_first = true;
  while (!over_) {
    std::vector<pollfd> watched = {{listener_.get(), POLLIN, 0}};
    for (const Way& way : ways) {
      for (const posix::UniqueFd& end : way.ends) watched.push_back({end.get(), POLLIN, 0});
    }
    ::poll(watched.data(), watched.size(), 10);
    for (std::size_t i = ways.size(); i-- > 0;) {
      const bool lives =
          (watched[1 + 2 * i].revents == 0 || pass_on(ways[i], 0)) && (watched[2 + 2 * i].revents == 0 || pass_on(ways[i], 1));
      if (!lives) ways.erase(ways.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (watched[0].revents == 0) continue;
    Way way{
        .ends = {tcp::accept(listener_.get()).socket, posix::UniqueFd(::socket(victim.family(), SOCK_STREAM | SOCK_CLOEXEC, 0))},
        .is_meddled_with = is_first};
    if (!way.ends[0] || ::connect(way.ends[1].get(), victim.get(), victim.length) != 0) continue;
    is_first = false;
    ways.push_back(std::move(way));
  }
}

/// Passes on what has come at one end. Returns false if the connection ends here.
bool OnPath::pass_on(const Way& way, int from) const {
  Bytes bytes(1 << 16);
  const ssize_t got = ::recv(way.ends[from].get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0) return true;
  if (got == 0) return false;
  bytes.resize(static_cast<std::size_t>(got));
  const Meddle& meddle = from == 0 ? outward_ : back_;
  const std::optional<Bytes> result = meddle && way.is_meddled_with ? meddle(bytes) : bytes;
  if (!result) return false;
  for (std::size_t sent = 0; sent < result->size() && !over_;) {
    const ssize_t some = ::send(way.ends[1 - from].get(), result->data() + sent, result->size() - sent, MSG_NOSIGNAL);
    if (some < 0 && errno != EAGAIN) return false;
    if (some > 0) sent += static_cast<std::size_t>(some);
  }
  return true;
}

}  // namespace tsprun::detail::test
