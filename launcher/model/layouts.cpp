#include "launcher/model/layouts.h"

#include "launcher/refuse.h"
#include "layers/layout/check_mesh.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace tsprun::launcher {

theory::Spread spread_of(const Layout& layout, TensorExchange tensor, SequenceExchange sequence) {
  theory::Spread spread;
  for (const Axis& axis : layout.axes) {
    const std::optional<theory::AxisKind> kind = theory::axis_kind(axis.name);
    if (!kind) refuse(fmt::format("--layout {}: there is no axis '{}'", layout.print(), axis.name));
    if (axis.degree > 1) spread.axes.push_back({*kind, axis.degree});
  }
  spread.tensor = spread.tensors() > 1 ? tensor : TensorExchange::plain;
  spread.sequence = spread.degree(theory::AxisKind::sp) > 1 ? sequence : SequenceExchange::gather;
  return spread;
}

TensorExchange tensor_exchange(const GlobalOptions& global) {
  if (global.tensor_text != "plain" && global.tensor_text != "sequence") {
    refuse(fmt::format("--tp {}: plain and sequence work", global.tensor_text));
  }
  if (global.tensor_text == "plain") return TensorExchange::plain;
  if (!global.layout.has("tp")) {
    refuse(fmt::format("--tp {}: --layout {} has no tp axis to exchange over; try --layout tp={}", global.tensor_text,
                       global.layout.print(), std::max(2, global.layout.product())));
  }
  // An axis of one rank exchanges nothing, in whatever way: a sweep over degrees may begin with it.
  return global.layout.degree("tp") > 1 ? TensorExchange::sequence : TensorExchange::plain;
}

SequenceExchange sequence_exchange(const GlobalOptions& global) {
  const std::string& text = global.sequence_text;
  if (text == "gather") return SequenceExchange::gather;
  if (text != "ring" && text != "ulysses") refuse(fmt::format("--sp {}: gather, ring and ulysses work", text));
  if (!global.layout.has("sp")) {
    refuse(fmt::format("--sp {}: --layout {} has no sp axis to exchange over; try --layout sp={}", text, global.layout.print(),
                       std::max(2, global.layout.product())));
  }
  if (global.layout.degree("sp") == 1) return SequenceExchange::gather;
  return text == "ring" ? SequenceExchange::ring : SequenceExchange::ulysses;
}

MeshShape mesh_shape(const GlobalOptions& global) {
  return theory::mesh_shape(spread_of(global.layout, tensor_exchange(global), sequence_exchange(global)));
}

void check_heads(const GlobalOptions& global, const ModelConfig& config) {
  const MeshShape shape = mesh_shape(global);
  const SequenceExchange exchange = sequence_exchange(global);
  try {
    check_mesh(config, shape, exchange);
  } catch (const Error& error) {
    refuse(fmt::format("{}: {}", ranks_as_typed(global), error.what()));
  }
}

void check_batch(const GlobalOptions& global, std::size_t batch) {
  const auto data = static_cast<std::size_t>(global.layout.degree("dp"));
  if (batch % data == 0) return;
  const std::size_t above = (batch / data + 1) * data;
  const std::string below = batch > data ? fmt::format("{} or ", batch / data * data) : "";
  refuse(fmt::format("--layout {}: --batch {} doesn't divide by dp={}; try --batch {}{}", global.layout.print(), batch, data,
                     below, above));
}

void refuse_data_axis(const GlobalOptions& global, const std::string& why) {
  const int data = global.layout.degree("dp");
  if (data == 1) return;
  Layout without;
  for (const Axis& axis : global.layout.axes) {
    if (axis.name != "dp") without.axes.push_back(axis);
  }
  if (without.axes.empty()) without = default_layout(data);
  refuse(fmt::format("--layout {}: {}; dp doesn't work here; try --layout {}", global.layout.print(), why, without.print()));
}

std::string ranks_as_typed(const GlobalOptions& global) {
  if (global.ranks_text.empty() && !global.layout_text.empty()) return fmt::format("--layout {}", global.layout_text);
  return fmt::format("-n {}", global.ranks);
}

}  // namespace tsprun::launcher
