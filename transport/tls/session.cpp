// Configures libssl for an external pre-shared key and feeds it from memory buffers.
#include "transport/tls/session.h"

#include "transport/cause.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/sslerr.h>

#include <algorithm>
#include <array>
#include <cstring>
#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace tsprun::detail::tls {

namespace {

constexpr std::uint64_t kTlsMagic = 0x31'736c'7468'7374;  // "tshtls1"
constexpr std::uint32_t kConnector = 1;
constexpr std::byte kWelcome{0x77};
constexpr std::string_view kKeyLabel = "tsprun tls 1.3 external psk";
constexpr std::size_t kRecordBytes = 16384;
/// Sizes of buffers: during the handshake, whose messages are smaller; of the store, which sends small messages; of lanes,
/// which send pieces of 256 KiB.
constexpr std::size_t kSmallBuffer = 4096;
constexpr std::size_t kStoreBuffer = 16384;
constexpr std::size_t kLanesBuffer = 128 * 1024;
/// First byte of a TLS record that carries a handshake message, or an alert.
constexpr std::byte kHandshakeRecord{22};
constexpr std::byte kAlertRecord{21};
/// A fatal TLS alert, "protocol_version", which an end without TLS can tell from a greeting.
constexpr std::array<std::byte, 7> kNotWithoutTls = {std::byte{21}, std::byte{3}, std::byte{3}, std::byte{0},
                                                     std::byte{2},  std::byte{2}, std::byte{70}};

bool has_fast_aes() {
#if defined(__x86_64__) || defined(__i386__)
  return __builtin_cpu_supports("aes") != 0;
#elif defined(__aarch64__)
  return (::getauxval(AT_HWCAP) & HWCAP_AES) != 0;
#else
  return false;
#endif
}

Error no_libssl(const char* what) {
  const char* reason = ::ERR_reason_error_string(::ERR_peek_last_error());
  return Error(Cause::refused, fmt::format("libssl: {}: {}", what, reason != nullptr ? reason : "no reason given"));
}

/// Returns the text of the oldest error in libssl's queue, and clears the queue.
std::string reason_of_failure() {
  const char* reason = ::ERR_reason_error_string(::ERR_peek_error());
  std::string text = reason != nullptr ? reason : "no reason given";
  ::ERR_clear_error();
  return text;
}

Session* session_of(const SSL* ssl) { return static_cast<Session*>(SSL_get_app_data(ssl)); }

}  // namespace

// --- libssl's side -----------------------------------------------------------------------------------------------------------

int Session::take(BIO* bio, char* data, int room) {
  auto* session = static_cast<Session*>(::BIO_get_data(bio));
  ::BIO_clear_retry_flags(bio);
  const std::size_t some = std::min(static_cast<std::size_t>(room), session->end_ - session->begin_);
  if (some == 0) {
    BIO_set_retry_read(bio);
    return -1;
  }
  std::memcpy(data, session->in_.data() + session->begin_, some);
  session->begin_ += some;
  return static_cast<int>(some);
}

int Session::give(BIO* bio, const char* data, int bytes) {
  auto* session = static_cast<Session*>(::BIO_get_data(bio));
  const auto* from = reinterpret_cast<const std::byte*>(data);
  session->out_.insert(session->out_.end(), from, from + bytes);
  return bytes;
}

long Session::control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO_METHOD* Session::method() {
  static BIO_METHOD* const made = [] {
    BIO_METHOD* fresh = ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "buffers of a session");
    if (fresh == nullptr || ::BIO_meth_set_read(fresh, take) != 1 || ::BIO_meth_set_write(fresh, give) != 1 ||
        ::BIO_meth_set_ctrl(fresh, control) != 1)
      throw no_libssl("BIO_meth_new");
    return fresh;
  }();
  return made;
}

