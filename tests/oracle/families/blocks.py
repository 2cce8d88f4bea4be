"""Building blocks of decoders, written for reading: what papers and transformers' modeling files say, in whatever dtype comes in
(f64 in the tests). Shapes: B sequences, S tokens, T keys, h hidden, d head dim, E experts.

Weights are a dictionary from the hub's names to tensors; nn.Linear stores [out, in].

Nothing here casts: transformers computes norms, softmax and rotary angles in f32, which is rounding, not meaning.
"""
import math

import torch
import torch.nn.functional as F

# transformers/activations.py, ACT2FN.
ACTIVATIONS = {
    "silu": F.silu,
    "swish": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_fast": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def linear(w, name, x):
    """x [..., in] times name.weight [out, in], plus name.bias where there is one."""
    return F.linear(x, w[name + ".weight"], w.get(name + ".bias"))


# Norms.

def rms(x, epsilon):
    """x over its root mean square (arXiv 1910.07467), no gain."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)


def rms_norm(x, gain, epsilon):
    return gain * rms(x, epsilon)


def layer_norm(x, gain, bias, epsilon):
    """arXiv 1607.06450; bias: None where the family has none. The gain may have several dims (Cohere: one row for each head)."""
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    y = gain * ((x - mean) * torch.rsqrt(variance + epsilon))
    return y if bias is None else y + bias


# Rotary positions (arXiv 2104.09864). Scalings: transformers/modeling_rope_utils.py, and the papers named.

ROPE_FIELDS = {
    "default": set(), "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
             "original_max_position_embeddings"},
    "longrope": {"factor", "attention_factor", "short_factor", "long_factor", "original_max_position_embeddings"},
    "proportional": {"factor"},
}


def yarn_mscale(factor, mscale=1.0):
    """arXiv 2309.00071, equation 22, with DeepSeek's multiplier."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def yarn_frequencies(p, dim, plain, max_positions):
    """arXiv 2309.00071, section 3.2: dims that turn often keep their frequency, dims that turn less than once are interpolated, and
    a ramp lies between.

    Two readings of `factor` exist. transformers 4.5x replaced it by max_position_embeddings / original_max_position_embeddings;
    before and since (5), and in vLLM and llama.cpp, the given factor counts, and so it does here: Qwen's documents set factor 4 and
    leave max_position_embeddings at 32768, which the other reading turns into no scaling at all.
    """
    original = p.get("original_max_position_embeddings") or max_positions
    factor = p["factor"]
    attention = p.get("attention_factor")
    if attention is None:
        mscale, all_dim = p.get("mscale"), p.get("mscale_all_dim")
        attention = yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim) if mscale and all_dim else yarn_mscale(factor)

    def dim_that_turns(times):
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(p["rope_theta"]))

    low, high = dim_that_turns(p.get("beta_fast") or 32), dim_that_turns(p.get("beta_slow") or 1)
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=plain.dtype) - low) / (high - low)).clamp(0, 1)
    return plain / factor * ramp + plain * (1 - ramp), attention


def llama3_frequencies(p, plain):
    """Llama 3.1 (transformers' _compute_llama3_parameters; llama-models' apply_scaling): long waves are stretched by factor, short
    ones kept, those between interpolated."""
    original, low, high = p["original_max_position_embeddings"], p["low_freq_factor"], p["high_freq_factor"]
    wavelength = 2 * math.pi / plain
    smooth = (original / wavelength - low) / (high - low)
    between = (1 - smooth) * plain / p["factor"] + smooth * plain
    stretched = torch.where(wavelength > original / low, plain / p["factor"], between)
    return torch.where(wavelength < original / high, plain, stretched)


def longrope_frequencies(p, plain, max_positions, length):
    """arXiv 2402.13753 as Phi-3 uses it: a divisor for each dim, from one of two lists. The list follows from the length of the
    whole text, prompt and what is generated: transformers changes lists in the middle of a text (and drops the cache then), vLLM and
    llama.cpp fix it when they start; here it is fixed for a text."""
    original = p["original_max_position_embeddings"]
    factor = p.get("factor") or max_positions / original
    attention = p.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    divisors = p["long_factor"] if length > original else p["short_factor"]
    if len(divisors) != len(plain):
        raise ValueError(f"longrope has {len(divisors)} factors for {len(plain)} pairs of dims")
    return plain / torch.tensor(divisors, dtype=plain.dtype), attention


def rotary_angles(p, dim, positions, max_positions, length, dtype):
    """The cosines and sines [S, pairs] of positions [S], times the scaling's attention factor.

    p: rope_parameters as transformers 5 has them (rope_theta, rope_type, partial_rotary_factor, the scaling's fields). dim: what
    would rotate without partial_rotary_factor.
    """
    kind = p.get("rope_type") or "default"
    if kind not in ROPE_FIELDS:
        raise ValueError(f"rope_type {kind!r} is none of {sorted(ROPE_FIELDS)}")
    unknown = set(p) - ROPE_FIELDS[kind] - {"rope_theta", "rope_type", "type", "partial_rotary_factor"}
    if unknown:
        raise ValueError(f"rope_type {kind} has unknown fields {sorted(unknown)}")
    partial = p.get("partial_rotary_factor", 1.0)
    attention = 1.0
    if kind == "proportional":
        # Gemma 4: exponents over the whole dim, frequency 0 beyond the rotated part (transformers'
        # _compute_proportional_rope_parameters).
        turned = int(partial * dim // 2)
        frequencies = torch.zeros(dim // 2, dtype=dtype)
        frequencies[:turned] = p["rope_theta"] ** -(torch.arange(0, 2 * turned, 2, dtype=dtype) / dim) / p.get("factor", 1.0)
    else:
        dim = int(dim * partial)
        frequencies = p["rope_theta"] ** -(torch.arange(0, dim, 2, dtype=dtype) / dim)
        if kind == "linear":
            frequencies = frequencies / p["factor"]
        elif kind == "llama3":
            frequencies = llama3_frequencies(p, frequencies)
        elif kind == "yarn":
            frequencies, attention = yarn_frequencies(p, dim, frequencies, max_positions)
        elif kind == "longrope":
            frequencies, attention = longrope_frequencies(p, frequencies, max_positions, length)
    angles = torch.outer(positions.to(dtype), frequencies)
    return angles.cos() * attention, angles.sin() * attention


def rotate(x, cos, sin, interleaved=False):
    """x [B, S, heads, d]: its first 2 * pairs dims turned, the rest passed. Pairs are (i, i + pairs), or neighbours (2i, 2i + 1) if
    interleaved (GPT-J's form)."""
    pairs = cos.shape[-1]
    cos, sin = cos[:, None, :], sin[:, None, :]
    turned, passed = x[..., :2 * pairs], x[..., 2 * pairs:]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :pairs], turned[..., pairs:])
    first, second = first * cos - second * sin, second * cos + first * sin
    turned = torch.stack((first, second), -1).flatten(-2) if interleaved else torch.cat((first, second), -1)
    return torch.cat((turned, passed), -1)


