// Computes counts, buffer sizes and bus factors from a kind, a size and the number of ranks.
#include "launcher/bench/case.h"

#include <algorithm>

namespace tsprun::detail::bench {

namespace {

struct KindFacts {
  Kind kind;
  std::string_view name;
  bool parts;
  bool root;
  bool reduces;
};

constexpr KindFacts kFacts[] = {
#define TSP_X(name, parts, root, reduces) {Kind::name, #name, parts, root, reduces},
    TSP_BENCH_KINDS(TSP_X)
#undef TSP_X
};

const KindFacts& facts(Kind kind) { return kFacts[static_cast<std::size_t>(kind)]; }

constexpr std::array<Kind, std::size(kFacts)> kKinds = [] {
  std::array<Kind, std::size(kFacts)> kinds{};
  for (std::size_t i = 0; i < kinds.size(); ++i) kinds[i] = kFacts[i].kind;
  return kinds;
}();

}  // namespace

std::span<const Kind> all_kinds() { return kKinds; }

std::string_view name(Kind kind) { return facts(kind).name; }

std::optional<Kind> kind_from_name(std::string_view text) {
  for (const KindFacts& fact : kFacts) {
    if (fact.name == text) return fact.kind;
  }
  return std::nullopt;
}

bool has_parts(Kind kind) { return facts(kind).parts; }

bool has_root(Kind kind) { return facts(kind).root; }

bool reduces(Kind kind) { return facts(kind).reduces; }

std::size_t Case::count() const { return has_parts(kind) ? elements() / static_cast<std::size_t>(ranks) : elements(); }

std::uint64_t Case::input_bytes() const {
  switch (kind) {
    case Kind::all_gather: return bytes / static_cast<std::uint64_t>(ranks);
    case Kind::broadcast: return place == Placement::out_of_place ? bytes : 0;
    case Kind::barrier: return 0;
    default: return bytes;
  }
}

std::uint64_t Case::output_bytes() const {
  switch (kind) {
    case Kind::reduce_scatter: return bytes / static_cast<std::uint64_t>(ranks);
    case Kind::barrier: return 0;
    default: return bytes;
  }
}

double Case::bus_factor() const {
  const double n = ranks;
  switch (kind) {
    case Kind::all_reduce: return 2 * (n - 1) / n;
    case Kind::all_gather:
    case Kind::reduce_scatter:
    case Kind::all_to_all: return (n - 1) / n;
    default: return 1;
  }
}

std::vector<Case> make_cases(std::span<const Kind> kinds, std::span<const std::uint64_t> sizes, DType dtype, int ranks) {
  std::vector<Case> cases;
  for (const Kind kind : kinds) {
    if (kind == Kind::barrier) {
      cases.push_back({kind, dtype, ranks, 0});
      continue;
    }
    if (kind == Kind::pingpong && ranks < 2) continue;
    const std::uint64_t unit = size_of(dtype) * (has_parts(kind) ? static_cast<std::uint64_t>(ranks) : 1);
    for (const std::uint64_t size : sizes) {
      const std::uint64_t bytes = size - size % unit;
      if (bytes != 0) cases.push_back({kind, dtype, ranks, bytes});
    }
  }
  return cases;
}

std::optional<Case> out_of_place(const Case& which) {
  Case other = which;
  if (which.kind == Kind::broadcast) other.place = Placement::out_of_place;
  return other;
}

std::optional<Case> in_place(const Case& which) {
  Case other = which;
  switch (which.kind) {
    case Kind::broadcast: return which;
    case Kind::all_gather:
    case Kind::reduce_scatter:
    case Kind::all_reduce:
    case Kind::reduce: other.place = Placement::in_place; return other;
    case Kind::pingpong:
    case Kind::all_to_all:
    case Kind::barrier: return std::nullopt;
  }
  return std::nullopt;
}

std::vector<Case> in_both_places(std::span<const Case> cases) {
  std::vector<Case> both;
  for (const Case& each : cases) {
    for (const std::optional<Case>& form : {out_of_place(each), in_place(each)}) {
      if (form) both.push_back(*form);
    }
  }
  return both;
}

BufferBytes buffers_for(std::span<const Case> cases) {
  BufferBytes need;
  for (const Case& each : cases) {
    need.input = std::max(need.input, each.input_bytes());
    need.output = std::max(need.output, each.output_bytes());
  }
  return need;
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t comma = text.find(',');
    parts.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace tsprun::detail::bench
