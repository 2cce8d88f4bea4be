// What a verbs transport believes of its peer's headers. tests/fuzz/verbs_wire_fuzz.cpp tries any others.
#include "transport/verbs/judgement.h"

#include "transport/endpoint.h"

#include <gtest/gtest.h>

#include <string>

namespace tsprun::detail::verbs::verbs_judgement_test {
namespace {

constexpr Envelope kEnvelope{.signature = 7, .sequence = 1, .tag = 3};

EntryHeader entry_of(const Awaited& message, Ticket ticket) {
  return {.signature = message.envelope.signature,
          .ticket = ticket,
          .taken = 0,
          .bytes = message.bytes,
          .unused = 0,
          .sequence = message.envelope.sequence,
          .tag = message.envelope.tag,
          .kind = EntryKind::message,
          .reserved = {}};
}

TEST(VerbsJudgement, NewsMayOnlySpeakOfTheSlotsAfterWhatIsOver) {
  EXPECT_EQ(awaited(1, 0), Ticket{1});
  EXPECT_EQ(awaited(16, 0), Ticket{16});
  EXPECT_EQ(awaited(17, 0), std::nullopt);
  EXPECT_EQ(awaited(0, 0), std::nullopt);
  EXPECT_EQ(awaited(5, 5), std::nullopt);
  const Ticket wrapped = Ticket{1} << Immediate::kLowBits;  // the low bits begin anew
  EXPECT_EQ(awaited(3, wrapped - 1), wrapped + 3);
  EXPECT_EQ(awaited(Immediate::kLowMask, wrapped), std::nullopt);
}

TEST(VerbsJudgement, NewsIsOfAKnownKindAndOfAQueueThatIsOpen) {
  for (const News news : {News::entry, News::grant}) {
    EXPECT_EQ(trouble_of(Immediate{news, 2, 1}, true), "");
    EXPECT_NE(trouble_of(Immediate{news, 2, 1}, false), "");
  }
  for (const News news : {News::data, News::credit, News::opened}) {
    for (const bool is_open : {false, true}) EXPECT_EQ(trouble_of(Immediate{news, 2, 1}, is_open), "");
  }
  // Those of whole queue pairs, 5 and 6, come by small ones alone.
  for (std::uint32_t word = 5; word < 7; ++word) EXPECT_NE(trouble_of(Immediate::decode(word << 29 | 1), true), "") << word;
  // Those of ways name one of them, or, with number 0, all that are lost.
  for (int way = 0; way < kMostWays; ++way) EXPECT_EQ(trouble_of(Immediate{News::join, way, 1}, false), "") << way;
  for (int queue = 0; queue < kMostQueues; ++queue)
    EXPECT_EQ(trouble_of(Immediate{News::opened, queue, 0}, false).empty(), queue < kQueues) << queue;
}

TEST(VerbsJudgement, AWholeQueuePairIsToldOnceAndThenReadyOnce) {
  const auto trouble = [](News news, std::uint32_t low, const WholeThere& before, bool told, int stream = 0) {
    return std::string(trouble_of(Immediate{news, stream, low}, before, told));
  };
  const WholeThere nothing{};
  const WholeThere told{.number = 7, .ready = false};
  const WholeThere ready{.number = 7, .ready = true};
  EXPECT_EQ(trouble(News::credit, 0, nothing, false), "");  // the probe
  EXPECT_NE(trouble(News::credit, 1, nothing, false), "");
  EXPECT_NE(trouble(News::credit, 0, told, true), "");
  EXPECT_EQ(trouble(News::whole, 7, nothing, false), "");
  EXPECT_EQ(trouble(News::whole, 0xffffff, nothing, true), "");
  for (const std::uint32_t number : {std::uint32_t{0}, std::uint32_t{1} << 24})
    EXPECT_NE(trouble(News::whole, number, nothing, true), "");
  EXPECT_NE(trouble(News::whole, 7, told, true), "");
  EXPECT_NE(trouble(News::whole, 7, nothing, false, 1), "");
  EXPECT_NE(trouble(News::ready, 0, nothing, true), "");
  EXPECT_NE(trouble(News::ready, 0, told, false), "");
  EXPECT_EQ(trouble(News::ready, 0, told, true), "");
  EXPECT_NE(trouble(News::ready, 0, ready, true), "");
  for (const News news : {News::entry, News::grant, News::data, News::opened, News::join})
    EXPECT_NE(trouble(news, 0, told, true), "") << static_cast<int>(news);
}

TEST(VerbsJudgement, AQueueIsOpenedOnceWithARingOfThisVersion) {
  const Opened there{.address = 4096, .bytes = kRingBytes, .unused = 0, .keys = {7}};
  EXPECT_EQ(trouble_of(there, false), "");
  EXPECT_NE(trouble_of(there, true), "");
  for (const std::uint32_t bytes : {std::uint32_t{0}, static_cast<std::uint32_t>(kRingBytes) - 1, UINT32_MAX})
    EXPECT_NE(trouble_of(Opened{.address = 4096, .bytes = bytes, .unused = 0, .keys = {7}}, false), "") << bytes;
}

/// News of it names what is over; its header, should it lie where a later message is awaited, another number.
TEST(VerbsJudgement, AMessageThatComesTwiceIsFound) {
  const Awaited message{kEnvelope, 100};
  for (const Ticket finished : {Ticket{1}, Ticket{20}, (Ticket{1} << Immediate::kLowBits) + 3}) {
    for (Ticket over = finished; over > 0 && finished - over < kSlots; --over) {
      EXPECT_EQ(awaited(static_cast<std::uint32_t>(over) & Immediate::kLowMask, finished), std::nullopt) << over;
      EXPECT_EQ(judge_entry(entry_of(message, over), over + kSlots, message), Outcome::corrupt);
    }
  }
}

TEST(VerbsJudgement, AnEntryIsTheAwaitedOneOrSaysWhyNot) {
  const Awaited message{kEnvelope, 100};
  EXPECT_EQ(judge_entry(entry_of(message, 4), 4, message), Outcome::done);
  EXPECT_EQ(judge_entry(entry_of(message, 5), 4, message), Outcome::corrupt);
  for (auto change : {+[](EntryHeader& header) { ++header.signature; }, +[](EntryHeader& header) { ++header.sequence; },
                      +[](EntryHeader& header) { ++header.tag; }, +[](EntryHeader& header) { ++header.bytes; }}) {
    EntryHeader header = entry_of(message, 4);
    change(header);
    EXPECT_EQ(judge_entry(header, 4, message), Outcome::mismatch);
  }
  EntryHeader refused = entry_of(message, 4);
  refused.kind = EntryKind::refused;
  EXPECT_EQ(judge_entry(refused, 4, message), Outcome::corrupt);
  const Awaited large{kEnvelope, kEagerBytes + 1};
  EXPECT_EQ(judge_entry(entry_of(large, 4), 4, large), Outcome::corrupt);  // its payload has no room in an entry
}

GrantHeader grant_of(std::uint64_t bytes, std::uint64_t first_bytes, std::uint32_t keys, std::uint32_t adapters = 1) {
  return {.signature = 0,
          .ticket = 1,
          .taken = 0,
          .bytes = bytes,
          .address = 0,
          .first_bytes = first_bytes,
          .sequence = 0,
          .tag = 0,
          .keys = keys,
          .adapters = adapters};
}

TEST(VerbsJudgement, AGrantNeedsAKeyForEverySlab) {
  EXPECT_EQ(trouble_of(grant_of(10'000, 10'000, 1)), "");
  EXPECT_EQ(trouble_of(grant_of(10'000, 5'000, 2)), "");
  EXPECT_EQ(trouble_of(grant_of(1 + kSlabBytes, 1, 2)), "");
  EXPECT_NE(trouble_of(grant_of(2 + kSlabBytes, 1, 2)), "");
  EXPECT_NE(trouble_of(grant_of(10'000, 5'000, 1)), "");
  EXPECT_NE(trouble_of(grant_of(10'000, 0, 2)), "");
  EXPECT_NE(trouble_of(grant_of(10'000, 10'000, 0)), "");
  EXPECT_NE(trouble_of(grant_of(10'000, 10'000, kMaxKeys + 1)), "");
  EXPECT_NE(trouble_of(grant_of(UINT64_MAX, 1, kMaxKeys)), "");
}

TEST(VerbsJudgement, AGrantHasKeysForEachAdapterAndAlwaysForTheFirst) {
  EXPECT_EQ(trouble_of(grant_of(10'000, 10'000, 32, 0b11)), "");
  EXPECT_NE(trouble_of(grant_of(10'000, 10'000, 33, 0b11)), "") << "there is no room for 66 keys";
  EXPECT_EQ(trouble_of(grant_of(10'000, 10'000, 8, 0xff)), "");
  EXPECT_NE(trouble_of(grant_of(10'000, 10'000, 9, 0xff)), "");
  for (const std::uint32_t adapters : {0U, 0b10U, 0x101U, UINT32_MAX})
    EXPECT_NE(trouble_of(grant_of(10'000, 10'000, 1, adapters)), "") << adapters;
  // Keys of adapter 3 stand behind those of 0 and 2.
  const GrantHeader grant = grant_of(1000 + kSlabBytes, 1000, 2, 0b1101);
  EXPECT_EQ(granted_at(grant, 0, 0)->key, 0U);
  EXPECT_EQ(granted_at(grant, 1000, 2)->key, 3U);
  EXPECT_EQ(granted_at(grant, 999, 3)->key, 4U);
  EXPECT_EQ(granted_at(grant, 1000, 3)->key, 5U);
  EXPECT_FALSE(granted_at(grant, 0, 1)) << "there is no key for it";
  EXPECT_FALSE(granted_at(grant, 1000 + kSlabBytes, 0)) << "a third key would be another adapter's";
  EXPECT_FALSE(granted_at(grant_of(1000, 1000, UINT32_MAX, 0b11), 0, 1)) << "changed while it is used";
  EXPECT_FALSE(granted_at(grant_of(1000, 1000, kMaxKeys, 0b11), 0, 1));
}

TEST(VerbsJudgement, PartsOfAPayloadComeOnceEachInAnyOrder) {
  Arrived parts;
  const auto take = [&](int part, int all) {
    const PartNews news = PartNews::decode(PartNews{.ticket = 5, .part = part, .parts = all}.encode());
    EXPECT_EQ(news.ticket, 5U);
    std::string trouble(trouble_of(news, parts));
    if (!trouble.empty()) return trouble;
    parts.all = static_cast<std::uint8_t>(news.parts);
    parts.seen = static_cast<std::uint8_t>(parts.seen | 1U << news.part);
    return trouble;
  };
  EXPECT_FALSE(parts.is_whole());
  EXPECT_EQ(take(2, 3), "");
  EXPECT_NE(take(2, 3), "") << "twice";
  EXPECT_NE(take(1, 2), "") << "of another number";
  EXPECT_NE(take(3, 3), "") << "beyond the last";
  EXPECT_EQ(take(0, 3), "");
  EXPECT_FALSE(parts.is_whole());
  EXPECT_EQ(take(1, 3), "");
  EXPECT_TRUE(parts.is_whole());
  parts = {};
  for (int part = kMostWays - 1; part >= 0; --part) EXPECT_EQ(take(part, kMostWays), "");
  EXPECT_TRUE(parts.is_whole());
  parts = {};
  EXPECT_EQ(take(0, 1), "");
  EXPECT_TRUE(parts.is_whole());
}

TEST(VerbsJudgement, AnotherQueuePairIsToldLinkedAndProvedInThisOrderOrLeftOut) {
  using enum JoinNews::Step;
  const auto trouble = [](JoinNews::Step step, std::uint32_t number, const JoinThere& before, bool told) {
    const JoinNews news = JoinNews::decode(JoinNews{step, number}.encode());
    EXPECT_EQ(news.step, step);
    EXPECT_EQ(news.number, number);
    return std::string(trouble_of(news, before, told));
  };
  const JoinThere nothing{};
  const JoinThere told{.number = 7};
  const JoinThere is_linked{.number = 7, .linked = true};
  const JoinThere is_proved{.number = 7, .linked = true, .proved = true};
  const JoinThere out{.number = 7, .left = true};
  EXPECT_EQ(trouble(number, 0xffffff, nothing, false), "");
  EXPECT_NE(trouble(number, 0, nothing, false), "");
  EXPECT_NE(trouble(number, 8, told, true), "");
  EXPECT_EQ(trouble(linked, 0, told, true), "");
  EXPECT_NE(trouble(linked, 1, told, true), "");
  EXPECT_NE(trouble(linked, 0, told, false), "") << "it can't know this end's number";
  EXPECT_NE(trouble(linked, 0, nothing, true), "");
  EXPECT_NE(trouble(linked, 0, is_linked, true), "");
  EXPECT_EQ(trouble(proved, 0, is_linked, true), "");
  EXPECT_NE(trouble(proved, 0, told, true), "");
  EXPECT_NE(trouble(proved, 0, is_proved, true), "");
  for (const JoinThere& before : {nothing, told, is_linked}) EXPECT_EQ(trouble(left, 0, before, true), "");
  EXPECT_NE(trouble(left, 0, is_proved, true), "") << "then it may carry payloads";
  for (const JoinNews::Step step : {number, linked, proved, left})
    EXPECT_NE(trouble(step, step == number ? 9 : 0, out, true), "");
}

TEST(VerbsJudgement, AnotherQueuePairCarriesPartsOfPayloadsAlone) {
  EXPECT_EQ(trouble_by_other({News::data, 0, 1}), "");
  EXPECT_EQ(trouble_by_other({News::credit, 0, 0}), "") << "its probe";
  EXPECT_NE(trouble_by_other({News::credit, 0, 1}), "");
  EXPECT_NE(trouble_by_other({News::credit, 1, 0}), "");
  EXPECT_NE(trouble_by_other({News::data, kQueues, 1}), "");
  EXPECT_EQ(trouble_by_other({News::join, 0, 1}), "") << "that another one is lost";
  EXPECT_NE(trouble_by_other({News::join, 1, 1}), "");
  for (const News news : {News::entry, News::grant, News::opened, News::whole, News::ready})
    EXPECT_NE(trouble_by_other({news, 0, 0}), "") << static_cast<int>(news);
}

TEST(VerbsJudgement, WaysAreLostForGoodAndOneIsLeft) {
  const auto trouble = [](std::uint8_t lost, std::uint8_t carries, std::uint32_t before, std::size_t ways = 3) {
    const LostNews news = LostNews::decode(LostNews{.lost = lost, .carries = carries, .there = 0x1f}.encode());
    EXPECT_EQ(news.there, 0x1f);
    return std::string(trouble_of(news, ways, before));
  };
  EXPECT_EQ(trouble(0b001, 0b110, 0), "");
  EXPECT_EQ(trouble(0b011, 0b100, 0b001), "");
  EXPECT_EQ(trouble(0x7f, 0x80, 0, kMostWays), "");
  EXPECT_NE(trouble(0b010, 0b100, 0b001), "") << "one is back";
  EXPECT_NE(trouble(0b001, 0b110, 0b001), "") << "nothing new";
  EXPECT_NE(trouble(0, 0b111, 0), "");
  EXPECT_NE(trouble(0b1000, 0b001, 0), "") << "there are three";
  EXPECT_NE(trouble(0b001, 0b1010, 0), "");
  EXPECT_NE(trouble(0b001, 0b011, 0), "") << "lost and carrying";
  EXPECT_NE(trouble(0b111, 0, 0), "") << "by which way did it come?";
}

TEST(VerbsJudgement, APlaceLiesUnderOneKey) {
  const GrantHeader grant = grant_of(3 * kSlabBytes, 1000, 4);
  const auto expect = [&](std::size_t written, std::size_t key, std::size_t bytes) {
    const std::optional<Granted> granted = granted_at(grant, written, 0);
    ASSERT_TRUE(granted);
    EXPECT_EQ(granted->key, key);
    EXPECT_EQ(granted->bytes, bytes);
  };
  expect(0, 0, 1000);
  expect(999, 0, 1);
  expect(1000, 1, kSlabBytes);
  expect(1001, 1, kSlabBytes - 1);
  expect(1000 + kSlabBytes, 2, kSlabBytes);
  EXPECT_FALSE(granted_at(grant, kMaxKeys * kSlabBytes, 0));
}

}  // namespace
}  // namespace tsprun::detail::verbs::verbs_judgement_test
