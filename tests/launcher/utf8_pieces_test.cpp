// A text that comes byte by byte is passed on in whole characters.
#include "launcher/utf8_pieces.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tsprun::detail::launcher::utf8_pieces_test {
namespace {

/// Returns what comes out for each byte, and at the end.
std::vector<std::string> pieces_of(const std::string& text) {
  Utf8Pieces stream;
  std::vector<std::string> pieces;
  for (const char byte : text) pieces.push_back(stream.add({&byte, 1}));
  pieces.push_back(stream.rest());
  return pieces;
}

TEST(Utf8Pieces, CharactersComeWhole) {
  const std::vector<std::string> expected = {"a", "", "ä", "", "", "€", "", "", "", "😀", "b", ""};
  EXPECT_EQ(pieces_of("aä€😀b"), expected);
}

TEST(Utf8Pieces, WhatIsNoUtf8PassesAsSoonAsThatIsCertain) {
  EXPECT_EQ(pieces_of("\x80\xff"), (std::vector<std::string>{"\x80", "\xff", ""}));
  EXPECT_EQ(pieces_of("\xe2x"), (std::vector<std::string>{"", "\xe2x", ""})) << "a character that broke off";
  EXPECT_EQ(pieces_of("\xe2\x82"), (std::vector<std::string>{"", "", "\xe2\x82"})) << "at the end it comes, too";
  EXPECT_EQ(pieces_of("\xc3\xc3\xa4"), (std::vector<std::string>{"", "\xc3", "ä", ""}));
}

TEST(Utf8Pieces, NothingIsLostOrChanged) {
  std::string text;
  for (unsigned i = 0; i < 4096; ++i) text += static_cast<char>((i * 2654435761U) >> 24);
  Utf8Pieces stream;
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += 7) out += stream.add(std::string_view(text).substr(at, 7));
  EXPECT_EQ(out + stream.rest(), text);
}

}  // namespace
}  // namespace tsprun::detail::launcher::utf8_pieces_test
