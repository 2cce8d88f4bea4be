// The built-in table of algorithms, and the grammar of overrides.
#include "core/collectives/registry.h"

#include "transport/cause.h"
#include "transport/names.h"

#include <fmt/format.h>

#include <charconv>

namespace tsprun {

using namespace detail;

namespace detail {

namespace {

constexpr std::uint64_t kKi = 1024;
constexpr int kOneShotRanks = 64;
/// Largest group that doesn't use rooted algorithms. In larger ones, the n² messages of other algorithms cost more for small
/// buffers than doing all sums on one core.
constexpr int kManyRanks = 64;
constexpr std::uint64_t kRootedBytes = 64 * kKi;
/// Largest buffer for which direct algorithms are used without views: each peer's part then needs a buffer of its own, and all
/// lanes share one wire, so for more bytes rings are better.
constexpr std::uint64_t kSmallBytes = 64 * kKi;

constexpr std::uint64_t kAnyBytes = std::numeric_limits<std::uint64_t>::max();
constexpr int kAnyRanks = std::numeric_limits<int>::max();

std::vector<ChoiceRow> built_in() {
  std::vector<ChoiceRow> rows;
  rows.push_back({Op::all_reduce, kOneShotBytes, kOneShotRanks, false, Algorithm::one_shot});
  rows.push_back({Op::all_reduce, kAnyBytes, kManyRanks, true, Algorithm::direct});
  rows.push_back({Op::all_reduce, kSmallBytes, kManyRanks, false, Algorithm::direct});
  // Without views within nodes it works, too, but isn't faster: only an override asks for it then.
  rows.push_back({Op::all_reduce, kAnyBytes, kAnyRanks, false, Algorithm::hierarchical, true});
  rows.push_back({.op = Op::all_reduce, .max_bytes = kTreeBytes, .algorithm = Algorithm::tree, .if_tree_is_faster = true});
  rows.push_back({Op::all_reduce, kAnyBytes, kManyRanks, false, Algorithm::ring});
  rows.push_back({Op::all_reduce, kRootedBytes, kAnyRanks, false, Algorithm::rooted});
  rows.push_back({Op::barrier, kAnyBytes, kManyRanks, false, Algorithm::direct});
  rows.push_back({Op::barrier, kAnyBytes, kAnyRanks, false, Algorithm::rooted});
  for (const Op op : {Op::broadcast, Op::all_gather, Op::reduce_scatter, Op::all_reduce, Op::reduce}) {
    rows.push_back({op, kAnyBytes, kAnyRanks, true, Algorithm::direct});
    rows.push_back({op, kSmallBytes, kAnyRanks, false, Algorithm::direct});
    if (has_algorithm(op, Algorithm::hierarchical)) {
      rows.push_back({op, kAnyBytes, kAnyRanks, false, Algorithm::hierarchical, true});
    }
    rows.push_back({op, kAnyBytes, kAnyRanks, false, Algorithm::ring});
  }
  for (const Op op : {Op::all_to_all, Op::gather, Op::scatter, Op::send, Op::recv, Op::send_recv}) {
    rows.push_back({op, kAnyBytes, kAnyRanks, false, Algorithm::direct});
  }
  return rows;
}

/// Returns the algorithms of an operation.
std::vector<Algorithm> algorithms_for(Op op) {
  std::vector<Algorithm> algorithms;
  for (const AlgorithmRow& row : algorithm_rows()) {
    if (row.op == op) algorithms.push_back(row.algorithm);
  }
  return algorithms;
}

bool has_choice(Op op) { return algorithms_for(op).size() > 1; }

std::string operation_names() {
  std::string names;
  for (int i = 0; i < kOps; ++i) {
    const Op op = static_cast<Op>(i);
    if (!has_choice(op)) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name(op));
  }
  return names;
}

[[noreturn]] void refuse_choice(std::string_view part, const std::string& why) {
  throw Error(Cause::refused,
              fmt::format("choice of algorithms: \"{}\": {}; for example: all_reduce=ring,all_gather<64K=direct", part, why));
}

/// Parses the size in "<64K" and returns the largest number of bytes that fits the row.
std::uint64_t parse_bound(std::string_view part, std::string_view text) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  int shift = 0;
  if (error == std::errc() && rest + 1 == end) {
    shift = *rest == 'K' ? 10 : *rest == 'M' ? 20 : *rest == 'G' ? 30 : -1;
  } else if (error != std::errc() || rest != end) {
    shift = -1;
  }
  if (shift < 0 || value == 0 || value > kAnyBytes >> shift) {
    refuse_choice(part, fmt::format("\"{}\" is no size; sizes are written 65536, 64K, 16M or 2G", text));
  }
  return (value << shift) - 1;
}

ChoiceRow parse_override(std::string_view part) {
  const std::size_t equals = part.find('=');
  if (equals == std::string_view::npos) refuse_choice(part, "OPERATION=ALGORITHM or OPERATION<SIZE=ALGORITHM is expected");
  const std::string_view left = part.substr(0, equals);
  const std::size_t less = left.find('<');
  const std::string_view op_text = left.substr(0, less);
  const std::string_view algorithm_text = part.substr(equals + 1);
  const std::optional<Op> op = op_from_name(op_text);
  if (!op || !has_choice(*op)) {
    refuse_choice(part, fmt::format("\"{}\" is no operation that has a choice; {} have one", op_text, operation_names()));
  }
  const std::optional<Algorithm> algorithm = algorithm_from_name(algorithm_text);
  if (!algorithm || !has_algorithm(*op, *algorithm)) {
    refuse_choice(part, fmt::format("{} has no algorithm \"{}\"; it has {}", op_text, algorithm_text, algorithm_names(*op)));
  }
  ChoiceRow row{*op, kAnyBytes, kAnyRanks, false, *algorithm};
  if (less != std::string_view::npos) row.max_bytes = parse_bound(part, left.substr(less + 1));
  return row;
}

}  // namespace

}  // namespace detail

