// The paper's figures that follow from formulas (1, 5, 6, 7), its break-evens and FLOPs, for its reference model (Appendix C):
// each by the printed equations and as counted here. Also the figure that it measured (9), beside what is counted for this
// program.
#pragma once

#include "layers/layout/layout.h"
#include "layers/layout/setting.h"
#include "layers/theory/paper.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Returns the reference model of Appendix C in bf16, with one sequence of `sequence` tokens.
Setting reference_setting(std::size_t sequence, Recompute recompute = Recompute::none);

/// One scheme of Fig. 1: as the paper's formulas know it, and as a layout.
struct PaperScheme {
  std::string label;
  paper::Scheme scheme;
  Layout layout;
};
/// Returns DP, TP, SP, TP2×SP4 and TSP on eight ranks, in the order of Fig. 1.
const std::vector<PaperScheme>& paper_schemes();

/// Returns the bytes that a rank receives in one layer's forward pass, as counted here; the mean over ranks.
double counted_forward(const Setting& setting, const Layout& layout);

/// Returns the rows of Fig. 9, {seq, scheme, measured, counted}: the largest memory of a GPU, in bytes.
nlohmann::ordered_json paper_figure9();

/// Returns {fig1, fig5, fig6, fig7, fig9, break_even, flops_per_token}: rows of numbers, for tools/plot and scripts.
nlohmann::ordered_json paper_figures_json();

}  // namespace tsprun::detail::launcher
