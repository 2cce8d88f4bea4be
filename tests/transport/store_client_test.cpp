// A client of the job's store against a store that answers what it shouldn't.
#include "tests/transport/owned_bytes.h"
#include "transport/bootstrap/store.h"
#include "transport/cause.h"
#include "transport/tcp/dial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <poll.h>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tsprun::detail::bootstrap::store_client_test {
namespace {

using test::owned_bytes;

constexpr std::uint64_t kSecond = 1'000'000'000;

/// Returns a frame `gathered` with one value.
std::vector<std::byte> answer(std::uint32_t id, std::uint32_t number, std::string_view value) {
  std::vector<std::byte> frame(sizeof id + sizeof(GatheredEntry));
  const GatheredEntry entry{number, static_cast<std::uint32_t>(value.size())};
  std::memcpy(frame.data(), &id, sizeof id);
  std::memcpy(frame.data() + sizeof id, &entry, sizeof entry);
  const std::vector<std::byte> tail = owned_bytes(value);
  frame.insert(frame.end(), tail.begin(), tail.end());
  return frame;
}

/// A store that answers one client's requests as a test likes.
class OddStore {
 public:
  using Answer = std::function<void(StoreLink& link, const StoreFrame& request)>;
  explicit OddStore(Answer to) : answer_(std::move(to)) {}

  StoreClient client(std::uint64_t timeout_ns, StoreClient::Check check = {}) {
    return {{tcp::local_address(door_.front().get())}, credentials_, 1, timeout_ns, std::move(check)};
  }

 private:
  void serve(const std::stop_token& over) {
    std::optional<StoreLink> link;
    while (!over.stop_requested()) {
      if (!link) {
        if (tcp::Accepted arrival = tcp::accept(door_.front().get()); arrival.socket)
          link.emplace(tls::Channel::acceptor(std::move(arrival.socket), credentials_, ConnectionUse::store, 0));
        continue;
      }
      static_cast<void>(link->pump());
      StoreFrame request;
      if (link->next(request)) answer_(*link, request);
      else if (link->ready() && link->backlog() < kMostValueBytes) answer_(*link, {});
    }
  }

  tls::Credentials credentials_{secret_from_text("of this test"), false};
  Answer answer_;
  std::vector<posix::UniqueFd> door_ = tcp::listen_on(tcp::resolve_all("127.0.0.1", 0));
  std::jthread thread_{[this](const std::stop_token& over) { serve(over); }};
};

std::string lacking(int number) { return "rank " + std::to_string(number); }

TEST(StoreClientOfOddStores, NamesTheStoreThatAnswersNoList) {
  OddStore store([](StoreLink& link, const StoreFrame& request) {
    if (request.op == StoreOp::gather) link.send(StoreOp::gathered, request.key, owned_bytes("no list"));
  });
  StoreClient client = store.client(10 * kSecond);
  try {
    client.gather("k/", {0}, lacking);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::corrupt);
    EXPECT_NE(std::string(error.what()).find(client.reached()), std::string::npos) << error.what();
  }
}

TEST(StoreClientOfOddStores, LeavesAnswersToAnEarlierGather) {
  std::uint32_t id = 0;
  OddStore store([&](StoreLink& link, const StoreFrame& request) {
    if (request.op != StoreOp::gather) return;
    ++id;
    // The first gather's answer comes twice, and once more while the second is waited for.
    for (int time = 0; time < 2; ++time) link.send(StoreOp::gathered, request.key, answer(1, 0, "old"));
    link.send(StoreOp::gathered, request.key, answer(id, 0, "new"));
  });
  StoreClient client = store.client(10 * kSecond);
  EXPECT_EQ(client.gather("k/", {0}, lacking).front(), owned_bytes("old"));
  EXPECT_EQ(client.gather("k/", {0}, lacking).front(), owned_bytes("new"));
}

TEST(StoreClientOfOddStores, CallsItsCheckAlthoughFramesKeepComing) {
  // More than a client reads at once, and sent before it asks: it never finds nothing.
  constexpr int kMany = 30;
  std::atomic<int> sent = 0;
  OddStore store([&](StoreLink& link, const StoreFrame&) {
    if (sent < kMany) link.send(StoreOp::gathered, "k/", answer(1, static_cast<std::uint32_t>(sent++), std::string(60000, 'x')));
  });
  bool asks = false;
  StoreClient client = store.client(10 * kSecond, [&] {
    if (asks) throw Error(Cause::disconnected, "the job is over");
  });
  for (int i = 0; i < 1000 && sent < kMany; ++i) ::poll(nullptr, 0, 1);
  std::vector<int> all(kMany);
  std::iota(all.begin(), all.end(), 0);
  asks = true;
  try {
    client.gather("k/", all, lacking);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the job is over");
  }
}

}  // namespace
}  // namespace tsprun::detail::bootstrap::store_client_test
