// The list of equations, each with its value as printed and a function that counts it here; and the words about differences.
#include "launcher/plan/paper_tables.h"

#include "launcher/plan/amounts.h"
#include "launcher/plan/paper_figures.h"
#include "launcher/table.h"
#include "layers/layout/check_layout.h"
#include "layers/parameters/place.h"
#include "layers/theory/flops.h"
#include "layers/theory/flows.h"
#include "layers/theory/layouts.h"
#include "layers/theory/traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;
using paper::Pass;
using paper::Scheme;

constexpr std::string_view kBytes = "B";
constexpr std::string_view kFlop = "FLOP";

/// Bytes that a rank receives for one block; the mean over ranks.
struct BlockBytes {
  double forward;
  double training;
};
BlockBytes mean(const theory::Traffic& traffic, int ranks) {
  return {real(traffic.forward.total()) / ranks, real(traffic.total()) / ranks};
}

/// Returns the bytes of saved activations of all blocks over all tokens.
double saved(Setting setting, Recompute recompute) {
  setting.recompute = recompute;
  const auto of_layer = [&](const LayerSpec& layer) { return theory::saved_bytes_per_token(setting, layer); };
  return real(setting.tokens() * setting.model.specs.sum(0, setting.model.layers, of_layer));
}

/// Forward FLOPs of one layer on one rank, causal pairs only.
struct LayerFlops {
  double attention;
  double mlp;
};
LayerFlops layer_flops(const Setting& setting, const Layout& layout) {
  const theory::PassFlops flops = theory::forward_flops(setting, layout, {});
  const double L = real(setting.model.layers);
  return {(flops.attention_linear + flops.attention_core) / L, flops.mlp / L};
}

std::string number(double value, std::string_view unit) {
  if (unit.empty()) return fmt::format("{:.6g}", value);
  if (value != 0 && std::abs(value) < 1e6) return fmt::format("{:.6g} {}", value, unit);
  return fmt::format("{:.4f} G{}", value / 1e9, unit);
}

}  // namespace

const std::array<std::string_view, 8> kPaperDifferences = {
    "(14) and (15) count a broadcast as P_attn β; a rank receives P_attn β ρ on average, ρ = (D−1)/D, for its own shard doesn't "
    "travel. With that the forward break-even of TSP with TP is exactly BS = 8h (MHA, F = 4) for every D; as printed it is "
    "8.2857h at D = 8.",
    "(12), (15) and (18) count 4·BSh/g bytes (at β) for K and V in training. Unless gathered K/V are kept, which would break "
    "M_a/D, "
    "they are gathered, gathered again, and their gradients reduce-scattered: 4β + 2β_a per BSh/g.",
    "(15) has P_L β_g ρ once for the gradients; the text before it, (16) and (29) have it twice. Reducing to owners costs it "
    "once. "
    "(16) − (15) should be one forward pass's traffic, and isn't.",
    "Recomputation under TSP as (16) counts it repeats weights too, while section IV-H speaks of K/V only. Done inside the same "
    "visit of the weights it costs TSP, TP, SP by all-gather and ZeRO-3 no byte at all; extra are only ring attention (full: "
    "KV β ρ) and Ulysses.",
    "34·BSh bytes of saved activations is the constant of a GeLU MLP; a gated MLP with flash attention needs "
    "β(2h + 2a + 2k + 2f) + β_l n_h a token, and (4)'s attention probabilities never exist. TP's activations are in part sharded "
    "(10 + 24/T), not whole. (20) doesn't halve attention for causality. The GEMMs of one MLP step (III-A) are 6·(BS/D)(Fh/D)h, "
    "not BS(Fh/D)h.",
    "TSP isn't the only scheme that shards weights and activations by 1/D on one axis: ZeRO-3 with sequence parallelism does "
    "too, "
    "and moves no more bytes. TSP's gain is its transient memory: two shards of 1/D instead of whole layers.",
    "173M tokens/s on 1024 GPUs (the article's figure) can't be the 7B reference model: it would take 8.7 PFLOP/s a GPU with "
    "causal FLOPs, 6.7 times the MI300X's peak. Only ratios can be reproduced.",
    "8h is the break-even of the forward pass. Forward and backward together it is 24h for MHA in one dtype (g = 2/4/8: 9h, "
    "6.69h, 5.90h), and with bf16 weights and f32 sums never for MHA (g = 2/4/8: 15h, 9.67h, 8.14h).",
};

namespace {

/// Returns the setting of a model whose layers have the sizes of the first: the paper's have one size.
Setting of_one_size(Setting setting) {
  const LayerSpec& first = setting.model.layer(0);
  if (!setting.model.has_sizes_of(first)) setting.model = setting.model.of_layers_like(first);
  return setting;
}

}  // namespace

