// Prices of kernels against formulas written out by hand.
#include "layers/theory/kernel_price.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace tsprun::detail::theory::kernel_price_test {
namespace {

/// 1e12 FLOP/s and 1e9 bytes/s, and nothing to start a kernel; every fraction is another one.
Machine machine() {
  Machine of;
  of.flops_bf16 = 1e12;
  of.memory_bytes_per_s = 1e9;
  of.gemm_efficiency = Efficiency(Efficiency::Grid{{64, 256}, {1e4, 1e6}, {{0.1, 0.2}, {0.3, 0.8}}});
  of.attention_efficiency.forward = Efficiency(Efficiency::Grid{{64, 128}, {1000, 4000}, {{0.1, 0.4}, {0.2, 0.5}}});
  of.attention_efficiency.backward = Efficiency(Efficiency::Grid{{64, 128}, {1000, 4000}, {{0.05, 0.25}, {0.15, 0.35}}});
  return of;
}

double product(std::uint64_t m, std::uint64_t n, std::uint64_t k) {
  return kernel_seconds(
      {.kernel = "gemm", .dtype = DType::bf16, .sizes = {m, n, k}, .flops = 2.0 * static_cast<double>(m * n * k)}, machine());
}

/// Attention of one sequence, of which `pairs` of its queries and keys see each other.
KernelCost attention(bool forward, std::uint64_t tokens, double pairs, std::uint64_t heads, std::uint64_t elements) {
  const double flops = (forward ? 4.0 : 10.0) * pairs * static_cast<double>(heads * elements);
  return {.kernel = forward ? "flash forward" : "flash backward",
          .dtype = DType::bf16,
          .sizes = {1, tokens, tokens, heads, elements},
          .flops = flops};
}

TEST(KernelPrices, OfProductsDependOnTheirDepthAndResults) {
  EXPECT_DOUBLE_EQ(product(100, 100, 64), 2 * 100 * 100 * 64 / 0.1e12);
  EXPECT_DOUBLE_EQ(product(1000, 1000, 64), 2e6 * 64 / 0.2e12);
  EXPECT_DOUBLE_EQ(product(1000, 1000, 256), 2e6 * 256 / 0.8e12);
  EXPECT_DOUBLE_EQ(product(10, 1000, 256), 2e4 * 256 / 0.3e12);
  // Between depths of 64 and 256, in logarithms: √(0.2 · 0.8).
  EXPECT_DOUBLE_EQ(product(250, 4000, 128), 2e6 * 128 / 0.4e12);
}

TEST(KernelPrices, OfAttentionDependOnDirectionHeadsAndWhatQueriesSee) {
  // Causal: a query of 8000 sees 4000 keys on average.
  const auto seconds = [](bool forward, std::uint64_t tokens, double seen, std::uint64_t elements) {
    return kernel_seconds(attention(forward, tokens, seen * static_cast<double>(tokens), 3, elements), machine());
  };
  EXPECT_DOUBLE_EQ(seconds(true, 8000, 4000, 128), 4 * 8000.0 * 4000 * 3 * 128 / 0.5e12);
  EXPECT_DOUBLE_EQ(seconds(true, 2000, 1000, 128), 4 * 2000.0 * 1000 * 3 * 128 / 0.2e12);
  EXPECT_DOUBLE_EQ(seconds(true, 2000, 1000, 64), 4 * 2000.0 * 1000 * 3 * 64 / 0.1e12);
  EXPECT_DOUBLE_EQ(seconds(false, 8000, 4000, 128), 10 * 8000.0 * 4000 * 3 * 128 / 0.35e12);
  EXPECT_DOUBLE_EQ(seconds(false, 8000, 1000, 64), 10 * 8000.0 * 1000 * 3 * 64 / 0.05e12);
}

TEST(KernelPrices, OfABiasAreThoseOfItsProduct) {
  EXPECT_EQ(kernel_seconds({.kernel = "bias", .sizes = {10, 100}, .bytes_read = 2000, .bytes_written = 2000}, machine()), 0);
}

TEST(KernelPrices, OfWhatNothingFusesAreThoseOfItsOperations) {
  Machine of = machine();
  of.launch_seconds = 1e-6;
  // Gradients and logits are f32 here, and of the model's dtype there.
  const auto cost = [](std::string_view kernel) {
    return KernelCost{.kernel = kernel, .dtype = DType::f32, .sizes = {10, 100}, .bytes_read = 3000, .bytes_written = 1000};
  };
  const auto seconds = [&](std::string_view kernel, DType dtype, bool layer_norms = false) {
    return kernel_seconds(cost(kernel), of, {.layer_norms = layer_norms, .dtype = dtype});
  };
  const double fused = 1e-6 + 4000 / 1e9;
  EXPECT_DOUBLE_EQ(seconds("norm", DType::bf16), fused);
  of.elementwise = Elementwise::eager;
  // Bytes of 1000 elements: a cast to f32 and back moves 6 each, the others what they read and write.
  EXPECT_DOUBLE_EQ(seconds("norm", DType::bf16), 8e-6 + 1000 * (6 + 8 + 4 + 8 + 6 + 4) / 1e9);
  EXPECT_DOUBLE_EQ(seconds("norm", DType::f32), 6e-6 + 1000 * (8 + 4 + 8 + 8) / 1e9);
  EXPECT_DOUBLE_EQ(seconds("norm", DType::f64), 6e-6 + 1000 * (16 + 8 + 16 + 16) / 1e9);
  EXPECT_DOUBLE_EQ(seconds("norm backward", DType::bf16),
                   16e-6 + 1000 * ((6 + 2 + 4) + 6 + 8 + 12 + 4 + 4 + (8 + 8 + 12) + 12 + 6) / 1e9);
  EXPECT_DOUBLE_EQ(seconds("rope", DType::bf16), 3e-6 + 1000 * (6 + 8 + 6) / 1e9);
  EXPECT_DOUBLE_EQ(seconds("swiglu", DType::bf16), 2e-6 + 1000 * (4 + 6) / 1e9);
  EXPECT_DOUBLE_EQ(seconds("geglu backward", DType::bf16), 3e-6 + 1000 * (6 + 6 + 6) / 1e9);
  EXPECT_DOUBLE_EQ(seconds("loss backward", DType::bf16), 3e-6 + 1000 * (4 + 12 + 6) / 1e9);
  for (const char* one : {"gelu", "add", "adamw"}) EXPECT_DOUBLE_EQ(seconds(one, DType::bf16), fused) << one;
  for (const char* norm : {"norm", "norm backward"}) EXPECT_DOUBLE_EQ(seconds(norm, DType::bf16, true), fused) << norm;
  EXPECT_EQ(kernel_launches(cost("norm"), of), 8);
  EXPECT_EQ(kernel_launches(cost("norm backward"), of), 16);
  EXPECT_EQ(kernel_launches(cost("norm"), of, {.layer_norms = true}), 1);
  EXPECT_EQ(kernel_launches(cost("bias"), of), 0);
  EXPECT_EQ(kernel_launches(cost("gelu"), of), 1);
  of.elementwise = Elementwise::fused;
  EXPECT_EQ(kernel_launches(cost("norm"), of), 1);
  EXPECT_EQ(kernel_launches(attention(true, 100, 100, 4, 64), of), 1);
  of.attention = AttentionKind::unfused;
  EXPECT_EQ(kernel_launches(attention(true, 100, 100, 4, 64), of), 3);
  EXPECT_EQ(kernel_launches(attention(false, 100, 100, 4, 64), of, {.drops = true}), 6);
  of.attention = AttentionKind::unfused_again;
  EXPECT_EQ(kernel_launches(attention(false, 100, 100, 4, 64), of), 7);
}

TEST(KernelPrices, OfUnfusedAttentionAreThoseOfItsKernels) {
  Machine of = machine();
  of.gemm_efficiency = 0.5;
  of.launch_seconds = 3;
  bool drops = false;
  const auto seconds = [&](bool forward, AttentionKind kind) {
    of.attention = kind;
    return kernel_seconds(attention(forward, 1000, 1000.0 * 1001 / 2, 4, 64), of, {.drops = drops});
  };
  // All pairs of 1000 tokens in 4 heads, each 2 bytes: a pass over them takes longer than a product's FLOPs.
  const double scores = 1000.0 * 1000 * 4;
  const double pass = 2 * scores / 1e9;
  ASSERT_GT(pass, 2 * scores * 64 / 0.5e12);
  // q·kᵀ writes, the softmax reads and writes, p·v reads.
  EXPECT_DOUBLE_EQ(seconds(true, AttentionKind::unfused), 3 * 3 + 4 * pass);
  // pᵀ·do reads, do·vᵀ writes, the softmax reads two and writes one, ds·k and dsᵀ·q read.
  EXPECT_DOUBLE_EQ(seconds(false, AttentionKind::unfused), 5 * 3 + 7 * pass);
  EXPECT_DOUBLE_EQ(seconds(true, AttentionKind::unfused_again), seconds(true, AttentionKind::unfused));
  EXPECT_DOUBLE_EQ(seconds(false, AttentionKind::unfused_again), 7 * 3 + 10 * pass);
  // Dropout reads and writes, and a byte of each probability's mask is written or read; backward passes that make scores again,
  // too.
  drops = true;
  EXPECT_DOUBLE_EQ(seconds(true, AttentionKind::unfused), 4 * 3 + 6.5 * pass);
  EXPECT_DOUBLE_EQ(seconds(false, AttentionKind::unfused), 6 * 3 + 9.5 * pass);
  EXPECT_DOUBLE_EQ(seconds(false, AttentionKind::unfused_again), 9 * 3 + 15 * pass);
  const double fused = seconds(true, AttentionKind::fused);
  drops = false;
  EXPECT_EQ(seconds(true, AttentionKind::fused), fused);
  // With a fast memory, products alone take time: of all pairs.
  of.memory_bytes_per_s = 1e30;
  EXPECT_NEAR(seconds(true, AttentionKind::unfused), 9 + 2 * (2 * scores * 64 / 0.5e12), 1e-9);
  EXPECT_NEAR(seconds(false, AttentionKind::unfused), 15 + 4 * (2 * scores * 64 / 0.5e12), 1e-9);
}

}  // namespace
}  // namespace tsprun::detail::theory::kernel_price_test
