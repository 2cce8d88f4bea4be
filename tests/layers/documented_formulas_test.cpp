// The table "Exact traffic" of docs/algorithms.md, its formulas evaluated as they are printed, beside what real ranks receive:
// above all where query heads, K/V heads and degrees don't divide each other.
#include "layers/theory/traffic.h"
#include "tests/layers/model_run.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::test::documented_formulas_test {
namespace {

/// Values of the symbols, and m(x).
struct Symbols {
  std::map<std::string, double, std::less<>> values;
  std::size_t query_heads;
  std::size_t kv_heads;

  /// m(x), head by head: how many K/V heads the query heads of each of x equal slices read.
  double m(double x) const {
    std::size_t read = 0;
    const auto slices = static_cast<std::size_t>(x);
    const std::size_t width = query_heads / slices;
    for (std::size_t slice = 0; slice < slices; ++slice) {
      for (std::size_t j = 0; j < kv_heads; ++j) {
        bool reads = false;
        for (std::size_t q = slice * width; q < (slice + 1) * width; ++q) reads = reads || q / (query_heads / kv_heads) == j;
        read += reads ? 1 : 0;
      }
    }
    return static_cast<double>(read);
  }
};

/// A formula as mathematicians print it: "2BSd·(n_h + m(D))·β·ρ/D". Factors stand beside one another or have "·" between them.
class Formula {
 public:
  Formula(std::string_view text, const Symbols& symbols) : rest_(text), symbols_(symbols) {}
  double value() {
    const double result = sum();
    if (!rest_.empty()) throw std::invalid_argument("not a formula from here on: " + std::string(rest_));
    return result;
  }

 private:
  bool take(std::string_view word) {
    while (rest_.starts_with(" ")) rest_.remove_prefix(1);
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    while (rest_.starts_with(" ")) rest_.remove_prefix(1);
    return true;
  }
  double sum() {
    double result = product();
    for (;;) {
      if (take("+")) result += product();
      else if (take("−")) result -= product();
      else return result;
    }
  }
  double product() {
    double result = factor();
    for (;;) {
      if (take("/")) result /= factor();
      else if (take("·") || begins_factor()) result *= factor();
      else return result;
    }
  }
  bool begins_factor() const {
    return !rest_.empty() && !rest_.starts_with("+") && !rest_.starts_with("−") && !rest_.starts_with(")") &&
           !rest_.starts_with(" ");
  }
  double factor() {
    if (take("(")) {
      const double inner = sum();
      if (!take(")")) throw std::invalid_argument("a parenthesis stays open before: " + std::string(rest_));
      return inner;
    }
    if (take("m(")) {
      const double x = sum();
      if (!take(")")) throw std::invalid_argument("m( stays open before: " + std::string(rest_));
      return symbols_.m(x);
    }
    if (rest_.empty()) throw std::invalid_argument("a formula ends too early");
    if (std::isdigit(static_cast<unsigned char>(rest_.front())) != 0) {
      const double digit = rest_.front() - '0';
      rest_.remove_prefix(1);
      return digit;
    }
    // The longest name that fits: "β_a" before "β", "KV" before "V".
    std::string_view longest;
    for (const auto& [name, value] : symbols_.values)
      if (rest_.starts_with(name) && name.size() > longest.size()) longest = name;
    if (longest.empty()) throw std::invalid_argument("no symbol: " + std::string(rest_));
    take(longest);
    return symbols_.values.find(longest)->second;
  }

  std::string_view rest_;
  const Symbols& symbols_;
};

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

/// The section "Exact traffic": its definitions in the order of the page, and its rows: forward and backward by scheme.
struct Section {
  std::vector<std::pair<std::string, std::string>> definitions;
  std::map<std::string, std::pair<std::string, std::string>> rows;

