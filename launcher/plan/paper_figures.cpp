// Evaluates the paper's formulas for its own model, and counts the same on this program's schedules.
#include "launcher/plan/paper_figures.h"

#include "launcher/plan/amounts.h"
#include "layers/io/config.h"
#include "layers/theory/flops.h"
#include "layers/theory/flows.h"
#include "layers/theory/peaks.h"
#include "layers/theory/traffic.h"

#include <fmt/format.h>

#include <cmath>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;
using paper::Scheme;

constexpr double kGB = 1e9;
constexpr int kRanks = 8;

paper::Symbols symbols(double sequence) {
  paper::Symbols s;
  s.S = sequence;
  return s;
}
double printed_forward(const paper::Symbols& s, Scheme scheme) { return paper::communication(s, scheme, paper::Pass::forward); }

/// Returns the peak of the rank that holds most. DP's batch of one sequence is each replica's.
double counted_peak(const Setting& setting, const Layout& layout) {
  Setting of = setting;
  of.batch *= static_cast<std::size_t>(layout.data());
  const theory::MeshSetting mesh{of, layout};
  return real(theory::peaks(mesh, fullest(mesh)).total);
}

Setting with_hidden(Setting setting, std::size_t hidden) {
  setting.model.hidden = hidden;
  setting.model.query_heads = setting.model.kv_heads = hidden / setting.model.head_dim;
  setting.model.intermediate = 4 * hidden;
  return setting;
}

Setting with_group(Setting setting, std::size_t g) {
  setting.model.kv_heads = setting.model.query_heads / g;
  return setting;
}

ordered_json figure1() {
  ordered_json rows = ordered_json::array();
  for (const std::size_t S : {8192U, 65536U}) {
    for (const PaperScheme& each : paper_schemes()) {
      const paper::Memory memory = paper::memory(symbols(static_cast<double>(S)), each.scheme, Recompute::selective);
      rows.push_back({{"seq", S},
                      {"scheme", each.label},
                      {"parameters", memory.parameters},
                      {"gradients", memory.gradients},
                      {"optimizer", memory.optimizer},
                      {"activations", memory.activations},
                      {"printed", memory.total()},
                      {"counted", counted_peak(reference_setting(S), each.layout)}});
    }
  }
  return rows;
}

ordered_json figure5() {
  ordered_json rows = ordered_json::array();
  for (const std::size_t S : {8192U, 16384U, 32768U, 65536U, 131072U}) {
    const paper::Symbols s = symbols(static_cast<double>(S));
    for (const PaperScheme& each : paper_schemes()) {
      rows.push_back({{"seq", S},
                      {"scheme", each.label},
                      {"printed", printed_forward(s, each.scheme)},
                      {"counted", counted_forward(reference_setting(S), each.layout)},
                      {"memory_printed", paper::memory(s, each.scheme, Recompute::selective).total()},
                      {"memory_counted", counted_peak(reference_setting(S), each.layout)}});
    }
  }
  return rows;
}

ordered_json figure6() {
  constexpr std::size_t kSequence = 32768;
  ordered_json rows = ordered_json::array();
  for (const std::size_t h : {2048U, 4096U, 5120U, 8192U}) {
    paper::Symbols s = symbols(kSequence);
    s.h = static_cast<double>(h);
    s.n_h = s.h / 128;
    const Setting setting = with_hidden(reference_setting(kSequence), h);
    ordered_json row = {{"hidden", h}, {"parameters", s.L * paper::parameters_per_layer(s)}};
    for (const PaperScheme& each : paper_schemes()) {
      row[each.label] = {{"printed", printed_forward(s, each.scheme)},
                         {"counted", counted_forward(setting, each.layout)},
                         {"memory_printed", paper::memory(s, each.scheme, Recompute::selective).total()}};
    }
    row["ratio_printed"] = printed_forward(s, Scheme::tsp) / printed_forward(s, Scheme::tp);
    row["ratio_counted"] = row["TSP"]["counted"].get<double>() / row["TP"]["counted"].get<double>();
    rows.push_back(std::move(row));
  }
  return rows;
}

ordered_json figure7() {
  const Layout tsp{.axes = {{AxisKind::tsp, kRanks}}};
  const Layout tp{.axes = {{AxisKind::tp, kRanks}}};
  ordered_json rows = ordered_json::array();
  for (const std::size_t B : {1U, 2U, 4U, 8U}) {
    for (const std::size_t S : {4096U, 8192U, 16384U, 32768U, 65536U, 131072U}) {
      paper::Symbols s = symbols(static_cast<double>(S));
      s.B = static_cast<double>(B);
      Setting setting = reference_setting(S);
      setting.batch = B;
      rows.push_back({{"batch", B},
                      {"seq", S},
                      {"printed", printed_forward(s, Scheme::tsp) / printed_forward(s, Scheme::tp)},
                      {"counted", counted_forward(setting, tsp) / counted_forward(setting, tp)}});
    }
  }
  return rows;
}

