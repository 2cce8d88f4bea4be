// `plan --paper`: the paper's equations (1) to (30) as printed, with numbers put in, beside what this program moves, holds and
// computes; the paper's figures from its own formulas; and an explanation of where the formulas err.
#pragma once

#include "launcher/plan/points.h"
#include "layers/layout/layout.h"
#include "layers/layout/setting.h"
#include "layers/theory/paper.h"

#include <nlohmann/json.hpp>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

/// Ranks of the paper's reference model, one node, if no number is given.
inline constexpr int kPaperRanks = 8;

/// One equation of the paper, evaluated.
struct Equation {
  int number;
  std::string_view formula;     ///< as printed, with Unicode letters
  double printed;               ///< its value with numbers put in
  std::optional<double> exact;  ///< the value counted here; empty if there is nothing to count
  std::string_view unit;        ///< unit of both values
  std::string_view note;        ///< why they differ; "" if they agree or there is nothing to say
};

/// Explanations of where the paper's formulas and statements differ from what is counted here.
extern const std::array<std::string_view, 8> kPaperDifferences;

/// Returns the paper's symbols for this setting. Gradients and optimizer are as in Appendix C: β_g = β_P, and with bf16 three
/// optimizer states of 4 bytes.
paper::Symbols paper_symbols(const Setting& setting, const Layout& layout);

/// Returns the paper's equations for this setting, each evaluated as printed and as counted here.
std::vector<Equation> paper_equations(const Setting& setting, const Layout& layout);

/// The answer of `plan --paper` for one setting.
class PaperTables {
 public:
  /// Evaluates everything. `layout`: the number of its ranks is D; T and Σ of TP+SP are its degrees of tp and sp, or 2 and D/2 if
  /// it doesn't have both.
  PaperTables(const PlanQuestion& question, const Layout& layout);

  /// Returns the lines to print, of at most `columns` columns but for longer words and formulas.
  std::vector<std::string> lines(std::size_t columns) const;
  /// Returns {symbols, equations, figures, differences}.
  nlohmann::ordered_json json() const;

 private:
  PlanQuestion question_;
  paper::Symbols symbols_;
  std::vector<Equation> equations_;
};

}  // namespace tsprun::detail::launcher
