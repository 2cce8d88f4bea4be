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
  posix::UniqueFd ends[2];
  while (!ends[0] && !over_) {
    pollfd door{listener_.get(), POLLIN, 0};
    if (::poll(&door, 1, 10) > 0) ends[0] = tcp::accept(listener_.get()).socket;
  }
  if (over_) return;
  ends[1] = posix::UniqueFd(::socket(victim.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(ends[1].get(), victim.get(), victim.length) != 0) return;
  while (!over_) {
    pollfd watched[] = {{ends[0].get(), POLLIN, 0}, {ends[1].get(), POLLIN, 0}};
    ::poll(watched, 2, 10);
    for (int from : {0, 1}) {
      if (watched[from].revents == 0) continue;
      Bytes bytes(1 << 16);
      const ssize_t got = ::recv(ends[from].get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (got < 0) continue;
      if (got == 0) return;
      bytes.resize(static_cast<std::size_t>(got));
      const Meddle& meddle = from == 0 ? outward_ : back_;
      const std::optional<Bytes> result = meddle ? meddle(bytes) : bytes;
      if (!result) return;
      for (std::size_t sent = 0; sent < result->size() && !over_;) {
        const ssize_t some = ::send(ends[1 - from].get(), result->data() + sent, result->size() - sent, MSG_NOSIGNAL);
        if (some < 0 && errno != EAGAIN) return;
        if (some > 0) sent += static_cast<std::size_t>(some);
      }
    }
  }
}

}  // namespace tsprun::detail::test
