#include "transport/fault/spec.h"

#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace tsp::fault {

namespace {

using Keys = std::vector<std::string_view>;

/// What a kind may and must say.
struct Form {
  Kind kind;
  std::string_view name;
  std::string_view example;
  Keys needed;
  Keys one_of;    // exactly one of these, if there are any
  Keys optional;  // `seed` is always
};

constexpr int kLargestRank = 1'000'000;
constexpr double kLongestSeconds = 86'400;
constexpr double kFastestGbps = 1e6;

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

const std::vector<Form>& forms() {
  static const std::vector<Form> all = {
#define TSP_X(name, example) form_of(Kind::name, #name, example),
      TSP_FAULT_KINDS(TSP_X)
#undef TSP_X
  };
  return all;
}

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw Error(Cause::refused, fmt::format("--fault {}: {}", text, why));
}

/// Letters to change, add or take away to make one word of the other.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

const Form& find_form(std::string_view text, std::string_view kind) {
  constexpr std::size_t kLongestName = 32;  // whatever is longer is no slip of the pen
  const Form* nearest = &forms().front();
  for (const Form& form : forms()) {
    if (form.name == kind) return form;
    if (kind.size() <= kLongestName && distance(kind, form.name) < distance(kind, nearest->name)) nearest = &form;
  }
  refuse(text,
         fmt::format("there is no kind '{}'; the kinds are kill, stall, oom, delay, slow, corrupt, drop, disconnect; try {}",
                     kind.substr(0, kLongestName), nearest->example));
}

/// Key by key what stands behind the colon.
std::map<std::string_view, std::string_view> pairs_of(std::string_view text, const Form& form, std::string_view rest) {
  std::map<std::string_view, std::string_view> pairs;
  const auto listed = [](const Keys& keys, std::string_view key) { return std::ranges::find(keys, key) != keys.end(); };
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view part = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) refuse(text, fmt::format("'{}' has no '='; try {}", part, form.example));
    const std::string_view key = part.substr(0, equals);
    if (key != "seed" && !listed(form.needed, key) && !listed(form.one_of, key) && !listed(form.optional, key)) {
      Keys known = form.needed;
      known.insert(known.end(), form.one_of.begin(), form.one_of.end());
      known.insert(known.end(), form.optional.begin(), form.optional.end());
      refuse(text,
             fmt::format("{} takes no '{}', but {} and seed; try {}", form.name, key, fmt::join(known, ", "), form.example));
    }
    if (!pairs.emplace(key, part.substr(equals + 1)).second) {
      refuse(text, fmt::format("'{}' comes twice; try {}", key, form.example));
    }
  }
  return pairs;
}

void check_keys(std::string_view text, const Form& form, const std::map<std::string_view, std::string_view>& pairs) {
  for (const std::string_view key : form.needed) {
    if (!pairs.contains(key)) refuse(text, fmt::format("{} needs {}; try {}", form.name, key, form.example));
  }
  if (!form.one_of.empty() &&
      std::ranges::count_if(form.one_of, [&](std::string_view key) { return pairs.contains(key); }) != 1) {
    refuse(text, fmt::format("{} needs one of {}; try {}", form.name, fmt::join(form.one_of, ", "), form.example));
  }
  if (pairs.contains("seq") && !pairs.contains("op")) {
    refuse(text, fmt::format("seq counts operations of one kind, so it needs op; try {}:rank=3,op=all_gather,seq=42", form.name));
  }
}

template <class Number>
Number number(std::string_view text, const Form& form, std::string_view key, std::string_view value, Number lowest,
              Number highest) {
  Number result{};
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (error != std::errc{} || end != value.data() + value.size() || !(result >= lowest) || !(result <= highest)) {
    refuse(text, fmt::format("{}={} isn't {} from {} to {}; try {}", key, value,
                             std::is_floating_point_v<Number> ? "a number" : "a whole number", lowest, highest, form.example));
  }
  return result;
}

}  // namespace

std::string_view name(Kind kind) { return forms()[static_cast<std::size_t>(kind)].name; }

Spec parse(std::string_view text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const Form& form = find_form(text, text.substr(0, colon));
  const auto pairs = pairs_of(text, form, text.substr(std::min(colon + 1, text.size())));
  check_keys(text, form, pairs);

  constexpr std::uint64_t kMost = UINT64_MAX;
  constexpr double kLeast = 1e-9;
  Spec spec;
  spec.kind = form.kind;
  spec.text = text;
  for (const auto& pair : pairs) {
    const std::string_view key = pair.first;
    const std::string_view value = pair.second;
    const auto whole = [&](auto lowest, decltype(lowest) highest) { return number(text, form, key, value, lowest, highest); };
    if (key == "rank") spec.rank = whole(0, kLargestRank);
    if (key == "from") spec.from = whole(0, kLargestRank);
    if (key == "to") spec.to = whole(0, kLargestRank);
    if (key == "step") spec.step = whole(std::uint64_t{1}, kMost);
    if (key == "seq") spec.sequence = whole(std::uint64_t{1}, kMost);
    if (key == "nth") spec.nth = whole(std::uint64_t{1}, kMost);
    if (key == "seed") spec.seed = whole(std::uint64_t{0}, kMost);
    if (key == "prob") spec.probability = whole(0.0, 1.0);
    if (key == "seconds") spec.seconds = whole(kLeast, kLongestSeconds);
    if (key == "ms") spec.milliseconds = whole(kLeast, kLongestSeconds * 1e3);
    if (key == "gbps") spec.gigabytes_per_s = whole(kLeast, kFastestGbps);
    if (key == "op") spec.op = value;
  }
  if (pairs.contains("op") && spec.op.empty())
    refuse(text, fmt::format("op is empty; try {}:rank=3,op=all_gather,seq=42", form.name));
  return spec;
}

void check_ranks(const Spec& spec, int ranks) {
  const auto check = [&](std::string_view key, int value) {
    if (value >= ranks)
      refuse(spec.text, fmt::format("{}={}, but the ranks are 0 to {}; try {}={}", key, value, ranks - 1, key, ranks - 1));
  };
  check("rank", spec.rank);
  check("from", spec.from);
  check("to", spec.to);
  if (!spec.strikes_rank() && spec.from == spec.to) {
    refuse(spec.text, fmt::format("a rank sends itself no messages; with {} ranks from and to must differ", ranks));
  }
}

}  // namespace tsp::fault
