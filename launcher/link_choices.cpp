// Combines forecast and chosen transports of all pairs into few lines and a compact JSON matrix.
#include "launcher/link_choices.h"

#include "launcher/ranges.h"
#include "transport/bootstrap/placement.h"
#include "transport/factory.h"
#include "transport/number.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace tsprun::detail::launcher {

namespace {

/// Most lines in the log; the report has all.
constexpr std::size_t kMostWays = 32;
constexpr std::string_view kKey = "live/way/";

/// Returns the number that a text is, if it is below `limit`; otherwise -1.
int number_in(std::string_view text, int limit) {
  const int number = number_from<int>(text).value_or(-1);
  return number < limit ? std::max(number, -1) : -1;
}

/// Takes the part before `mark` off a text and returns it; all of the text if there is no mark.
std::string_view take(std::string_view& text, char mark) {
  const std::size_t end = std::min(text.find(mark), text.size());
  const std::string_view head = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return head;
}

}  // namespace

LinkChoices::LinkChoices(const GlobalOptions& options)
    : ranks_(options.ranks),
      nodes_(options.nodes),
      intra_(options.intra),
      inter_(options.inter),
      node_here_(options.several_machines ? options.node_rank : -1),
      lacks_(kFactories.size()),
      trivial_(options.ranks == 1 || (options.nodes == 1 && within_node(options.intra).to_tell.empty())),
      untold_(trivial_ ? 0 : options.ranks),
      told_(static_cast<std::size_t>(options.ranks)) {
  for (std::size_t i = 0; i < kFactories.size(); ++i) {
    if (nodes_ > 1 && kFactories[i]->lacks != nullptr) lacks_[i] = kFactories[i]->lacks();
  }
}

void LinkChoices::heard(std::string_view key, std::string_view text) {
  const int rank = key.starts_with(kKey) ? number_in(key.substr(kKey.size()), ranks_) : -1;
  if (trivial_ || rank < 0) return;
  Told& told = told_[static_cast<std::size_t>(rank)];
  if (told.done) return;
  told.done = true;
  told.choice.assign(static_cast<std::size_t>(ranks_), -1);
  --untold_;
  while (!text.empty()) {
    std::string_view line = take(text, '\n');
    LinkChoice choice;
    choice.kind = take(line, '\t');
    choice.why = take(line, '\t');
    if (std::ranges::find(kFactories, choice.kind, &Factory::name) == kFactories.end()) continue;
    const auto same = std::find_if(reasons_.begin(), reasons_.end(),
                                   [&](const LinkChoice& each) { return each.kind == choice.kind && each.why == choice.why; });
    const auto index = static_cast<int>(same - reasons_.begin());
    if (same == reasons_.end()) reasons_.push_back(std::move(choice));
    while (!line.empty()) {
      const int to = number_in(take(line, ','), ranks_);
      if (to >= 0) told.choice[static_cast<std::size_t>(to)] = index;
    }
  }
}

LinkChoice LinkChoices::forecast(int from, int to) const {
  const int here = node_of(ranks_, nodes_, from);
  const int there = node_of(ranks_, nodes_, to);
  using enum Factory::Claim::Answer;
  const auto distance = here == there ? Factory::Distance::node : Factory::Distance::job;
  std::string why = here == there ? "same node" : "";
  for (std::size_t i = 0; i < kFactories.size(); ++i) {
    const Factory& kind = *kFactories[i];
    const Factory::Claim claim = kind.claim(here == there ? intra_ : inter_, distance);
    if (!claim.why.empty()) why = claim.why;
    if (claim.answer == yes || claim.answer == or_not_at_all) return {std::string(kind.name), why};
    if (claim.answer == no) continue;
    const bool is_of_here = node_here_ < 0 || node_here_ == here || node_here_ == there;
    if (lacks_[i].empty() || !is_of_here) break;
    why = fmt::format("{}: node {}: {}", claim.why, node_here_ < 0 ? here : node_here_, lacks_[i]);
  }
  return {"", "the ranks didn't say what they chose"};
}

