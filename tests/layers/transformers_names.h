// The names of all tensors that transformers' save_pretrained() writes, as data: those of the state dicts of LlamaForCausalLM and
// GPT2LMHeadModel, as modeling_llama.py and modeling_gpt2.py define them, where "{}" stands for a layer's number. A tied
// lm_head.weight is left out of files.
#pragma once

#include <array>
#include <string_view>

namespace tsprun::detail::test {

inline constexpr std::array<std::string_view, 2> kLlamaOnce = {"model.embed_tokens.weight", "model.norm.weight"};
inline constexpr std::array<std::string_view, 9> kLlamaLayer = {
    "model.layers.{}.self_attn.q_proj.weight",        "model.layers.{}.self_attn.k_proj.weight",
    "model.layers.{}.self_attn.v_proj.weight",        "model.layers.{}.self_attn.o_proj.weight",
    "model.layers.{}.mlp.gate_proj.weight",           "model.layers.{}.mlp.up_proj.weight",
    "model.layers.{}.mlp.down_proj.weight",           "model.layers.{}.input_layernorm.weight",
    "model.layers.{}.post_attention_layernorm.weight"};

inline constexpr std::array<std::string_view, 4> kGpt2Once = {"transformer.wte.weight", "transformer.wpe.weight",
                                                              "transformer.ln_f.weight", "transformer.ln_f.bias"};
inline constexpr std::array<std::string_view, 12> kGpt2Layer = {
    "transformer.h.{}.ln_1.weight",      "transformer.h.{}.ln_1.bias",          "transformer.h.{}.attn.c_attn.weight",
    "transformer.h.{}.attn.c_attn.bias", "transformer.h.{}.attn.c_proj.weight", "transformer.h.{}.attn.c_proj.bias",
    "transformer.h.{}.ln_2.weight",      "transformer.h.{}.ln_2.bias",          "transformer.h.{}.mlp.c_fc.weight",
    "transformer.h.{}.mlp.c_fc.bias",    "transformer.h.{}.mlp.c_proj.weight",  "transformer.h.{}.mlp.c_proj.bias"};

inline constexpr std::string_view kHead = "lm_head.weight";

}  // namespace tsprun::detail::test
