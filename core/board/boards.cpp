// Copies pages word by word between boards, and drops activity that was caught between two operations.
#include "core/board/boards.h"

#include "core/board/page_copy.h"
#include "transport/bootstrap/job_description.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace tsprun::detail {

namespace {

using Word = std::atomic<std::uint64_t>;
static_assert(sizeof(RankPage) % sizeof(Word) == 0);
constexpr std::size_t kWords = sizeof(RankPage) / sizeof(Word);
using Snapshot = std::array<std::uint64_t, kWords>;

Snapshot take(RankPage& page) {
  Snapshot words;
  take_words(reinterpret_cast<const Word*>(&page), words);
  return words;
}

void put(const Snapshot& words, RankPage& page) { put_words(words, reinterpret_cast<Word*>(&page)); }

/// Keeps from an earlier copy (`before`) those activity lines that changed between two readings: they were caught between two
/// operations and say nothing.
void keep_still_lines(Snapshot& words, const Snapshot& again, const Snapshot& before) {
  constexpr std::size_t first = offsetof(RankPage, activity) / sizeof(Word);
  constexpr std::size_t each = sizeof(ActivityLine) / sizeof(Word);
  for (std::size_t line = 0; line < kQueues; ++line) {
    const auto begin = static_cast<std::ptrdiff_t>(first + line * each);
    const auto end = begin + static_cast<std::ptrdiff_t>(each);
    if (!std::equal(words.begin() + begin, words.begin() + end, again.begin() + begin)) {
      std::copy(before.begin() + begin, before.begin() + end, words.begin() + begin);
    }
  }
}

/// Returns how many of a page's bytes are worth sending: the error's text only if there is an error.
std::size_t useful_bytes(const Snapshot& words) {
  const auto* page = reinterpret_cast<const std::byte*>(words.data());
  std::uint32_t state = 0;
  std::memcpy(&state, page + offsetof(RankPage, error), sizeof state);
  return state == 0 ? offsetof(RankPage, error) : sizeof(RankPage);
}

}  // namespace

Boards::Boards(std::vector<shm::NodeMemory> memories) {
  for (shm::NodeMemory& memory : memories) {
    const FlightBoard nowhere(memory);
    const auto first = static_cast<int>(bootstrap::job_of(memory).first_rank);
    nodes_.push_back({std::move(memory), nowhere, first});
    nodes_.back().board = FlightBoard(nodes_.back().memory);
  }
  heard_.resize(nodes_.front().memory.layout().world_size);
}

shm::NodeMemory* Boards::home(int rank) {
  const auto at = std::ranges::find_if(nodes_, [rank](const Node& node) { return node.has(rank); });
  return at == nodes_.end() ? nullptr : &at->memory;
}

RankPage& Boards::page(int rank) {
  const auto at = std::ranges::find_if(nodes_, [rank](const Node& node) { return node.has(rank); });
  return (at == nodes_.end() ? nodes_.front() : *at).board.page(rank);
}

bool Boards::aborted() const {
  return std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.board.aborted(); });
}

Failure Boards::failure() const {
  for (const Node& node : nodes_) {
    if (Failure failure = node.board.failure(); failure.cause != Cause::none) return failure;
  }
  return {};
}

void Boards::abort(const Failure& failure) {
  for (Node& node : nodes_) node.board.abort(failure);
}

void Boards::correct(const Failure& failure) {
  for (Node& node : nodes_) {
    node.board.correct(failure);
    node.board.abort(failure);
  }
}

void Boards::clear_half_written() {
  for (Node& node : nodes_) {
    node.board.node().first.record.clear_half_written();
  }
}

void Boards::ring_all() {
  for (Node& node : nodes_) {
    for (std::uint32_t i = 0; i < node.memory.layout().local_ranks; ++i) node.memory.ring(static_cast<int>(i));
  }
}

void Boards::mirror(const std::function<void(int rank, std::span<const std::byte> page)>& changed) {
  if (nodes_.size() < 2 && !changed) return;
  for (Node& node : nodes_) {
    for (int rank = node.first; node.has(rank); ++rank) {
      RankPage& page = node.board.page(rank);
      Snapshot words = take(page);
      const Snapshot again = take(page);
      std::vector<std::byte>& heard = heard_[static_cast<std::size_t>(rank)];
      Snapshot before{};
      if (!heard.empty()) std::memcpy(before.data(), heard.data(), heard.size());
      keep_still_lines(words, again, before);
      const auto* bytes = reinterpret_cast<const std::byte*>(words.data());
      const std::size_t useful = useful_bytes(words);
      if (heard.size() == useful && std::equal(heard.begin(), heard.end(), bytes)) continue;
      heard.assign(bytes, bytes + useful);
      for (Node& other : nodes_) {
        if (&other != &node) put(words, other.board.page(rank));
      }
      if (changed) changed(rank, heard);
    }
  }
}

void Boards::show(int rank, std::span<const std::byte> page, std::int64_t clock_offset_ns) {
  Snapshot words{};
  std::memcpy(words.data(), page.data(), page.size());
  const auto shift = [&](std::size_t offset) {
    std::uint64_t& time = words[offset / sizeof(Word)];
    if (time != 0) time += static_cast<std::uint64_t>(clock_offset_ns);
  };
  shift(offsetof(RankPage, last_sign_ns));
  for (std::size_t line = 0; line < kQueues; ++line) {
    shift(offsetof(RankPage, activity) + line * sizeof(ActivityLine) + offsetof(ActivityLine, since_ns));
  }
  for (std::size_t line = 0; line < kFaultLines; ++line) {
    shift(offsetof(RankPage, fault_lines) + line * sizeof(FaultLine) + offsetof(FaultLine, when_ns));
  }
  for (Node& node : nodes_) put(words, node.board.page(rank));
}

}  // namespace tsprun::detail