paper::Symbols paper_symbols(const Setting& asked, const Layout& layout) {
  const Setting setting = of_one_size(asked);
  const ModelConfig& model = setting.model;
  paper::Symbols symbols;
  symbols.B = real(setting.batch);
  symbols.S = real(setting.sequence);
  symbols.h = real(model.hidden);
  symbols.L = real(model.layers);
  symbols.n_h = real(model.query_heads);
  symbols.g = real(model.heads_per_kv_head(model.layer(0)));
  symbols.F = real(model.intermediate_of(model.layer(0))) / real(model.hidden);
  symbols.D = layout.ranks();
  const bool mesh = layout.tensor() > 1 && layout.degree(AxisKind::sp) > 1;
  symbols.T = mesh ? layout.tensor() : std::min(2, layout.ranks());
  symbols.Sigma = symbols.D / symbols.T;
  symbols.beta_P = real(setting.bytes.element);
  symbols.beta_g = symbols.beta_P;
  symbols.n_o = real(optimizer_states(setting.bytes));
  symbols.beta_o = real(setting.bytes.accumulated);
  return symbols;
}

std::vector<Equation> paper_equations(const Setting& asked, const Layout& layout) {
  const Setting setting = of_one_size(asked);
  const LayerSpec& layer = setting.model.layer(0);
  const paper::Symbols s = paper_symbols(setting, layout);
  const int D = layout.ranks();
  const auto printed = [&](Scheme scheme, Pass pass) { return paper::communication(s, scheme, pass); };
  // If the model's heads can't be divided this way, nothing can be counted.
  const auto counted = [&](const Layout& of, auto&& count) -> std::optional<double> {
    if (!why_impossible(setting, of).empty()) return std::nullopt;
    return count();
  };
  const Layout by_tp{.axes = {{AxisKind::tp, D}}};
  const Layout by_sp{.axes = {{AxisKind::sp, D}}};
  const Layout by_tsp{.axes = {{AxisKind::tsp, D}}};
  const int T = static_cast<int>(s.T);
  const int Sigma = D / T;
  const Layout by_both{.axes = {{AxisKind::tp, T}, {AxisKind::sp, Sigma}}};
  const auto block = [&](const Layout& of) { return mean(theory::mesh_block({setting, of}), of.ranks()); };
  const auto forward = [&](const Layout& of) { return counted(of, [&] { return block(of).forward; }); };
  const auto training = [&](const Layout& of) { return counted(of, [&] { return block(of).training; }); };
  // An all-reduce of all gradients, which doesn't depend on the batch.
  const double dp = real(2 * setting.block_parameters(layer) * setting.bytes.accumulated * hops(D)) / D;
  const LayerFlops whole = layer_flops(setting, {});
  const auto flops_of = [&](const Layout& of) {
    return counted(of, [&] {
      const LayerFlops flops = layer_flops(setting, of);
      return flops.attention + flops.mlp;
    });
  };
  const paper::Comparison compared = paper::large_degree_forward(s);
  const double even = theory::tsp_tp_break_even(setting, false);
  const std::string_view gradients = "gradients are summed in β_a bytes";
  return {
      {1, "P_L = (2(1 + 1/g) + 3F)h²", paper::parameters_per_layer(s), real(setting.block_parameters(layer)), "", ""},
      {2, "M_a selective = LBSh(16β_P + 2)", paper::activation_memory(s, Recompute::selective), saved(setting, Recompute::none),
       kBytes, "difference 5; counted: --recompute none"},
      {3, "M_a full = LBShβ_P", paper::activation_memory(s, Recompute::full), saved(setting, Recompute::full), kBytes,
       "counted: both sublayers' inputs are kept"},
      {4, "M_a none = LBSh(16β_P + 2 + (2β_P + 1)n_hS/h)", paper::activation_memory(s, Recompute::none),
       saved(setting, Recompute::none), kBytes, "difference 5: probabilities never exist"},
      {5, "C_DP fwd = 0", printed(Scheme::dp, Pass::forward), 0.0, kBytes, ""},
      {6, "C_DP fwd+bwd = 2P_Lβ_gρ", printed(Scheme::dp, Pass::forward_backward), dp, kBytes, gradients},
      {7, "C_DP fwd+bwd+recomp = 2P_Lβ_gρ", printed(Scheme::dp, Pass::forward_backward_recompute), dp, kBytes, gradients},
      {8, "C_TP fwd = 4BShβ_Pρ", printed(Scheme::tp, Pass::forward), forward(by_tp), kBytes, ""},
      {9, "C_TP fwd+bwd = 8BShβ_Pρ", printed(Scheme::tp, Pass::forward_backward), training(by_tp), kBytes,
       "counted: and gradients of copied K/V heads, if n_kv < D"},
      {10, "C_TP fwd+bwd+full_recomp = 12BShβ_Pρ", printed(Scheme::tp, Pass::forward_backward_recompute), training(by_tp), kBytes,
       "difference 4"},
      {11, "C_SP fwd = 2BShβ_P/g ρ", printed(Scheme::sp, Pass::forward), forward(by_sp), kBytes, ""},
      {12, "C_SP fwd+bwd = 4BShβ_P/g ρ + 2P_Lβ_gρ", printed(Scheme::sp, Pass::forward_backward), training(by_sp), kBytes,
       "difference 2; gradients in β_a"},
      {13, "C_SP fwd+bwd+recomp = 6BShβ_P/g ρ + 2P_Lβ_gρ", printed(Scheme::sp, Pass::forward_backward_recompute), training(by_sp),
       kBytes, "differences 2, 4; gradients in β_a"},
      {14, "C_TSP fwd = P_attnβ_P + P_mlpβ_Pρ + 2BShβ_P/g ρ", printed(Scheme::tsp, Pass::forward), forward(by_tsp), kBytes,
       "difference 1"},
      {15, "C_TSP fwd+bwd = 2P_attnβ_P + 2P_mlpβ_Pρ + 4BShβ_P/g ρ + P_Lβ_gρ", printed(Scheme::tsp, Pass::forward_backward),
       training(by_tsp), kBytes, "differences 1, 2, 3; gradients in β_a"},
      {16, "C_TSP fwd+bwd+recomp = 3P_attnβ_P + 3P_mlpβ_Pρ + 6BShβ_P/g ρ + 2P_Lβ_gρ",
       printed(Scheme::tsp, Pass::forward_backward_recompute), training(by_tsp), kBytes, "differences 1 to 4; gradients in β_a"},
      {17, "C_TP+SP fwd = 2BShβ_P/(gT) (Σ−1)/Σ + 4BShβ_P/Σ (T−1)/T", printed(Scheme::tp_sp, Pass::forward), forward(by_both),
       kBytes, ""},
      {18, "C_TP+SP fwd+bwd = 4BShβ_P/(gT) (Σ−1)/Σ + 8BShβ_P/Σ (T−1)/T + 2P_Lβ_g/T (Σ−1)/Σ",
       printed(Scheme::tp_sp, Pass::forward_backward), training(by_both), kBytes, "difference 2; gradients in β_a"},
      {19, "C_TP+SP fwd+bwd+recomp = 6BShβ_P/(gT) (Σ−1)/Σ + 12BShβ_P/Σ (T−1)/T + 2P_Lβ_g/T (Σ−1)/Σ",
       printed(Scheme::tp_sp, Pass::forward_backward_recompute), training(by_both), kBytes, "differences 2, 4; gradients in β_a"},
      {20, "F_attn = 4(1 + 1/g)BSh² + 4BS²h", paper::attention_flops(s), whole.attention, kFlop, "difference 5: causal pairs"},
      {21, "F_mlp = 6FBSh²", paper::mlp_flops(s), whole.mlp, kFlop, ""},
      {22, "F_layer = (4(1 + 1/g) + 6F)BSh² + 4BS²h", paper::layer_flops(s), whole.attention + whole.mlp, kFlop,
       "difference 5: causal pairs"},
      {23, "F_DP = F_layer", paper::device_flops(s, Scheme::dp), whole.attention + whole.mlp, kFlop,
       "difference 5: causal pairs"},
      {24, "F_TP = F_SP = F_TSP = F_layer/D", paper::device_flops(s, Scheme::tsp), flops_of(by_tsp), kFlop,
       "difference 5: causal pairs"},
      {25, "F_TP+SP = F_layer/(TΣ)", paper::device_flops(s, Scheme::tp_sp), flops_of(by_both), kFlop,
       "difference 5: causal pairs"},
      {26, "P_attnβ_P + P_mlpβ_P + 2BShβ_P/g < 4BShβ_P: left side over right", compared.tsp / compared.tp,
       counted(by_tsp, [&] { return block(by_tsp).forward / (4 * s.BSh() * s.beta_P * (D > 1 ? s.rho() : 1)); }), "",
       "at large D; counted: at this D, the same for every D"},
      {27, "P_L < 2BSh(2 − 1/g): BS/h at which both are equal", paper::break_even_factor(s), even / s.h, "", ""},
      {28, "MHA: (4 + 3F)h < 2BS: BS/h at which both are equal", (4 + 3 * s.F) / 2, even / s.h, "",
       s.g == 1 ? "" : "counted: with this model's g"},
      {29, "C_TSP fwd+bwd ≲ 2P_attnβ_P + 2P_mlpβ_Pρ + 4BShβ_P/g ρ + 2P_Lβ_gρ", paper::tsp_training_bound(s), training(by_tsp),
       kBytes, "differences 1, 2, 3; gradients in β_a"},
      {30, "C_SP fwd+bwd = 4BShβ_P/g ρ + 2P_Lβ_gρ", paper::sp_training(s), training(by_sp), kBytes,
       "difference 2; gradients in β_a"},
  };
}

