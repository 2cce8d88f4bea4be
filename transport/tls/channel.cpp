// Chooses between the plain handshake and TLS, and moves bytes between the socket and the session.
#include "transport/tls/channel.h"

#include "transport/tls/session.h"

#include <algorithm>
#include <cerrno>
#include <sys/socket.h>
#include <sys/uio.h>

namespace tsprun::detail::tls {

namespace {

/// Most bytes encrypted ahead of the socket. Later frames wait behind these bytes.
constexpr std::size_t kMostAhead = 128 * 1024;

bool try_later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR || error == ENOTCONN; }

ssize_t fail_with(int error) {
  errno = error;
  return -1;
}

/// Reads what is there, so that closing the socket doesn't reset the connection before the other end has read why it is
/// refused.
void drain(int socket) {
  std::byte waste[4096];
  [[maybe_unused]] const ssize_t got = ::recv(socket, waste, sizeof waste, MSG_DONTWAIT);
}

}  // namespace

Channel::Channel() = default;
Channel::Channel(Channel&&) noexcept = default;
Channel& Channel::operator=(Channel&&) noexcept = default;
Channel::~Channel() = default;

Channel::Channel(posix::UniqueFd socket, std::optional<bootstrap::Handshake> handshake, std::unique_ptr<Session> session)
    : socket_(std::move(socket)), handshake_(std::move(handshake)), session_(std::move(session)) {}

Channel Channel::connector(posix::UniqueFd socket, const Credentials& credentials, bootstrap::ConnectionUse use, int from,
                           int to) {
  if (credentials.tls) return {std::move(socket), {}, std::make_unique<Session>(credentials, use, true, from, to)};
  return {std::move(socket), bootstrap::Handshake::connector(credentials.secret, use, from, to), nullptr};
}

Channel Channel::acceptor(posix::UniqueFd socket, const Credentials& credentials, bootstrap::ConnectionUse use, int self) {
  if (credentials.tls) return {std::move(socket), {}, std::make_unique<Session>(credentials, use, false, self, -1)};
  return {std::move(socket), bootstrap::Handshake::acceptor(credentials.secret, use, self), nullptr};
}

Channel Channel::unproven(posix::UniqueFd socket) { return {std::move(socket), {}, nullptr}; }

bool Channel::ready() const { return session_ ? session_->ready() : handshake_ && handshake_->done(); }
bool Channel::greeted() const { return session_ ? session_->greeted() : handshake_ && handshake_->greeted(); }
bool Channel::has_to_send() const { return session_ ? unsent() != 0 : handshake_ && !handshake_->to_send().empty(); }
int Channel::peer() const { return session_ ? session_->peer() : handshake_->peer(); }
int Channel::sought() const { return session_ ? session_->sought() : handshake_->sought(); }
const std::string& Channel::refusal() const { return session_ ? session_->refusal() : handshake_->refusal(); }

void Channel::reset() {
  socket_.reset();
  session_.reset();
  handshake_.reset();
}

// --- the proof ---------------------------------------------------------------------------------------------------------------

bool Channel::over(int error) {
  error_ = error;
  return false;
}

bool Channel::shake() { return session_ ? shake_tls() : shake_plain(); }

bool Channel::shake_plain() {
  bootstrap::Handshake& handshake = *handshake_;
  for (bool moved = true; moved && !handshake.done();) {
    moved = false;
    if (const auto rest = handshake.to_send(); !rest.empty()) {
      const ssize_t sent = ::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && !try_later(errno)) return over(errno);
      if (sent > 0) handshake.sent(static_cast<std::size_t>(sent));
      moved = sent > 0;
    }
    std::byte bytes[96];
    const std::size_t wanted = std::min(sizeof bytes, handshake.wanted());
    if (wanted == 0) continue;
    const ssize_t got = ::recv(socket_.get(), bytes, wanted, MSG_DONTWAIT);
    if (got == 0) return over(0);
    if (got < 0 && !try_later(errno)) return over(errno);
    if (got < 0) continue;
    handshake.received({bytes, static_cast<std::size_t>(got)});
    if (handshake.failed()) {
      const auto last = handshake.to_send();
      if (!last.empty()) ::send(socket_.get(), last.data(), last.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      drain(socket_.get());
      return false;
    }
    moved = true;
  }
  return true;
}