std::string_view name(Algorithm algorithm) {
  constexpr std::string_view kNames[] = {
#define TSPRUN_X(algorithm) #algorithm,
      TSPRUN_ALGORITHMS(TSPRUN_X)
#undef TSPRUN_X
  };
  return name_in(kNames, algorithm);
}

std::optional<Algorithm> algorithm_from_name(std::string_view text) {
  if (text == name(Algorithm::automatic)) return Algorithm::automatic;
  for (const AlgorithmRow& row : algorithm_rows()) {
    if (text == name(row.algorithm)) return row.algorithm;
  }
  return std::nullopt;
}

namespace detail {

bool has_algorithm(Op op, Algorithm algorithm) { return find_algorithm(op, algorithm) != nullptr; }

std::string algorithm_names(Op op) {
  const std::vector<Algorithm> algorithms = algorithms_for(op);
  std::string text(name(algorithms.front()));
  for (std::size_t i = 1; i < algorithms.size(); ++i)
    text += fmt::format("{}{}", i + 1 == algorithms.size() ? " and " : ", ", name(algorithms[i]));
  return text;
}

ChoiceTable::ChoiceTable() : rows_(built_in()) {}

ChoiceTable::ChoiceTable(std::string_view overrides, bool reassociate) : reassociate_(reassociate) {
  while (!overrides.empty()) {
    const std::size_t comma = overrides.find(',');
    rows_.push_back(parse_override(overrides.substr(0, comma)));
    if (comma == std::string_view::npos) break;
    overrides.remove_prefix(comma + 1);
    if (overrides.empty()) refuse_choice("", "something is expected after the last comma");
  }
  overrides_ = rows_.size();
  const std::vector<ChoiceRow> rest = built_in();
  rows_.insert(rows_.end(), rest.begin(), rest.end());
}

std::string_view ChoiceTable::why_not(const AlgorithmRow& row, const GroupShape& group) const {
  const std::string_view refused = row.why_not == nullptr ? std::string_view() : row.why_not(group);
  if (refused.empty() && row.reorders_sums && !reassociate_) {
    return "sums would be added in another order than the canonical one; --reassociate allows it";
  }
  return refused;
}

std::string ChoiceTable::why_not(Op op, Algorithm algorithm, const GroupShape& group) const {
  const AlgorithmRow* row = find_algorithm(op, algorithm);
  if (row == nullptr) return fmt::format("{} has no such algorithm", name(op));
  return std::string(why_not(*row, group));
}

Algorithm ChoiceTable::choose(Op op, std::uint64_t bytes, const GroupShape& group) const {
  for (const ChoiceRow& row : rows_) {
    if (row.op != op || bytes > row.max_bytes || group.ranks > row.max_ranks) continue;
    if ((row.needs_views && !group.views) || (row.needs_grid_views && !group.grid_views)) continue;
    if (row.if_tree_is_faster && (group.views || !is_tree_faster(bytes, group.ranks))) continue;
    if (why_not(*find_algorithm(op, row.algorithm), group).empty()) return row.algorithm;
  }
  return Algorithm::direct;
}

}  // namespace detail
}  // namespace tsprun
