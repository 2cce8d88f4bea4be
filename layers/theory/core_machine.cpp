// Looks prices up, and reads them from a machine file.
#include "layers/theory/core_machine.h"

#include "layers/io/json_object.h"
#include "layers/theory/machine_limits.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tsprun::detail::theory {

namespace {

constexpr double kLongestKernel = 1e6;
constexpr int kMostCores = 4096;
constexpr std::size_t kMostKernels = 100'000;

double work(double flops, double bytes) { return flops > 0 ? flops : bytes; }

DType read_dtype(JsonObject& object, std::string_view field) {
  const std::string text = object.text(field);
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    if (tsprun::name(dtype) == text) return dtype;
  }
  object.refuse(field, "\"f32\", \"f64\" or \"bf16\"");
}

void read_kernel(JsonObject object, CoreMachine& machine) {
  const std::string kernel = object.text("kernel");
  const DType dtype = read_dtype(object, "dtype");
  const DType result = read_dtype(object, "result");
  CoreMachine::Size size{};
  const nlohmann::json* sizes = object.find("sizes");
  auto& into = std::get<0>(size);
  if (sizes == nullptr || !sizes->is_array() || sizes->size() > into.size())
    object.refuse("sizes", fmt::format("up to {} whole numbers", into.size()));
  for (std::size_t i = 0; i < sizes->size(); ++i) {
    if (!(*sizes)[i].is_number_unsigned()) object.refuse_entry("sizes", i, "a whole number");
    into[i] = (*sizes)[i].get<std::uint64_t>();
  }
  std::get<1>(size) = object.number("flops", 0, kLargest);
  KernelPrice price{.bytes = object.number("bytes", 0, kLargest),
                    .seconds = object.number("seconds", 0, kLongestKernel),
                    .ticks = object.number("ticks", 0, kLargest)};
  object.done();
  machine.kernels[{kernel, dtype, result}][size] = price;
}

}  // namespace

KernelPrice CoreMachine::price(const KernelCost& cost, const std::string& name) const {
  const auto kind = kernels.find({std::string(cost.kernel), cost.dtype, cost.result});
  if (kind == kernels.end()) {
    throw Error(Cause::refused, fmt::format("{} has no price for kernel \"{}\" from {} to {}; tsprun calibrate, with this model, "
                                            "layout and --dtype, measures it",
                                            name, cost.kernel, tsprun::name(cost.dtype), tsprun::name(cost.result)));
  }
  const auto exact = kind->second.find({cost.sizes, cost.flops});
  if (exact != kind->second.end()) return exact->second;
  const double mine = std::max(1.0, work(cost.flops, static_cast<double>(cost.bytes_read + cost.bytes_written)));
  double least = std::numeric_limits<double>::infinity();
  KernelPrice nearest;
  for (const auto& [size, price] : kind->second) {
    if ((cost.flops == 0) != (std::get<1>(size) == 0)) continue;  // one has no elements, such as a product of no rows
    const double ratio = mine / std::max(1.0, work(std::get<1>(size), price.bytes));
    if (const double away = std::abs(std::log(ratio)); away < least) {
      least = away;
      nearest = {.bytes = price.bytes * ratio, .seconds = price.seconds * ratio, .ticks = price.ticks * ratio};
    }
  }
  return nearest;
}

std::optional<double> CoreMachine::best_flops(DType dtype) const {
  std::optional<double> best;
  for (const auto& [kind, sizes] : kernels) {
    if (std::get<0>(kind) != "gemm" || std::get<1>(kind) != dtype) continue;
    for (const auto& [size, price] : sizes) best = std::max(best.value_or(1), std::get<1>(size) / std::max(price.seconds, 1e-9));
  }
  return best;
}

CoreMachine CoreMachine::read(JsonObject& object) {
  CoreMachine machine;
  machine.cores = object.integer("cores", 1, kMostCores);
  machine.copy_bytes_per_s = object.number("copy_bytes_per_s", 1, kLargest);
  machine.reduce_bytes_per_s = object.number("reduce_bytes_per_s", 1, kLargest);
  machine.message_seconds = object.number("message_s", 0, kLongestLatency);
  for (std::size_t i = 0, count = object.entries("kernels", 1, kMostKernels); i < count; ++i)
    read_kernel(object.entry("kernels", i), machine);
  return machine;
}

}  // namespace tsprun::detail::theory
