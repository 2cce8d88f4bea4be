// How ranks that have only a number and a store in common find out who shares a machine, with threads in the place of processes.

#include "transport/bootstrap/roll_call.h"
#include "transport/bootstrap/store_link.h"
#include "transport/cause.h"
#include "transport/factory.h"
#include "transport/posix.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::bootstrap::roll_call_test {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

class MapStore : public KeyValue {
 public:
  void set(const std::string& key, std::span<const std::byte> value) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_[key].assign(value.begin(), value.end());
    changed_.notify_all();
  }
  std::optional<std::vector<std::byte>> get(const std::string& key, std::chrono::milliseconds at_most) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock, at_most, [&] { return values_.contains(key); })) return std::nullopt;
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<std::byte>> values_;
};

/// Shows what ranks have set only after a fence, which all take part in, as the stores of process managers do.
class FencedStore : public KeyValue {
 public:
  explicit FencedStore(std::size_t ranks) : ranks_(ranks) {}

  void set(const std::string& key, std::span<const std::byte> value) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    hidden_[key].assign(value.begin(), value.end());
  }
  std::optional<std::vector<std::byte>> get(const std::string& key, std::chrono::milliseconds /*at_most*/) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return shown_.contains(key) ? std::optional(shown_[key]) : std::nullopt;
  }
  void fence() override {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::size_t mine = fences_;
    if (++came_ == ranks_) {
      shown_.merge(hidden_);
      came_ = 0;
      ++fences_;
      changed_.notify_all();
    } else if (!changed_.wait_for(lock, std::chrono::seconds(60), [&] { return fences_ > mine; })) {
      throw Error(Cause::stalled, "not all ranks came to the fence");
    }
  }

 private:
  std::size_t ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t came_ = 0;
  std::size_t fences_ = 0;
  std::map<std::string, std::vector<std::byte>> hidden_;
  std::map<std::string, std::vector<std::byte>> shown_;
};

/// What one rank heard.
struct Heard {
  std::optional<Plan> plan;
  Cause cause = Cause::none;
  int culprit = -1;
  std::string why;
};

