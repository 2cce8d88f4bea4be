// Any bytes at the store's door, with TLS and without, and from one who has proved itself: frames within the limits, or the end
// of the link with a cause.
#include "transport/bootstrap/store_link.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <span>
#include <string>
#include <sys/socket.h>
#include <vector>

namespace {

using namespace tsprun;
using namespace tsprun::detail;
using namespace tsprun::detail::bootstrap;

const Secret kSecret = secret_from_text("of this target");

/// Moves the client's part of the handshake by hand until both ends trust each other.
void prove(StoreLink& server, int socket) {
  Handshake client = Handshake::connector(kSecret, ConnectionUse::store, 1, 0);
  while (!client.done()) {
    while (!client.to_send().empty()) {
      const ssize_t sent = ::send(socket, client.to_send().data(), client.to_send().size(), 0);
      if (sent <= 0) std::abort();
      client.sent(static_cast<std::size_t>(sent));
    }
    if (!server.pump()) std::abort();
    std::byte bytes[96];
    const ssize_t got = ::recv(socket, bytes, std::min(sizeof bytes, client.wanted()), MSG_DONTWAIT);
    if (got > 0) client.received({bytes, static_cast<std::size_t>(got)});
  }
  if (!server.ready()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
  const posix::UniqueFd peer(ends[1]);
  const bool stranger = (data[0] & 1) != 0;
  const bool tls = stranger && (data[0] & 2) != 0;
  StoreLink server(tls::Channel::acceptor(posix::UniqueFd(ends[0]), {kSecret, tls}, ConnectionUse::store, 0));
  const std::size_t piece = 1 + data[0] / 2;
  const bool sealed = !stranger && (data[0] & 2) != 0;
  if (!stranger) prove(server, peer.get());
  ++data;
  --size;
  // A frame whose hashes are right, before bytes that are no frames.
  if (sealed && size >= 3) {
    const std::string key(data[1], 'k');
    const std::vector<std::byte> value(data[2]);
    const StoreHeader header = header_of(static_cast<StoreOp>(data[0]), key, value);
    std::vector<std::byte> frame;
    for (const std::span<const std::byte> part :
         {std::as_bytes(std::span(&header, 1)), bytes_of(key), std::span<const std::byte>(value)})
      frame.insert(frame.end(), part.begin(), part.end());
    if (::send(peer.get(), frame.data(), frame.size(), MSG_NOSIGNAL) < 0) std::abort();
    server.pump();
  }
  while (size > 0 && !server.over()) {
    const std::size_t some = std::min(piece, size);
    if (::send(peer.get(), data, some, MSG_NOSIGNAL) != static_cast<ssize_t>(some)) break;
    data += some;
    size -= some;
    server.pump();
    StoreFrame frame;
    while (server.next(frame)) {
      // Nobody who doesn't know the secret is heard.
      if (stranger || frame.key.size() > kMostKeyBytes || frame.value.size() > most_value_bytes(frame.op)) std::abort();
    }
  }
  if (stranger && server.ready()) std::abort();
  return 0;
}
