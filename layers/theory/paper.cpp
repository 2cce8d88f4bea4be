// The paper's equations, each written as it is printed. Deviations from it are in docs/algorithms.md, not here.
#include "layers/theory/paper.h"

namespace tsprun::detail::paper {

namespace {

/// Returns how many forward passes' worth of communication a pass has.
double passes(Pass pass) {
  switch (pass) {
    case Pass::forward: return 1;
    case Pass::forward_backward: return 2;
    case Pass::forward_backward_recompute: return 3;
  }
  return 0;
}

}  // namespace

double attention_parameters(const Symbols& s) { return 2 * (1 + 1 / s.g) * s.h * s.h; }
double mlp_parameters(const Symbols& s) { return 3 * s.F * s.h * s.h; }
double parameters_per_layer(const Symbols& s) { return (2 * (1 + 1 / s.g) + 3 * s.F) * s.h * s.h; }

double activation_memory(const Symbols& s, Recompute recompute) {
  const double LBSh = s.L * s.BSh();
  switch (recompute) {
    case Recompute::none: return LBSh * (16 * s.beta_P + 2 + (2 * s.beta_P + 1) * s.n_h * s.S / s.h);
    case Recompute::selective: return LBSh * (16 * s.beta_P + 2);
    case Recompute::full: return LBSh * s.beta_P;
  }
  return 0;
}

double communication(const Symbols& s, Scheme scheme, Pass pass) {
  const double n = passes(pass);
  const bool backward = pass != Pass::forward;
  const double rho = s.rho();
  const double P_L = parameters_per_layer(s);
  const double kv = 2 * s.BSh() * s.beta_P / s.g * rho;
  switch (scheme) {
    case Scheme::dp: return backward ? 2 * P_L * s.beta_g * rho : 0;
    case Scheme::tp: return n * 4 * s.BSh() * s.beta_P * rho;
    case Scheme::sp: return n * kv + (backward ? 2 * P_L * s.beta_g * rho : 0);
    case Scheme::tsp: {
      // (15) counts the gradients once, (16) twice.
      const double gradients = pass == Pass::forward ? 0 : pass == Pass::forward_backward ? 1 : 2;
      return n * (attention_parameters(s) * s.beta_P + mlp_parameters(s) * s.beta_P * rho + kv) +
             gradients * P_L * s.beta_g * rho;
    }
    case Scheme::tp_sp: {
      const double sigma_part = (s.Sigma - 1) / s.Sigma;
      const double kv_part = 2 * s.BSh() * s.beta_P / (s.g * s.T) * sigma_part;
      const double reductions = 4 * s.BSh() * s.beta_P / s.Sigma * (s.T - 1) / s.T;
      return n * (kv_part + reductions) + (backward ? 2 * P_L * s.beta_g / s.T * sigma_part : 0);
    }
  }
  return 0;
}

Memory memory(const Symbols& s, Scheme scheme, Recompute recompute) {
  double weights_over = 1;
  double activations_over = 1;
  switch (scheme) {
    case Scheme::dp: break;
    case Scheme::tp: weights_over = s.D; break;
    case Scheme::sp: activations_over = s.D; break;
    case Scheme::tp_sp:
      weights_over = s.T;
      activations_over = s.Sigma;
      break;
    case Scheme::tsp: weights_over = activations_over = s.D; break;
  }
  const double parameters = s.L * parameters_per_layer(s) / weights_over;
  return {parameters * s.beta_P, parameters * s.beta_g, parameters * s.n_o * s.beta_o,
          activation_memory(s, recompute) / activations_over};
}

double attention_flops(const Symbols& s) { return 4 * (1 + 1 / s.g) * s.BSh() * s.h + 4 * s.BSh() * s.S; }
double mlp_flops(const Symbols& s) { return 6 * s.F * s.BSh() * s.h; }
double layer_flops(const Symbols& s) { return (4 * (1 + 1 / s.g) + 6 * s.F) * s.BSh() * s.h + 4 * s.BSh() * s.S; }

double device_flops(const Symbols& s, Scheme scheme) {
  switch (scheme) {
    case Scheme::dp: return layer_flops(s);
    case Scheme::tp:
    case Scheme::sp:
    case Scheme::tsp: return layer_flops(s) / s.D;
    case Scheme::tp_sp: return layer_flops(s) / (s.T * s.Sigma);
  }
  return 0;
}

Comparison large_degree_forward(const Symbols& s) {
  return {attention_parameters(s) * s.beta_P + mlp_parameters(s) * s.beta_P + 2 * s.BSh() * s.beta_P / s.g,
          4 * s.BSh() * s.beta_P};
}

double break_even_factor(const Symbols& s) { return (2 * (1 + 1 / s.g) + 3 * s.F) / (2 * (2 - 1 / s.g)); }

double tsp_training_bound(const Symbols& s) {
  return 2 * attention_parameters(s) * s.beta_P + 2 * mlp_parameters(s) * s.beta_P * s.rho() +
         4 * s.BSh() * s.beta_P / s.g * s.rho() + 2 * parameters_per_layer(s) * s.beta_g * s.rho();
}

double sp_training(const Symbols& s) {
  return 4 * s.BSh() * s.beta_P / s.g * s.rho() + 2 * parameters_per_layer(s) * s.beta_g * s.rho();
}

}  // namespace tsprun::detail::paper
