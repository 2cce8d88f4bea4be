#!/usr/bin/python3
"""Tests of the witness itself: what must hold of families.py and hub_folder.py whatever tsprun does.

  check.py [WORD...]     runs all checks, or those whose names have one of the words; fails with their names

Of every family and each of its tiny variants: its folder is written and read back (both of transformers' forms, shards and one
file); decoding step by step with a cache equals the whole pass; later tokens change nothing before them; gradients equal finite
differences, and every parameter takes part. Besides: closed cases, where two ways must give the same, and the command itself.
"""
import contextlib
import io
import json
import math
import pathlib
import re
import sys
import tempfile
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

try:
    import torch
except ImportError:
    print("no PyTorch here: Debian's python3-torch brings it")
    sys.exit(77)

import blocks
import decoder
import families
import hub_folder
import tensor_files
import torch_cases

CHECKS = {}
EACH = [(kind, variant) for kind, family in families.FAMILIES.items() if kind != "kimi_k2" for variant in family.TINY]


def check(function):
    CHECKS[function.__name__] = function
    return function


def for_each_variant(function):
    """A check of every family and variant: function(kind, variant)."""
    for kind, variant in EACH:
        CHECKS[f"{function.__name__}[{kind}, {variant}]"] = lambda kind=kind, variant=variant: function(kind, variant)
    return function


def made(kind, variant=None, seed=0, **changes):
    """A tiny model and its weights, in memory."""
    model = families.FAMILIES[kind](hub_folder.fields_of(kind, "tiny", variant, changes))
    weights = {name: hub_folder.random_tensor(model, name, shape, seed, None) for name, shape in model.shapes().items()}
    for name, tensor in weights.items():
        tensor.requires_grad_(not model.is_buffer(name))
    return model, weights


IDS, LABELS = families.draw(23, "2,11")


def same(one, other, tolerance=1e-12):
    """Fails unless the largest difference is within tolerance times the largest value (at least 1)."""
    worst = (one - other).abs().max().item()
    bound = tolerance * max(1.0, other.abs().max().item())
    assert worst <= bound, f"differ by {worst:.3g}, allowed {bound:.3g}"


def differs(one, other):
    assert (one - other).abs().max().item() > 1e-6, "equal, though they must not be"


# Of every family.

@for_each_variant
def folder_is_written_and_read_back(kind, variant):
    fields = hub_folder.fields_of(kind, "tiny", variant)
    with tempfile.TemporaryDirectory() as temporary:
        folders = [pathlib.Path(temporary) / name for name in ("four", "five")]
        hub_folder.write_folder(folders[0], kind, fields, "f64", transformers=4)
        config = hub_folder.write_folder(folders[1], kind, fields, "f64", shard_bytes=20000, transformers=5)
        assert not (folders[0] / "model.safetensors.index.json").exists()
        index = json.loads((folders[1] / "model.safetensors.index.json").read_text())
        assert len(set(index["weight_map"].values())) > 1
        tensors = tensor_files.read_folder(folders[1])
        assert index["metadata"]["total_size"] == sum(8 * tensor.numel() for tensor in tensors.values())
        assert ("lm_head.weight" in tensors) != config["tie_word_embeddings"]
        assert "rope_theta" not in config and ("rope_parameters" in config) == (kind != "gpt2")
        read = [families.load(folder) for folder in folders]
        model, weights = made(kind, variant)
        with torch.no_grad():
            expected = model.logits(weights, IDS)
            for other, stored in read:
                same(other.logits(stored, IDS), expected, 0.0)


@for_each_variant
def decoding_step_by_step_equals_the_whole_pass(kind, variant):
    model, weights = made(kind, variant)
    with torch.no_grad():
        whole, cache, parts = model.logits(weights, IDS), decoder.Cache(), []
        for first, last in ((0, 4), (4, 5), (5, 6), (6, 9), (9, 10), (10, 11)):
            parts.append(model.logits(weights, IDS[:, first:last], cache, length=IDS.shape[1]))
    same(torch.cat(parts, 1), whole)


@for_each_variant
def later_tokens_change_nothing_before_them(kind, variant):
    model, weights = made(kind, variant)
    changed = IDS.clone()
    changed[:, 7:] = (changed[:, 7:] + 5) % 23
    with torch.no_grad():
        one, other = model.logits(weights, IDS), model.logits(weights, changed)
    same(other[:, :7], one[:, :7])
    differs(other[:, 7:], one[:, 7:])


