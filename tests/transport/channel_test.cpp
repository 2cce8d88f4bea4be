// Two ends of a channel on a pair of sockets, with TLS and without: ends that know the same secret, ends that don't, ends that
// came for something else, an impostor with a certificate, ends that weren't told alike, bytes in any portions, new keys under
// way.

#include "transport/tls/channel.h"
#include "transport/bootstrap/handshake.h"
#include "transport/posix.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <memory>
#include <string>
#include <sys/socket.h>
#include <sys/uio.h>
#include <vector>

namespace tsprun::detail::tls::channel_test {
namespace {

using bootstrap::ConnectionUse;
using Bytes = std::vector<std::byte>;

const bootstrap::Secret kSecret = bootstrap::secret_from_text("of this test");
const bootstrap::Secret kOther = bootstrap::secret_from_text("another");

std::string name_of(const testing::TestParamInfo<bool>& info) { return info.param ? "WithTls" : "Plain"; }

struct Sockets {
  Sockets() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    one = posix::UniqueFd(ends[0]);
    other = posix::UniqueFd(ends[1]);
  }
  posix::UniqueFd one;
  posix::UniqueFd other;
};

/// Moves both ends until nothing more can happen.
void shake(Channel& one, Channel& other) {
  bool first = true;
  bool second = true;
  for (int i = 0; i < 10; ++i) {
    first = first && one.shake();
    second = second && other.shake();
    if (!first && second) other.shake();
  }
}

class Proof : public testing::TestWithParam<bool> {
 protected:
  struct Pair {
    Channel connector;
    Channel acceptor;
  };
  static Credentials credentials(const bootstrap::Secret& secret) { return {secret, GetParam()}; }
  static Pair joined(const Credentials& mine, const Credentials& theirs) {
    Sockets sockets;
    Pair pair{Channel::connector(std::move(sockets.one), mine, ConnectionUse::lanes, 3, 1),
              Channel::acceptor(std::move(sockets.other), theirs, ConnectionUse::lanes, 1)};
    shake(pair.connector, pair.acceptor);
    return pair;
  }
};

/// Returns what has arrived; empty if nothing has.
Bytes read_all(Channel& from) {
  Bytes all;
  Bytes some(100'000);
  for (;;) {
    const iovec room{some.data(), some.size()};
    const ssize_t got = from.read(&room, 1);
    if (got <= 0) return all;
    all.insert(all.end(), some.begin(), some.begin() + got);
  }
}

TEST_P(Proof, EndsWithTheSameSecretKnowEachOther) {
  Pair pair = joined(credentials(kSecret), credentials(kSecret));
  ASSERT_TRUE(pair.connector.ready()) << pair.connector.refusal();
  ASSERT_TRUE(pair.acceptor.ready()) << pair.acceptor.refusal();
  EXPECT_EQ(pair.connector.peer(), 1);
  EXPECT_EQ(pair.acceptor.peer(), 3);
  EXPECT_EQ(pair.acceptor.sought(), 1);
}

TEST_P(Proof, EndsWithOtherSecretsRefuseEachOther) {
  Pair pair = joined(credentials(kOther), credentials(kSecret));
  EXPECT_FALSE(pair.connector.ready());
  EXPECT_FALSE(pair.acceptor.ready());
  EXPECT_EQ(pair.acceptor.refusal(), "it doesn't know the job's secret");
  EXPECT_TRUE(pair.acceptor.greeted());
}

TEST_P(Proof, WhoCameForSomethingElseIsRefused) {
  Sockets sockets;
  Channel connector = Channel::connector(std::move(sockets.one), credentials(kSecret), ConnectionUse::store, 3, 1);
  Channel acceptor = Channel::acceptor(std::move(sockets.other), credentials(kSecret), ConnectionUse::lanes, 1);
  shake(connector, acceptor);
  EXPECT_FALSE(connector.ready());
  EXPECT_FALSE(acceptor.ready());
  EXPECT_EQ(acceptor.refusal(), "it came for something else");
}

TEST_P(Proof, TwoConnectorsDoNotAcceptEachOther) {
  Sockets sockets;
  Channel one = Channel::connector(std::move(sockets.one), credentials(kSecret), ConnectionUse::lanes, 3, 1);
  Channel other = Channel::connector(std::move(sockets.other), credentials(kSecret), ConnectionUse::lanes, 1, 3);
  shake(one, other);
  EXPECT_FALSE(one.ready());
  EXPECT_FALSE(other.ready());
}

TEST_P(Proof, AnEndThatIsGoneIsNoRefusal) {
  Sockets sockets;
  Channel connector = Channel::connector(std::move(sockets.one), credentials(kSecret), ConnectionUse::lanes, 3, 1);
  sockets.other.reset();
  EXPECT_FALSE(connector.shake());
  EXPECT_EQ(connector.refusal(), "");
  EXPECT_FALSE(connector.greeted());
}

TEST_P(Proof, BytesArriveInWhateverPortionsTheyAreReadAndWritten) {
  Pair pair = joined(credentials(kSecret), credentials(kSecret));
  Bytes text(1'000'000);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::byte>(i * 7 + i / 256);
  Bytes heard;
  std::size_t said = 0;
  for (std::size_t turn = 1; heard.size() < text.size(); ++turn) {
    ASSERT_LT(turn, 100'000U);
    const std::size_t portion = turn * turn % 70'000;
    const std::size_t half = std::min(portion / 2, text.size() - said);
    const iovec parts[] = {{text.data() + said, half},
                           {text.data() + said + half, std::min(portion - half, text.size() - said - half)}};
    if (parts[0].iov_len + parts[1].iov_len != 0) {
      const ssize_t sent = pair.connector.write(parts, 2);
      ASSERT_TRUE(sent >= 0 || errno == EAGAIN);
      said += static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
    }
    pair.connector.flush();
    ASSERT_TRUE(pair.connector.ready());  // whatever waits to be sent
    Bytes some(turn * 31 % 40'000 + 1);
    const iovec room[] = {{some.data(), some.size() / 2}, {some.data() + some.size() / 2, some.size() - some.size() / 2}};
    const ssize_t got = pair.acceptor.read(room, 2);
    ASSERT_TRUE(got > 0 || errno == EAGAIN);
    if (got > 0) heard.insert(heard.end(), some.begin(), some.begin() + got);
  }
  EXPECT_EQ(heard, text);
  EXPECT_FALSE(pair.acceptor.holds_input());
}

TEST_P(Proof, WhatWasSaidBeforeTheEndIsReadAndThenTheEnd) {
  Pair pair = joined(credentials(kSecret), credentials(kSecret));
  const Bytes text(1000, std::byte{5});
  const iovec part{const_cast<std::byte*>(text.data()), text.size()};
  ASSERT_EQ(pair.acceptor.write(&part, 1), 1000);
  pair.acceptor.reset();
  Bytes into(2000);
  const iovec room{into.data(), into.size()};
  EXPECT_EQ(pair.connector.read(&room, 1), 1000);
  EXPECT_EQ(pair.connector.read(&room, 1), 0);
  EXPECT_EQ(pair.connector.read(&room, 1), 0);
}

INSTANTIATE_TEST_SUITE_P(Channel, Proof, testing::Bool(), name_of);

TEST(Tls, WhoSoughtSomebodyElseIsRefused) {
  Sockets sockets;
  Channel connector = Channel::connector(std::move(sockets.one), {kSecret, true}, ConnectionUse::lanes, 3, 2);
  Channel acceptor = Channel::acceptor(std::move(sockets.other), {kSecret, true}, ConnectionUse::lanes, 1);
  shake(connector, acceptor);
  EXPECT_FALSE(connector.ready());
  EXPECT_EQ(acceptor.refusal(), "it sought somebody else");
}

TEST(Tls, EndsThatWereNotToldAlikeBothSaySo) {
  for (const bool connector_has_it : {false, true}) {
    SCOPED_TRACE(connector_has_it);
    Sockets sockets;
    Channel connector = Channel::connector(std::move(sockets.one), {kSecret, connector_has_it}, ConnectionUse::store, 1, 0);
    Channel acceptor = Channel::acceptor(std::move(sockets.other), {kSecret, !connector_has_it}, ConnectionUse::store, 0);
    shake(connector, acceptor);
    EXPECT_FALSE(connector.ready());
    EXPECT_FALSE(acceptor.ready());
    EXPECT_EQ(connector.refusal(), connector_has_it ? bootstrap::kWithoutTls : bootstrap::kWithTls);
    EXPECT_EQ(acceptor.refusal(), connector_has_it ? bootstrap::kWithTls : bootstrap::kWithoutTls);
  }
}

/// The impostor speaks TLS as well as any server, has a certificate, and doesn't know the secret.
TEST(Tls, AnImpostorWithACertificateIsRefused) {
  Sockets sockets;
  Channel connector = Channel::connector(std::move(sockets.one), {kSecret, true}, ConnectionUse::store, 1, 0);
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(::SSL_CTX_new(::TLS_server_method()), ::SSL_CTX_free);
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(::EVP_EC_gen("P-256"), ::EVP_PKEY_free);
  const std::unique_ptr<X509, void (*)(X509*)> certificate(::X509_new(), ::X509_free);
  ::X509_set_version(certificate.get(), 2);
  ::ASN1_INTEGER_set(::X509_get_serialNumber(certificate.get()), 1);
  ::X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  ::X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  ::X509_set_pubkey(certificate.get(), key.get());
  ASSERT_GT(::X509_sign(certificate.get(), key.get(), ::EVP_sha256()), 0);
  ASSERT_EQ(::SSL_CTX_use_certificate(context.get(), certificate.get()), 1);
  ASSERT_EQ(::SSL_CTX_use_PrivateKey(context.get(), key.get()), 1);
  const std::unique_ptr<SSL, void (*)(SSL*)> impostor(::SSL_new(context.get()), ::SSL_free);
  ::SSL_set_fd(impostor.get(), sockets.other.get());
  bool alive = true;
  for (int i = 0; i < 10 && alive; ++i) {
    alive = connector.shake();
    ::SSL_accept(impostor.get());
    const unsigned char welcome = 0x77;
    ::SSL_write(impostor.get(), &welcome, 1);
  }
  EXPECT_FALSE(alive);
  EXPECT_FALSE(connector.ready());
  EXPECT_NE(connector.refusal().find("doesn't know the job's secret"), std::string::npos) << connector.refusal();
}

/// AES-GCM must not encrypt too much under one key.
TEST(Tls, TakesNewKeysOnTheWay) {
  Credentials few{kSecret, true};
  few.records_of_key = 10;
  Sockets sockets;
  Channel connector = Channel::connector(std::move(sockets.one), few, ConnectionUse::lanes, 3, 1);
  Channel acceptor = Channel::acceptor(std::move(sockets.other), few, ConnectionUse::lanes, 1);
  shake(connector, acceptor);
  ASSERT_TRUE(connector.ready());
  for (int i = 0; i < 200; ++i) {
    for (auto [from, to] : {std::pair{&connector, &acceptor}, std::pair{&acceptor, &connector}}) {
      const Bytes text(500, static_cast<std::byte>(i));
      const iovec part{const_cast<std::byte*>(text.data()), text.size()};
      ASSERT_EQ(from->write(&part, 1), 500);
      ASSERT_EQ(read_all(*to), text) << i << to->damage();
    }
  }
}

// Words that are sent twice make other bytes each time: each connection has a key of its own.
TEST(Tls, ARecordedConnectorIsNotLetInAgain) {
  Sockets sockets;
  Channel connector = Channel::connector(std::move(sockets.one), {kSecret, true}, ConnectionUse::lanes, 3, 1);
  Bytes said;
  Bytes some(4096);
  Sockets real;
  Channel acceptor = Channel::acceptor(std::move(real.other), {kSecret, true}, ConnectionUse::lanes, 1);
  const auto pass = [&some](int from, int to, Bytes* record) {
    const ssize_t got = ::recv(from, some.data(), some.size(), 0);
    if (got <= 0) return;
    if (record != nullptr) record->insert(record->end(), some.begin(), some.begin() + got);
    EXPECT_EQ(::send(to, some.data(), static_cast<std::size_t>(got), 0), got);
  };
  for (int i = 0; i < 10; ++i) {
    connector.shake();
    pass(sockets.other.get(), real.one.get(), &said);
    acceptor.shake();
    pass(real.one.get(), sockets.other.get(), nullptr);
  }
  ASSERT_TRUE(connector.ready() && acceptor.ready());
  Sockets again;
  Channel deceived = Channel::acceptor(std::move(again.other), {kSecret, true}, ConnectionUse::lanes, 1);
  ASSERT_GT(::send(again.one.get(), said.data(), said.size(), 0), 0);
  bool alive = true;
  for (int i = 0; i < 10 && alive; ++i) alive = deceived.shake();
  EXPECT_FALSE(alive);
  EXPECT_FALSE(deceived.ready());
}

}  // namespace
}  // namespace tsprun::detail::tls::channel_test