SSL_CTX* Session::context() {
  static SSL_CTX* const made = [] {
    SSL_CTX* fresh = ::SSL_CTX_new(::TLS_method());
    const char* ciphers = has_fast_aes() ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                                         : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
    if (fresh == nullptr || SSL_CTX_set_min_proto_version(fresh, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(fresh, TLS1_3_VERSION) != 1 || ::SSL_CTX_set_ciphersuites(fresh, ciphers) != 1 ||
        SSL_CTX_set1_groups_list(fresh, const_cast<char*>("X25519:P-256")) != 1 || ::SSL_CTX_set_num_tickets(fresh, 0) != 1)
      throw no_libssl("a context for TLS 1.3");
    ::SSL_CTX_set_options(fresh, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_session_cache_mode(fresh, SSL_SESS_CACHE_OFF);
    ::SSL_CTX_set_psk_use_session_callback(fresh, offer);
    ::SSL_CTX_set_psk_find_session_callback(fresh, find);
    return fresh;
  }();
  return made;
}

/// Returns the pre-shared key of the connection that begins with this greeting. Null if libssl fails, or memory is short: it is
/// called by libssl, through which no exception can pass.
SSL_SESSION* Session::key_of(const bootstrap::Greeting& greeting) try {
  static constexpr std::array<unsigned char, 2> kAes128GcmSha256 = {0x13, 0x01};  // with ChaCha20 the hash is the same
  const bootstrap::Secret key = bootstrap::derive(secret_, kKeyLabel, greeting.nonce, std::as_bytes(std::span(&greeting, 1)));
  SSL_SESSION* made = ::SSL_SESSION_new();
  const SSL_CIPHER* cipher = ::SSL_CIPHER_find(ssl_.get(), kAes128GcmSha256.data());
  if (made == nullptr || cipher == nullptr || ::SSL_SESSION_set_cipher(made, cipher) != 1 ||
      ::SSL_SESSION_set_protocol_version(made, TLS1_3_VERSION) != 1 ||
      ::SSL_SESSION_set1_master_key(made, reinterpret_cast<const unsigned char*>(key.bytes().data()),
                                    bootstrap::Secret::kBytes) != 1) {
    ::SSL_SESSION_free(made);
    made = nullptr;
  }
  return made;
} catch (const std::exception&) {
  return nullptr;
}

/// Gives libssl the key that a connector offers, and the key's identity.
int Session::offer(SSL* ssl, const EVP_MD*, const unsigned char** id, std::size_t* id_bytes, SSL_SESSION** session) {
  Session& self = *session_of(ssl);
  *session = self.key_of(self.mine_);
  *id = reinterpret_cast<const unsigned char*>(&self.mine_);
  *id_bytes = sizeof self.mine_;
  return *session != nullptr ? 1 : 0;
}

/// Gives libssl the key that belongs to the identity that an acceptor received. libssl then checks the binder, which can only
/// be computed with the key.
int Session::find(SSL* ssl, const unsigned char* id, std::size_t id_bytes, SSL_SESSION** session) {
  Session& self = *session_of(ssl);
  *session = nullptr;
  bootstrap::Greeting theirs{};
  if (id_bytes == sizeof theirs) std::memcpy(&theirs, id, sizeof theirs);
  if (theirs.magic != kTlsMagic) {
    self.refusal_ = "it doesn't speak tsprun's protocol";
  } else if (theirs.use != self.mine_.use || theirs.role != kConnector) {
    self.refusal_ = "it came for something else";
  } else if (theirs.to != self.mine_.from) {
    self.refusal_ = "it sought somebody else";
  } else {
    self.theirs_ = theirs;
    self.greeted_ = true;
    *session = self.key_of(theirs);
  }
  return *session != nullptr ? 1 : 0;
}

// --- a session ---------------------------------------------------------------------------------------------------------------

Session::Session(const Credentials& credentials, bootstrap::ConnectionUse use, bool connector, int from, int to)
    : secret_(credentials.secret),
      connector_(connector),
      ssl_(::SSL_new(context()), ::SSL_free),
      in_(kSmallBuffer),
      records_of_key_(credentials.records_of_key) {
  mine_.magic = kTlsMagic;
  mine_.use = static_cast<std::uint32_t>(use);
  mine_.role = connector ? kConnector : 2;
  mine_.from = from;
  mine_.to = to;
  bootstrap::fill_random(mine_.nonce);
  BIO* bio = ssl_ != nullptr ? ::BIO_new(method()) : nullptr;
  if (bio == nullptr) throw no_libssl("SSL_new");
  ::BIO_set_data(bio, this);
  ::BIO_set_init(bio, 1);
  ::SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_app_data(ssl_.get(), this);
  // The store may have a thousand clients that seldom send anything.
  if (use == bootstrap::ConnectionUse::store) SSL_set_mode(ssl_.get(), SSL_MODE_RELEASE_BUFFERS);
  if (connector) {
    // No certificate is trusted, so an acceptor that doesn't take the key can't offer a certificate instead.
    ::SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, nullptr);
    ::SSL_set_connect_state(ssl_.get());
  } else {
    ::SSL_set_accept_state(ssl_.get());
  }
}

std::span<std::byte> Session::room_for_input() {
  begin_ = end_ = 0;
  return in_;
}

void Session::came(std::size_t bytes) { end_ = begin_ + bytes; }

void Session::sent(std::size_t bytes) {
  out_sent_ += bytes;
  if (out_sent_ != out_.size()) return;
  out_.clear();
  out_sent_ = 0;
  ready_ = done_;
}

/// Returns true if the first byte that came is one of TLS, and not of a greeting of handshake.h; otherwise sets the refusal.
bool Session::hear_first_bytes() {
  if (first_bytes_heard_ || !has_input()) return true;
  first_bytes_heard_ = true;
  const std::byte first = in_[begin_];
  if (connector_) greeted_ = true;
  if (first == kHandshakeRecord || (connector_ && first == kAlertRecord)) return true;
  if (first == std::byte{0x74}) {
    refusal_ = std::string(bootstrap::kWithoutTls);
    if (!connector_) out_.insert(out_.end(), kNotWithoutTls.begin(), kNotWithoutTls.end());
  } else {
    refusal_ = "it doesn't speak tsprun's protocol";
  }
  return false;
}

Session::Step Session::fail() {
  const auto code = ::ERR_GET_REASON(::ERR_peek_error());
  const std::string reason = reason_of_failure();
  if (!refusal_.empty()) return Step::failed;
  // Alerts of the other end are numbered from SSL_AD_REASON_OFFSET (1000) on.
  if (code == SSL_R_BINDER_DOES_NOT_VERIFY) refusal_ = "it doesn't know the job's secret";
  else if (connector_ && code > SSL_AD_REASON_OFFSET)
    refusal_ = fmt::format("it refused what this end knows of the job's secret ({})", reason);
  else refusal_ = fmt::format("it doesn't know the job's secret, or what it says was changed on the way ({})", reason);
  return Step::failed;
}

Session::Step Session::shake() {
  if (!refusal_.empty() || !hear_first_bytes()) return Step::failed;
  if (!agreed_) {
    ::ERR_clear_error();
    const int result = ::SSL_do_handshake(ssl_.get());
    if (result != 1) {
      if (::SSL_get_error(ssl_.get(), result) == SSL_ERROR_WANT_READ) return Step::wants_input;
      return fail();
    }
    // A handshake that didn't use the key proves nothing.
    if (::SSL_session_reused(ssl_.get()) != 1) {
      refusal_ = "it doesn't know the job's secret";
      return Step::failed;
    }
    agreed_ = true;
    secret_ = {};
    if (!connector_ && !write(std::span(&kWelcome, 1))) return fail();
  }
  if (connector_ && !done_) {
    std::byte word{};
    std::size_t bytes = 0;
    const Step step = read(std::span(&word, 1), bytes);
    if (step == Step::failed) return fail();
    if (step == Step::wants_input) return step;
    if (word != kWelcome) {
      refusal_ = "it doesn't speak tsprun's protocol";
      return Step::failed;
    }
  }
  if (!done_) {
    done_ = true;
    ready_ = output().empty();
    const bool store = mine_.use == static_cast<std::uint32_t>(bootstrap::ConnectionUse::store);
    // Bytes that came after the handshake stay in the buffer.
    in_.resize(store ? kStoreBuffer : kLanesBuffer);
    out_.reserve(store ? kStoreBuffer : kLanesBuffer + kRecordBytes);
  }
  return Step::done;
}

Session::Step Session::read(std::span<std::byte> room, std::size_t& bytes) {
  ::ERR_clear_error();
  const int result = ::SSL_read_ex(ssl_.get(), room.data(), room.size(), &bytes);
  if (result == 1) return Step::done;
  bytes = 0;
  const int error = ::SSL_get_error(ssl_.get(), result);
  if (error == SSL_ERROR_WANT_READ) return Step::wants_input;
  const bool told = ::ERR_GET_REASON(::ERR_peek_error()) > SSL_AD_REASON_OFFSET;  // an alert of the other end
  damage_ =
      error == SSL_ERROR_ZERO_RETURN
          ? std::string("an end that the protocol doesn't know")
          : fmt::format("{}: {}", told ? "refused by the other end, as what that got is damaged" : "damaged, forged or replayed",
                        reason_of_failure());
  return Step::failed;
}

bool Session::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return true;
  ::ERR_clear_error();
  records_ += 1 + (bytes.size() - 1) / kRecordBytes;
  if (records_ > records_of_key_) {
    records_ = 0;
    if (::SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return false;
  }
  std::size_t written = 0;
  return ::SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written) == 1 && written == bytes.size();
}

}  // namespace tsprun::detail::tls
