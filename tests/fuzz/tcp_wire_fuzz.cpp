// Any frames from a peer that has proved itself: a connection takes them or breaks, and writes nothing but what it was promised.
// The input is a list of frames; where a frame's first byte says so its hashes are made right, so that what lies behind them is
// reached too.
#include "transport/tcp/connection.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace {

using namespace tsprun;
using namespace tsprun::detail;
using tcp::FrameHeader;

constexpr std::size_t kSizes[] = {0, 5, 1000, tcp::kEagerBytes + 5};
constexpr Envelope kEnvelope{.signature = 7, .sequence = 1, .tag = 3};

/// Fills in the header's fields that follow from the rest of the frame.
void make_right(FrameHeader& header, const std::uint8_t* payload, std::size_t bytes) {
  header.magic = tcp::kFrameMagic;
  header.payload_hash = XXH3_64bits(payload, bytes);
  header.header_hash = XXH3_64bits(&header, offsetof(FrameHeader, header_hash));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
  posix::UniqueFd peer(ends[1]);
  const posix::UniqueFd epoll(::epoll_create1(0));
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, ends[0], &event) != 0) std::abort();
  TrafficCounters counters;
  tcp::PacingThread pacing(1'000'000'000);
  tcp::Connection connection(0, PayloadCheck::plain(), counters, pacing);
  connection.start(tls::Channel::unproven(posix::UniqueFd(ends[0])), epoll.get(), 0);

  // Of exactly the promised sizes, so that the address sanitizer sees a byte too many.
  std::vector<std::vector<std::byte>> buffers;
  std::vector<Ticket> tickets;
  const std::vector<std::byte> outgoing(40'000);
  for (const std::size_t bytes : kSizes) {
    buffers.emplace_back(bytes);
    tickets.push_back(connection.receive(Stream::kv, kEnvelope, buffers.back()));
    connection.send(Stream::weights, kEnvelope, std::span(outgoing).first(bytes * 2));
  }
  while (size > sizeof(FrameHeader)) {
    const std::uint8_t how = data[0];
    FrameHeader header;
    std::memcpy(&header, data + 1, sizeof header - 1);
    header.header_hash = 0;
    data += sizeof header;
    size -= sizeof header;
    // Numbers that mean something are rare among random ones.
    if ((how & 2) != 0) header.ticket %= 8;
    if ((how & 4) != 0) header.bytes = kSizes[header.bytes % 4];
    if ((how & 8) != 0) {
      header.signature = kEnvelope.signature;
      header.sequence = kEnvelope.sequence;
      header.tag = kEnvelope.tag;
      header.reserved = 0;
    }
    if ((how & 16) != 0) header.kind = static_cast<std::uint8_t>(1 + header.kind % 6);
    if ((how & 32) != 0) header.stream %= kQueues;
    if ((how & 64) != 0) header.where = 0;
    const std::size_t payload = std::min<std::size_t>(size, header.bytes % 32768);
    if ((how & 1) != 0) make_right(header, data, payload);
    if (::send(peer.get(), &header, sizeof header, MSG_NOSIGNAL) < 0) break;
    if (payload != 0 && ::send(peer.get(), data, payload, MSG_NOSIGNAL) < 0) break;
    data += payload;
    size -= payload;
    connection.read();
    connection.write();
    std::byte drained[65536];
    while (::recv(peer.get(), drained, sizeof drained, MSG_DONTWAIT) > 0) {
    }
  }
  for (const Ticket ticket : tickets) connection.test_receive(Stream::kv, ticket);
  for (Ticket ticket = 1; ticket <= std::size(kSizes); ++ticket) connection.test_send(Stream::weights, ticket);
  connection.found(Stream::kv);
  return 0;
}
