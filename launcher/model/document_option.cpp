// Reads lengths of documents, and holds their sum against the sequence.
#include "launcher/model/document_option.h"

#include "core/collectives/chunks.h"
#include "launcher/model/model_options.h"
#include "launcher/refuse.h"
#include "transport/number.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

namespace tsprun::detail::launcher {

namespace {

constexpr std::uint64_t kTooManyTokens = std::uint64_t{1} << 62;

/// Documents of one length.
struct EqualDocuments {
  std::uint32_t count = 1;
  std::uint32_t length = 0;
};

/// Returns a number of documents or tokens; nothing for another text.
std::optional<std::uint32_t> count_from(std::string_view text) {
  const std::optional<std::uint32_t> number = number_from<std::uint32_t>(text);
  return number && *number > 0 && *number <= kMostTokens ? number : std::nullopt;
}

/// Reads "4096" or "2x4096".
EqualDocuments parse_equal(const std::string& text, std::string_view run) {
  const std::size_t times = run.find('x');
  const std::optional<std::uint32_t> count =
      times == std::string_view::npos ? std::optional(1U) : count_from(run.substr(0, times));
  const std::optional<std::uint32_t> length = count_from(times == std::string_view::npos ? run : run.substr(times + 1));
  if (!count || !length) {
    refuse(
        fmt::format("--documents {}: \"{}\" is no length of a document; lengths in tokens work, such as 8192,4096,2x2048 (two of "
                    "2048), or 8x for eight equal documents",
                    text, run));
  }
  return {.count = *count, .length = *length};
}

/// Returns the lengths of so many equal documents, as nearly as they divide the sequence.
std::vector<std::uint32_t> equal_documents(const std::string& text, std::size_t count, std::size_t sequence) {
  if (count > sequence) {
    refuse(fmt::format("--documents {}: a sequence (--seq) has {} tokens, and each document at least one; try --documents {}x",
                       text, sequence, sequence));
  }
  const Chunks cut = Chunks::balanced(static_cast<int>(count), sequence);
  std::vector<std::uint32_t> lengths(count);
  for (std::size_t i = 0; i < count; ++i) lengths[i] = static_cast<std::uint32_t>(cut.count(static_cast<int>(i)));
  return lengths;
}

/// Says what would make documents of `sum` tokens fill a sequence.
std::string what_fills(const std::string& text, std::uint64_t sum, std::size_t sequence) {
  if (text.find_first_of(",x") == std::string::npos && sum < sequence) {
    std::string equal = fmt::format("{0}x are {0} equal documents", sum);
    if (sequence % sum != 0) return equal;
    return fmt::format("{0}x{1} are {0} documents of {1} tokens, {2}", sequence / sum, sum, equal);
  }
  if (sum < sequence) return fmt::format("--seq {} fits them, as does one more of {}", sum, sequence - sum);
  return sum <= kMostTokens ? fmt::format("--seq {} fits them", sum) : std::string("give fewer or shorter ones");
}

}  // namespace

std::vector<std::uint32_t> parse_documents(const std::string& text, std::size_t sequence) {
  if (text.empty()) return {};
  if (text.ends_with('x')) {
    if (const auto count = count_from(std::string_view(text).substr(0, text.size() - 1)))
      return equal_documents(text, *count, sequence);
  }
  std::vector<std::uint32_t> lengths;
  std::uint64_t sum = 0;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const EqualDocuments run = parse_equal(text, std::string_view(text).substr(begin, end - begin));
    sum = std::min(sum + std::uint64_t{run.count} * run.length, kTooManyTokens);
    // Documents of too large a sum aren't needed, and may be too many.
    if (sum <= sequence) lengths.insert(lengths.end(), run.count, run.length);
    begin = end + 1;
  }
  if (sum != sequence) {
    refuse(fmt::format("--documents {}: {} tokens together, and a sequence (--seq) has {}; {}", text, sum, sequence,
                       what_fills(text, sum, sequence)));
  }
  return lengths;
}

}  // namespace tsprun::detail::launcher
