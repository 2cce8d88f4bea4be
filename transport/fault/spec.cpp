// Parser of --fault, whose errors show what is missing and an example that works.
#include "transport/fault/spec.h"

#include "transport/cause.h"
#include "transport/fault/grammar.h"
#include "transport/number.h"
#include "transport/suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <type_traits>

namespace tsprun::detail::fault {

namespace {

using PairMap = std::map<std::string_view, std::string_view>;

/// Parses one text, for a job with this number of ranks (0: unknown).
class Parser {
 public:
  Parser(std::string_view text, int ranks, std::string_view source)
      : text_(text), ranks_(ranks), source_(source), form_(form_of(kind_of(text))) {}

  Spec parse() const {
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
    throw Error(Cause::refused, fmt::format("{} {}: {}", source_, text_, why));
  }
  /// Refuses a text that lacks something, and shows one that has all.
  [[noreturn]] void refuse_incomplete(const std::string& why) const { refuse(fmt::format("{}, such as {}", why, form_.example)); }

  const Form& form_of(std::string_view kind) const {
    if (const Form* form = find_form(kind)) return *form;
    std::vector<std::string> kinds;
    for (const Form& form : forms()) kinds.emplace_back(form.name);
    refuse(fmt::format("there is no kind '{}'{}; the kinds are {}", kind.substr(0, 32), did_you_mean(kind.substr(0, 32), kinds),
                       fmt::join(kinds, ", ")));
  }

  PairMap named_pairs() const {
    const Keys known = form_.keys();
    PairMap pairs;
    for (const auto& [key, value] : split_pairs(text_)) {
      if (std::ranges::find(known, key) == known.end())
        refuse(fmt::format("{} takes no '{}', but {}{}", form_.name, key, fmt::join(known, ", "),
                           did_you_mean(key, std::vector<std::string>(known.begin(), known.end()))));
      if (value.data() == nullptr) refuse(fmt::format("'{}' has no '='", key));
      if (!pairs.emplace(key, value).second) refuse(fmt::format("'{}' comes twice", key));
    }
    return pairs;
  }

  void check_keys(const PairMap& pairs) const {
    for (const std::string_view key : form_.needed) {
      if (!pairs.contains(key)) refuse_incomplete(fmt::format("{} needs {}", form_.name, key));
    }
    const auto chosen = std::ranges::count_if(form_.one_of, [&](std::string_view key) { return pairs.contains(key); });
    if (!form_.one_of.empty() && chosen != 1)
      refuse_incomplete(fmt::format("{} needs one of {}", form_.name, fmt::join(form_.one_of, ", ")));
    if (pairs.contains("seq") && !pairs.contains("op")) refuse("seq counts operations of one kind, so it needs op");
  }

  void set(std::string& word, std::string_view key, std::string_view value) const {
    if (value.empty()) refuse(fmt::format("{} is empty", key));
    word = value;
  }
  template <class Number>
  void set(Number& number, std::string_view key, std::string_view value) const {
    const KeyRule& rule = rule_of(key);
    if constexpr (std::is_floating_point_v<Number>) number = read(key, value, rule.least_real, rule.most_real);
    else number = static_cast<Number>(read(key, value, rule.least, rule.most));
  }
  template <class Number>
  Number read(std::string_view key, std::string_view value, Number least, Number most) const {
    const std::optional<Number> number = number_from<Number>(value);
    if (!number || !(*number >= least) || !(*number <= most)) {
      refuse(fmt::format("{}={} isn't {} from {} to {}", key, value,
                         std::is_floating_point_v<Number> ? "a number" : "a whole number", least, most));
    }
    return *number;
  }

  void check_ranks(const Spec& spec) const {
    if (!spec.strikes_rank() && ranks_ == 1) refuse("one rank alone sends no messages; try -n 2");
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
  std::string_view source_;
  const Form& form_;
};

}  // namespace

Spec parse(std::string_view text, int ranks, std::string_view source) { return Parser(text, ranks, source).parse(); }

}  // namespace tsprun::detail::fault