ordered_json break_evens() {
  ordered_json rows = ordered_json::array();
  const Setting reference = reference_setting(8192);
  Setting one_dtype = reference;
  one_dtype.bytes = ElementBytes::of(DType::f32);
  const double h = real(reference.model.hidden);
  const auto finite = [](double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr); };
  for (const std::size_t g : {1U, 2U, 4U, 8U}) {
    paper::Symbols s;
    s.g = static_cast<double>(g);
    rows.push_back({{"g", g},
                    {"forward_printed", paper::break_even_factor(s)},
                    {"forward", finite(theory::tsp_tp_break_even(with_group(reference, g), false) / h)},
                    {"forward_backward", finite(theory::tsp_tp_break_even(with_group(one_dtype, g), true) / h)},
                    {"forward_backward_bf16", finite(theory::tsp_tp_break_even(with_group(reference, g), true) / h)}});
  }
  return rows;
}

/// Returns forward FLOPs per token in all layers, without the head, as in the paper.
ordered_json flops_per_token() {
  constexpr std::size_t kSequence = 131072;
  const Setting setting = reference_setting(kSequence);
  const theory::PassFlops flops = theory::forward_flops(setting, {}, {});
  const paper::Symbols s = symbols(kSequence);
  const double attention = s.L * 4 * s.S * s.h;
  return {{"seq", kSequence},
          {"linear", (flops.attention_linear + flops.mlp) / kSequence},
          {"attention_printed", attention},
          {"attention_causal", flops.attention_core / kSequence}};
}

}  // namespace

Setting reference_setting(std::size_t sequence, Recompute recompute) {
  Setting setting;
  setting.model = find_config("paper-7b").config;
  setting.sequence = sequence;
  setting.bytes = ElementBytes::of(DType::bf16);
  setting.recompute = recompute;
  return setting;
}

const std::vector<PaperScheme>& paper_schemes() {
  static const std::vector<PaperScheme> schemes = {
      {"DP", Scheme::dp, {.axes = {{AxisKind::dp, 8}}}},
      {"TP", Scheme::tp, {.axes = {{AxisKind::tp, 8}}}},
      {"SP", Scheme::sp, {.axes = {{AxisKind::sp, 8}}}},
      {"TP2+SP4", Scheme::tp_sp, {.axes = {{AxisKind::tp, 2}, {AxisKind::sp, 4}}}},
      {"TSP", Scheme::tsp, {.axes = {{AxisKind::tsp, 8}}}},
  };
  return schemes;
}

double counted_forward(const Setting& setting, const Layout& layout) {
  Setting of = setting;
  of.batch *= static_cast<std::size_t>(layout.data());
  std::uint64_t bytes = 0;
  for (const theory::Flow& flow : theory::step_flows(of, layout)) {
    const bool block = flow.purpose == Purpose::weights || flow.purpose == Purpose::kv || flow.purpose == Purpose::activations;
    if (!flow.backward && block) bytes += flow.bytes;
  }
  return real(bytes) / real(setting.model.layers) / layout.ranks();
}

// What is measured stands in the paper for 16K; the figures of 128K are from the article about it.
ordered_json paper_figure9() {
  struct Measured {
    std::size_t sequence;
    const char* scheme;
    const char* layout;
    double gigabytes;
  };
  const Measured measured[] = {
      {16384, "TSP", "tsp=8", 31.0}, {131072, "TSP", "tsp=8", 38.8},         {16384, "TP", "tp=8", 31.5},
      {131072, "TP", "tp=8", 70.0},  {131072, "TP4+SP2", "tp=4,sp=2", 85.0}, {131072, "TP2+SP4", "tp=2,sp=4", 140.0}};
  ordered_json rows = ordered_json::array();
  for (const Measured& each : measured) {
    rows.push_back({{"seq", each.sequence},
                    {"scheme", each.scheme},
                    {"measured", each.gigabytes * kGB},
                    {"counted", counted_peak(reference_setting(each.sequence, Recompute::full), Layout::parse(each.layout))}});
  }
  return rows;
}

ordered_json paper_figures_json() {
  return {{"fig1", figure1()},
          {"fig5", figure5()},
          {"fig6", figure6()},
          {"fig7", figure7()},
          {"fig9", paper_figure9()},
          {"break_even", break_evens()},
          {"flops_per_token", flops_per_token()}};
}

}  // namespace tsprun::detail::launcher