LinkChoice LinkChoices::chosen(int from, int to) const {
  const Told& told = told_[static_cast<std::size_t>(from)];
  const int choice = told.done ? told.choice[static_cast<std::size_t>(to)] : -1;
  return choice >= 0 ? reasons_[static_cast<std::size_t>(choice)] : forecast(from, to);
}

LinkChoice LinkChoices::between(int from, int to) const {
  LinkChoice choice = chosen(from, to);
  const int here = node_of(ranks_, nodes_, from);
  const int there = node_of(ranks_, nodes_, to);
  if (here != there) choice.why = fmt::format("nodes {} and {}; {}", here, there, choice.why);
  return choice;
}

std::vector<std::string> LinkChoices::lines() const {
  struct Pairs {
    int count = 0;
    int from = 0;
    int to = 0;
  };
  std::map<std::pair<std::string, std::string>, Pairs> groups;
  for (int from = 0; from < ranks_; ++from) {
    for (int to = from + 1; to < ranks_; ++to) {
      const LinkChoice choice = between(from, to);
      Pairs& pairs = groups[{choice.kind, choice.why}];
      if (pairs.count++ == 0) pairs = {1, from, to};
    }
  }
  std::vector<std::string> lines;
  for (const auto& [choice, pairs] : groups) {
    const std::string named =
        pairs.count == 1 ? fmt::format("ranks {} and {}", pairs.from, pairs.to) : fmt::format("{} pairs of ranks", pairs.count);
    lines.push_back(fmt::format("{} for {}: {}", choice.first.empty() ? "unknown" : choice.first, named, choice.second));
  }
  if (lines.size() > kMostWays) {
    const std::size_t more = lines.size() - kMostWays;
    lines.resize(kMostWays);
    lines.push_back(fmt::format("and {} lines more, which the report of --json has", more));
  }
  return lines;
}

nlohmann::ordered_json LinkChoices::json() const {
  // Distinct choices by number; in a row, -1 stands for the rank itself.
  std::vector<LinkChoice> choices;
  const auto row = [&](int from) {
    std::vector<int> numbers(static_cast<std::size_t>(ranks_), -1);
    for (int to = 0; to < ranks_; ++to) {
      if (to == from) continue;
      const LinkChoice choice = chosen(from, to);
      const auto same = std::find_if(choices.begin(), choices.end(),
                                     [&](const LinkChoice& each) { return each.kind == choice.kind && each.why == choice.why; });
      numbers[static_cast<std::size_t>(to)] = static_cast<int>(same - choices.begin());
      if (same == choices.end()) choices.push_back(choice);
    }
    return numbers;
  };
  const auto agree = [](int a, int b) { return a == b || a < 0 || b < 0; };
  nlohmann::ordered_json table = nlohmann::ordered_json::array();
  for (int first = 0; first < ranks_;) {
    // Consecutive ranks from `first` on that use the same choices, also among each other.
    std::vector<int> block = {first};
    std::vector<int> together = row(first);
    for (int next = first + 1; next < ranks_; ++next) {
      const std::vector<int> numbers = row(next);
      if (!std::equal(together.begin(), together.end(), numbers.begin(), agree)) break;
      std::transform(together.begin(), together.end(), numbers.begin(), together.begin(),
                     [](int a, int b) { return std::max(a, b); });
      block.push_back(next);
    }
    for (int number = 0; number < static_cast<int>(choices.size()); ++number) {
      std::vector<int> to;
      for (int rank = 0; rank < ranks_; ++rank) {
        if (together[static_cast<std::size_t>(rank)] == number) to.push_back(rank);
      }
      if (to.empty()) continue;
      const LinkChoice& choice = choices[static_cast<std::size_t>(number)];
      // The first pair of two different ranks.
      const bool other = to.front() != first || to.size() > 1;
      const int example = !other ? first : to.front() != first ? to.front() : to[1];
      table.push_back({{"from", other ? first : block[1]},
                       {"to", example},
                       {"kind", choice.kind.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(choice.kind)},
                       {"why", choice.why},
                       {"from_ranks", ranges_text(block)},
                       {"to_ranks", ranges_text(to)}});
    }
    first = block.back() + 1;
  }
  return table;
}

}  // namespace tsprun::detail::launcher
