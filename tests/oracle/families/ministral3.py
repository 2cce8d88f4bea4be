"""Ministral 3: Mistral with yarn and a temperature: after its rotation q is multiplied by
1 + beta * ln(1 + floor(position / original_max_position_embeddings)), beta being rope_parameters' llama_4_scaling_beta.

The defaults' mscale = mscale_all_dim = 1 make yarn's own factor on cosines and sines 1. max_position_embeddings within
rope_parameters is there for the tokenizer's side and changes nothing. Without a beta transformers fails; here there is no temperature
then. Sources: huggingface/transformers src/transformers/models/ministral3/{configuration,modular}_ministral3.py.
"""
import torch

import mistral

IN_ROPE = ("llama_4_scaling_beta", "max_position_embeddings")


class Ministral3(mistral.Mistral):
    MODEL_TYPES = ("ministral3",)
    ARCHITECTURE = "Ministral3ForCausalLM"
    DEFAULTS = dict(
        mistral.Mistral.DEFAULTS, vocab_size=131072, num_hidden_layers=34, head_dim=128, max_position_embeddings=262144,
        rms_norm_eps=1e-5, pad_token_id=11, sliding_window=None, rope_parameters=dict(
            type="yarn", rope_theta=1000000.0, factor=16.0, original_max_position_embeddings=16384, max_position_embeddings=262144,
            beta_fast=32.0, beta_slow=1.0, mscale_all_dim=1.0, mscale=1.0, llama_4_scaling_beta=0.1))
    TINY = {"temperature": dict(rope_parameters=dict(
        type="yarn", rope_theta=1000.0, factor=4.0, original_max_position_embeddings=4, max_position_embeddings=64, beta_fast=32.0,
        beta_slow=1.0, mscale_all_dim=1.0, mscale=1.0, llama_4_scaling_beta=0.1))}

    def rope_of(self, layer):
        return {field: value for field, value in super().rope_of(layer).items() if field not in IN_ROPE}

    def rotate(self, run, layer, q, k):
        q, k = super().rotate(run, layer, q, k)
        p = super().rope_of(layer)
        beta, original = p.get("llama_4_scaling_beta") or 0.0, p["original_max_position_embeddings"]
        return q * (1 + beta * torch.log(1 + (run.positions // original).to(q.dtype)))[:, None, None], k


FAMILY = Ministral3
