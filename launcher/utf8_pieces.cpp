// Keeps an incomplete last character for the next piece.
#include "launcher/utf8_pieces.h"

#include <cstddef>
#include <utility>

namespace tsprun::detail::launcher {

namespace {

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

/// Returns the bytes of a character that begins with this byte; 1 for a byte that can't begin a longer one.
std::size_t length_of(char first) {
  const auto byte = static_cast<unsigned char>(first);
  if (byte >= 0xC2 && byte <= 0xDF) return 2;
  if (byte >= 0xE0 && byte <= 0xEF) return 3;
  if (byte >= 0xF0 && byte <= 0xF4) return 4;
  return 1;
}

}  // namespace

std::string Utf8Pieces::add(std::string_view bytes) {
  pending_.append(bytes);
  // Only the last character can be unfinished: look for its first byte.
  std::size_t begin = pending_.size();
  while (begin > 0 && pending_.size() - begin < 3 && continues(pending_[begin - 1])) --begin;
  if (begin == 0 || length_of(pending_[begin - 1]) <= pending_.size() - begin + 1) return std::exchange(pending_, {});
  --begin;
  std::string whole = pending_.substr(0, begin);
  pending_.erase(0, begin);
  return whole;
}

std::string Utf8Pieces::rest() { return std::exchange(pending_, {}); }

}  // namespace tsprun::detail::launcher