/// Lets the ranks that are on a machine come; "": that rank doesn't.
std::vector<Heard> call_by(KeyValue& store, const std::vector<std::string>& machines, std::uint64_t timeout_ns) {
  std::vector<Heard> heard(machines.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < machines.size(); ++rank) {
    if (machines[rank].empty()) continue;
    threads.emplace_back([&, rank] {
      try {
        heard[rank].plan = call_roll(static_cast<int>(rank), static_cast<int>(machines.size()), machines[rank], store, timeout_ns,
                                     [](Plan& plan) {
                                       plan.stores = {"10.0.0.1:4711", "[fd00::1]:4711"};
                                       plan.inter = demand_for("tcp");
                                     });
      } catch (const Error& error) {
        heard[rank].cause = error.cause();
        heard[rank].culprit = error.rank();
        heard[rank].why = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return heard;
}

std::vector<Heard> call(const std::vector<std::string>& machines, std::uint64_t timeout_ns = 10 * kSecond) {
  MapStore store;
  return call_by(store, machines, timeout_ns);
}

TEST(RollCall, AllRanksHaveThePlanOfRankZero) {
  const std::vector<Heard> heard = call({"a/", "a/", "b/", "b/", "c/"});
  for (const Heard& each : heard) {
    ASSERT_TRUE(each.plan) << each.why;
    EXPECT_EQ(each.plan->nodes, 3);
    EXPECT_FALSE(each.plan->one_machine);
    EXPECT_EQ(each.plan->stores, (std::vector<std::string>{"10.0.0.1:4711", "[fd00::1]:4711"}));
    EXPECT_EQ(each.plan->inter, demand_for("tcp"));
    EXPECT_EQ(each.plan->job, heard[0].plan->job);
    EXPECT_TRUE(each.plan->secret == heard[0].plan->secret);
    EXPECT_FALSE(each.plan->secret == Secret());
  }
}

TEST(RollCall, OneNodeNeedsNeitherStoreNorSecret) {
  const std::vector<Heard> first = call({"a/", "a/"});
  const std::vector<Heard> second = call({"a/", "a/"});
  ASSERT_TRUE(first[1].plan && second[1].plan);
  EXPECT_EQ(first[1].plan->nodes, 1);
  EXPECT_TRUE(first[1].plan->stores.empty());
  EXPECT_NE(first[1].plan->job, second[1].plan->job);
}

TEST(RollCall, SeveralNodesOnOneMachineAreToldFromSeveralMachines) {
  EXPECT_TRUE(call({"a/x", "a/y"})[1].plan->one_machine);
  EXPECT_FALSE(call({"a/x", "b/x"})[1].plan->one_machine);
}

TEST(RollCall, MissingRanksAreNamedToAll) {
  const std::vector<Heard> heard = call({"a/", "", "a/", ""}, 2 * kSecond);
  for (const Heard& each : {heard[0], heard[2]}) {
    EXPECT_EQ(each.cause, Cause::stalled);
    EXPECT_EQ(each.culprit, 1);
    EXPECT_NE(each.why.find("ranks 1, 3 of 4 didn't come within 2 s"), std::string::npos) << each.why;
  }
  const std::vector<Heard> without_first = call({"", "a/"}, kSecond / 5);
  EXPECT_EQ(without_first[1].cause, Cause::stalled);
  EXPECT_EQ(without_first[1].culprit, 0);
}

TEST(RollCall, RanksMustBeNumberedNodeByNode) {
  const std::vector<std::vector<std::string>> wrong = {{"a/", "b/", "a/", "b/"}, {"a/", "b/", "b/"}, {"a/", "a/", "a/", "b/"}};
  for (const std::vector<std::string>& machines : wrong) {
    for (const Heard& each : call(machines)) {
      EXPECT_EQ(each.cause, Cause::refused);
      EXPECT_NE(each.why.find("number them node by node"), std::string::npos) << each.why;
    }
  }
}

/// Also by a store that shows nothing before the next fence.
TEST(RollCall, ARefusalIsShownByAFence) {
  const std::vector<std::string> machines = {"a/", "b/", "a/", "b/"};
  FencedStore store(machines.size());
  for (const Heard& each : call_by(store, machines, kSecond)) {
    EXPECT_EQ(each.cause, Cause::refused);
    EXPECT_NE(each.why.find("number them node by node"), std::string::npos) << each.why;
  }
  FencedStore good(2);
  for (const Heard& each : call_by(good, {"a/", "b/"}, kSecond)) EXPECT_TRUE(each.plan) << each.why;
}

TEST(RollCall, WhatIsNoPlanIsRefused) {
  const std::string good = call({"a/", "b/"})[0].plan->text();
  EXPECT_EQ(Plan::parse(good).text(), good);
  const std::size_t secret = good.rfind(' ', good.find(" 10.") - 1) - 2 * Secret::kBytes;
  std::string bad_secret = good;
  bad_secret[secret + 3] = 'g';
  for (const std::string& text :
       {std::string(), std::string("2"), std::string("0 0 job -"), std::string("-1 0 job -"),
        std::string("1 0 job - 0 10.0.0.1:1"), good.substr(0, good.find(" 10.")), bad_secret,
        "2 0 job " + std::string(63, 'a') + " 0 10.0.0.1:1", "2 0 job " + std::string(64, 'a') + " tcp 10.0.0.1:1"}) {
    EXPECT_THROW(Plan::parse(text), Error) << text;
  }
}

TEST(RollCall, APlanOfMoreNodesThanRanksIsRefused) {
  MapStore store;
  store.set("place/0", bytes_of("a/"));
  store.set("plan", bytes_of("yes 3 0 job " + std::string(2 * Secret::kBytes, 'a') + " 0 10.0.0.1:1"));
  try {
    call_roll(1, 2, "b/", store, kSecond, [](Plan&) {});
    ADD_FAILURE() << "it was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::corrupt) << error.what();
    EXPECT_NE(std::string(error.what()).find("3 nodes, but there are 2 ranks"), std::string::npos) << error.what();
  }
}

TEST(RollCall, AMachinesNameIsTheSameForItsProcessesAndHasTheNode) {
  EXPECT_EQ(machine_name(""), machine_name(""));
  EXPECT_NE(machine_name("x"), machine_name("y"));
  EXPECT_NE(machine_name("").find(std::to_string(::getuid())), std::string::npos);
}

}  // namespace
}  // namespace tsprun::detail::bootstrap::roll_call_test
