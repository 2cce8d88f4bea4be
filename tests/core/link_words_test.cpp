// Notes about lost peers: each rank reads why it is lost, whatever the reasons are, and notes stay small.
#include "core/link_words.h"

#include "transport/bootstrap/store_link.h"
#include "transport/factory.h"

#include <gtest/gtest.h>

namespace tsprun::detail::link_words_test {
namespace {

/// Returns why a rank is lost, as it reads that in notes.
std::optional<std::string> read(const std::vector<std::byte>& notes, int rank, std::size_t world) {
  return read_note(notes_for(rank, world).of(notes));
}

TEST(LinkWords, EachRankReadsWhyItIsLost) {
  const std::map<int, std::string> lost = {{0, "no route"}, {2, "timed\tout\n"}, {3, "no route"}, {6, ""}};
  const std::vector<std::byte> notes = write_notes(lost, 7);
  EXPECT_EQ(read(notes, 0, 7), "no route");
  EXPECT_EQ(read(notes, 1, 7), std::nullopt);
  EXPECT_EQ(read(notes, 2, 7), "timed out ");
  EXPECT_EQ(read(notes, 3, 7), "no route");
  EXPECT_EQ(read(notes, 4, 7), std::nullopt);
  EXPECT_EQ(read(notes, 6, 7), "");  // lost, although the reason is no text
  EXPECT_EQ(notes.size(), 7 + std::string_view("no route\ntimed out \n\n").size());
}

TEST(LinkWords, NobodyLostIsNoBytes) {
  EXPECT_TRUE(write_notes({}, 1000).empty());
  EXPECT_EQ(read({}, 999, 1000), std::nullopt);
}

TEST(LinkWords, UnlikeReasonsOfManyPeersStaySmall) {
  constexpr int kWorld = 8000;
  std::map<int, std::string> lost;
  for (int rank = 1; rank < kWorld; ++rank) lost[rank] = std::to_string(rank) + std::string(1000, 'x');
  const std::vector<std::byte> notes = write_notes(lost, kWorld);
  EXPECT_LE(notes.size(), kWorld + (kMostReasons + 1) * (kMostReasonBytes + 1));
  EXPECT_EQ(read(notes, 0, kWorld), std::nullopt);
  EXPECT_EQ(read(notes, 1, kWorld), lost[1].substr(0, kMostReasonBytes));
  EXPECT_EQ(read(notes, static_cast<int>(kMostReasons), kWorld), lost[kMostReasons].substr(0, kMostReasonBytes));
  for (const int rank : {static_cast<int>(kMostReasons) + 1, kWorld - 1})
    EXPECT_EQ(read(notes, rank, kWorld), "it failed for one of more reasons than it tells") << rank;
}

TEST(LinkWords, NotesThatAreNoneAreALossWithoutWords) {
  EXPECT_EQ(read_note(std::vector<std::byte>{std::byte{9}}), "");
  EXPECT_EQ(read_note(std::vector<std::byte>{std::byte{2}, std::byte{'a'}}), "");
  EXPECT_EQ(read_note(std::vector<std::byte>{std::byte{1}, std::byte{'a'}}), "a");
}

TEST(LinkWords, AddressesOfTheLargestWorldFitIntoAValue) {
  EXPECT_EQ(most_ranks(0), 0);
  EXPECT_LE(most_ranks(8) * 8, bootstrap::kMostValueBytes);
  EXPECT_GE(most_ranks(8), 7000);
  for (const Factory* factory : kFactories) {
    const std::size_t most = most_ranks(factory->own_bytes);
    EXPECT_TRUE(most == 0 || most >= 4096) << factory->name;
  }
}

}  // namespace
}  // namespace tsprun::detail::link_words_test
