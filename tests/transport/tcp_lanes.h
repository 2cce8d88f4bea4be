// What the tests of lanes over tcp share: envelopes, payloads, two ranks' options, patience.
#pragma once

#include "tests/support/oracle.h"
#include "transport/bootstrap/handshake.h"
#include "transport/posix.h"
#include "transport/tcp/tcp_transport.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace tsprun::detail::tcp_lane_test {

inline Envelope envelope_of(std::uint64_t sequence, Purpose purpose = Purpose::other) {
  return {0xabcd, static_cast<std::uint32_t>(sequence), 7, purpose};
}

inline std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> result(bytes);
  for (std::size_t i = 0; i < bytes; ++i) result[i] = static_cast<std::byte>(test::mix(seed, i / 8) >> (i % 8 * 8));
  return result;
}

inline tcp::TcpOptions options_of(int rank, int world = 2, bool tls = false) {
  tcp::TcpOptions options;
  options.rank = rank;
  options.world_size = world;
  options.secret = bootstrap::secret_from_text("of this test");
  options.tls = tls;
  return options;
}

/// Names a test's parameter: with TLS, or without.
inline std::string name_of(const testing::TestParamInfo<bool>& info) { return info.param ? "WithTls" : "Plain"; }

/// Waits until the condition holds, for 5 s at most: loopback may take its time.
inline bool eventually(const std::function<bool()>& condition) {
  const std::uint64_t ends = posix::now_ns() + 5'000'000'000;
  while (posix::now_ns() < ends) {
    if (condition()) return true;
    std::this_thread::yield();
  }
  return condition();
}
/// Repeats `step` for 5 ms, so that what must not happen would have time to.
inline void a_while(const std::function<void()>& step) {
  const std::uint64_t ends = posix::now_ns() + 5'000'000;
  while (posix::now_ns() < ends) step();
}

inline constexpr LaneId kToOne{1, Stream::kv};
inline constexpr LaneId kFromZero{0, Stream::kv};

}  // namespace tsprun::detail::tcp_lane_test
