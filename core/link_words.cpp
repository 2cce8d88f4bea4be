// Packs why peers are lost into a table and a few lines, and reads one rank's part.
#include "core/link_words.h"

#include "transport/bootstrap/store_link.h"

#include <algorithm>

namespace tsprun::detail {

namespace {
constexpr std::string_view kOtherReason = "it failed for one of more reasons than it tells";
/// Bytes of a value that are left for what an address has for all ranks.
constexpr std::size_t kForAllBytes = 4096;
}  // namespace

std::string one_field(std::string_view text, std::size_t most) {
  std::string field(text.substr(0, most));
  std::ranges::replace_if(
      field, [](unsigned char c) { return c < ' '; }, ' ');
  return field;
}

std::vector<std::byte> write_notes(const std::map<int, std::string>& lost, std::size_t world) {
  if (lost.empty()) return {};
  std::vector<std::byte> notes(world);
  std::vector<std::string> reasons;
  for (const auto& [rank, why] : lost) {
    std::string reason = one_field(why, kMostReasonBytes);
    auto known = std::ranges::find(reasons, reason);
    if (known == reasons.end() && reasons.size() >= kMostReasons) {
      reason = kOtherReason;
      known = std::ranges::find(reasons, reason);
    }
    notes[static_cast<std::size_t>(rank)] = std::byte(known - reasons.begin() + 1);
    if (known == reasons.end()) reasons.push_back(std::move(reason));
  }
  for (const std::string& reason : reasons) {
    const auto bytes = bytes_of(reason);
    notes.insert(notes.end(), bytes.begin(), bytes.end());
    notes.push_back(std::byte{'\n'});
  }
  return notes;
}

bootstrap::GatherCut notes_for(int rank, std::size_t world) {
  return {.from = static_cast<std::uint32_t>(rank), .bytes = 1, .rest = static_cast<std::uint32_t>(world)};
}

std::optional<std::string> read_note(std::span<const std::byte> part) {
  if (part.empty() || part.front() == std::byte{0}) return std::nullopt;
  std::string_view lines(reinterpret_cast<const char*>(part.data()) + 1, part.size() - 1);
  for (int number = 1; number < std::to_integer<int>(part.front()); ++number)
    lines.remove_prefix(std::min(lines.size(), std::min(lines.size(), lines.find('\n')) + 1));
  return std::string(lines.substr(0, lines.find('\n')));
}

std::size_t most_ranks(std::size_t own_bytes) {
  return own_bytes == 0 ? 0 : (bootstrap::kMostValueBytes - kForAllBytes) / own_bytes;
}

}  // namespace tsprun::detail
