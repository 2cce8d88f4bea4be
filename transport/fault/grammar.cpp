#include "transport/fault/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>

namespace tsprun::detail::fault {

namespace {

constexpr std::uint64_t kLargestRank = 1'000'000;
constexpr double kLeast = 1e-9;
constexpr double kLongestSeconds = 86'400;
constexpr double kFastestGbps = 1e6;
/// Longest word that may be a misspelling, in letters.
constexpr std::size_t kLongestWord = 16;

constexpr KeyRule whole(std::string_view key, std::uint64_t least, std::uint64_t most = UINT64_MAX) {
  return {.key = key, .type = ValueType::whole, .least = least, .most = most};
}
constexpr KeyRule real(std::string_view key, double least, double most) {
  return {.key = key, .type = ValueType::real, .least_real = least, .most_real = most};
}
constexpr std::array kRules = {
    whole("rank", 0, kLargestRank),
    whole("from", 0, kLargestRank),
    whole("to", 0, kLargestRank),
    whole("step", 1),
    whole("seq", 1),
    whole("nth", 1),
    whole("seed", 0),
    real("prob", 0, 1),
    real("seconds", kLeast, kLongestSeconds),
    real("ms", kLeast, kLongestSeconds * 1e3),
    real("gbps", kLeast, kFastestGbps),
    KeyRule{.key = "op", .type = ValueType::word},
};
constexpr std::string_view kAnOperation = "all_gather";

Form form_of(Kind kind, std::string_view name, std::string_view example) {
  Form form{.kind = kind, .name = name, .example = example, .needed = {}, .one_of = {}, .optional = {}};
  switch (kind) {
    case Kind::kill:
      form.needed = {"rank"};
      form.one_of = {"step", "op"};
      form.optional = {"seq"};
      break;
    case Kind::stall:
      form.needed = {"rank", "seconds"};
      form.one_of = {"step", "op"};
      form.optional = {"seq"};
      break;
    case Kind::oom: form.needed = {"rank", "step"}; break;
    case Kind::delay:
      form.needed = {"from", "to", "ms"};
      form.optional = {"prob"};
      break;
    case Kind::slow: form.needed = {"from", "to", "gbps"}; break;
    case Kind::corrupt:
    case Kind::drop:
      form.needed = {"from", "to"};
      form.one_of = {"nth", "prob"};
      break;
    case Kind::disconnect: form.needed = {"from", "to", "step"}; break;
  }
  return form;
}

/// Returns the number with which a value begins, moved into the key's bounds; `otherwise` if it begins with none.
template <class Number>
std::string within(std::string_view value, Number least, Number most, std::string_view otherwise) {
  Number number{};
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc::result_out_of_range) return fmt::to_string(most);
  if (error != std::errc{} || number != number) return std::string(otherwise);
  if (end == value.data() + value.size() && number >= least && number <= most) return std::string(value);
  return fmt::to_string(std::clamp(number, least, most));
}

std::string repaired_value(std::string_view key, std::string_view value, std::string_view otherwise) {
  const KeyRule& rule = rule_of(key);
  if (rule.type == ValueType::real) return within(value, rule.least_real, rule.most_real, otherwise);
  if (rule.type == ValueType::word) return std::string(value.empty() ? otherwise : value);
  if (value.starts_with('-')) return fmt::to_string(rule.least);
  return within(value, rule.least, rule.most, otherwise);
}

/// Returns the number of letters to change, add or remove to turn one word into the other (Levenshtein distance). Precondition:
/// both are at most kLongestWord long.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::array<std::size_t, kLongestWord + 1> row;
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j + 1] + 1, row[j] + 1});
    }
  }
  return row[b.size()];
}

/// Returns the key that was probably meant; empty if none is near.
std::string_view nearest_key(const Keys& keys, std::string_view key) {
  return nearest_word(keys, key, std::min<std::size_t>(3, key.size()));
}

/// Repairs a text: collects its keys in the order in which they were typed, corrected.
class Repair {
 public:
  explicit Repair(const Form& form) : form_(form), keys_(form.keys()) {
    for (const auto& [key, value] : split_pairs(form.example)) example_.emplace_back(key, value);
    example_.emplace_back("seed", "1");
    example_.emplace_back("op", kAnOperation);
    for (const char* key : {"seq", "nth", "step", "prob"}) example_.emplace_back(key, "1");
  }

