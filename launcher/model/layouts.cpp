// Takes --layout and the options of its axes' variants together, and checks heads and batch.
#include "launcher/model/layouts.h"

#include "launcher/refuse.h"
#include "layers/layout/check_layout.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail::launcher {

std::size_t chosen_variant(const GlobalOptions& global, const AxisRow& row) {
  const std::size_t chosen = global.variant(row.kind);
  if (chosen == 0) return 0;
  if (!global.layout->has(row.kind)) {
    refuse(fmt::format("--{0} {1}: --layout {2} has no {0} axis to exchange over; try --layout {0}={3}", row.name,
                       row.variants[chosen].name, global.layout->print(), std::max(2, global.layout->ranks())));
  }
  // An axis of one rank exchanges nothing, in whatever way: a sweep over degrees may begin with it.
  return global.layout->degree(row.kind) > 1 ? chosen : 0;
}

Layout layout_as_typed(const GlobalOptions& global) {
  Layout layout = global.layout;
  for (const AxisRow& row : kAxes) layout = layout.with(row.kind, chosen_variant(global, row));
  return layout;
}

Layout layout_of(const GlobalOptions& global) { return layout_as_typed(global).canonical(); }

void check_heads(const GlobalOptions& global, const ModelConfig& config) {
  const Layout layout = layout_of(global);
  try {
    check_layout(config, layout);
  } catch (const Error& error) {
    refuse(fmt::format("{}: {}", ranks_as_typed(global), error.what()));
  }
}

void check_batch(const GlobalOptions& global, std::size_t batch, std::size_t micro_batches) {
  const auto data = static_cast<std::size_t>(global.layout->data());
  if (batch % data == 0) {
    if (const std::string why = why_no_micro_batches(batch, micro_batches, global.layout); !why.empty()) refuse(why);
    return;
  }
  const std::size_t above = (batch / data + 1) * data;
  const std::string below = batch > data ? fmt::format("{} or ", batch / data * data) : "";
  refuse(fmt::format("--layout {}: --batch {} doesn't divide by {}; try --batch {}{}", global.layout->print(), batch,
                     global.layout->print_data(), below, above));
}

void refuse_data_axis(const GlobalOptions& global, const std::string& why) {
  const int data = global.layout->data();
  if (data == 1) return;
  Layout without = global.layout->without(Cut::batch);
  if (without.axes.empty()) without = Layout::tsp(data);
  refuse(fmt::format("--layout {}: {}; {} doesn't work here; try --layout {}", global.layout->print(), why,
                     name(global.layout->data_axis()), without.print()));
}

}  // namespace tsprun::detail::launcher
