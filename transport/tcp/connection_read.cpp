// The reading side of a connection: takes frames out of a stream of bytes and checks every number in them before use.
#include "transport/tcp/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/uio.h>

namespace tsprun::detail::tcp {

namespace {
/// Most bytes read in one call, so that one fast peer can't keep this rank from other work.
constexpr std::size_t kReadAtOnce = 4 << 20;
/// Most bytes read after a piece in the same call. If they belong to the next piece, they are copied once more.
constexpr std::size_t kReadBehindPiece = 1024;
}  // namespace

bool Connection::damaged(const std::string& what) {
  fail(Outcome::corrupt, what);
  return false;
}

bool Connection::read() {
  bool any = false;
  std::size_t budget = kReadAtOnce;
  std::byte waste[4096];
  // Bytes that the channel holds are read even beyond the budget: the socket's readiness won't announce them.
  while (live() && (budget != 0 || channel_.holds_input())) {
    iovec parts[2];
    int count = 0;
    const bool wasting = sink_left_ != 0 && sink_ == nullptr;
    if (wasting) parts[count++] = {waste, std::min(sizeof waste, sink_left_)};
    else if (sink_left_ != 0) parts[count++] = {sink_, sink_left_};
    const std::size_t behind = buffer_.size() - end_;
    if (!wasting) parts[count++] = {buffer_.data() + end_, sink_left_ != 0 ? std::min(behind, kReadBehindPiece) : behind};
    const std::size_t room = parts[0].iov_len + (count == 2 ? parts[1].iov_len : 0);
    const ssize_t got = channel_.read(parts, count, budget != 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got < 0 && !channel_.damage().empty()) {
      damaged("what came over TLS is " + channel_.damage());
      return true;
    }
    if (got <= 0) {
      const int error = got < 0 ? errno : write_error_ != EPIPE ? write_error_ : 0;
      fail(Outcome::disconnected, heard_bye_   ? "the peer ended in good order"
                                  : error != 0 ? std::strerror(error)
                                               : "the peer closed the connection without a word");
      return any;
    }
    any = true;
    auto bytes = static_cast<std::size_t>(got);
    budget -= std::min(budget, bytes);
    const bool more = bytes == room;
    const std::size_t of_sink = std::min(bytes, sink_left_);
    if (sink_ != nullptr) sink_ += of_sink;
    sink_left_ -= of_sink;
    end_ += bytes - of_sink;
    if (of_sink != 0 && sink_left_ == 0 && !end_piece()) return true;
    if (!parse()) return true;
    if (!more && !channel_.ended()) break;
  }
  return any;
}

/// Handles all complete frames in the buffer. Returns false if the connection is broken.
bool Connection::parse() {
  while (end_ - begin_ >= sizeof(FrameHeader)) {
    FrameHeader header;
    std::memcpy(&header, buffer_.data() + begin_, sizeof header);
    if (header.magic != kFrameMagic || header.header_hash != hash_of(header)) {
      return damaged("a frame header is damaged: its hash is wrong");
    }
    if (header.stream >= kQueues) return damaged(fmt::format("a frame names stream {}", header.stream));
    std::size_t payload = 0;
    if (header.kind == static_cast<std::uint8_t>(FrameKind::message)) {
      if (header.bytes > kEagerBytes) return damaged(fmt::format("a small message claims {} bytes", header.bytes));
      payload = header.bytes;
    }
    if (end_ - begin_ < sizeof header + payload) break;
    const std::span<std::byte> bytes(buffer_.data() + begin_ + sizeof header, payload);
    begin_ += sizeof header + payload;
    if (!handle(header, bytes)) return false;
    if (sink_left_ == 0) continue;
    // The first bytes of the piece may be in the buffer already.
    const std::size_t some = std::min(sink_left_, end_ - begin_);
    if (sink_ != nullptr && some != 0) {
      std::memcpy(sink_, buffer_.data() + begin_, some);
      sink_ += some;
    }
    begin_ += some;
    sink_left_ -= some;
    if (sink_left_ != 0) break;
    if (!end_piece()) return false;
  }
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ != 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  return true;
}

/// Returns true if a payload, of a small message or a piece, has the hash that its header gives.
bool Connection::is_whole(const FrameHeader& header, std::span<std::byte> payload) {
  return check_->is_whole({peer_, static_cast<Stream>(header.stream)}, header.ticket, header.where, payload, header.payload_hash);
}

bool Connection::handle(const FrameHeader& header, std::span<std::byte> payload) {
  switch (static_cast<FrameKind>(header.kind)) {
    case FrameKind::message:
    case FrameKind::announce: return accept_message(header, payload);
    case FrameKind::grant: return accept_grant(header);
    case FrameKind::piece: return begin_piece(header);
    case FrameKind::credit: return accept_credit(header);
    case FrameKind::bye: heard_bye_ = true; return true;
  }
  return damaged(fmt::format("a frame is of kind {}, which doesn't exist", header.kind));
}

bool Connection::accept_message(const FrameHeader& header, std::span<std::byte> payload) {
  const auto stream = static_cast<Stream>(header.stream);
  TcpReceive& lane = in(stream);
  if (header.ticket != lane.arrived + 1) {
    return damaged(fmt::format("message {} came on stream {}, {} was due", header.ticket, name(stream), lane.arrived + 1));
  }
  if (header.ticket > lane.prefix + kWindow) return damaged("the peer sent more messages than it had credit for");
  lane.arrived = header.ticket;
  Arrived& waiting = lane.waiting[header.ticket % kWindow];
  waiting.header = header;
  if (header.ticket <= lane.posted) {
    match(stream, header.ticket, payload);
  } else {
    waiting.payload.assign(payload.begin(), payload.end());
  }
  return live();
}

bool Connection::accept_grant(const FrameHeader& header) {
  TcpSend& lane = out(static_cast<Stream>(header.stream));
  if (header.ticket <= lane.consumed || header.ticket > lane.consumed + lane.granted.size()) {
    return damaged(fmt::format("a grant for message {}, which is none of {} to {}", header.ticket, lane.consumed + 1,
                               lane.consumed + lane.granted.size()));
  }
  lane.granted[header.ticket % lane.granted.size()] = header.ticket;
  write();
  return true;
}

bool Connection::accept_credit(const FrameHeader& header) {
  TcpSend& lane = out(static_cast<Stream>(header.stream));
  if (header.ticket < lane.consumed || header.ticket > lane.last) {
    return damaged(fmt::format("messages up to {} are said to be taken, {} were sent", header.ticket, lane.last));
  }
  for (; lane.consumed < header.ticket; ++lane.consumed) {
    const Sent& sent = lane.sent[(lane.consumed + 1) % kWindow];
    if (sent.written != sent.bytes) return damaged("a message is said to be taken that wasn't sent yet");
    if (sent.small) lane.small_bytes -= sent.bytes;
  }
  return true;
}

bool Connection::begin_piece(const FrameHeader& header) {
  const auto stream = static_cast<Stream>(header.stream);
  TcpReceive& lane = in(stream);
  if (header.ticket <= lane.prefix || header.ticket > lane.arrived || header.ticket > lane.posted) {
    return damaged(fmt::format("a piece of message {} on stream {}, which nobody asked for", header.ticket, name(stream)));
  }
  Expected& expected = lane.expected[header.ticket % kWindow];
  const FrameHeader& announced = lane.waiting[header.ticket % kWindow].header;
  if (header.bytes != announced.bytes || header.bytes <= kEagerBytes || !expected.granted || header.where >= header.bytes) {
    return damaged(fmt::format("a piece at {} of message {} of {} bytes can't be", header.where, header.ticket, header.bytes));
  }
  sink_bytes_ = std::min<std::size_t>(kPieceBytes, header.bytes - header.where);
  sink_left_ = sink_bytes_;
  sink_ = nullptr;
  sink_header_ = header;
  // A message that isn't the expected one may have been granted before its announcement came: its bytes are discarded.
  if (!compare(lane, expected, header)) return true;
  if (header.where != expected.got) {
    return damaged(fmt::format("a piece at {} of message {}, {} was due", header.where, header.ticket, expected.got));
  }
  sink_ = expected.into + header.where;
  return true;
}

/// Checks the hash of a piece that has arrived completely, and finishes its message if it was the last.
bool Connection::end_piece() {
  if (sink_ == nullptr) return true;
  std::byte* start = sink_ - sink_bytes_;
  sink_ = nullptr;
  const auto stream = static_cast<Stream>(sink_header_.stream);
  if (!is_whole(sink_header_, {start, sink_bytes_})) {
    return damaged(fmt::format("{} bytes at {} of message {} on stream {} are damaged: their hash is wrong", sink_bytes_,
                               sink_header_.where, sink_header_.ticket, name(stream)));
  }
  Expected& expected = in(stream).expected[sink_header_.ticket % kWindow];
  expected.got += sink_bytes_;
  if (expected.got == expected.bytes) finish(stream, sink_header_.ticket);
  return true;
}

}  // namespace tsprun::detail::tcp
