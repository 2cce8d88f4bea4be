// One tcp connection to one peer, which has proved itself already (tls/channel.h), and the lanes on it: credits, grants, frames.
//
// The socket is always drained: small messages for which no receive is posted wait in the lane's own buffers, which the lane's
// credits bound; large ones wait at the sender until this end has posted their buffer, and are read straight into it. So no lane
// can block another, whatever order the ranks issue their operations in.
#pragma once

#include "transport/tcp/wire.h"
#include "transport/tls/channel.h"
#include "transport/transport.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

struct iovec;

namespace tsprun::tcp {

class Connection {
 public:
  /// `counters` is the transport's; it must outlive the connection.
  explicit Connection(TrafficCounters& counters) : counters_(&counters) {}

  /// Takes the channel, which is ready and in `epoll`'s set with `token`, readable.
  void start(tls::Channel channel, int epoll, std::uint64_t token);
  bool live() const { return channel_.open(); }
  /// It is live, or was: a peer with nothing to say may be gone already.
  bool met() const { return epoll_ >= 0; }
  /// It was live, or was tried, and is over.
  bool failed() const { return outcome_ != Outcome::pending; }
  /// The way is cut, or was never there: what is still missing is lost.
  void fail(Outcome outcome, const std::string& detail);

  Ticket send(Stream stream, const Envelope& envelope, std::span<const std::byte> payload, bool is_put, std::uint64_t where);
  Outcome test_send(Stream stream, Ticket ticket) const;
  Ticket receive(Stream stream, const Envelope& envelope, std::span<std::byte> into, bool is_put);
  Outcome test_receive(Stream stream, Ticket ticket) const;
  Found found(Stream stream) const;
  /// A bit of the message that the stream's next receive expects is flipped before its hash is checked.
  void damage_next(Stream stream);

  /// Reads what is there; true if anything came.
  bool read();
  /// Writes what can be written; true if anything went.
  bool write();
  /// Says bye once, as the last frame. True when everything this end ever sent lies in the peer's kernel.
  bool close();

 private:
  struct Sent {
    Envelope envelope;
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t written = 0;
    std::uint64_t where = 0;
    std::uint16_t flags = 0;
    bool small = true;
    bool lost = false;  ///< sent when the way was cut already
  };
  struct Outgoing {
    Ticket last = 0;
    Ticket last_alive = 0;  ///< newest that was sent before the way was cut
    Ticket consumed = 0;
    std::uint64_t small_bytes = 0;  ///< of small messages that aren't consumed
    std::array<Sent, kWindow> sent{};
    std::array<Ticket, 4 * kWindow> granted{};
  };
  struct Expected {
    Envelope envelope;
    std::byte* into = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t got = 0;
    bool is_put = false;
    bool granted = false;
  };
  struct Arrived {
    FrameHeader header{};
    std::vector<std::byte> payload;
  };
  struct Incoming {
    Ticket posted = 0;   ///< newest receive
    Ticket arrived = 0;  ///< newest message or announcement
    Ticket prefix = 0;   ///< all up to this one are finished
    Ticket told = 0;
    Ticket to_damage = 0;  ///< by damage_next()
    std::uint64_t untold_bytes = 0;
    std::uint64_t finished = 0;  ///< bit t % 64: message t > prefix is finished
    Outcome outcome = Outcome::pending;
    Found found;
    std::array<Expected, kWindow> expected{};
    std::array<Arrived, kWindow> waiting{};
  };

  Outgoing& out(Stream stream) { return outgoing_[static_cast<std::size_t>(stream)]; }
  Incoming& in(Stream stream) { return incoming_[static_cast<std::size_t>(stream)]; }

  // connection_read.cpp
  bool parse();
  bool handle(const FrameHeader& header, std::span<const std::byte> payload);
  bool accept_message(const FrameHeader& header, std::span<const std::byte> payload);
  bool accept_grant(const FrameHeader& header);
  bool accept_credit(const FrameHeader& header);
  bool begin_piece(const FrameHeader& header);
  bool end_piece();
  bool is_whole(Stream stream, Ticket ticket, std::span<std::byte> payload, std::uint64_t hash);
  void match(Stream stream, Ticket ticket, std::span<const std::byte> payload);
  bool compare(Incoming& lane, const Expected& expected, const FrameHeader& header);
  void finish(Stream stream, Ticket ticket);
  bool damaged(const std::string& what);

  // connection_write.cpp
  void queue(FrameHeader header, std::span<const std::byte> payload = {});
  bool pick_piece();
  void wait_for_room(bool wanted);
  void wrote(std::size_t bytes);

  TrafficCounters* counters_;
  tls::Channel channel_;
  int epoll_ = -1;
  std::uint64_t token_ = 0;
  bool room_wanted_ = false;
  Outcome outcome_ = Outcome::pending;  ///< of everything that is missing once the way is cut
  std::string detail_;
  std::array<Outgoing, kStreams> outgoing_{};
  std::array<Incoming, kStreams> incoming_{};

  // Writing: whole frames wait in queue_; at most one piece is on its way.
  std::vector<std::byte> queue_;
  std::size_t queue_sent_ = 0;
  FrameHeader piece_{};
  Sent* piece_of_ = nullptr;
  std::size_t piece_bytes_ = 0;
  std::size_t piece_sent_ = 0;  ///< header included
  std::size_t next_stream_ = 0;
  std::size_t large_ = 0;  ///< large messages not written yet
  bool said_bye_ = false;
  int write_error_ = 0;  ///< 0: the way can be written to

  // Reading: headers and small payloads through the buffer, pieces straight to their place.
  static constexpr std::size_t kBuffer = 32768;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kBuffer);
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  FrameHeader sink_header_{};
  std::byte* sink_ = nullptr;  ///< null with sink_left_: the bytes are thrown away
  std::size_t sink_left_ = 0;
  std::size_t sink_bytes_ = 0;
  bool heard_bye_ = false;
};

}  // namespace tsprun::tcp
