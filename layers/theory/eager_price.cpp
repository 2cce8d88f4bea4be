// Counts what each operation reads and writes.
#include "layers/theory/eager_price.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace tsprun::detail::theory {

namespace {

/// Operations for which a kernel stands: how often they move an element of the model's dtype, and one in which they compute, how
/// often they cast between the two, and how many other kernels they are.
struct Operations {
  std::string_view kernel;
  double own;
  double wide;
  int casts;
  int others;
};

constexpr std::array<Operations, 9> kOperations = {{
    {.kernel = "norm", .own = 2, .wide = 5, .casts = 2, .others = 6},
    {.kernel = "norm backward", .own = 6, .wide = 17, .casts = 2, .others = 14},
    {.kernel = "rope", .own = 0, .wide = 2, .casts = 2, .others = 1},
    {.kernel = "swiglu", .own = 5, .wide = 0, .casts = 0, .others = 2},
    {.kernel = "swiglu backward", .own = 9, .wide = 0, .casts = 0, .others = 3},
    {.kernel = "geglu", .own = 5, .wide = 0, .casts = 0, .others = 2},
    {.kernel = "geglu backward", .own = 9, .wide = 0, .casts = 0, .others = 3},
    {.kernel = "loss", .own = 0, .wide = 2, .casts = 1, .others = 1},
    {.kernel = "loss backward", .own = 0, .wide = 4, .casts = 1, .others = 2},
}};

double elements_of(const KernelCost& cost) {
  double elements = 1;
  for (const std::uint64_t size : cost.sizes) elements *= size == 0 ? 1 : static_cast<double>(size);
  return elements;
}

}  // namespace

std::optional<EagerPrice> eager_price(const KernelCost& cost, const Machine& machine, DType dtype, bool layer_norms) {
  const auto* const of = std::ranges::find(kOperations, cost.kernel, &Operations::kernel);
  if (of == kOperations.end() || (layer_norms && cost.kernel.starts_with("norm"))) return std::nullopt;
  const auto own = static_cast<double>(size_of(dtype));
  const double wide = std::max(own, static_cast<double>(size_of(DType::f32)));
  const int casts = own < wide ? of->casts : 0;
  const double bytes = of->own * own + of->wide * wide + casts * (own + wide);
  const int launches = casts + of->others;
  return EagerPrice{.seconds = launches * machine.launch_seconds + elements_of(cost) * bytes / machine.memory_rate(),
                    .launches = launches};
}

}  // namespace tsprun::detail::theory
