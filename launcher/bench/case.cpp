// Computes counts, buffer sizes and bus factors from a kind, a size and the number of ranks.
#include "launcher/bench/case.h"

#include <algorithm>

namespace tsprun::detail::bench {

namespace {

struct KindFacts {
  std::string_view name;
  bool parts = false;
  bool root = false;
  bool reduces = false;
};

// In the order of Kind.
constexpr std::array<KindFacts, 9> kFacts = {{{.name = "pingpong"},
                                              {.name = "broadcast", .root = true},
                                              {.name = "all_gather", .parts = true},
                                              {.name = "reduce_scatter", .parts = true, .reduces = true},
                                              {.name = "all_reduce", .reduces = true},
                                              {.name = "all_to_all", .parts = true},
                                              {.name = "all_to_all_v", .parts = true},
                                              {.name = "reduce", .root = true, .reduces = true},
                                              {.name = "barrier"}}};
constexpr std::array<Kind, kFacts.size()> kKinds = {Kind::pingpong,       Kind::broadcast,  Kind::all_gather,
                                                    Kind::reduce_scatter, Kind::all_reduce, Kind::all_to_all,
                                                    Kind::all_to_all_v,   Kind::reduce,     Kind::barrier};
static_assert(kFacts.size() == static_cast<std::size_t>(Kind::barrier) + 1);

const KindFacts& facts(Kind kind) { return kFacts[static_cast<std::size_t>(kind)]; }

}  // namespace

std::span<const Kind> all_kinds() { return kKinds; }

std::string_view name(Kind kind) { return facts(kind).name; }

std::optional<Kind> kind_from_name(std::string_view text) {
  const auto found = std::ranges::find(kKinds, text, &name);
  return found == kKinds.end() ? std::nullopt : std::optional(*found);
}

bool has_parts(Kind kind) { return facts(kind).parts; }

bool has_root(Kind kind) { return facts(kind).root; }

bool reduces(Kind kind) { return facts(kind).reduces; }

std::size_t Case::count() const { return has_parts(kind) ? elements() / static_cast<std::size_t>(ranks) : elements(); }

std::size_t Case::part(int from, int to) const {
  if (kind != Kind::all_to_all_v) return count();
  const auto n = static_cast<std::size_t>(ranks);
  return count() * 2 * (static_cast<std::size_t>(from + to) % n) / n;
}

std::vector<std::size_t> Case::parts_of(int rank) const {
  std::vector<std::size_t> parts;
  for (int other = 0; other < ranks; ++other) parts.push_back(part(rank, other));
  return parts;
}

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
    case Kind::all_to_all:
    case Kind::all_to_all_v: return (n - 1) / n;
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
    case Kind::all_to_all_v:
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

std::vector<std::uint64_t> growing_sizes(std::uint64_t first, std::uint64_t last, std::uint64_t factor) {
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t size = first; size <= last; size *= factor) {
    sizes.push_back(size);
    if (size > last / factor) break;  // and the product may not overflow
  }
  return sizes;
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