  Section() {
    std::ifstream file(TSP_TOOLS_DIR "/../docs/algorithms.md");
    std::string line;
    while (std::getline(file, line) && line != "## Exact traffic") continue;
    while (std::getline(file, line) && !line.starts_with("## ")) {
      if (line.starts_with("| ")) {
        std::stringstream cells(line.substr(1));
        std::vector<std::string> cell(3);
        for (std::string& each : cell) {
          std::getline(cells, each, '|');
          each = trimmed(each);
        }
        rows[cell[0]] = {cell[1], cell[2]};
      } else if (const std::size_t equals = line.find(" = "); equals != std::string::npos && equals <= 3) {
        // What the definition means stands behind it, after blanks.
        const std::string formula = line.substr(equals + 3);
        definitions.emplace_back(trimmed(line.substr(0, equals)), trimmed(formula.substr(0, formula.find("   "))));
      }
    }
  }
};

Symbols symbols_of(const Section& section, const ModelCase& of, int D, int T, int sigma) {
  const ModelConfig& c = of.config;
  const ElementBytes bytes = of.setting().bytes;
  const auto real = [](auto value) { return static_cast<double>(value); };
  Symbols symbols{{}, c.query_heads, c.kv_heads};
  auto& v = symbols.values;
  v = {{"D", D},
       {"T", T},
       {"Σ", sigma},
       {"ρ", (D - 1) / real(D)},
       {"B", real(of.batch)},
       {"S", real(of.sequence)},
       {"h", real(c.hidden)},
       {"d", real(c.head_dim)},
       {"a", real(c.query_width({}))},
       {"n_h", real(c.query_heads)},
       {"n_kv", real(c.kv_heads)},
       {"β", real(bytes.element)},
       {"β_a", real(bytes.accumulated)},
       {"P_attn", real(2 * c.hidden * c.head_dim * (c.query_heads + c.kv_heads))},
       {"P_mlp", real(3 * c.intermediate * c.hidden)},
       {"KV", real(2 * of.batch * of.sequence * c.kv_heads * c.head_dim)}};
  v["P_L"] = v["P_attn"] + v["P_mlp"];
  v["β′"] = symbols.m(D) > v["n_kv"] ? v["β_a"] : v["β"];
  for (const auto& [name, formula] : section.definitions) v[name] = Formula(formula, symbols).value();
  return symbols;
}

/// Bytes of the blocks that all ranks receive.
double of_blocks(const std::vector<TrafficCounters>& ranks) {
  double sum = 0;
  for (const TrafficCounters& rank : ranks) {
    for (const Purpose purpose : {Purpose::weights, Purpose::kv, Purpose::activations, Purpose::gradients})
      sum += static_cast<double>(rank.received[static_cast<std::size_t>(purpose)]);
  }
  return sum;
}

/// `rows`: those that add up to what a layer moves under the layout.
void expect_as_printed(const std::vector<std::string>& rows, ModelCase of, const Layout& layout) {
  const Section section;
  const Symbols symbols = symbols_of(section, of, layout.ranks(), layout.tensor(), layout.sequence());
  double forward = 0;
  double backward = 0;
  for (const std::string& row : rows) {
    ASSERT_TRUE(section.rows.contains(row)) << row;
    forward += Formula(section.rows.at(row).first, symbols).value();
    backward += Formula(section.rows.at(row).second, symbols).value();
  }
  const double times = layout.ranks() * static_cast<double>(of.config.layers);
  const ModelRun run = run_model(of, layout);
  const std::string where = rows.front() + ", " + layout.label() + ", " + of.describe();
  EXPECT_NEAR(of_blocks(run.forward), forward * times, 1e-3) << where;
  EXPECT_NEAR(of_blocks(run.backward), backward * times, 1e-3) << where;
}

/// Cuts that don't divide: K/V heads by ranks, groups of query heads by slices. In f32 β = β_a, so bf16 tells them apart.
std::vector<ModelCase> uneven_cases() {
  std::vector<ModelCase> all;
  for (const std::size_t kv_heads : {12U, 6U, 2U}) {
    all.push_back({.config = small_config(16, 1, 24, kv_heads, 2, 21, 40), .batch = 1, .sequence = 32, .dtype = DType::bf16});
  }
  return all;
}

TEST(DocumentedFormulas, AreWhatRanksReceiveAtUnevenCuts) {
  for (const ModelCase& of : uneven_cases()) {
    expect_as_printed({"TP"}, of, Layout::parse("tp=8"));
    expect_as_printed({"TP with sequence parallelism"}, of, Layout::parse("tp=8").with(TensorExchange::sequence));
    expect_as_printed({"SP gather"}, of, Layout::parse("sp=4"));
    expect_as_printed({"SP ring"}, of, Layout::parse("sp=4").with(SequenceExchange::ring));
    expect_as_printed({"SP Ulysses"}, of, Layout::parse("sp=8").with(SequenceExchange::ulysses));
    expect_as_printed({"ZeRO-3 with SP gather"}, of, Layout::parse("zero3=4"));
    expect_as_printed({"TSP attention weights; dW to owners", "TSP K/V; dK/dV", "TSP MLP weights; dW"}, of, Layout::tsp(8));
    expect_as_printed({"TP×SP"}, of, Layout::parse("tp=4,sp=2"));
    expect_as_printed({"TP×SP"}, of, Layout::parse("tp=4,sp=2").with(SequenceExchange::ring));
    expect_as_printed({"TP×SP with sequence parallelism over T"}, of, Layout::parse("tp=4,sp=2").with(TensorExchange::sequence));
    ModelCase full = of;
    full.recompute = Recompute::full;
    expect_as_printed({"SP ring, full recomputation"}, full, Layout::parse("sp=4").with(SequenceExchange::ring));
    full.config = as_family("olmo2", full.config);
    const std::string normed = "TP, besides where q and k are normed over all heads";
    expect_as_printed({"TP", "the same with selective or full recomputation"}, full, Layout::parse("tp=8"));
    full.recompute = Recompute::none;
    expect_as_printed({"TP", normed}, full, Layout::parse("tp=8"));
    expect_as_printed({"TP with sequence parallelism", normed}, full, Layout::parse("tp=8").with(TensorExchange::sequence));
    expect_as_printed({"ZeRO-3 with SP gather"}, full, Layout::parse("zero3=4"));
    full = of;
    full.recompute = Recompute::full;
    expect_as_printed({"TP×SP ring, full recomputation"}, full, Layout::parse("tp=4,sp=2").with(SequenceExchange::ring));
  }
}

TEST(DocumentedFormulas, CountCopiesOfHeadsWhereNeitherNumberDividesTheOther) {
  const Section section;
  const ModelCase of{.config = small_config(96, 1, 24, 12, 16, 21, 40), .batch = 1, .sequence = 1, .dtype = DType::f32};
  const Symbols symbols = symbols_of(section, of, 8, 8, 1);
  EXPECT_EQ(symbols.m(8), 16);
  const std::string term = "4hd·β_a·(m(D) − n_kv)/D";
  EXPECT_NE(section.rows.at("TP").second.find(term), std::string::npos);
  EXPECT_EQ(Formula(term, symbols).value(), 12'288);
}

}  // namespace
}  // namespace tsprun::detail::test::documented_formulas_test
