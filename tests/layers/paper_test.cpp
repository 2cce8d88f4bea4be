// The paper's equations against its own figures, and other figures of the paper that must be reproduced.
#include "layers/theory/paper.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

namespace tsprun::detail::paper::paper_test {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

double forward(const Symbols& s, Scheme scheme) { return communication(s, scheme, Pass::forward); }
double training(const Symbols& s, Scheme scheme) { return communication(s, scheme, Pass::forward_backward); }
double recomputing(const Symbols& s, Scheme scheme) { return communication(s, scheme, Pass::forward_backward_recompute); }

TEST(Paper, CountsTheReferenceModelsParameters) {
  const Symbols s;
  EXPECT_EQ(parameters_per_layer(s), 268'435'456);
  EXPECT_EQ(attention_parameters(s) + mlp_parameters(s), parameters_per_layer(s));
  EXPECT_EQ(s.L * parameters_per_layer(s), 8'589'934'592);
  const Memory memory = paper::memory(s, Scheme::dp, Recompute::full);
  EXPECT_EQ((memory.parameters + memory.gradients + memory.optimizer) / kGiB, 128);
}

TEST(Paper, Figure1) {
  const std::pair<double, std::vector<std::pair<Scheme, double>>> rows[] = {
      {8192, {{Scheme::dp, 162}, {Scheme::tp, 50}, {Scheme::sp, 132.25}, {Scheme::tp_sp, 72.5}, {Scheme::tsp, 20.25}}},
      {65536, {{Scheme::dp, 400}, {Scheme::tp, 288}, {Scheme::sp, 162}, {Scheme::tp_sp, 132}, {Scheme::tsp, 50}}},
  };
  for (const auto& [S, columns] : rows) {
    Symbols s;
    s.S = S;
    for (const auto& [scheme, expected] : columns)
      EXPECT_DOUBLE_EQ(memory(s, scheme, Recompute::selective).total() / kGiB, expected);
  }
}

TEST(Paper, Figure5a) {
  const std::pair<double, std::vector<std::pair<Scheme, double>>> rows[] = {
      {8192, {{Scheme::tp, .2349}, {Scheme::sp, .1174}, {Scheme::tp_sp, .0839}, {Scheme::tsp, .6040}}},
      {32768, {{Scheme::tp, .9395}, {Scheme::sp, .4698}, {Scheme::tp_sp, .3355}, {Scheme::tsp, .9563}}},
      {131072, {{Scheme::tp, 3.7581}, {Scheme::sp, 1.8790}, {Scheme::tp_sp, 1.3422}, {Scheme::tsp, 2.3656}}},
  };
  for (const auto& [S, columns] : rows) {
    Symbols s;
    s.S = S;
    for (const auto& [scheme, expected] : columns) EXPECT_NEAR(forward(s, scheme) / 1e9, expected, 5e-5);
    EXPECT_EQ(forward(s, Scheme::dp), 0);
  }
}

TEST(Paper, Figure6) {
  for (const auto& [h, ratio] : {std::pair{2048.0, .759}, {4096.0, 1.018}, {5120.0, 1.147}, {8192.0, 1.536}}) {
    Symbols s;
    s.S = 32768;
    s.h = h;
    EXPECT_NEAR(forward(s, Scheme::tsp) / forward(s, Scheme::tp), ratio, 5e-4);
  }
}

TEST(Paper, Figure7) {
  for (const auto& [S, ratio] : {std::pair{16384.0, 1.536}, {32768.0, 1.018}, {65536.0, .759}, {131072.0, .629}}) {
    Symbols s;
    s.S = S;
    const double actual = forward(s, Scheme::tsp) / forward(s, Scheme::tp);
    EXPECT_NEAR(actual, ratio, 5e-4);
    EXPECT_NEAR(actual, 0.5 + 4.142857 * s.h / S, 1e-6);
    // Only the product of batch and sequence counts.
    s.B = 4;
    s.S = S / 4;
    EXPECT_DOUBLE_EQ(forward(s, Scheme::tsp) / forward(s, Scheme::tp), actual);
  }
  // As printed the break-even at D = 8 is 8.2857h, not 8h.
  Symbols even;
  even.S = 4096 * 8.0 * 29 / 28;
  EXPECT_NEAR(even.S / even.h, 8.2857, 5e-5);
  EXPECT_NEAR(forward(even, Scheme::tsp), forward(even, Scheme::tp), 1e-3);
}

TEST(Paper, BreakEvenInTheLargeDegreeLimit) {
  for (const auto& [g, factor] : {std::pair{1.0, 8.0}, {2.0, 5.0}, {4.0, 4.143}, {8.0, 3.8}}) {
    Symbols s;
    s.g = g;
    EXPECT_NEAR(break_even_factor(s), factor, 5e-4);
    for (const double around : {0.999, 1.001}) {
      s.S = break_even_factor(s) * s.h * around;
      EXPECT_EQ(parameters_per_layer(s) < 2 * s.BSh() * (2 - 1 / s.g), around > 1);  // (27)
      EXPECT_EQ(large_degree_forward(s).tsp<large_degree_forward(s).tp, around> 1);
      if (g == 1) {
        EXPECT_EQ((4 + 3 * s.F) * s.h<2 * s.B * s.S, around> 1);  // (28)
      }
    }
  }
}

TEST(Paper, LargeDegreeForwardIsTheLimitOfTheForwardEquations) {
  Symbols s;
  s.D = 1e9;
  EXPECT_NEAR(large_degree_forward(s).tsp / forward(s, Scheme::tsp), 1, 1e-8);
  EXPECT_NEAR(large_degree_forward(s).tp / forward(s, Scheme::tp), 1, 1e-8);
}

TEST(Paper, FlopsPerTokenAt128K) {
  Symbols s;
  s.S = 131072;
  const double tokens = s.B * s.S;
  const double attention = s.L * 4 * s.B * s.S * s.S * s.h / tokens;
  const double linear = s.L * layer_flops(s) / tokens - attention;
  EXPECT_NEAR(linear / 1e9, 17.18, 0.005);
  EXPECT_NEAR(attention / 1e9, 68.72, 0.005);
  EXPECT_NEAR(attention / 2 / 1e9, 34.36, 0.005);
  EXPECT_DOUBLE_EQ(attention_flops(s) + mlp_flops(s), layer_flops(s));
  EXPECT_EQ(device_flops(s, Scheme::dp), layer_flops(s));
  for (const Scheme scheme : {Scheme::tp, Scheme::sp, Scheme::tsp, Scheme::tp_sp})
    EXPECT_EQ(device_flops(s, scheme), layer_flops(s) / 8);
}

/// Bytes of each equation by hand, at D = T·Σ = 8 = 2·4, with everything else so small that the figures fit on a line.
TEST(Paper, EquationsWithNumbersPutIn) {
  Symbols s;
  s.B = 1;
  s.S = 16;
  s.h = 8;
  s.L = 2;
  s.n_h = 4;
  s.g = 2;
  s.F = 3;
  s.beta_P = 2;
  s.beta_g = 4;
  // BSh = 128; P_attn = 2·1.5·64 = 192; P_mlp = 9·64 = 576; P_L = 768.
  EXPECT_EQ(parameters_per_layer(s), 768);                                   // (1)
  EXPECT_EQ(activation_memory(s, Recompute::selective), 2 * 128 * 34);       // (2)
  EXPECT_EQ(activation_memory(s, Recompute::full), 2 * 128 * 2);             // (3)
  EXPECT_EQ(activation_memory(s, Recompute::none), 2 * 128 * (34 + 5 * 8));  // (4)
  EXPECT_EQ(forward(s, Scheme::dp), 0);                                      // (5)
  EXPECT_EQ(training(s, Scheme::dp), 2 * 768 * 4 * 7 / 8);                   // (6)
  EXPECT_EQ(recomputing(s, Scheme::dp), 2 * 768 * 4 * 7 / 8);                // (7)
  EXPECT_EQ(forward(s, Scheme::tp), 4 * 128 * 2 * 7 / 8);                    // (8)
  EXPECT_EQ(training(s, Scheme::tp), 8 * 128 * 2 * 7 / 8);                   // (9)
  EXPECT_EQ(recomputing(s, Scheme::tp), 12 * 128 * 2 * 7 / 8);               // (10)
  EXPECT_EQ(forward(s, Scheme::sp), 128 * 2 * 7 / 8);                        // (11)
  EXPECT_EQ(training(s, Scheme::sp), 448 + 5376);                            // (12): 4·128·2/2·7/8, 2·768·4·7/8
  EXPECT_EQ(recomputing(s, Scheme::sp), 672 + 5376);                         // (13)
  EXPECT_EQ(forward(s, Scheme::tsp), 384 + 1008 + 224);                      // (14): 192·2, 576·2·7/8, 128·2·7/8
  EXPECT_EQ(training(s, Scheme::tsp), 768 + 2016 + 448 + 2688);              // (15): gradients once, 768·4·7/8
  EXPECT_EQ(recomputing(s, Scheme::tsp), 1152 + 3024 + 672 + 5376);          // (16): gradients twice
  EXPECT_EQ(forward(s, Scheme::tp_sp), 96 + 128);                            // (17): 128·2/2·3/4, 4·128·2/4·1/2
  EXPECT_EQ(training(s, Scheme::tp_sp), 192 + 256 + 2304);                   // (18): 2·768·4/2·3/4
  EXPECT_EQ(recomputing(s, Scheme::tp_sp), 288 + 384 + 2304);                // (19)
  EXPECT_EQ(attention_flops(s), 6 * 16 * 64 + 4 * 256 * 8);                  // (20)
  EXPECT_EQ(mlp_flops(s), 18 * 16 * 64);                                     // (21)
  EXPECT_EQ(layer_flops(s), 24 * 16 * 64 + 4 * 256 * 8);                     // (22)
  EXPECT_EQ(device_flops(s, Scheme::dp), 32768);                             // (23)
  EXPECT_EQ(device_flops(s, Scheme::tsp), 4096);                             // (24)
  EXPECT_EQ(device_flops(s, Scheme::tp_sp), 4096);                           // (25)
  EXPECT_EQ(large_degree_forward(s).tsp, 384 + 1152 + 256);                  // (26)
  EXPECT_EQ(large_degree_forward(s).tp, 1024);
  EXPECT_GT(break_even_factor(s), s.B * s.S / s.h);           // (27): 768 < 2·128·1.5 doesn't hold
  EXPECT_EQ(tsp_training_bound(s), 768 + 2016 + 448 + 5376);  // (29)
  EXPECT_EQ(sp_training(s), training(s, Scheme::sp));         // (30)
}

TEST(Paper, TableIII) {
  const Symbols s;
  const double weights = s.L * parameters_per_layer(s);
  const double activations = activation_memory(s, Recompute::full);
  const std::pair<Scheme, std::pair<double, double>> rows[] = {
      {Scheme::dp, {1, 1}}, {Scheme::tp, {8, 1}}, {Scheme::sp, {1, 8}}, {Scheme::tp_sp, {2, 4}}, {Scheme::tsp, {8, 8}}};
  for (const auto& [scheme, over] : rows) {
    const Memory m = memory(s, scheme, Recompute::full);
    EXPECT_EQ(m.parameters, weights * 2 / over.first);
    EXPECT_EQ(m.gradients, weights * 2 / over.first);
    EXPECT_EQ(m.optimizer, weights * 12 / over.first);
    EXPECT_EQ(m.activations, activations / over.second);
  }
}

}  // namespace
}  // namespace tsprun::detail::paper::paper_test
