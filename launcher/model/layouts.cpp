// Parses --layout, --tp and --sp together, and checks heads and batch.
#include "launcher/model/layouts.h"

#include "launcher/refuse.h"
#include "layers/layout/check_layout.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail::launcher {

TensorExchange tensor_exchange(const GlobalOptions& global) {
  if (global.tp == TensorExchange::plain) return global.tp;
  if (!global.layout->has(AxisKind::tp)) {
    refuse(fmt::format("--tp {}: --layout {} has no tp axis to exchange over; try --layout tp={}", name(global.tp.value),
                       global.layout->print(), std::max(2, global.layout->ranks())));
  }
  // An axis of one rank exchanges nothing, in whatever way: a sweep over degrees may begin with it.
  return global.layout->tensor() > 1 ? global.tp.value : TensorExchange::plain;
}

SequenceExchange sequence_exchange(const GlobalOptions& global) {
  if (global.sp == SequenceExchange::gather) return global.sp;
  if (!global.layout->has(AxisKind::sp)) {
    refuse(fmt::format("--sp {}: --layout {} has no sp axis to exchange over; try --layout sp={}", name(global.sp.value),
                       global.layout->print(), std::max(2, global.layout->ranks())));
  }
  return global.layout->degree(AxisKind::sp) > 1 ? global.sp.value : SequenceExchange::gather;
}

Layout layout_of(const GlobalOptions& global) {
  return global.layout->canonical().with(tensor_exchange(global)).with(sequence_exchange(global));
}

void check_heads(const GlobalOptions& global, const ModelConfig& config) {
  const Layout layout = layout_of(global);
  try {
    check_layout(config, layout);
  } catch (const Error& error) {
    refuse(fmt::format("{}: {}", ranks_as_typed(global), error.what()));
  }
}

void check_batch(const GlobalOptions& global, std::size_t batch) {
  const auto data = static_cast<std::size_t>(global.layout->data());
  if (batch % data == 0) return;
  const std::size_t above = (batch / data + 1) * data;
  const std::string below = batch > data ? fmt::format("{} or ", batch / data * data) : "";
  refuse(fmt::format("--layout {}: --batch {} doesn't divide by dp={}; try --batch {}{}", global.layout->print(), batch, data,
                     below, above));
}

void refuse_data_axis(const GlobalOptions& global, const std::string& why) {
  const int data = global.layout->data();
  if (data == 1) return;
  Layout without = global.layout;
  std::erase_if(without.axes, [](const Axis& axis) { return axis.kind == AxisKind::dp; });
  if (without.axes.empty()) without = Layout::tsp(data);
  refuse(fmt::format("--layout {}: {}; dp doesn't work here; try --layout {}", global.layout->print(), why, without.print()));
}

}  // namespace tsprun::detail::launcher