PaperTables::PaperTables(const PlanQuestion& question, const Layout& layout)
    : question_(question),
      symbols_(paper_symbols(question.setting, layout)),
      equations_(paper_equations(question.setting, layout)) {}

std::vector<std::string> PaperTables::lines(std::size_t columns) const {
  const paper::Symbols& s = symbols_;
  std::vector<std::string> lines;
  const auto prose = [&](std::string_view text) { std::ranges::move(wrapped(text, columns, ""), std::back_inserter(lines)); };
  prose(describe(question_));
  prose(fmt::format("D {:g}, T {:g}, Σ {:g}, g {:g}, F {:.4g}; β_P {:g}, β_g {:g}, n_o {:g}, β_o {:g}; counted with β {}, β_a {}",
                    s.D, s.T, s.Sigma, s.g, s.F, s.beta_P, s.beta_g, s.n_o, s.beta_o, question_.setting.bytes.element,
                    question_.setting.bytes.accumulated));
  const ModelConfig& model = question_.setting.model;
  if (!model.has_sizes_of(model.layer(0))) prose("Layers of this model differ in size; here all are taken as layer 0 is.");
  prose("");
  prose(
      "The paper's equations as printed, and what is counted here: bytes and FLOPs of a layer and device, activations of all "
      "layers");
  Table table({{"as printed", Align::left}, "its value", "counted", {"why they differ", Align::left}});
  for (const Equation& equation : equations_) {
    table.row({fmt::format("({}) {}", equation.number, equation.formula), number(equation.printed, equation.unit),
               equation.exact ? number(*equation.exact, equation.unit) : "-", equation.note});
  }
  std::ranges::move(table.lines(columns), std::back_inserter(lines));
  prose("");
  prose(
      "Figure 9, the largest memory of one of eight GPUs: as the paper and the article about it have it, for a model that they "
      "don't name, and as counted here for the paper's reference model with AdamW's states in f32 and full recomputation");
  Table memory({{"scheme", Align::left}, "sequence", "measured there, GB", "counted here, GB"});
  for (const ordered_json& row : paper_figure9()) {
    memory.row({row.at("scheme").get<std::string>(), row.at("seq").dump(),
                fmt::format("{:.1f}", 1e-9 * row.at("measured").get<double>()),
                fmt::format("{:.1f}", 1e-9 * row.at("counted").get<double>())});
  }
  std::ranges::move(memory.lines(columns), std::back_inserter(lines));
  prose("");
  prose(
      "Figures 1, 5, 6, 7 and 9 by these formulas and as counted here: --json FILE writes them, tools/plot/plot.py draws them.");
  prose("");
  prose("Where the paper's formulas and statements differ from what is counted");
  constexpr std::size_t kColumns = 133;
  for (std::size_t i = 0; i < kPaperDifferences.size(); ++i) {
    const std::string difference = fmt::format("{}. {}", i + 1, kPaperDifferences[i]);
    std::ranges::move(wrapped(difference, std::min(columns, kColumns), "   "), std::back_inserter(lines));
  }
  return lines;
}

ordered_json PaperTables::json() const {
  const paper::Symbols& s = symbols_;
  ordered_json json;
  json["symbols"] = {{"B", s.B},           {"S", s.S},           {"h", s.h},     {"L", s.L},          {"n_h", s.n_h},
                     {"g", s.g},           {"F", s.F},           {"D", s.D},     {"T", s.T},          {"Sigma", s.Sigma},
                     {"beta_P", s.beta_P}, {"beta_g", s.beta_g}, {"n_o", s.n_o}, {"beta_o", s.beta_o}};
  ordered_json& equations = json["equations"] = ordered_json::array();
  for (const Equation& each : equations_) {
    equations.push_back(
        {{"number", each.number},
         {"formula", each.formula},
         {"printed", each.printed},
         {"counted", each.exact && std::isfinite(*each.exact) ? ordered_json(*each.exact) : ordered_json(nullptr)},
         {"unit", each.unit},
         {"note", each.note}});
  }
  json["figures"] = paper_figures_json();
  json["differences"] = kPaperDifferences;
  return json;
}

}  // namespace tsprun::detail::launcher