@for_each_variant
def gradients_equal_finite_differences(kind, variant):
    """Along a random direction of all parameters, and along each of some tensors alone."""
    model, weights = made(kind, variant)
    _, _, grads = families.gradients(model, weights, IDS, LABELS)
    # A bias of k shifts all scores of a query alike where nothing rotates; nobody may choose an expert.
    idle = [name for name, grad in grads.items() if grad.abs().max() < 1e-12 and not name.endswith("k_proj.bias")
            and not re.search(r"experts\.\d", name)]
    assert not idle, f"no part in the loss: {idle}"
    generator = torch.Generator().manual_seed(1)
    direction = {name: torch.randn(grad.shape, generator=generator, dtype=torch.float64) for name, grad in grads.items()}
    names = list(grads)
    some = [names[number] for number in torch.randperm(len(names), generator=generator)[:3]]

    def loss_at(distance, along):
        with torch.no_grad():
            moved = {name: tensor + distance * direction[name] if name in along else tensor for name, tensor in weights.items()}
            return families.loss_of(model.logits(moved, IDS), LABELS).item()

    for along in (names, *([name] for name in some)):
        expected = sum((grads[name] * direction[name]).sum().item() for name in along)
        h = 1e-5 / math.sqrt(sum(grads[name].numel() for name in along))
        found = (8 * (loss_at(h, along) - loss_at(-h, along)) - (loss_at(2 * h, along) - loss_at(-2 * h, along))) / (12 * h)
        assert abs(found - expected) <= 1e-6 * max(1.0, abs(expected)), f"{along[:1]}: {found} by differences, {expected} by autograd"


# Rotary positions.

