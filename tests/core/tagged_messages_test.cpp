// Messages with a tag: each receive gets the first message that fits its source and tag, in any order of sends and receives, of
// any size, over every transport; the witness is the list of messages that both ends were given.
#include "core/streams/mail.h"
#include "tests/support/oracle.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tsprun::detail::test::tagged_messages_test {
namespace {

struct Way {
  const char* name;
  RankOptions options;
};

std::vector<Way> ways() {
  return {{"shm", {}},
          {"shm, verified", {.verify = true}},
          {"tcp", {.share = false}},
          {"tcp, oversubscribed", {.cores = 1, .share = false}},
          {"two nodes", {.cores = 1, .nodes = 2}}};
}

std::vector<std::int32_t> content(std::size_t message, std::size_t count) {
  std::vector<std::int32_t> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<std::int32_t>(message * 1'000'003 + i);
  return values;
}

struct Message {
  int from;
  int to;
  std::int32_t tag;
  std::size_t count;
};

std::vector<Message> some_messages(std::mt19937& random, int ranks, std::size_t number) {
  // Sizes on both sides of the header's line, of small messages and of staging, and larger than any lane.
  constexpr std::size_t kCounts[] = {0, 1, 6, 7, 300, kSmallMail / 4, kSmallMail / 4 + 1, 9'000, 40'000, 400'000};
  std::vector<Message> messages(number);
  for (Message& each : messages) {
    each.from = static_cast<int>(random() % static_cast<unsigned>(ranks));
    each.to = (each.from + 1 + static_cast<int>(random() % static_cast<unsigned>(ranks - 1))) % ranks;
    each.tag = static_cast<std::int32_t>(random() % 4);
    each.count = kCounts[random() % std::size(kCounts)];
  }
  return messages;
}

// All ranks post what they send and receive in orders that have nothing in common but what each receive's source and tag ask for.
TEST(TaggedMessages, ReachTheReceiveThatFitsInAnyOrder) {
  for (const Way& way : ways()) {
    for (unsigned seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE(std::string(way.name) + ", seed " + std::to_string(seed));
      const int ranks = 2 + static_cast<int>(seed % 3);
      std::mt19937 random(seed);
      const std::vector<Message> messages = some_messages(random, ranks, 60);
      run_ranks(
          ranks,
          [&](Context& context) {
            std::mt19937 mine(seed * 100 + static_cast<unsigned>(context.rank()));
            // What is sent keeps its order; receives keep it for each source and tag, between which they are shuffled.
            std::vector<std::size_t> sends;
            std::map<std::pair<int, std::int32_t>, std::vector<std::size_t>> by_key;
            std::vector<std::pair<int, std::int32_t>> keys;
            for (std::size_t i = 0; i < messages.size(); ++i) {
              if (messages[i].from == context.rank()) sends.push_back(i);
              if (messages[i].to != context.rank()) continue;
              by_key[{messages[i].from, messages[i].tag}].push_back(i);
              keys.emplace_back(messages[i].from, messages[i].tag);
            }
            std::shuffle(keys.begin(), keys.end(), mine);
            std::map<std::pair<int, std::int32_t>, std::size_t> next;
            std::vector<std::vector<std::int32_t>> out;
            std::vector<std::vector<std::int32_t>> in(keys.size());
            std::vector<MessageInfo> infos(keys.size());
            std::vector<std::size_t> expected(keys.size());
            std::vector<Work> works;
            for (const std::size_t i : sends) out.push_back(content(i, messages[i].count));
            std::size_t sent = 0;
            std::size_t posted = 0;
            while (sent < sends.size() || posted < keys.size()) {
              if (mine() % 8 == 0) context.tick();
              if (posted == keys.size() || (sent < sends.size() && mine() % 2 == 0)) {
                const Message& message = messages[sends[sent]];
                works.push_back(context.world().post_send(std::span<const std::int32_t>(out[sent]), message.to,
                                                          {.stream = Stream::kv, .tag = message.tag}));
                ++sent;
              } else {
                const auto key = keys[posted];
                expected[posted] = by_key[key][next[key]++];
                in[posted].assign(messages[expected[posted]].count, -1);
                works.push_back(context.world().post_recv(std::span<std::int32_t>(in[posted]), key.first,
                                                          {.tag = key.second, .received = &infos[posted]}));
                ++posted;
              }
            }
            std::shuffle(works.begin(), works.end(), mine);
            for (Work& work : works) work.wait();
            for (std::size_t i = 0; i < keys.size(); ++i) {
              EXPECT_EQ(in[i], content(expected[i], in[i].size())) << "message " << expected[i];
              EXPECT_EQ(infos[i].source, keys[i].first);
              EXPECT_EQ(infos[i].tag, keys[i].second);
            }
          },
          way.options);
    }
  }
}

TEST(TaggedMessages, FromAnySourceComeOnceEachAndInTheOrderOfTheirSender) {
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    run_ranks(
        4,
        [](Context& context) {
          Communicator& world = context.world();
          constexpr std::size_t kEach = 50;
          constexpr std::size_t kCount = 5'000;  // 20 KB: announced
          if (world.rank() != 0) {
            for (std::size_t i = 0; i < kEach; ++i) {
              const std::vector<std::int32_t> values = content(i + 1'000 * static_cast<std::size_t>(world.rank()), kCount);
              world.send(std::span<const std::int32_t>(values), 0, {.tag = static_cast<std::int32_t>(i % 3)});
            }
            return;
          }
          std::map<int, std::size_t> next;
          for (std::size_t i = 0; i < 3 * kEach; ++i) {
            std::vector<std::int32_t> values(kCount);
            MessageInfo info;
            world.recv(std::span<std::int32_t>(values), kAnySource, {.tag = kAnyTag, .received = &info});
            ASSERT_TRUE(info.source >= 1 && info.source <= 3) << info.source;
            const std::size_t number = next[info.source]++;
            EXPECT_EQ(info.tag, static_cast<std::int32_t>(number % 3));
            EXPECT_EQ(values, content(number + 1'000 * static_cast<std::size_t>(info.source), kCount));
          }
          for (int source = 1; source <= 3; ++source) EXPECT_EQ(next[source], kEach);
        },
        way.options);
  }
}

// Of 200 small messages that nobody receives, as many leave as may be stored; what comes behind them overtakes them nevertheless.
TEST(TaggedMessages, ThatNobodyWantsYetStayWithTheirSenderBeyondTheWindow) {
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    run_ranks(
        2,
        [](Context& context) {
          Communicator& world = context.world();
          constexpr std::size_t kMessages = 200;
          std::vector<std::int32_t> last(3);
          if (world.rank() == 0) {
            std::vector<std::vector<std::int32_t>> out;
            std::vector<Work> works;
            for (std::size_t i = 0; i < kMessages; ++i) out.push_back(content(i, 100));
            for (const auto& each : out) works.push_back(world.post_send(std::span<const std::int32_t>(each), 1, {.tag = 1}));
            last = content(kMessages, 3);
            world.send(std::span<const std::int32_t>(last), 1, {.tag = 2});
            EXPECT_EQ(std::ranges::count_if(works, [](Work& work) { return work.test(); }), kMailWindow);
            world.barrier();
            for (Work& work : works) work.wait();
          } else {
            world.recv(std::span<std::int32_t>(last), 0, {.tag = 2});
            EXPECT_EQ(last, content(kMessages, 3));
            world.barrier();
            for (std::size_t i = 0; i < kMessages; ++i) {
              std::vector<std::int32_t> values(100);
              world.recv(std::span<std::int32_t>(values), kAnySource, {.tag = 1});
              EXPECT_EQ(values, content(i, 100));
            }
          }
        },
        way.options);
  }
}

// The receiver is in a barrier, whose circle of waits three ranks may be in, and hasn't exchanged a message with the sender yet.
// They count when they are received, for what their receives are for.
TEST(TaggedMessages, OfAWholeWindowAreSentBeforeABarrierAndReceivedAfterIt) {
  for (const Way& way : ways()) {
    if (way.options.nodes > 1)
      continue;  // nobody tells these nodes for whom the other's ranks wait (tests/torch has two that know)
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(std::string(way.name) + ", ranks " + std::to_string(ranks));
      run_ranks(
          ranks,
          [](Context& context) {
            Communicator& world = context.world();
            const int last = world.size() - 1;
            const auto received = [&](Purpose purpose) { return context.traffic().received[static_cast<std::size_t>(purpose)]; };
            for (std::size_t round = 0; round < 3; ++round) {
              if (world.rank() == 0) {
                for (std::size_t i = 0; i < kMailWindow; ++i) {
                  const auto out = content(round + i, kSmallMail / 4);
                  world.send(std::span<const std::int32_t>(out), last, {.tag = static_cast<std::int32_t>(i)});
                }
              }
              world.barrier();
              if (world.rank() == last) {
                for (std::size_t i = kMailWindow; i-- > 0;) {
                  std::vector<std::int32_t> values(kSmallMail / 4);
                  const std::uint64_t before = received(Purpose::activations);
                  world.recv(std::span<std::int32_t>(values), 0,
                             {.purpose = Purpose::activations, .tag = static_cast<std::int32_t>(i)});
                  EXPECT_EQ(values, content(round + i, kSmallMail / 4));
                  EXPECT_EQ(received(Purpose::activations), before + kSmallMail);
                  EXPECT_EQ(received(Purpose::other), 0U);
                }
              }
              world.barrier();  // the window is open again
            }
          },
          way.options);
    }
  }
}

// There is no circle of waits that would show it: rank 1 isn't in a wait.
TEST(TaggedMessages, ComeInThoughTheOthersWaitForARankThatOnlyTests) {
  run_ranks(3, [](Context& context) {
    Communicator& world = context.world();
    constexpr std::int32_t kMessages = 20;
    std::vector<std::int32_t> values(100);
    if (world.rank() == 0) {
      for (std::int32_t i = 0; i < kMessages; ++i) {
        values = content(static_cast<std::size_t>(i), 100);
        world.send(std::span<const std::int32_t>(values), 2, {.tag = i});
      }
      world.send(std::span<const std::int32_t>(values), 1, {.tag = 0});
    }
    if (world.rank() == 1) {
      Work work = world.post_recv(std::span<std::int32_t>(values), 0, {.tag = 0});
      while (!work.test()) context.tick();
    }
    world.barrier();
    for (std::int32_t i = 0; world.rank() == 2 && i < kMessages; ++i) {
      world.recv(std::span<std::int32_t>(values), 0, {.tag = i});
      EXPECT_EQ(values, content(static_cast<std::size_t>(i), 100));
    }
  });
}

// Before the receivers ask for anything, their transports have read the sender's last bytes and the end of its connection.
TEST(TaggedMessages, ArriveThoughTheirSenderHasLeft) {
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    std::atomic<bool> sent = false;
    run_ranks(
        3,
        [&](Context& context) {
          Communicator& world = context.world();
          Communicator own = world.subgroup(std::vector<int>{0, 1, 2}, Channel::own);
          const std::vector<float> mine(20, static_cast<float>(context.rank()));
          std::vector<float> all(60);
          const std::vector<std::int32_t> values = content(1, 300);
          if (context.rank() == 1) {
            own.post_gather(std::span<const float>(mine), std::span(all), 0).wait();
            world.send(std::span<const std::int32_t>(values), 0, {.tag = 5});
            world.send(std::span<const std::int32_t>(values), 2, {.tag = 5});
            sent = true;
            return;
          }
          while (!sent) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          for (int look = 0; look < 10; ++look) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            context.tick();
          }
          own.post_gather(std::span<const float>(mine), std::span(all), 0).wait();
          std::vector<std::int32_t> got(values.size());
          world.recv(std::span(got), context.rank() == 0 ? 1 : kAnySource, {.tag = 5});
          EXPECT_EQ(got, values);
          for (std::size_t i = 0; context.rank() == 0 && i < all.size(); ++i) {
            const std::size_t from = i / mine.size();
            EXPECT_EQ(all[i], static_cast<float>(from)) << i;
          }
        },
        way.options);
  }
}

