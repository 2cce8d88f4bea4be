#include "transport/fault/spec.h"

#include "transport/cause.h"
#include "transport/fault/grammar.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <type_traits>

namespace tsprun::detail::fault {

namespace {

using PairMap = std::map<std::string_view, std::string_view>;

/// Parses one text, for a job with this number of ranks (0: unknown).
class Parser {
 public:
  Parser(std::string_view text, int ranks) : text_(text), ranks_(ranks), form_(nearest_form(kind_of(text))) {}

  Spec parse() const {
    check_kind();
    const PairMap pairs = named_pairs();
    check_keys(pairs);
    Spec spec;
    spec.kind = form_.kind;
    spec.text = text_;
    const auto take = [&](auto& value, std::string_view key) {
      if (const auto pair = pairs.find(key); pair != pairs.end()) set(value, key, pair->second);
    };
    take(spec.rank, "rank");
    take(spec.from, "from");
    take(spec.to, "to");
    take(spec.step, "step");
    take(spec.sequence, "seq");
    take(spec.nth, "nth");
    take(spec.seed, "seed");
    take(spec.probability, "prob");
    take(spec.seconds, "seconds");
    take(spec.milliseconds, "ms");
    take(spec.gigabytes_per_s, "gbps");
    take(spec.op, "op");
    if (ranks_ != 0) check_ranks(spec);
    return spec;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(Cause::refused, fmt::format("--fault {}: {}; try {}", text_, why, repaired(text_, ranks_)));
  }

  void check_kind() const {
    if (form_.name == kind_of(text_)) return;
    std::vector<std::string_view> kinds;
    for (const Form& form : forms()) kinds.push_back(form.name);
    refuse(fmt::format("there is no kind '{}'; the kinds are {}", kind_of(text_).substr(0, 32), fmt::join(kinds, ", ")));
  }

  PairMap named_pairs() const {
    const Keys known = form_.keys();
    PairMap pairs;
    for (const auto& [key, value] : split_pairs(text_)) {
      if (std::ranges::find(known, key) == known.end())
        refuse(fmt::format("{} takes no '{}', but {}", form_.name, key, fmt::join(known, ", ")));
      if (value.data() == nullptr) refuse(fmt::format("'{}' has no '='", key));
      if (!pairs.emplace(key, value).second) refuse(fmt::format("'{}' comes twice", key));
    }
    return pairs;
  }

  void check_keys(const PairMap& pairs) const {
    for (const std::string_view key : form_.needed) {
      if (!pairs.contains(key)) refuse(fmt::format("{} needs {}", form_.name, key));
    }
    const auto chosen = std::ranges::count_if(form_.one_of, [&](std::string_view key) { return pairs.contains(key); });
    if (!form_.one_of.empty() && chosen != 1)
      refuse(fmt::format("{} needs one of {}", form_.name, fmt::join(form_.one_of, ", ")));
    if (pairs.contains("seq") && !pairs.contains("op")) refuse("seq counts operations of one kind, so it needs op");
  }

  void set(std::string& word, std::string_view key, std::string_view value) const {
    if (value.empty()) refuse(fmt::format("{} is empty", key));
    word = value;
  }
  void set(int& number, std::string_view key, std::string_view value) const {
    const KeyRule& rule = rule_of(key);
    number = static_cast<int>(read(key, value, rule.least, rule.most));
  }
  void set(std::uint64_t& number, std::string_view key, std::string_view value) const {
    const KeyRule& rule = rule_of(key);
    number = read(key, value, rule.least, rule.most);
  }
  void set(double& number, std::string_view key, std::string_view value) const {
    const KeyRule& rule = rule_of(key);
    number = read(key, value, rule.least_real, rule.most_real);
  }
  template <class Number>
  Number read(std::string_view key, std::string_view value, Number least, Number most) const {
    Number number{};
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc{} || end != value.data() + value.size() || !(number >= least) || !(number <= most)) {
      refuse(fmt::format("{}={} isn't {} from {} to {}", key, value,
                         std::is_floating_point_v<Number> ? "a number" : "a whole number", least, most));
    }
    return number;
  }

  void check_ranks(const Spec& spec) const {
    if (!spec.strikes_rank() && ranks_ == 1)
      throw Error(Cause::refused, fmt::format("--fault {}: one rank alone sends no messages; try -n 2", text_));
    const auto check = [&](std::string_view key, int value) {
      if (value >= ranks_) refuse(fmt::format("{}={}, but the ranks are 0 to {}", key, value, ranks_ - 1));
    };
    check("rank", spec.rank);
    check("from", spec.from);
    check("to", spec.to);
    if (!spec.strikes_rank() && spec.from == spec.to) refuse("a rank sends itself no messages");
  }

  std::string_view text_;
  int ranks_;
  const Form& form_;
};

}  // namespace

std::string_view name(Kind kind) { return forms()[static_cast<std::size_t>(kind)].name; }

Spec parse(std::string_view text, int ranks) { return Parser(text, ranks).parse(); }

}  // namespace tsprun::detail::fault
