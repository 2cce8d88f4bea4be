// Packs pages with the time of their reading, so that a reader can turn their times into those of its own clock, and failures.
#include "core/board/news.h"

#include "transport/bootstrap/placement.h"
#include "transport/cause.h"
#include "transport/posix.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

namespace tsprun::detail {

namespace {

constexpr std::string_view kNoOp = "-";

/// Returns a failure as text: "cause rank code sequence op", a line feed, and the detail.
std::string packed(const Failure& failure) {
  return fmt::format("{} {} {} {} {}\n{}", static_cast<int>(failure.cause), failure.rank, failure.code, failure.sequence,
                     failure.op.empty() ? kNoOp : failure.op, failure.detail);
}

/// Reads what packed() wrote; nothing if the text is none.
std::optional<Failure> unpacked(std::string_view text) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  std::array<std::string_view, 5> words;
  std::string_view line = text.substr(0, end);
  for (std::string_view& word : words) word = take_word(line, ' ');
  const auto cause = number_from<std::uint8_t>(words[0]);
  const auto rank = number_from<int>(words[1]);
  const auto code = number_from<int>(words[2]);
  const auto sequence = number_from<std::uint32_t>(words[3]);
  if (!cause || !is_cause(*cause) || *cause == 0 || !rank || !code || !sequence) return std::nullopt;
  return Failure{.cause = static_cast<Cause>(*cause),
                 .rank = *rank,
                 .code = *code,
                 .op = std::string(words[4] == kNoOp ? "" : words[4]),
                 .sequence = *sequence,
                 .detail = std::string(text.substr(end + 1))};
}

}  // namespace

void News::tell(Boards& boards, const Say& say) {
  const std::uint64_t now = posix::now_ns();
  boards.mirror([&](int rank, std::span<const std::byte> page) {
    std::vector<std::byte> value(sizeof now + page.size());
    std::memcpy(value.data(), &now, sizeof now);
    std::memcpy(value.data() + sizeof now, page.data(), page.size());
    say(fmt::format("live/page/{}", rank), value);
  });
  if (now - last_beat_ns_ < kBeat_ns) return;
  last_beat_ns_ = now;
  say(fmt::format("live/beat/{}", self_), {});
}

void News::tell_failure(const Failure& failure, const Say& say) {
  if (failure_is_known_ || failure.cause == Cause::none) return;
  failure_is_known_ = true;
  say(fmt::format("live/abort/{}", self_), bytes_of(packed(failure)));
}

int News::hear(const std::string& key, const std::vector<std::byte>& value, Boards& boards) {
  if (const int rank = number_after(key, "live/page/", ranks_); rank >= 0) {
    const int node = bootstrap::node_of(ranks_, nodes_, rank);
    std::uint64_t then = 0;
    if (node == self_ || value.size() < sizeof then || value.size() - sizeof then > sizeof(RankPage)) return -1;
    std::memcpy(&then, value.data(), sizeof then);
    boards.show(rank, std::span(value).subspan(sizeof then), static_cast<std::int64_t>(posix::now_ns() - then));
    return node;
  }
  if (const int node = number_after(key, "live/beat/", nodes_); node >= 0) return node == self_ ? -1 : node;
  const int node = number_after(key, "live/abort/", nodes_);
  if (node < 0 || node == self_) return -1;
  const std::optional<Failure> failure = unpacked(text_of(value));
  if (!failure) return -1;
  failure_is_known_ = true;  // to all
  boards.abort(*failure);
  return node;
}

}  // namespace tsprun::detail
