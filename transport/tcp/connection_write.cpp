// The writing side of a connection: queued frames, and pieces of large messages in turns, with vectored writes.
#include "transport/checksum.h"
#include "transport/tcp/connection.h"

#include <algorithm>
#include <cerrno>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

namespace tsprun::detail::tcp {

namespace {
/// Bytes of the queue that may be sent and still held: a queue that never becomes empty drops them then.
constexpr std::size_t kSentBytes = 256 * 1024;

void seal(FrameHeader& header, std::span<const std::byte> payload) {
  header.magic = kFrameMagic;
  header.payload_hash = payload.empty() ? 0 : checksum(payload);
  header.header_hash = hash_of(header);
}
}  // namespace

void Connection::queue(FrameHeader header, std::span<const std::byte> payload) {
  if (outcome_ != Outcome::pending || write_error_ != 0) return;
  if (queue_sent_ > kSentBytes) {
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(queue_sent_));
    queue_sent_ = 0;
  }
  seal(header, payload);
  const std::span<const std::byte> raw = std::as_bytes(std::span(&header, 1));
  queue_.insert(queue_.end(), raw.begin(), raw.end());
  queue_.insert(queue_.end(), payload.begin(), payload.end());
}

/// Chooses the next piece: streams take turns, the oldest granted message of a stream first.
bool Connection::pick_piece() {
  if (large_ == 0) return false;
  for (std::size_t turn = 0; turn < kQueues; ++turn) {
    const std::size_t stream = (next_stream_ + turn) % kQueues;
    TcpSend& lane = outgoing_[stream];
    for (Ticket ticket = lane.consumed + 1; ticket <= lane.last; ++ticket) {
      Sent& sent = lane.sent[ticket % kWindow];
      if (sent.small || sent.written == sent.bytes || lane.granted[ticket % lane.granted.size()] != ticket) continue;
      piece_of_ = &sent;
      piece_bytes_ = std::min<std::size_t>(kPieceBytes, sent.bytes - sent.written);
      piece_sent_ = 0;
      piece_ = {};
      piece_.kind = static_cast<std::uint8_t>(FrameKind::piece);
      piece_.stream = static_cast<std::uint8_t>(stream);
      piece_.sequence = sent.envelope.sequence;
      piece_.tag = sent.envelope.tag;
      piece_.signature = sent.envelope.signature;
      piece_.bytes = sent.bytes;
      piece_.ticket = ticket;
      piece_.where = sent.written;
      seal(piece_, {sent.data + sent.written, piece_bytes_});
      next_stream_ = (stream + 1) % kQueues;
      return true;
    }
  }
  return false;
}

bool Connection::write() {
  bool any = false;
  while (live() && write_error_ == 0) {
    if (piece_of_ == nullptr) pick_piece();
    iovec parts[3];
    std::size_t count = 0;
    const auto add = [&](const std::byte* data, std::size_t bytes) {
      if (bytes != 0) parts[count++] = {const_cast<std::byte*>(data), bytes};
    };
    const auto add_piece = [&] {
      if (piece_of_ == nullptr) return;
      const std::size_t of_header = std::min(piece_sent_, sizeof piece_);
      const std::size_t of_payload = piece_sent_ - of_header;
      add(reinterpret_cast<const std::byte*>(&piece_) + of_header, sizeof piece_ - of_header);
      add(piece_of_->data + piece_of_->written + of_payload, piece_bytes_ - of_payload);
    };
    // A piece that has begun must go on. Otherwise queued frames come first, because peers wait for them.
    if (piece_sent_ != 0) add_piece();
    add(queue_.data() + queue_sent_, queue_.size() - queue_sent_);
    if (piece_sent_ == 0) add_piece();
    if (count == 0 && channel_.unsent() == 0) break;
    const ssize_t sent = count != 0 ? channel_.write(parts, static_cast<int>(count)) : channel_.flush() ? 0 : -1;
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      wait_for_room(true);
      return any;
    }
    if (sent < 0) {
      // Frames that the peer sent before may still be unread, so the connection isn't failed here: reading finds its end.
      write_error_ = errno;
      break;
    }
    any = true;
    if (count == 0) break;
    wrote(static_cast<std::size_t>(sent));
  }
  wait_for_room(false);
  return any;
}

/// Advances the piece and the queue by the bytes that the socket took, in the order in which they were passed to it.
void Connection::wrote(std::size_t bytes) {
  const auto advance_queue = [&] {
    const std::size_t some = std::min(bytes, queue_.size() - queue_sent_);
    queue_sent_ += some;
    bytes -= some;
    if (queue_sent_ == queue_.size()) {
      queue_.clear();
      queue_sent_ = 0;
    }
  };
  if (piece_sent_ == 0) advance_queue();
  if (piece_of_ != nullptr && bytes != 0) {
    const std::size_t some = std::min(bytes, sizeof piece_ + piece_bytes_ - piece_sent_);
    piece_sent_ += some;
    bytes -= some;
    if (piece_sent_ == sizeof piece_ + piece_bytes_) {
      piece_of_->written += piece_bytes_;
      if (piece_of_->written == piece_of_->bytes) --large_;
      piece_of_ = nullptr;
      piece_sent_ = 0;
    }
  }
  if (bytes != 0) advance_queue();
}

void Connection::wait_for_room(bool wanted) {
  if (wanted == room_wanted_ || !live()) return;
  room_wanted_ = wanted;
  epoll_event event{.events = EPOLLIN | (wanted ? EPOLLOUT : 0U), .data = {.u64 = token_}};
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, channel_.descriptor(), &event);
}

bool Connection::close() {
  if (!live() || write_error_ != 0) return true;
  if (large_ == 0 && !said_bye_) {
    said_bye_ = true;
    FrameHeader bye{};
    bye.kind = static_cast<std::uint8_t>(FrameKind::bye);
    queue(bye);
  }
  write();
  if (!live() || write_error_ != 0) return true;
  if (!said_bye_ || !queue_.empty() || channel_.unsent() != 0) return false;
  int unacknowledged = 0;
  if (::ioctl(channel_.descriptor(), SIOCOUTQ, &unacknowledged) != 0) return true;
  return unacknowledged == 0;
}

}  // namespace tsprun::detail::tcp
