// Two ends that prove the same secret to each other, and ends that can't: other secrets, other roles, replayed and reflected
// words, damaged bytes.

#include "transport/bootstrap/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace tsprun::detail::bootstrap::handshake_test {
namespace {

std::vector<std::byte> take(Handshake& from) {
  const auto rest = from.to_send();
  std::vector<std::byte> bytes(rest.begin(), rest.end());
  from.sent(bytes.size());
  return bytes;
}

/// Hands bytes over in pieces of a few, and never more than are wanted.
void give(Handshake& to, std::span<const std::byte> bytes, std::size_t piece = 7) {
  while (!bytes.empty() && to.wanted() != 0) {
    const std::size_t some = std::min({piece, bytes.size(), to.wanted()});
    to.received(bytes.first(some));
    bytes = bytes.subspan(some);
  }
}

void shake(Handshake& one, Handshake& other) {
  for (int i = 0; i < 4; ++i) {
    give(other, take(one));
    give(one, take(other));
  }
}

const Secret kSecret = secret_from_text("a secret");

TEST(Handshake, EndsWithTheSameSecretKnowEachOther) {
  Handshake connector = Handshake::connector(kSecret, ConnectionUse::lanes, 3, 1);
  Handshake acceptor = Handshake::acceptor(kSecret, ConnectionUse::lanes, 1);
  shake(connector, acceptor);
  EXPECT_TRUE(connector.done());
  EXPECT_TRUE(acceptor.done());
  EXPECT_EQ(acceptor.peer(), 3);
  EXPECT_EQ(acceptor.sought(), 1);
  EXPECT_EQ(connector.peer(), 1);
  EXPECT_EQ(connector.wanted(), 0U);
}

TEST(Handshake, TheSecretNeverTravels) {
  Handshake connector = Handshake::connector(kSecret, ConnectionUse::lanes, 3, 1);
  Handshake acceptor = Handshake::acceptor(kSecret, ConnectionUse::lanes, 1);
  std::vector<std::byte> heard;
  for (int i = 0; i < 3; ++i) {
    for (auto [from, to] : {std::pair{&connector, &acceptor}, std::pair{&acceptor, &connector}}) {
      const std::vector<std::byte> bytes = take(*from);
      heard.insert(heard.end(), bytes.begin(), bytes.end());
      give(*to, bytes);
    }
  }
  EXPECT_TRUE(connector.done() && acceptor.done());
  EXPECT_EQ(heard.size(), 2 * (64 + 32));
  EXPECT_EQ(std::search(heard.begin(), heard.end(), kSecret.bytes().begin(), kSecret.bytes().end()), heard.end());
}

TEST(Handshake, OthersAreRefused) {
  Handshake right = Handshake::acceptor(kSecret, ConnectionUse::lanes, 1);
  Handshake wrong = Handshake::connector(secret_from_text("another"), ConnectionUse::lanes, 3, 1);
  shake(wrong, right);
  EXPECT_TRUE(right.failed());
  EXPECT_FALSE(wrong.done());
  // The acceptor has proved nothing to someone who couldn't prove himself.
  EXPECT_FALSE(wrong.failed());

  Handshake store = Handshake::acceptor(kSecret, ConnectionUse::store, 1);
  Handshake lanes = Handshake::connector(kSecret, ConnectionUse::lanes, 3, 1);
  shake(lanes, store);
  EXPECT_TRUE(store.failed());

  Handshake one = Handshake::connector(kSecret, ConnectionUse::lanes, 3, 1);
  Handshake other = Handshake::connector(kSecret, ConnectionUse::lanes, 1, 3);
  shake(one, other);
  EXPECT_TRUE(one.failed() && other.failed());
}

TEST(Handshake, ReplayedWordsProveNothing) {
  Handshake connector = Handshake::connector(kSecret, ConnectionUse::lanes, 3, 1);
  Handshake acceptor = Handshake::acceptor(kSecret, ConnectionUse::lanes, 1);
  const std::vector<std::byte> greeting = take(connector);
  give(acceptor, greeting);
  give(connector, take(acceptor));
  const std::vector<std::byte> proof = take(connector);
  Handshake again = Handshake::acceptor(kSecret, ConnectionUse::lanes, 1);
  give(again, greeting);
  give(again, proof);
  EXPECT_TRUE(again.failed());
}

TEST(Handshake, AReflectedProofProvesNothing) {
  Handshake connector = Handshake::connector(kSecret, ConnectionUse::lanes, 3, 1);
  std::vector<std::byte> greeting = take(connector);
  greeting[12] = std::byte{2};  // as if from an acceptor
  give(connector, greeting);
  give(connector, take(connector));
  EXPECT_FALSE(connector.done());
}

TEST(Handshake, EveryDamagedBitIsFound) {
  for (std::size_t at = 0; at < 96; ++at) {
    Handshake connector = Handshake::connector(kSecret, ConnectionUse::lanes, 3, 1);
    Handshake acceptor = Handshake::acceptor(kSecret, ConnectionUse::lanes, 1);
    std::size_t sent = 0;
    for (int i = 0; i < 3; ++i) {
      std::vector<std::byte> bytes = take(connector);
      if (at >= sent && at < sent + bytes.size()) bytes[at - sent] ^= std::byte{1};
      sent += bytes.size();
      give(acceptor, bytes);
      give(connector, take(acceptor));
    }
    EXPECT_FALSE(acceptor.done()) << at;
  }
}

}  // namespace
}  // namespace tsprun::detail::bootstrap::handshake_test
