// Frames keys and values on a channel, with limits on what one call reads and on what may be queued.
#include "transport/bootstrap/store_link.h"

#include "transport/checksum.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <sys/uio.h>

namespace tsprun::detail::bootstrap {

namespace {
constexpr std::uint32_t kStoreMagic = 0x73505354;  // "TSPs"
/// Most bytes read in one call, so that one fast client can't keep the server from the others.
constexpr std::size_t kReadAtOnce = 1 << 20;

std::uint64_t header_hash_of(const StoreHeader& header) {
  return checksum(std::as_bytes(std::span(&header, 1)).first(offsetof(StoreHeader, header_hash)));
}

std::uint64_t payload_hash_of(std::span<const std::byte> key, std::span<const std::byte> value) {
  const std::array<std::uint64_t, 2> hashes = {checksum(key), checksum(value)};
  return checksum(std::as_bytes(std::span(hashes)));
}

bool try_later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR || error == ENOTCONN; }
}  // namespace

StoreHeader header_of(StoreOp op, std::string_view key, std::span<const std::byte> value) {
  StoreHeader header{.magic = kStoreMagic,
                     .op = static_cast<std::uint16_t>(op),
                     .key_bytes = static_cast<std::uint16_t>(key.size()),
                     .value_bytes = static_cast<std::uint32_t>(value.size()),
                     .padding = 0,
                     .payload_hash = payload_hash_of(bytes_of(key), value),
                     .header_hash = 0};
  header.header_hash = header_hash_of(header);
  return header;
}

bool StoreLink::end(const std::string& why) {
  if (why_over_.empty()) why_over_ = why;
  return false;
}

bool StoreLink::refuse(const std::string& why) {
  broke_rules_ = true;
  return end(why);
}

/// Ends the link because of damage, and tries to tell the other end: with TLS an alert waits in the channel to be sent.
bool StoreLink::refuse_damage(const std::string& why) {
  damaged_ = true;
  if (channel_.damage().empty()) send(StoreOp::damaged, "", {});
  write();
  return refuse(why);
}

bool StoreLink::pump() {
  if (over() || !shake()) return false;
  if (!ready()) return true;
  // Even if nothing can be written any more, what the peer sent before it ended must still be read.
  write();
  return read() && (why_mute_.empty() || end(why_mute_));
}

bool StoreLink::shake() {
  if (ready() || channel_.shake()) return true;
  if (!channel_.refusal().empty()) return end(channel_.refusal());
  return end(channel_.error() != 0 ? std::strerror(channel_.error())
                                   : "it closed the connection before it had proved itself: do both know the same secret?");
}

void StoreLink::send(StoreOp op, std::string_view key, std::span<const std::byte> value) {
  if (over()) return;
  const StoreHeader header = header_of(op, key, value);
  const auto append = [this](std::span<const std::byte> bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); };
  append(std::as_bytes(std::span(&header, 1)));
  append(std::as_bytes(std::span(key)));
  append(value);
}

bool StoreLink::write() {
  while (why_mute_.empty() && backlog() != 0) {
    const iovec rest{out_.data() + out_sent_, out_.size() - out_sent_};
    if (rest.iov_len == 0) {
      if (channel_.flush() || try_later(errno)) return true;
      why_mute_ = std::strerror(errno);
      break;
    }
    const ssize_t sent = channel_.write(&rest, 1);
    if (sent < 0 && try_later(errno)) return true;
    if (sent < 0) why_mute_ = std::strerror(errno);
    else out_sent_ += static_cast<std::size_t>(sent);
    // Where more is always queued, what was sent must go, too: from half on, so that no more bytes are moved than were sent.
    if (2 * out_sent_ >= out_.size()) {
      out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(out_sent_));
      out_sent_ = 0;
    }
  }
  return why_mute_.empty();
}

bool StoreLink::read() {
  // Bytes that the channel holds are read even beyond the limit: the socket's readiness won't announce them.
  for (std::size_t total = 0; total < kReadAtOnce || channel_.holds_input();) {
    std::byte bytes[16384];
    const iovec room{bytes, sizeof bytes};
    const ssize_t got = channel_.read(&room, 1, total < kReadAtOnce);
    if (got == 0) return end("it closed the connection");
    if (got < 0 && !channel_.damage().empty()) return refuse_damage("what came over TLS is " + channel_.damage());
    if (got < 0) return try_later(errno) || end(std::strerror(errno));
    in_.insert(in_.end(), bytes, bytes + got);
    total += static_cast<std::size_t>(got);
    if (!parse()) return false;
  }
  return true;
}

bool StoreLink::parse() {
  std::size_t at = 0;
  while (in_.size() - at >= sizeof(StoreHeader)) {
    StoreHeader header;
    std::memcpy(&header, in_.data() + at, sizeof header);
    // Who sends has proved itself, so it sent frames.
    if (header.magic != kStoreMagic || header.header_hash != header_hash_of(header))
      return refuse_damage("what came is damaged: a frame's header has another hash");
    if (header.op < static_cast<std::uint16_t>(StoreOp::set) || header.op > static_cast<std::uint16_t>(StoreOp::gathered))
      return refuse("it sent something that is no frame of the store");
    const std::size_t most = most_value_bytes(static_cast<StoreOp>(header.op));
    if (header.key_bytes > kMostKeyBytes || header.value_bytes > most) {
      return refuse(fmt::format("it sent a key of {} and a value of {} bytes; {} and {} are allowed", header.key_bytes,
                                header.value_bytes, kMostKeyBytes, most));
    }
    const std::size_t whole = sizeof header + header.key_bytes + header.value_bytes;
    if (in_.size() - at < whole) break;
    const std::byte* key = in_.data() + at + sizeof header;
    if (header.payload_hash != payload_hash_of({key, header.key_bytes}, {key + header.key_bytes, header.value_bytes}))
      return refuse_damage("what came is damaged: a frame's key or value has another hash");
    if (static_cast<StoreOp>(header.op) == StoreOp::damaged) {
      damaged_ = true;
      return end("what the other end got is damaged");
    }
    frames_.push_back({static_cast<StoreOp>(header.op), std::string(reinterpret_cast<const char*>(key), header.key_bytes),
                       std::vector<std::byte>(key + header.key_bytes, key + header.key_bytes + header.value_bytes)});
    at += whole;
  }
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(at));
  return true;
}

bool StoreLink::next(StoreFrame& frame) {
  if (frames_.empty()) return false;
  frame = std::move(frames_.front());
  frames_.pop_front();
  return true;
}

std::optional<std::vector<std::byte>> StoreLink::take(std::string_view key, StoreOp op) {
  const auto found = std::ranges::find_if(frames_, [&](const StoreFrame& each) { return each.op == op && each.key == key; });
  if (found == frames_.end()) return std::nullopt;
  std::vector<std::byte> value = std::move(found->value);
  frames_.erase(found);
  return value;
}

}  // namespace tsprun::detail::bootstrap
