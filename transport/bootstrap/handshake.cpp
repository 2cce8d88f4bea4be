// Makes and checks greetings and proofs (HMAC-SHA-256), and recognizes ends that speak TLS.
#include "transport/bootstrap/handshake.h"

#include "transport/cause.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstring>

namespace tsprun::detail::bootstrap {

namespace {

constexpr std::uint64_t kHelloMagic = 0x31'6f6c6c'65687374;  // "tshello1"
constexpr std::size_t kProofBytes = 32;
constexpr std::uint32_t kConnector = 1;
constexpr std::uint32_t kAcceptor = 2;

/// First byte of a TLS record that opens a connection, or refuses one. No greeting begins with either.
constexpr std::byte kTlsHandshake{22};
constexpr std::byte kTlsAlert{21};

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

}  // namespace

Handshake::Handshake(const Secret& secret, ConnectionUse use, bool connector, int from, int to)
    : secret_(secret), connector_(connector), expected_(sizeof(Greeting)) {
  mine_.magic = kHelloMagic;
  mine_.use = static_cast<std::uint32_t>(use);
  mine_.role = connector ? kConnector : kAcceptor;
  mine_.from = from;
  mine_.to = to;
  fill_random(mine_.nonce);
}

Handshake Handshake::connector(const Secret& secret, ConnectionUse use, int from, int to) {
  Handshake handshake(secret, use, true, from, to);
  handshake.send(std::as_bytes(std::span(&handshake.mine_, 1)));
  return handshake;
}

Handshake Handshake::acceptor(const Secret& secret, ConnectionUse use, int self) { return {secret, use, false, self, -1}; }

void Handshake::received(std::span<const std::byte> bytes) {
  in_.insert(in_.end(), bytes.begin(), bytes.end());
  if (!greeted_ && !in_.empty() && (in_.front() == kTlsHandshake || in_.front() == kTlsAlert)) {
    refusal_ = kWithTls;
    if (!connector_) send(std::as_bytes(std::span(&mine_, 1)));  // tells the other end that this one has no TLS
    return;
  }
  if (in_.size() < expected_ || failed()) return;
  if (!greeted_) hear_greeting();
  else hear_proof();
}

void Handshake::hear_greeting() {
  std::memcpy(&theirs_, in_.data(), sizeof theirs_);
  in_.clear();
  if (theirs_.magic != kHelloMagic) {
    refusal_ = "it doesn't speak tsprun's protocol";
  } else if (theirs_.use != mine_.use || theirs_.role != (connector_ ? kAcceptor : kConnector)) {
    refusal_ = "it came for something else";
  } else if (connector_ && theirs_.to != mine_.to) {
    refusal_ = "it isn't who was sought";
  }
  if (failed()) return;
  greeted_ = true;
  expected_ = kProofBytes;
  if (connector_) {
    send(proof(true));
  } else {
    mine_.to = theirs_.to;
    send(std::as_bytes(std::span(&mine_, 1)));
  }
}

void Handshake::hear_proof() {
  const std::array<std::byte, 32> right = proof(!connector_);
  const bool same = CRYPTO_memcmp(right.data(), in_.data(), right.size()) == 0;
  in_.clear();
  if (!same) {
    refusal_ = "it doesn't know the job's secret";
    return;
  }
  proved_ = true;
  expected_ = 0;
  if (!connector_) send(proof(false));
}

std::array<std::byte, 32> Handshake::proof(bool of_connector) const {
  std::byte text[8 + 2 * sizeof(Greeting)] = {};
  text[0] = of_connector ? std::byte{1} : std::byte{2};
  std::memcpy(text + 8, connector_ ? &mine_ : &theirs_, sizeof(Greeting));
  std::memcpy(text + 8 + sizeof(Greeting), connector_ ? &theirs_ : &mine_, sizeof(Greeting));
  std::array<std::byte, 32> result{};
  unsigned int length = 0;
  if (HMAC(EVP_sha256(), secret_.bytes().data(), static_cast<int>(Secret::kBytes), raw(text), sizeof text, raw(result.data()),
           &length) == nullptr ||
      length != kProofBytes) {
    throw Error(Cause::refused, "libcrypto can't compute HMAC-SHA-256");
  }
  wipe_stack();
  return result;
}

}  // namespace tsprun::detail::bootstrap
