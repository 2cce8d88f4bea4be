// The paper's own cost model (arXiv 2604.26294, section IV): its equations (1) to (30) exactly as printed, errors included, in
// real numbers. Numbers in parentheses are the paper's equations. traffic.h and memory.h count what really moves and is held;
// docs/algorithms.md lists where the two differ.
#pragma once

#include "layers/layout/setting.h"

namespace tsprun::detail::paper {

/// Symbols of the paper's Table I. Defaults: the reference model of Appendix C on one node of eight GPUs.
struct Symbols {
  double B = 1;
  double S = 8192;
  double h = 4096;
  double L = 32;
  double n_h = 32;
  double g = 1;  ///< n_h/n_kv
  double F = 4;
  double D = 8;
  double T = 2;      ///< tensor ranks under TP+SP
  double Sigma = 4;  ///< sequence ranks under TP+SP; D = T·Σ
  double beta_P = 2;
  double beta_g = 2;
  double n_o = 3;
  double beta_o = 4;

  double BSh() const { return B * S * h; }
  double rho() const { return (D - 1) / D; }
};

/// Schemes that the paper compares; tp_sp is its "TP+SP".
enum class Scheme { dp, tp, sp, tp_sp, tsp };
/// Passes whose communication the paper counts.
enum class Pass { forward, forward_backward, forward_backward_recompute };

double attention_parameters(const Symbols& s);  ///< P_attn, Table I
double mlp_parameters(const Symbols& s);        ///< P_mlp, Table I
double parameters_per_layer(const Symbols& s);  ///< P_L, (1)

/// Returns M_a, the bytes of activations of the whole model: (4) for none, (2) for selective, (3) for full recomputation.
double activation_memory(const Symbols& s, Recompute recompute);

/// Returns C, the bytes communicated per layer and device: (5)–(7) DP, (8)–(10) TP, (11)–(13) SP, (14)–(16) TSP, (17)–(19) TP+SP.
double communication(const Symbols& s, Scheme scheme, Pass pass);

/// Bytes per GPU, the paper's Table III.
struct Memory {
  double parameters;
  double gradients;
  double optimizer;
  double activations;
  double total() const { return parameters + gradients + optimizer + activations; }
};
/// Returns the bytes per GPU by the paper's Table III.
Memory memory(const Symbols& s, Scheme scheme, Recompute recompute);

double attention_flops(const Symbols& s);              ///< F_attn, (20), not halved for causal attention
double mlp_flops(const Symbols& s);                    ///< F_mlp, (21)
double layer_flops(const Symbols& s);                  ///< F_layer, (22)
double device_flops(const Symbols& s, Scheme scheme);  ///< per layer and device, (23)–(25)

/// Sides of (26): forward bytes of TSP and of TP, with (D−1)/D taken as 1.
struct Comparison {
  double tsp;
  double tp;
};
/// Returns both sides of (26).
Comparison large_degree_forward(const Symbols& s);
/// Returns the BS/h above which (27) holds, P_L < 2BSh(2 − 1/g): 8 for multi-head attention and F = 4.
double break_even_factor(const Symbols& s);

double tsp_training_bound(const Symbols& s);  ///< (29): (15) with the gradient term of an all-reduce
double sp_training(const Symbols& s);         ///< (30), which repeats (12)

}  // namespace tsprun::detail::paper