# Attention.

def visible(queries, keys, window, documents=None):
    """[S, T] of bool: which positions of keys a query sees. A window of W shows the query itself and the W - 1 before it
    (transformers/masking_utils.py, sliding_window_overlay; llama.cpp's is_masked_swa; older flash paths of transformers showed W
    before it, and were mended). documents [S], where S = T: the number of each token's document, in which positions begin anew, and
    which a query doesn't look beyond (block-diagonal, as transformers/masking_utils.py, packed_sequence_mask_function)."""
    distance = queries[:, None] - keys[None, :]
    seen = distance >= 0
    if documents is not None:
        seen = seen & (documents[:, None] == documents[None, :])
    return seen if window is None else seen & (distance < window)


def attend(q, k, v, seen, scale, soft_cap=None, sinks=None):
    """q [B, S, n, d], k [B, T, m, d], v [B, T, m, dv], m dividing n; seen [S, T]. Returns [B, S, n * dv].

    soft_cap: scores become cap * tanh(score / cap) before the mask (Gemma 2). sinks [n]: one more score for each head that takes
    its share of the softmax and gives nothing (gpt-oss)."""
    groups = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
    scores = torch.einsum("bsnd,btnd->bnst", q, k) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is None:
        shares = torch.softmax(scores, -1)
    else:
        sink = sinks[None, :, None, None].expand(*scores.shape[:3], 1)
        shares = torch.softmax(torch.cat((scores, sink), -1), -1)[..., :-1]
    return torch.einsum("bnst,btnd->bsnd", shares, v).flatten(2)


# Feed-forward.

def gated_mlp(w, p, x, activation, names=("gate_proj", "up_proj", "down_proj")):
    """down(activation(gate(x)) * up(x)) (arXiv 2002.05202)."""
    gate, up, down = (p + name for name in names)
    return linear(w, down, ACTIVATIONS[activation](linear(w, gate, x)) * linear(w, up, x))


def fused_gated_mlp(w, p, x, activation):
    """gate_up_proj holds gate's rows, then up's (Phi-3, GLM-4)."""
    gate, up = linear(w, p + "gate_up_proj", x).chunk(2, -1)
    return linear(w, p + "down_proj", ACTIVATIONS[activation](gate) * up)


# Experts. Routers return [N, k] weights and [N, k] numbers of experts for N tokens.

def softmax_router(logits, k, renormalise):
    """Softmax over all experts, then the best k (Mixtral, Qwen3-MoE, OLMoE)."""
    weights, chosen = torch.softmax(logits, -1).topk(k, -1)
    return weights / weights.sum(-1, keepdim=True) if renormalise else weights, chosen


def top_k_softmax_router(logits, k):
    """The best k, then softmax over these (gpt-oss)."""
    best, chosen = logits.topk(k, -1)
    return torch.softmax(best, -1), chosen


def within_best_groups(scores, groups, kept, members):
    """scores [N, E] with -inf outside the `kept` groups whose best `members` sum highest (DeepSeek: 1 in V2, 2 in V3)."""
    size = scores.shape[-1] // groups
    grouped = scores.view(-1, groups, size)
    of_group = grouped.topk(min(members, size), -1).values.sum(-1)
    best = torch.zeros_like(of_group, dtype=torch.bool).scatter(1, of_group.topk(kept, -1).indices, True)
    return grouped.masked_fill(~best[..., None], float("-inf")).flatten(1)


def sigmoid_router(logits, k, bias, renormalise, scale, groups=1, kept=1):
    """DeepSeek-V3 (arXiv 2412.19437, section 2.1.2): sigmoid scores; bias [E] takes part in choosing, not in the weights.

    Outside the kept groups transformers puts 0, with which a negative biased score inside loses to an expert outside; DeepSeek's
    inference/model.py, vLLM and llama.cpp put -inf, as here.
    """
    scores = torch.sigmoid(logits)
    choice = scores.detach() + bias
    chosen = (within_best_groups(choice, groups, kept, 2) if groups > 1 else choice).topk(k, -1).indices
    weights = scores.gather(1, chosen)
    if renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * scale, chosen


def mixture(x, weights, chosen, expert):
    """x [N, h]: the weighted sum of the chosen experts' outputs. expert(number, rows) -> rows."""
    y = torch.zeros_like(x)
    for number in sorted(set(chosen.flatten().tolist())):
        token, place = torch.where(chosen == number)
        y = y.index_add(0, token, expert(number, x[token]) * weights[token, place, None])
    return y
