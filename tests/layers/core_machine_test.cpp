// Machines of cores: prices of kernels against sums by hand, and what their files refuse.
#include "layers/theory/calibrate.h"
#include "layers/theory/machine.h"
#include "layers/theory/simulate.h"
#include "tests/layers/model_run.h"
#include "tests/support/refusal.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace tsprun::detail::test::core_machine_test {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

ordered_json host() {
  return {{"version", 3},
          {"kind", "cores"},
          {"name", "host"},
          {"cores", 2},
          {"memory_bytes", 1e9},
          {"launch_s", 0},
          {"copy_bytes_per_s", 4e9},
          {"reduce_bytes_per_s", 3e9},
          {"message_s", 1e-6},
          {"within_node", {{"fabric", "links"}, {"bytes_per_s", 1e30}, {"latency_s", 0}}},
          {"kernels",
           {{{"kernel", "gemm"},
             {"dtype", "f32"},
             {"result", "f32"},
             {"sizes", {8, 8, 8}},
             {"flops", 1024},
             {"bytes", 768},
             {"seconds", 2e-6},
             {"ticks", 1}}}}};
}

theory::Machine machine(const ordered_json& of) { return theory::parse_machine(of.dump(), "host.json"); }

KernelCost gemm(std::uint64_t rows) {
  return {.kernel = "gemm", .sizes = {rows, 8, 8}, .flops = 128.0 * static_cast<double>(rows)};
}

TEST(CoreMachine, AKernelTakesWhatWasMeasuredAndOtherSizesInProportion) {
  const theory::Machine of = machine(host());
  EXPECT_EQ(theory::kernel_seconds(gemm(8), of), 2e-6);
  EXPECT_DOUBLE_EQ(theory::kernel_seconds(gemm(32), of), 8e-6);
  EXPECT_DOUBLE_EQ(*of.flops(DType::f32), 1024 / 2e-6);
  EXPECT_FALSE(of.flops(DType::bf16));
}

TEST(CoreMachine, RefusesAKernelOrDtypeWithoutAPrice) {
  const theory::Machine of = machine(host());
  KernelCost other = gemm(8);
  other.kernel = "rope";
  EXPECT_THAT(refused_text([&] { theory::kernel_seconds(other, of); }),
              HasSubstr("host has no price for kernel \"rope\" from f32 to f32; tsprun calibrate"));
  other = gemm(8);
  other.dtype = DType::bf16;
  EXPECT_THAT(refused_text([&] { theory::kernel_seconds(other, of); }),
              HasSubstr("no price for kernel \"gemm\" from bf16 to f32"));
}

TEST(CoreMachine, AFileNamesWhatIsWrong) {
  const auto with = [](const char* field, const ordered_json& value) {
    ordered_json of = host();
    of[field] = value;
    return refused_text([&] { machine(of); });
  };
  EXPECT_THAT(with("kind", "tubes"), HasSubstr("host.json: field \"kind\": expected \"engines\" (GPUs) or \"cores\""));
  EXPECT_THAT(with("cores", 0), HasSubstr("\"cores\": expected an integer from 1 to"));
  EXPECT_THAT(with("copy_bytes_per_s", -1), HasSubstr("\"copy_bytes_per_s\": expected a number from 1 to"));
  EXPECT_THAT(with("message_s", 5), HasSubstr("\"message_s\": expected a number from 0 to 1"));
  EXPECT_THAT(with("kernels", ordered_json::array()), HasSubstr("\"kernels\": expected an array"));
  EXPECT_THAT(with("flops_per_s", 1), HasSubstr("field \"flops_per_s\" is not known"));
  ordered_json of = host();
  of["kernels"][0]["dtype"] = "f31";
  EXPECT_THAT(refused_text([&] { machine(of); }), HasSubstr("host.json: field \"kernels[0].dtype\": expected \"f32\""));
  of = host();
  of["kernels"].push_back(of["kernels"][0]);
  of["kernels"][1]["sizes"] = {8, 8.5, 8};
  EXPECT_EQ(refused_text([&] { machine(of); }), "host.json: field \"kernels[1].sizes[1]\": expected a whole number, found 8.5");
}

// Each run of a kernel costs a millisecond: so a rank that is alone takes as many milliseconds as it runs kernels.
TEST(CoreMachine, PricesOfCalibrateCoverAStepAndAddUp) {
  const ModelCase of{.config = small_config(32, 2, 4, 4, 8, 64, 97), .batch = 2, .sequence = 24, .dtype = DType::f32};
  for (const bool training : {true, false}) {
    const theory::MeshSetting alone{.setting = of.setting(), .layout = Layout::parse("tsp=1")};
    int calls = 0;
    const theory::TimedStep step = theory::time_kernels(alone, 0, training, 3, [&] { ++calls; });
    EXPECT_EQ(calls, 3);
    EXPECT_GT(step.between_seconds, 0);
    theory::Machine machine = core_machine_test::machine(host());
    machine.cores->kernels.clear();
    for (const theory::TimedKernel& kernel : step.kernels) {
      EXPECT_GT(kernel.price.seconds, 0) << kernel.cost.kernel;
      machine.cores->kernels[{std::string(kernel.cost.kernel), kernel.cost.dtype, kernel.cost.result}]
                            [{kernel.cost.sizes, kernel.cost.flops}] = {.bytes = 1, .seconds = 1e-3, .ticks = 1};
    }
    const theory::Simulated played = theory::simulate(alone, machine, {.training = training});
    EXPECT_NEAR(played.compute_seconds, 1e-3 * step.kernel_runs, 1e-9 * step.kernel_runs);
    EXPECT_NEAR(played.seconds, 1e-3 * step.kernel_runs, 1e-4);
  }
}

}  // namespace
}  // namespace tsprun::detail::test::core_machine_test