  void take(std::string_view typed, std::string_view value) {
    const std::string_view key = nearest_key(keys_, typed);
    if (key.empty() || has(key)) return;
    const auto is_one_of = [&](std::string_view other) { return std::ranges::find(form_.one_of, other) != form_.one_of.end(); };
    if (is_one_of(key) && std::ranges::any_of(form_.one_of, [&](std::string_view other) { return has(other); })) return;
    said_.emplace_back(key, repaired_value(key, value, example(key)));
  }

  void add_what_is_missing() {
    for (const std::string_view key : form_.needed) {
      if (!has(key)) said_.emplace_back(key, example(key));
    }
    const bool chosen = std::ranges::any_of(form_.one_of, [&](std::string_view key) { return has(key); });
    if (!form_.one_of.empty() && !chosen) {
      const std::string_view key = has("seq") ? "op" : form_.one_of.front();
      said_.emplace_back(key, example(key));
    }
    if (!has("op")) std::erase_if(said_, [](const auto& pair) { return pair.first == "seq"; });
  }

  void keep_within(int ranks) {
    for (const char* key : {"rank", "from", "to"}) {
      if (has(key) && ranks > 0) value(key) = fmt::to_string(std::min(std::stoi(value(key)), ranks - 1));
    }
    if (!has("from") || value("from") != value("to")) return;
    const int from = std::stoi(value("from"));
    value("to") = fmt::to_string(ranks > 1 ? (from + 1) % ranks : from == 0 ? 1 : 0);
  }

  std::string text() const {
    std::string text(form_.name);
    for (std::size_t i = 0; i < said_.size(); ++i)
      text += fmt::format("{}{}={}", i == 0 ? ':' : ',', said_[i].first, said_[i].second);
    return text;
  }

 private:
  using Said = std::vector<std::pair<std::string_view, std::string>>;

  static auto find(auto& pairs, std::string_view key) {
    return std::ranges::find_if(pairs, [&](const auto& pair) { return pair.first == key; });
  }
  bool has(std::string_view key) const { return find(said_, key) != said_.end(); }
  std::string& value(std::string_view key) { return find(said_, key)->second; }
  const std::string& example(std::string_view key) const { return find(example_, key)->second; }

  const Form& form_;
  Keys keys_;
  Said example_;  // the first entry of a key counts
  Said said_;
};

}  // namespace

Keys Form::keys() const {
  Keys all = needed;
  all.insert(all.end(), one_of.begin(), one_of.end());
  all.insert(all.end(), optional.begin(), optional.end());
  all.emplace_back("seed");
  return all;
}

const std::vector<Form>& forms() {
  static const std::vector<Form> all = {
#define TSP_X(name, example) form_of(Kind::name, #name, example),
      TSP_FAULT_KINDS(TSP_X)
#undef TSP_X
  };
  return all;
}

const Form& nearest_form(std::string_view kind) {
  Keys names;
  for (const Form& form : forms()) names.push_back(form.name);
  const std::string_view nearest = nearest_word(names, kind);
  return nearest.empty() ? forms().front() : *std::ranges::find(forms(), nearest, &Form::name);
}

const KeyRule& rule_of(std::string_view key) { return *std::ranges::find(kRules, key, &KeyRule::key); }

std::string_view kind_of(std::string_view text) { return text.substr(0, text.find(':')); }

Pairs split_pairs(std::string_view text) {
  Pairs pairs;
  std::string_view rest = text.substr(std::min(kind_of(text).size() + 1, text.size()));
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    const std::size_t equals = part.find('=');
    pairs.emplace_back(part.substr(0, equals), equals == part.npos ? std::string_view() : part.substr(equals + 1));
  }
  return pairs;
}

std::string repaired(std::string_view text, int ranks) {
  Repair repair(nearest_form(kind_of(text)));
  for (const auto& [key, value] : split_pairs(text)) repair.take(key, value);
  repair.add_what_is_missing();
  repair.keep_within(ranks);
  return repair.text();
}

std::string_view nearest_word(std::span<const std::string_view> words, std::string_view word, std::size_t limit) {
  std::string_view nearest;
  for (const std::string_view known : words) {
    if (word == known) return known;
    const std::size_t least = std::max(word.size(), known.size()) - std::min(word.size(), known.size());
    if (least >= limit || std::max(word.size(), known.size()) > kLongestWord) continue;
    const std::size_t away = edit_distance(word, known);
    if (away >= limit) continue;
    limit = away;
    nearest = known;
  }
  return nearest;
}

}  // namespace tsprun::detail::fault
