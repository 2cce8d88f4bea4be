// An attacker between two ranks, who sees and may change every byte, and knows the protocol but not the secret: with TLS nothing
// that it changes, repeats, leaves out or cuts off passes for what the peer said, and nothing that it sees tells what was said.
// Without TLS the very same attacker changes a payload and nobody notices: that is what TLS is for, and shows that it can attack.

#include "tests/support/on_path.h"
#include "tests/transport/tcp_lanes.h"
#include "transport/tcp/tcp_transport.h"

#include <gtest/gtest.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::tcp_lane_test {
namespace {

using tcp::FrameHeader;
using tcp::TcpTransport;
using test::OnPath;
using Bytes = OnPath::Bytes;

constexpr std::size_t kPayload = 3000;
constexpr std::uint64_t kSecond = 1'000'000'000;

/// Ranks 0 and 1, the second of which reaches the first by way of an attacker, and sends it messages.
class Attacked {
 public:
  Attacked(bool tls, OnPath::Meddle outward, std::uint64_t timeout_ns = 10 * kSecond)
      : zero_(impatient(0, tls, timeout_ns)), one_(impatient(1, tls, timeout_ns)) {
    tcp::AddressBlob blob{};
    std::memcpy(&blob, zero_.address(1).data(), sizeof blob);
    attacker_.emplace(tcp::unpack(blob), std::move(outward));
    blob = tcp::pack(attacker_->where(), 0);
    zero_.connect(1, one_.address(0));
    one_.connect(0, std::as_bytes(std::span(&blob, 1)));
  }
  bool connected() {
    return eventually([&] {
      const bool here = zero_.connected(1);
      return one_.connected(0) && here;
    });
  }
  /// Returns true once the rank that dials has given up.
  bool refused() {
    return eventually([&] {
      zero_.progress();
      one_.progress();
      return !one_.broken(0).empty();
    });
  }
  /// Messages 1 to `count`, all of the same payload. What rank 0 gets as the last, and how it ends.
  Outcome send(std::uint64_t count, Bytes& into) {
    Ticket ticket = 0;
    into.assign(kPayload, std::byte{});
    const Bytes payload = pattern(kPayload, 1);
    for (std::uint64_t i = 1; i <= count; ++i) {
      ticket = zero_.receive(kToOne, envelope_of(i), into);
      one_.send(kFromZero, envelope_of(i), payload, Delivery::copy_if_small);
    }
    eventually([&] {
      one_.progress();
      zero_.progress();
      return zero_.test_receive(kToOne, ticket) != Outcome::pending;
    });
    return zero_.test_receive(kToOne, ticket);
  }
  /// End of the connection, as a message that never comes sees it.
  Outcome fate() {
    Bytes into(kPayload);
    const Ticket ticket = zero_.receive(kToOne, envelope_of(99), into);
    eventually([&] {
      one_.progress();
      zero_.progress();
      return zero_.test_receive(kToOne, ticket) != Outcome::pending;
    });
    return zero_.test_receive(kToOne, ticket);
  }
  std::string detail() const { return zero_.found(kToOne).detail; }

 private:
  static tcp::TcpOptions impatient(int rank, bool tls, std::uint64_t timeout_ns) {
    tcp::TcpOptions options = options_of(rank, 2, tls);
    options.timeout_ns = timeout_ns;
    return options;
  }

  TcpTransport zero_;
  TcpTransport one_;
  std::optional<OnPath> attacker_;  // last: it goes first
};

/// Changes the last byte of the payload of a message in these bytes and makes both hashes right again; false if there is none.
bool forge_message(Bytes& bytes) {
  for (std::size_t at = 0; at + sizeof(FrameHeader) <= bytes.size(); ++at) {
    FrameHeader header;
    std::memcpy(&header, bytes.data() + at, sizeof header);
    if (header.magic != tcp::kFrameMagic || header.kind != static_cast<std::uint8_t>(tcp::FrameKind::message)) continue;
    if (header.bytes == 0 || at + sizeof header + header.bytes > bytes.size()) continue;
    const std::span<std::byte> payload(bytes.data() + at + sizeof header, header.bytes);
    payload.back() ^= std::byte{1};
    header.payload_hash = XXH3_64bits(payload.data(), payload.size());
    header.header_hash = XXH3_64bits(&header, offsetof(FrameHeader, header_hash));
    std::memcpy(bytes.data() + at, &header, sizeof header);
    return true;
  }
  return false;
}

/// Lets pass what comes before the ranks have proved themselves, and then does what the test says.
class Later {
 public:
  explicit Later(std::function<std::optional<Bytes>(const Bytes&)> meddle) : meddle_(std::move(meddle)) {}
  OnPath::Meddle meddle() {
    return [this](const Bytes& bytes) -> std::optional<Bytes> {
      const std::lock_guard<std::mutex> lock(mutex_);
      seen_.insert(seen_.end(), bytes.begin(), bytes.end());
      return begun_ ? meddle_(bytes) : bytes;
    };
  }
  void begin() {
    const std::lock_guard<std::mutex> lock(mutex_);
    begun_ = true;
  }
  Bytes seen() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return seen_;
  }

 private:
  std::function<std::optional<Bytes>(const Bytes&)> meddle_;
  std::mutex mutex_;
  bool begun_ = false;
  Bytes seen_;
};

