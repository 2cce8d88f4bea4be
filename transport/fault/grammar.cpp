// Keys of each kind of fault, and the range of each key's value.
#include "transport/fault/grammar.h"

#include "transport/number.h"

#include <algorithm>
#include <array>
#include <utility>

namespace tsprun::detail::fault {

namespace {

constexpr std::uint64_t kLargestRank = 1'000'000;
constexpr double kLeast = 1e-9;
constexpr double kLongestSeconds = 86'400;
constexpr double kFastestGbps = 1e6;
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

Form form_of(Kind kind, std::string_view name, std::string_view example) {
  const auto form = [&](Keys needed, Keys one_of = {}, Keys optional = {}) -> Form {
    return {kind, name, example, std::move(needed), std::move(one_of), std::move(optional)};
  };
  switch (kind) {
    case Kind::kill: return form({"rank"}, {"step", "op"}, {"seq"});
    case Kind::stall: return form({"rank", "seconds"}, {"step", "op"}, {"seq"});
    case Kind::oom: return form({"rank", "step"});
    case Kind::delay: return form({"from", "to", "ms"}, {}, {"prob"});
    case Kind::slow: return form({"from", "to", "gbps"});
    case Kind::corrupt:
    case Kind::drop: return form({"from", "to"}, {"nth", "prob"});
    case Kind::disconnect: return form({"from", "to", "step"});
  }
  return form({});
}

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

const Form* find_form(std::string_view kind) {
  const auto found = std::ranges::find(forms(), kind, &Form::name);
  return found == forms().end() ? nullptr : &*found;
}

const KeyRule& rule_of(std::string_view key) { return *std::ranges::find(kRules, key, &KeyRule::key); }

std::string_view kind_of(std::string_view text) { return text.substr(0, text.find(':')); }

Pairs split_pairs(std::string_view text) {
  Pairs pairs;
  std::string_view rest = text.substr(std::min(kind_of(text).size() + 1, text.size()));
  while (!rest.empty()) {
    const std::string_view part = take_word(rest, ',');
    const std::size_t equals = part.find('=');
    pairs.emplace_back(part.substr(0, equals), equals == part.npos ? std::string_view() : part.substr(equals + 1));
  }
  return pairs;
}

}  // namespace tsprun::detail::fault
