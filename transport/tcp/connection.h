// One TCP connection to one peer, which has already proved that it knows the job's secret (tls/channel.h), and the lanes on it:
// credits, grants, frames (wire.h).
//
// The socket is always drained. Small messages for which no receive is posted wait in buffers of their lane, bounded by the
// lane's credits; large ones wait at the sender until this end has posted their buffer, and are read straight into it. So no
// lane can block another, in whatever order the ranks issue their operations.
#pragma once

#include "transport/endpoint.h"
#include "transport/payload_check.h"
#include "transport/tcp/pacing.h"
#include "transport/tcp/wire.h"
#include "transport/tls/channel.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

struct iovec;

namespace tsprun::detail::tcp {

/// Connection that carries all lanes to one peer, in both directions. Messages, tickets and outcomes as in transport.h.
class Connection {
 public:
  /// Connects to nobody yet. `peer` is the other rank, by which `check` knows the lanes. Counts traffic in `counters`. `pacing`
  /// forgets the socket before fail() closes it. All three must outlive the connection.
  Connection(int peer, PayloadCheck& check, TrafficCounters& counters, PacingThread& pacing)
      : peer_(peer), check_(&check), counters_(&counters), pacing_(&pacing) {}

  /// Takes the channel. Precondition: its proof is complete (ready()), and its socket is in `epoll`'s set, for reading, with
  /// `token`.
  void start(tls::Channel channel, int epoll, std::uint64_t token);
  /// Returns true while the connection can be used.
  bool live() const { return channel_.open(); }
  /// Returns true if start() was ever called. A peer that had nothing to send may have left since.
  bool met() const { return epoll_ >= 0; }
  /// Returns true once the connection, or the attempt to make it, has failed.
  bool failed() const { return outcome_ != Outcome::pending; }
  /// Ends the connection: every message that isn't finished gets `outcome`, found() gets `detail`. Only the first call counts.
  void fail(Outcome outcome, const std::string& detail);

  /// Posts a message; see Transport::send(). A small payload is copied at once.
  Ticket send(Stream stream, const Envelope& envelope, std::span<const std::byte> payload);
  /// See Transport::test_send(). A large message is done when the last piece was handed to the socket.
  Outcome test_send(Stream stream, Ticket ticket) const;
  /// Posts a receive; see Transport::receive(). A large one is granted at once.
  Ticket receive(Stream stream, const Envelope& envelope, std::span<std::byte> into);
  /// See Transport::test_receive().
  Outcome test_receive(Stream stream, Ticket ticket) const;
  /// See Transport::found().
  Found found(Stream stream) const;

  /// Reads what has arrived. Returns true if anything came, or the connection ended.
  bool read();
  /// Writes what the socket takes. Returns true if it took anything.
  bool write();
  /// Sends `bye` as the last frame. Call it until it returns true: then the peer's kernel has acknowledged everything that this
  /// end ever sent, or the connection is over.
  bool close();
  /// See Endpoint::parted().
  bool parted() const { return heard_bye_ || failed(); }
  /// See Endpoint::unreceived().
  std::optional<Found> unreceived(Stream stream) const;

 private:
  /// A message that this end posted.
  struct Sent {
    Envelope envelope;
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t written = 0;
    bool small = true;
    bool lost = false;  ///< posted after the connection had failed
  };
  /// The sender's side of a lane.
  struct TcpSend {
    Ticket last = 0;
    Ticket last_alive = 0;  ///< newest message posted before the connection failed
    Ticket consumed = 0;
    std::uint64_t small_bytes = 0;  ///< bytes of small messages that the peer hasn't finished
    std::array<Sent, kWindow> sent{};
    std::array<Ticket, 4 * kWindow> granted{};
  };
  /// A receive that this end posted.
  struct Expected {
    Envelope envelope;
    std::byte* into = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t got = 0;
    bool granted = false;
  };
  /// Header of a message or announcement that has arrived, and the payload of a small message that came before its receive.
  struct Arrived {
    FrameHeader header{};
    std::vector<std::byte> payload;
  };
  /// The receiver's side of a lane.
  struct TcpReceive {
    Ticket posted = 0;   ///< newest receive
    Ticket arrived = 0;  ///< newest message or announcement
    Ticket prefix = 0;   ///< all messages up to this one are finished
    Ticket told = 0;
    std::uint64_t untold_bytes = 0;
    std::uint64_t finished = 0;  ///< bit t % 64: message t > prefix is finished
    Outcome outcome = Outcome::pending;
    Found found;
    std::array<Expected, kWindow> expected{};
    std::array<Arrived, kWindow> waiting{};
  };

  /// Returns the outcome of a message that isn't finished: behind a `bye` nothing comes, and nothing is asked for.
  Outcome unfinished() const { return outcome_ == Outcome::pending && heard_bye_ ? Outcome::disconnected : outcome_; }
  TcpSend& out(Stream stream) { return outgoing_[static_cast<std::size_t>(stream)]; }
  TcpReceive& in(Stream stream) { return incoming_[static_cast<std::size_t>(stream)]; }

  // connection_read.cpp
  bool parse();
  bool handle(const FrameHeader& header, std::span<std::byte> payload);
  bool accept_message(const FrameHeader& header, std::span<std::byte> payload);
  bool accept_grant(const FrameHeader& header);
  bool accept_credit(const FrameHeader& header);
  bool begin_piece(const FrameHeader& header);
  bool end_piece();
  bool is_whole(const FrameHeader& header, std::span<std::byte> payload);
  void match(Stream stream, Ticket ticket, std::span<std::byte> payload);
  bool compare(TcpReceive& lane, const Expected& expected, const FrameHeader& header);
  void finish(Stream stream, Ticket ticket);
  void tell(FrameKind kind, Stream stream, Ticket ticket);
  bool damaged(const std::string& what);

  // connection_write.cpp
  void queue(FrameHeader header, std::span<const std::byte> payload = {});
  bool pick_piece();
  void wait_for_room(bool wanted);
  void wrote(std::size_t bytes);

  int peer_;
  PayloadCheck* check_;
  TrafficCounters* counters_;
  PacingThread* pacing_;
  tls::Channel channel_;
  int epoll_ = -1;
  std::uint64_t token_ = 0;
  bool room_wanted_ = false;
  Outcome outcome_ = Outcome::pending;  ///< pending while usable; else of every message that isn't finished
  std::string detail_;
  std::array<TcpSend, kQueues> outgoing_{};
  std::array<TcpReceive, kQueues> incoming_{};

  // Writing: whole frames wait in queue_; at most one piece is being written.
  std::vector<std::byte> queue_;
  std::size_t queue_sent_ = 0;
  FrameHeader piece_{};
  Sent* piece_of_ = nullptr;
  std::size_t piece_bytes_ = 0;
  std::size_t piece_sent_ = 0;  ///< header included
  std::size_t next_stream_ = 0;
  std::size_t large_ = 0;  ///< large messages that aren't written completely
  bool said_bye_ = false;
  int write_error_ = 0;  ///< errno of the write that failed; 0: none has

  // Reading: headers and small payloads go through buffer_, pieces straight to their place (the sink).
  static constexpr std::size_t kBuffer = 32768;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kBuffer);
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  FrameHeader sink_header_{};
  std::byte* sink_ = nullptr;  ///< null with sink_left_ != 0: the bytes are discarded
  std::size_t sink_left_ = 0;
  std::size_t sink_bytes_ = 0;
  bool heard_bye_ = false;
};

}  // namespace tsprun::detail::tcp