bool contains(const Bytes& all, std::span<const std::byte> part) {
  return std::search(all.begin(), all.end(), part.begin(), part.end()) != all.end();
}

TEST(OnPath, WithoutTlsAForgedPayloadPasses) {
  Later attack([](Bytes bytes) {
    forge_message(bytes);
    return bytes;
  });
  Attacked ranks(false, attack.meddle());
  ASSERT_TRUE(ranks.connected());
  attack.begin();
  Bytes into;
  EXPECT_EQ(ranks.send(1, into), Outcome::done);
  Bytes forged = pattern(kPayload, 1);
  forged.back() ^= std::byte{1};
  EXPECT_EQ(into, forged);
}

TEST(OnPath, WithTlsNothingIsThereToForgeAndNothingCanBeRead) {
  bool forged = false;
  Later attack([&](Bytes bytes) {
    forged = forge_message(bytes) || forged;
    return bytes;
  });
  Attacked ranks(true, attack.meddle());
  ASSERT_TRUE(ranks.connected());
  attack.begin();
  Bytes into;
  EXPECT_EQ(ranks.send(3, into), Outcome::done);
  EXPECT_FALSE(forged);
  const Bytes payload = pattern(kPayload, 1);
  EXPECT_EQ(into, payload);
  const Bytes seen = attack.seen();
  EXPECT_GT(seen.size(), 3 * kPayload);
  for (std::size_t at = 0; at + 16 <= kPayload; at += 16) EXPECT_FALSE(contains(seen, std::span(payload).subspan(at, 16))) << at;
  EXPECT_FALSE(contains(seen, options_of(0).secret.bytes()));
}

/// The byte is in a header of TLS's, in the ciphertext, or in its tag.
TEST(OnPath, WithTlsAChangedByteIsDamage) {
  for (const std::size_t place : {0U, 4U, 5U, 100U, 3000U, 3080U}) {
    SCOPED_TRACE(place);
    bool once = false;
    Later attack([&](Bytes bytes) {
      if (!once) bytes[std::min(place, bytes.size() - 1)] ^= std::byte{1};
      once = true;
      return bytes;
    });
    Attacked ranks(true, attack.meddle());
    ASSERT_TRUE(ranks.connected());
    attack.begin();
    Bytes into;
    // A record that claims to be longer than it is waits for its end: the next one shows it.
    EXPECT_NE(ranks.send(2, into), Outcome::done);
    EXPECT_EQ(ranks.fate(), Outcome::corrupt);
    EXPECT_NE(ranks.detail().find("what came over TLS is damaged, forged or replayed"), std::string::npos) << ranks.detail();
  }
}

TEST(OnPath, WithTlsWhatIsSaidAgainIsDamage) {
  Later attack([&](Bytes bytes) {
    const Bytes once = bytes;
    bytes.insert(bytes.end(), once.begin(), once.end());
    return bytes;
  });
  Attacked ranks(true, attack.meddle());
  ASSERT_TRUE(ranks.connected());
  attack.begin();
  Bytes into;
  ranks.send(2, into);  // what was said before may have come
  EXPECT_EQ(ranks.fate(), Outcome::corrupt);
  EXPECT_NE(ranks.detail().find("what came over TLS is damaged, forged or replayed"), std::string::npos) << ranks.detail();
}

TEST(OnPath, WithTlsWhatIsLeftOutIsDamage) {
  bool once = false;
  Later attack([&](Bytes bytes) {
    const std::size_t record = 5 + (std::to_integer<std::size_t>(bytes.at(3)) << 8) + std::to_integer<std::size_t>(bytes.at(4));
    if (!once) bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(std::min(record, bytes.size())));
    once = true;
    return bytes;
  });
  Attacked ranks(true, attack.meddle());
  ASSERT_TRUE(ranks.connected());
  attack.begin();
  Bytes into;
  ranks.send(2, into);  // what was said before may have come
  EXPECT_EQ(ranks.fate(), Outcome::corrupt);
  EXPECT_NE(ranks.detail().find("what came over TLS is damaged, forged or replayed"), std::string::npos) << ranks.detail();
}

TEST(OnPath, WithTlsWhatIsCutOffIsNoEndInGoodOrder) {
  Later attack([&](const Bytes&) -> std::optional<Bytes> { return std::nullopt; });
  Attacked ranks(true, attack.meddle());
  ASSERT_TRUE(ranks.connected());
  attack.begin();
  Bytes into;
  EXPECT_EQ(ranks.send(1, into), Outcome::disconnected);
  EXPECT_EQ(ranks.detail().find("good order"), std::string::npos) << ranks.detail();
}

/// An attacker who changes the proof keeps the ranks apart, and can't make them agree on something weaker.
TEST(OnPath, WithTlsAChangedProofIsRefused) {
  for (const std::size_t place : {20U, 60U, 150U, 250U, 300U}) {
    SCOPED_TRACE(place);
    const auto change = [place](const Bytes& bytes) -> std::optional<Bytes> {
      Bytes changed = bytes;
      if (place < bytes.size()) changed[place] ^= std::byte{1};
      return changed;
    };
    Attacked ranks(true, change, kSecond);
    EXPECT_TRUE(ranks.refused());
  }
}

}  // namespace
}  // namespace tsprun::detail::tcp_lane_test