bool Channel::shake_tls() {
  Session& session = *session_;
  for (;;) {
    const Session::Step step = session.shake();
    const bool sent = flush() || try_later(errno);
    if (step == Session::Step::failed) {
      drain(socket_.get());
      return false;
    }
    if (!sent) return over(session.write_error);
    if (step == Session::Step::done) return true;
    const std::span<std::byte> room = session.room_for_input();
    const ssize_t got = ::recv(socket_.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (got == 0) return over(0);
    if (got < 0) return try_later(errno) || over(errno);
    session.came(static_cast<std::size_t>(got));
  }
}

// --- bytes -------------------------------------------------------------------------------------------------------------------

ssize_t Channel::read(const iovec* parts, int count, bool refill) {
  if (!session_) return ::readv(socket_.get(), parts, count);
  Session& session = *session_;
  std::size_t total = 0;
  for (int part = 0; part < count; ++part) {
    auto* base = static_cast<std::byte*>(parts[part].iov_base);
    for (std::size_t got = 0; got < parts[part].iov_len;) {
      std::size_t bytes = 0;
      const Session::Step step =
          session.damage().empty() ? session.read({base + got, parts[part].iov_len - got}, bytes) : Session::Step::failed;
      got += bytes;
      total += bytes;
      if (step == Session::Step::done) continue;
      if (step == Session::Step::failed) return total != 0 ? static_cast<ssize_t>(total) : fail_with(EBADMSG);
      if (!session.ended && refill) {
        const std::span<std::byte> room = session.room_for_input();
        const ssize_t came = ::recv(socket_.get(), room.data(), room.size(), MSG_DONTWAIT);
        if (came > 0) {
          session.came(static_cast<std::size_t>(came));
          continue;
        }
        if (came < 0 && errno == EINTR) continue;
        if (came == 0 || !try_later(errno)) {
          session.ended = true;
          session.end_error = came == 0 ? 0 : errno;
        }
      }
      if (total != 0) return static_cast<ssize_t>(total);
      if (!session.ended) return fail_with(EAGAIN);
      return session.end_error == 0 ? 0 : fail_with(session.end_error);
    }
  }
  return static_cast<ssize_t>(total);
}

ssize_t Channel::write(const iovec* parts, int count) {
  if (!session_) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = static_cast<std::size_t>(count);
    return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  if (!flush()) return -1;
  std::size_t total = 0;
  for (int part = 0; part < count && total < kMostAhead; ++part) {
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(parts[part].iov_base),
                                           std::min(parts[part].iov_len, kMostAhead - total));
    if (!session_->write(bytes)) {
      session_->write_error = EPROTO;
      return fail_with(EPROTO);
    }
    total += bytes.size();
  }
  // If the socket's output has ended, the next call returns the error; these bytes count as taken.
  flush();
  return static_cast<ssize_t>(total);
}

bool Channel::flush() {
  if (!session_) return true;
  Session& session = *session_;
  while (session.write_error == 0 && !session.output().empty()) {
    const auto rest = session.output();
    const ssize_t sent = ::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      session.sent(static_cast<std::size_t>(sent));
    } else if (errno != EINTR) {
      if (try_later(errno)) return false;
      session.write_error = errno;
    }
  }
  if (session.write_error != 0) errno = session.write_error;
  return session.write_error == 0;
}

std::size_t Channel::unsent() const { return session_ ? session_->output().size() : 0; }
bool Channel::holds_input() const { return session_ && session_->holds_input(); }
bool Channel::ended() const { return session_ && (session_->ended || !session_->damage().empty()); }

const std::string& Channel::damage() const {
  static const std::string none;
  return session_ ? session_->damage() : none;
}

}  // namespace tsprun::detail::tls