TEST(TaggedMessages, WaitNeitherForStreamsNorForEachOther) {
  run_ranks(2, [](Context& context) {
    Communicator& world = context.world();
    const int other = 1 - world.rank();
    std::vector<std::int32_t> first(100'000);
    std::vector<std::int32_t> second(100'000);
    std::vector<std::int32_t> third(1);
    // Both send before they receive, and receive the other way round; a collective that isn't complete holds nothing up.
    const std::vector<std::int32_t> a = content(10, first.size());
    const std::vector<std::int32_t> b = content(11, second.size());
    Work barrier = world.rank() == 0 ? world.post_barrier() : Work();
    Work sends[] = {world.post_send(std::span<const std::int32_t>(a), other, {.tag = 0}),
                    world.post_send(std::span<const std::int32_t>(b), other, {.tag = 1})};
    world.recv(std::span<std::int32_t>(second), other, {.tag = 1});
    world.recv(std::span<std::int32_t>(first), other, {.tag = 0});
    EXPECT_EQ(first, a);
    EXPECT_EQ(second, b);
    for (Work& send : sends) send.wait();
    if (world.rank() == 1) barrier = world.post_barrier();
    barrier.wait();
    // Messages without a tag go their own way.
    const std::vector<std::int32_t> plain = {7};
    if (world.rank() == 0) {
      world.send(std::span<const std::int32_t>(b).first(1), 1, {.tag = 3});
      world.send(std::span<const std::int32_t>(plain), 1);
    } else {
      world.recv(std::span<std::int32_t>(third), 0);
      EXPECT_EQ(third, plain);
      world.recv(std::span<std::int32_t>(third), 0, {.tag = kAnyTag});
      EXPECT_EQ(third, content(11, 1));
    }
  });
}

TEST(TaggedMessages, BelongToTheirGroup) {
  run_ranks(3, [](Context& context) {
    Communicator& world = context.world();
    Communicator back = world.subgroup(std::vector<int>{2, 1, 0});
    if (world.rank() == 0) {
      const std::vector<std::int32_t> a = {1};
      const std::vector<std::int32_t> b = {2};
      world.send(std::span<const std::int32_t>(a), 2, {.tag = 5});
      back.send(std::span<const std::int32_t>(b), 0, {.tag = 5});
    } else if (world.rank() == 2) {
      std::vector<std::int32_t> got(1);
      MessageInfo info;
      back.recv(std::span<std::int32_t>(got), kAnySource, {.tag = 5, .received = &info});
      EXPECT_EQ(got[0], 2);
      EXPECT_EQ(info.source, 2);
      world.recv(std::span<std::int32_t>(got), kAnySource, {.tag = 5, .received = &info});
      EXPECT_EQ(got[0], 1);
      EXPECT_EQ(info.source, 0);
    }
  });
}

}  // namespace
}  // namespace tsprun::detail::test::tagged_messages_test