PLAIN = dict(rope_theta=100.0, rope_type="default")
SCALED = [
    PLAIN, dict(PLAIN, partial_rotary_factor=0.5), dict(PLAIN, rope_type="linear", factor=3.0),
    dict(PLAIN, rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
    dict(PLAIN, rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
    dict(PLAIN, rope_type="longrope", original_max_position_embeddings=8, short_factor=[1.0] * 4, long_factor=[1.0, 1.5, 2.0, 3.0]),
    dict(PLAIN, rope_type="proportional", partial_rotary_factor=0.5)]


def angles(p, positions, max_positions=64, length=11):
    return blocks.rotary_angles(p, 8, positions, max_positions, length, torch.float64)


@check
def rotary_scores_depend_on_distance_only():
    generator = torch.Generator().manual_seed(2)
    q, k = (torch.randn(1, 9, 2, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    for p in SCALED:
        for interleaved in (False, True):
            scores = []
            for start in (0, 37):
                cos, sin = angles(p, torch.arange(9) + start)
                turned = [blocks.rotate(part, cos, sin, interleaved) for part in (q, k)]
                scores.append(torch.einsum("bsnd,btnd->bnst", *turned))
            same(scores[0], scores[1])
            differs(scores[0], torch.einsum("bsnd,btnd->bnst", q, k))


@check
def rotary_keeps_lengths_but_for_the_attention_factor():
    x = torch.randn(1, 9, 2, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for p, factor in zip(SCALED, (1, 1, 1, 1, 0.1 * math.log(4) + 1, math.sqrt(1 + math.log(8) / math.log(8)), 1)):
        cos, sin = angles(p, torch.arange(9))
        same(blocks.rotate(x, cos, sin).norm(dim=-1), factor * x.norm(dim=-1) if factor != 1 else x.norm(dim=-1))


@check
def neighbours_are_halves_of_permuted_dims():
    x = torch.randn(1, 9, 2, 8, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    cos, sin = angles(PLAIN, torch.arange(9))
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    same(blocks.rotate(x[..., order], cos, sin), blocks.rotate(x, cos, sin, interleaved=True)[..., order])


@check
def scalings_of_factor_1_are_none():
    positions = torch.arange(20)
    expected = angles(PLAIN, positions)
    for p in (dict(rope_type="linear", factor=1.0), dict(rope_type="yarn", factor=1.0, original_max_position_embeddings=16),
              dict(rope_type="llama3", factor=1.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
              dict(rope_type="longrope", factor=1.0, original_max_position_embeddings=64, short_factor=[1.0] * 4, long_factor=[9.0] * 4),
              dict(rope_type="proportional")):
        for one, other in zip(angles(dict(PLAIN, **p), positions), expected):
            same(one, other)


@check
def scalings_keep_short_waves_and_stretch_long_ones():
    """Llama 3 and yarn, with a theta so high that both ends are reached: the first pair as without, the last divided by factor."""
    wide = dict(rope_theta=1e6)
    for p in (dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
              dict(rope_type="yarn", factor=4.0, beta_fast=8, attention_factor=1.0, original_max_position_embeddings=64)):
        one = torch.atan2(*reversed(blocks.rotary_angles({**wide, **p}, 16, torch.ones(1), 256, 11, torch.float64)))[0]
        other = torch.atan2(*reversed(blocks.rotary_angles(wide, 16, torch.ones(1), 256, 11, torch.float64)))[0]
        same(one[:1], other[:1])
        same(4 * one[-1:] * 1e5, other[-1:] * 1e5)


@check
def longrope_takes_its_list_by_the_whole_length():
    p = SCALED[5]
    positions = torch.arange(4)
    same(angles(p, positions, 64, 8)[0], angles(dict(p, long_factor=[7.0] * 4), positions, 64, 8)[0])
    differs(angles(p, positions, 64, 9)[0], angles(p, positions, 64, 8)[0])


@check
def yarn_by_hand():
    """A dim turns r times over the original length at d(r) = dim ln(original / (2 pi r)) / (2 ln theta); pairs before d(beta_fast) keep
    their frequency, those behind d(beta_slow) have a quarter, a line lies between. The ends are rounded outwards, or not."""
    p = dict(PLAIN, rope_type="yarn", factor=4.0, beta_fast=4, beta_slow=1, original_max_position_embeddings=64)
    ends = [16 * math.log(64 / (2 * math.pi * turns)) / (2 * math.log(100)) for turns in (4, 1)]
    assert 1.6 < ends[0] < 1.7 and 4.0 < ends[1] < 4.1
    for truncate, (low, high) in ((True, (1, 5)), (False, ends)):
        cos, _ = blocks.rotary_angles(dict(p, truncate=truncate), 16, torch.ones(1), 256, 11, torch.float64)
        expected = []
        for pair in range(8):
            share = min(max((pair - low) / (high - low), 0), 1)
            frequency = 100 ** (-pair / 8)
            expected.append((0.1 * math.log(4) + 1) * math.cos(share * frequency / 4 + (1 - share) * frequency))
        same(cos[0], torch.tensor(expected, dtype=torch.float64))


@check
def llama3_by_hand():
    """Waves shorter than original / high keep their frequency, those longer than original / low have a quarter, and between them the
    share is (original / wave - low) / (high - low)."""
    p = dict(PLAIN, rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
    cos, _ = blocks.rotary_angles(p, 16, torch.ones(1), 256, 11, torch.float64)
    kinds, expected = set(), []
    for pair in range(8):
        frequency = 100 ** (-pair / 8)
        wave = 2 * math.pi / frequency
        share = 1 if wave < 16 else 0 if wave > 64 else (64 / wave - 1) / 3
        kinds.add(share if share in (0, 1) else "between")
        expected.append(math.cos(share * frequency + (1 - share) * frequency / 4))
    assert len(kinds) == 3
    same(cos[0], torch.tensor(expected, dtype=torch.float64))


# Attention.

@check
def a_window_as_long_as_the_text_is_none():
    for kind, wide, none in (("mistral", dict(sliding_window=11), dict(sliding_window=None)),
                             ("qwen3", dict(use_sliding_window=True, sliding_window=11, max_window_layers=0), {}),
                             ("starcoder2", dict(sliding_window=11), dict(sliding_window=None)),
                             ("gemma2", dict(sliding_window=11), dict(sliding_window=64)),
                             ("gpt_oss", dict(sliding_window=11), dict(layer_types=["full_attention"] * 2))):
        logits = []
        for changes in (wide, none, dict(wide, sliding_window=4)):
            model, weights = made(kind, **changes)
            with torch.no_grad():
                logits.append(model.logits(weights, IDS))
        same(logits[0], logits[1])
        differs(logits[2], logits[1])


@check
def a_window_of_w_shows_w_tokens():
    seen = blocks.visible(torch.arange(6), torch.arange(6), 3)
    assert seen.sum(1).tolist() == [1, 2, 3, 3, 3, 3] and seen[5].tolist() == [False] * 3 + [True] * 3


@check
def attention_as_plain_loops():
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(1, 5, 4, 3, generator=generator, dtype=torch.float64)
    k, v = (torch.randn(1, 5, 2, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    sinks = torch.randn(4, generator=generator, dtype=torch.float64)
    got = blocks.attend(q, k, v, blocks.visible(torch.arange(5), torch.arange(5), 3), 0.7, soft_cap=1.5, sinks=sinks)
    for s in range(5):
        for head in range(4):
            keys = range(max(0, s - 2), s + 1)
            scores = [1.5 * math.tanh(0.7 * float(q[0, s, head] @ k[0, t, head // 2]) / 1.5) for t in keys]
            total = sum(map(math.exp, scores)) + math.exp(sinks[head])
            expected = sum(math.exp(score) / total * v[0, t, head // 2] for score, t in zip(scores, keys))
            same(got[0, s, 3 * head:3 * head + 3], expected)


@check
def no_sink_and_a_high_cap_are_none():
    generator = torch.Generator().manual_seed(6)
    q, k, v = (torch.randn(2, 5, 4, 3, generator=generator, dtype=torch.float64) for _ in range(3))
    seen = blocks.visible(torch.arange(5), torch.arange(5), None)
    plain = blocks.attend(q, k, v, seen, 0.5)
    same(blocks.attend(q, k, v, seen, 0.5, sinks=torch.full((4,), -1e4, dtype=torch.float64)), plain)
    same(blocks.attend(q, k, v, seen, 0.5, soft_cap=1e8), plain, 1e-9)
    differs(blocks.attend(q, k, v, seen, 0.5, soft_cap=1.0), plain)


# Families that are others in disguise.

def logits_with(kind, weights, **changes):
    model = families.FAMILIES[kind](hub_folder.fields_of(kind, "tiny", None, changes))
    assert set(model.shapes()) == set(weights), sorted(set(model.shapes()) ^ set(weights))[:6]
    with torch.no_grad():
        return model.logits(weights, IDS)


@check
def llama_equals_the_older_witness():
    model, weights = made("llama", rope_theta=100.0)
    with torch.no_grad():
        same(torch_cases.logits_of(dict(model.c), weights, IDS), model.logits(weights, IDS))


@check
def multipliers_of_1_are_neutral():
    model, weights = made("llama", hidden_size=32, head_dim=8)
    with torch.no_grad():
        expected = model.logits(weights, IDS)
    ones = dict(embedding_multiplier=1.0, logits_scaling=1.0, residual_multiplier=1.0, tie_word_embeddings=False)
    same(logits_with("granite", weights, attention_multiplier=8 ** -0.5, **ones), expected)
    differs(logits_with("granite", weights, attention_multiplier=1.0, **ones), expected)
    neutral = dict(rope_type="yarn", rope_theta=10000.0, factor=1.0, original_max_position_embeddings=4, llama_4_scaling_beta=0.0)
    sizes = dict(hidden_size=32, head_dim=8, rms_norm_eps=1e-6)
    same(logits_with("ministral3", weights, rope_parameters=neutral, **sizes), expected)
    warm = dict(neutral, llama_4_scaling_beta=1.0)
    differs(logits_with("ministral3", weights, rope_parameters=warm, **sizes), expected)
    # Within the original length there is no temperature.
    same(logits_with("ministral3", weights, rope_parameters=dict(warm, original_max_position_embeddings=11), **sizes), expected)


@check
def llama_without_rotation_is_smollm3_without_rotating_layers():
    model, weights = made("llama", hidden_size=32, head_dim=8, rope_scaling=dict(rope_type="linear", factor=1e18))
    with torch.no_grad():
        expected = model.logits(weights, IDS)
    fields = dict(tie_word_embeddings=False, num_hidden_layers=2)
    same(logits_with("smollm3", weights, no_rope_layers=[0, 0], **fields), expected, 1e-9)
    differs(logits_with("smollm3", weights, no_rope_layers=[1, 0], **fields), expected)


@check
def fused_rows_are_the_parts_one_after_another():
    model, weights = made("mistral", hidden_size=32, head_dim=8)
    with torch.no_grad():
        expected = model.logits(weights, IDS)
    fused = dict(weights)
    for layer in range(2):
        p = f"model.layers.{layer}."
        fused[p + "self_attn.qkv_proj.weight"] = torch.cat([fused.pop(f"{p}self_attn.{x}_proj.weight") for x in "qkv"])
        fused[p + "mlp.gate_up_proj.weight"] = torch.cat([fused.pop(f"{p}mlp.{x}_proj.weight") for x in ("gate", "up")])
    same(logits_with("phi3", fused, sliding_window=4, rms_norm_eps=1e-6), expected)


@check
def gemma_gains_are_1_plus_w():
    """A gain of w - 1 in Gemma is one of w in Gemma 4."""
    x = torch.randn(2, 3, 20, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    gain = torch.randn(20, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    one, other = made("gemma4_text")[0], made("gemma")[0]
    same(one.norm(decoder.Run({"n.weight": gain}, IDS, None, None), "n", x),
         other.norm(decoder.Run({"n.weight": gain - 1}, IDS, None, None), "n", x))


@check
def parallel_blocks_without_attention_are_sequential_ones():
    """StableLM with o_proj zero: side by side or one after the other is the same, if both norms are."""
    model, weights = made("stablelm", "biases")
    weights = {name: torch.zeros_like(tensor) if "o_proj" in name else tensor for name, tensor in weights.items()}
    for layer in range(2):
        for end in ("weight", "bias"):
            weights[f"model.layers.{layer}.post_attention_layernorm.{end}"] = weights[f"model.layers.{layer}.input_layernorm.{end}"]
    with torch.no_grad():
        expected = model.logits(weights, IDS)
    one_norm = {name: tensor for name, tensor in weights.items() if "post_attention" not in name}
    same(logits_with("stablelm", one_norm, use_parallel_residual=True), expected)


@check
def one_expert_is_a_dense_layer():
    model, weights = made("mistral", sliding_window=None)
    with torch.no_grad():
        expected = model.logits(weights, IDS)
    one = {}
    for name, tensor in weights.items():
        for dense, expert in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
            name = name.replace(f"mlp.{dense}_proj", f"block_sparse_moe.experts.0.{expert}")
        one[name] = tensor
    for layer in range(2):
        one[f"model.layers.{layer}.block_sparse_moe.gate.weight"] = torch.ones(1, 20, dtype=torch.float64)
    same(logits_with("mixtral", one, num_local_experts=1, num_experts_per_tok=1, rope_theta=10000.0, rms_norm_eps=1e-6), expected)


@check
def equal_experts_with_weights_of_sum_1_are_one():
    model, weights = made("qwen3", tie_word_embeddings=False)
    with torch.no_grad():
        expected = model.logits(weights, IDS)
    many = {name: tensor for name, tensor in weights.items() if ".mlp." not in name}
    for layer in range(2):
        p = f"model.layers.{layer}.mlp."
        many[p + "gate.weight"] = torch.randn(6, 20, generator=torch.Generator().manual_seed(layer), dtype=torch.float64)
        for number in range(6):
            many.update({f"{p}experts.{number}.{x}_proj.weight": weights[f"{p}{x}_proj.weight"] for x in ("gate", "up", "down")})
    sizes = dict(moe_intermediate_size=24, num_experts_per_tok=3)
    same(logits_with("qwen3_moe", many, norm_topk_prob=True, **sizes), expected)
    differs(logits_with("qwen3_moe", many, norm_topk_prob=False, **sizes), expected)


@check
def routers_choose_and_weigh():
    """Small cases by hand."""
    logits = torch.log(torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64))
    weights, chosen = blocks.softmax_router(logits, 2, renormalise=False)
    same(weights, torch.tensor([[0.4, 0.3]], dtype=torch.float64))
    assert chosen.tolist() == [[3, 2]]
    for weights, _ in (blocks.softmax_router(logits, 2, renormalise=True), blocks.top_k_softmax_router(logits, 2)):
        same(weights, torch.tensor([[4 / 7, 3 / 7]], dtype=torch.float64))
    # A bias chooses expert 0 and is no part of its weight: sigmoid(ln x) = x / (1 + x).
    weights, chosen = blocks.sigmoid_router(logits, 2, torch.tensor([1.0, 0, 0, 0]), renormalise=False, scale=2.5)
    assert chosen.tolist() == [[0, 3]]
    same(weights, 2.5 * torch.tensor([[1 / 2, 4 / 5]], dtype=torch.float64))
    # Groups {0, 1} and {2, 3}: V3 sums two scores, V2 takes the best. A negative score within beats any outside.
    scores = torch.tensor([[0.6, 0.5, 0.9, 0.1]], dtype=torch.float64)
    inf = float("-inf")
    assert blocks.within_best_groups(scores, 2, 1, 2).tolist() == [[0.6, 0.5, inf, inf]]
    assert blocks.within_best_groups(scores, 2, 1, 1).tolist() == [[inf, inf, 0.9, 0.1]]
    weights, chosen = blocks.sigmoid_router(torch.zeros(1, 4, dtype=torch.float64), 2, torch.tensor([0.3, -2.0, -1.0, -1.0]),
                                            renormalise=True, scale=1.0, groups=2, kept=1)
    assert sorted(chosen[0].tolist()) == [0, 1]


# Names and shapes.

@check
def parameters_are_as_many_as_published():
    """In billions, of the models whose configurations are transformers' defaults, as their model cards on the hub count them."""
    for kind, billions in (("llama", 6.74), ("mistral", 7.24), ("phi3", 3.82), ("smollm3", 3.08), ("gemma2", 2.61), ("gemma", 8.54),
                           ("cohere", 34.98), ("starcoder2", 3.03), ("phi", 1.42), ("glm4", 9.40), ("mixtral", 46.70),
                           ("gpt_oss", 116.83), ("deepseek_v3", 671.03)):
        shapes = families.FAMILIES[kind](hub_folder.fields_of(kind, "default")).shapes()
        found = sum(math.prod(shape) for shape in shapes.values()) / 1e9
        assert abs(found - billions) < 0.006, f"{kind}: {found}, published {billions}"


# The command, and what it refuses.

@check
def greedy_text_is_the_whole_pass_repeated():
    for kind in ("llama", "gemma3_text", "deepseek_v3", "gpt_oss"):
        model, weights = made(kind)
        ids = IDS[:, :5]
        with torch.no_grad():
            for _ in range(4):
                ids = torch.cat((ids, model.logits(weights, ids)[:, -1:].argmax(-1)), 1)
        assert families.greedy(model, weights, IDS[:, :5], 4) == ids[:, 5:].tolist()


@check
def steps_equal_pytorchs_adamw():
    model, weights = made("glm4_moe")
    losses, after = families.train(model, weights, IDS, LABELS, 3, lr=1e-2, weight_decay=0.1, clip=0.5)
    mine = {name: tensor.detach().clone().requires_grad_(tensor.requires_grad) for name, tensor in weights.items()}
    matrices = [t for name, t in mine.items() if t.requires_grad and families.is_matrix(name, t)]
    others = [t for name, t in mine.items() if t.requires_grad and not families.is_matrix(name, t)]
    optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=0.1), dict(params=others, weight_decay=0.0)], lr=1e-2,
                                  betas=(0.9, 0.95), eps=1e-8)
    for loss in losses[:-1]:
        optimizer.zero_grad()
        found = families.loss_of(model.logits(mine, IDS), LABELS)
        assert abs(found.item() - loss) < 1e-8
        found.backward()
        # Where an expert had no part PyTorch has no gradient, and takes no step; here the gradient is 0, and the weight decays.
        for tensor in matrices + others:
            tensor.grad = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        # PyTorch adds 1e-6 to the norm that it divides by.
        torch.nn.utils.clip_grad_norm_(matrices + others, 0.5)
        optimizer.step()
    for name, tensor in mine.items():
        same(after[name].detach(), tensor.detach(), 1e-6)
    assert losses[-1] < losses[0]
    same(after["model.layers.1.mlp.gate.e_score_correction_bias"], weights["model.layers.1.mlp.gate.e_score_correction_bias"], 0.0)


def refused(function, *words):
    try:
        function()
    except ValueError as error:
        assert all(word in str(error) for word in words), f"{error}: without {words}"
        return
    raise AssertionError(f"not refused; expected words: {words}")


@check
def what_is_not_understood_is_refused():
    fields = hub_folder.fields_of("llama")
    refused(lambda: families.family_of({**fields, "model_type": "lama"}), "lama", "llama")
    refused(lambda: families.family_of({**fields, "attn_logit_softcapping": 3.0}), "attn_logit_softcapping")
    refused(lambda: families.family_of({**hub_folder.fields_of("deepseek_v2"), "norm_topk_prob": True}), "norm_topk_prob")
    refused(lambda: logits_with("llama", made("llama")[1], rope_scaling=dict(rope_type="dynamic", factor=2.0)), "dynamic")
    refused(lambda: logits_with("llama", made("llama")[1], rope_scaling=dict(rope_type="linear", factor=2.0, depth=1)), "depth")


@check
def names_of_other_folders_are_understood():
    """Base models, multi-modal ones, buffers of old files, a tied head that is stored, layers of multi-token prediction."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        config = hub_folder.write_folder(folder, "gemma3_text", hub_folder.fields_of("gemma3_text"), "f64")
        model, weights = families.load(folder)
        expected = model.logits(weights, IDS).detach()
        (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": config}))
        kept = {name: tensor.detach() for name, tensor in weights.items()}
        extra = {"vision_tower.x.weight": torch.ones(2), "model.layers.9.input_layernorm.weight": torch.ones(2),
                 "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3), "lm_head.weight": kept["model.embed_tokens.weight"]}
        for form in (kept, {**kept, **extra}, {"language_model." + name: tensor for name, tensor in kept.items()},
                     {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in kept.items()},
                     {name.removeprefix("model."): tensor for name, tensor in kept.items()}):
            tensor_files.write_tensors(folder / "model.safetensors", form)
            same(families.load(folder)[0].logits(families.load(folder)[1], IDS).detach(), expected, 0.0)
        assert set(families.hub_names({"language_model.lm_head.weight": 1, "language_model.model.norm.weight": 1}, 2)) == {
            "lm_head.weight", "model.norm.weight"}
        tensor_files.write_tensors(folder / "model.safetensors", {**kept, "lm_head.weight": 2 * extra["lm_head.weight"]})
        refused(lambda: families.load(folder), "lm_head.weight")


@check
def bf16_folders_keep_their_bits():
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        hub_folder.write_folder(folder, "qwen2", hub_folder.fields_of("qwen2"), "bf16", shard_bytes=4000)
        _, weights = families.load(folder)
        _, exact = made("qwen2")
        for name, tensor in weights.items():
            assert torch.equal(tensor.detach(), exact[name].detach().to(torch.bfloat16).double()), name


@check
def the_command_prints_and_writes_what_the_functions_give():
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        hub_folder.write_folder(folder, "qwen3", hub_folder.fields_of("qwen3"), "f64")
        sys.argv = ["families.py", str(folder), "--ids", "1 2 3; 4 5 6", "--labels", "2 3 -1; 5 6 7", "--steps", "5", "--greedy", "2",
                    "--output", str(folder / "out.safetensors")]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            families.main()
        found, tensors = json.loads(printed.getvalue()), tensor_files.read_file(folder / "out.safetensors")
        model, weights = families.load(folder)
        ids, labels = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[2, 3, -1], [5, 6, 7]])
        logits, loss, grads = families.gradients(model, weights, ids, labels)
        same(tensors["logits"], logits, 0.0)
        assert found["loss"] == loss and len(found["steps"]) == 6 and found["steps"][0] == loss
        assert set(tensors) == {"logits", *(f"grad.{name}" for name in grads), *(f"after.{name}" for name in weights)}
        for name, grad in grads.items():
            same(tensors[f"grad.{name}"], grad, 0.0)


def main():
    words = sys.argv[1:]
    torch.set_num_threads(1)
    began, failed, ran = time.monotonic(), [], 0
    for name, function in CHECKS.items():
        if words and not any(word in name for word in words):
            continue
        ran += 1
        try:
            function()
        except Exception:
            failed.append(name)
            print(f"{name} failed:\n{traceback.format_exc()}", file=sys.stderr)
    print(f"{ran - len(failed)} of {ran} checks hold, {time.monotonic() - began:.1f} s"
          + "".join(f"\n  failed: {name}" for name in failed))
    sys.exit(bool(failed) or ran == 0)


if __name__ == "__main__":
    main()
