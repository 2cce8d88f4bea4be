// `plan --paper`: the paper's equations (1) to (30) as printed, with numbers put in, beside what this program really moves, keeps
// and computes; the paper's figures from its own formulas; and where the formulas err, in words.
#pragma once

#include "launcher/plan/points.h"
#include "layers/theory/paper.h"
#include "layers/theory/spread.h"

#include <nlohmann/json.hpp>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::launcher {

/// Of the paper's reference model, where no number of ranks is given: one node.
inline constexpr int kPaperRanks = 8;

struct Equation {
  int number;
  std::string_view formula;     ///< as printed, with Unicode letters
  double printed;               ///< its value
  std::optional<double> exact;  ///< what is counted here; nothing where there is nothing to count
  std::string_view unit;        ///< of both
  std::string_view note;        ///< "" where both agree or nothing is to be said
};

/// Where the paper's formulas and statements differ from what is counted, in the order of the specification.
extern const std::array<std::string_view, 8> kPaperDifferences;

/// The paper's symbols for this setting; gradients as in Appendix C (β_g = β_P, and with bf16 three optimizer states of 4 bytes).
paper::Setting paper_symbols(const theory::Setting& setting, const theory::Spread& spread);

std::vector<Equation> paper_equations(const theory::Setting& setting, const theory::Spread& spread);

class PaperTables {
 public:
  /// `spread`: its ranks are D; T and Σ of TP+SP are its degrees of tp and sp, else 2 and D/2.
  PaperTables(const PlanQuestion& question, const theory::Spread& spread);

  std::vector<std::string> lines() const;
  /// {symbols, equations, figures, differences}.
  nlohmann::ordered_json json() const;

 private:
  PlanQuestion question_;
  paper::Setting symbols_;
  std::vector<Equation> equations_;
};

}  // namespace tsprun::launcher
