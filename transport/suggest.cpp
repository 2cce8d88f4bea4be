// Edit distance with swaps of neighbouring letters (optimal string alignment).
#include "transport/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace tsprun::detail {

namespace {

/// Returns how many letters may be wrong. Very short words differ by one letter whatever they mean; of long ones a third may be
/// wrong, but no more than three letters.
std::size_t tolerated(std::size_t length) { return length < 3 ? 0 : std::clamp<std::size_t>(length / 3, 1, 3); }

}  // namespace

std::string plain_word(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  std::string result(word);
  for (char& letter : result) letter = letter == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return result;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows of the dynamic programming table: the one before last, the last, this one.
  std::array<std::vector<std::size_t>, 3> rows;
  rows.fill(std::vector<std::size_t>(b.size() + 1));
  for (std::size_t j = 0; j <= b.size(); ++j) rows[2][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::rotate(rows.begin(), rows.begin() + 1, rows.end());
    rows[2][0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = rows[1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      rows[2][j] = std::min({rows[1][j] + 1, rows[2][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) rows[2][j] = std::min(rows[2][j], rows[0][j - 2] + 1);
    }
  }
  return rows[2][b.size()];
}

std::string nearest_word(std::string_view typed, std::span<const std::string> known) {
  const std::string word = plain_word(typed.substr(0, typed.find('=')));
  if (word.empty()) return {};
  const std::string* nearest = nullptr;
  std::pair<std::size_t, std::size_t> best{tolerated(word.size()) + 1, 0};
  for (const std::string& each : known) {
    const std::string other = plain_word(each);
    // Among equally near words prefer one of equal length: letters are swapped more often than they are left out.
    const std::size_t longer = std::max(other.size(), word.size()) - std::min(other.size(), word.size());
    if (longer > tolerated(word.size())) continue;  // of a long text in a file, too, not a step is computed
    const std::pair<std::size_t, std::size_t> far{edit_distance(word, other), longer};
    if (far >= best || (far.first > tolerated(word.size()))) continue;
    best = far;
    nearest = &each;
  }
  return nearest != nullptr ? *nearest : std::string();
}

std::string did_you_mean(std::string_view typed, std::span<const std::string> known) {
  const std::string word = nearest_word(typed, known);
  return word.empty() ? std::string() : fmt::format(" (did you mean {}?)", word);
}

}  // namespace tsprun::detail
