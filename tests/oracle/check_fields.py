#!/usr/bin/python3
"""Changes every field of each family's config.json alone (tiny folders of hub_folder.py, in f64), and takes it out: tsprun must compute
what families/families.py says of the changed folder, or refuse it by a field's name.

  check_fields.py TSPRUN [MODEL_TYPE...]

Fields are those of transformers' configuration classes, which families/*.py have with their defaults, and some that its models read
besides. A value that the witness doesn't compute must be refused. Exits with 1 if anything is wrong, and with 77 where there is no
PyTorch.
"""
import json
import re
import shutil

import check_folders
import families
import hub_folder
import torch

# Fields by which nothing is computed here: dropout is training's, the rest says what tokens mean or how weights are drawn.
NOT_COMPUTED = re.compile(r".*(dropout|pdrop|_token_id)$|initializer_range|use_cache|summary_.*|n_ctx|model_max_length|"
                          r"pretraining_tp|cache_implementation|max_position_embeddings|n_positions|vocab_size")
NAMED = {"hidden_size": [40], "n_embd": [40], "sliding_window": [3, None], "num_attention_heads": [8], "n_head": [8], "head_dim": [8, 12],
         "num_key_value_heads": [4, 1],
         "layer_types": [["full_attention"] * 2, ["sliding_attention"] * 2, ["sliding_attention", "full_attention"],
                         ["full_attention", "sliding_attention"], ["full_attention", "chunked_attention"]],
         "no_rope_layers": [[0, 1], [1, 1]], "n_inner": [20], "num_hidden_layers": [1], "n_layer": [1],
         "rope_scaling": [{"rope_type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0},
                          {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8},
                          {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                           "original_max_position_embeddings": 8}],
         "attn_logit_softcapping": [3.0], "final_logit_softcapping": [3.0], "original_max_position_embeddings": [8],
         "partial_rotary_factor": [0.5, 1.0], "norm_type": ["rms_norm"], "mlp_type": ["gated"], "use_bidirectional_attention": [True]}
MISSING = object()
LEAST = 5


def changes_of(family, fields):
    """(field, value) of everything that is changed alone; MISSING: taken out, so that the family's default holds."""
    stated = {**family.DEFAULTS, **fields}
    for field in sorted({*family.DEFAULTS, "head_dim", "partial_rotary_factor", "rope_scaling", "rope_theta"}):
        of_others = family.RENAMED and field not in family.DEFAULTS
        if NOT_COMPUTED.fullmatch(field) or of_others:
            continue
        value = stated.get(field)
        others = NAMED.get(field)
        if others is None:
            if field.endswith(("_act", "_activation", "activation_function")):
                others = ["silu", "relu", "gelu", "gelu_new", "gelu_pytorch_tanh"]
            elif isinstance(value, bool):
                others = [not value]
            elif isinstance(value, (int, float)):
                others = [2 * value if value else 1]
            else:
                others = []
        yield from ((field, other) for other in others if other != value)
        if field not in ("hidden_size", "n_embd", "intermediate_size", "num_hidden_layers", "n_layer", "num_attention_heads", "n_head"):
            yield field, MISSING


def check_field(tsprun, folder, kind, fields, field, value):
    """Returns what came of it, or fails."""
    changed = {name: each for name, each in {**fields, field: value}.items() if each is not MISSING}
    shutil.rmtree(folder / "model", ignore_errors=True)
    try:
        model = families.FAMILIES[kind](dict(changed))
        weights = {name: hub_folder.random_tensor(model, name, shape, 0, None) for name, shape in model.shapes().items()}
        ids, _ = families.draw(model.c.vocab_size, "1,12,3")
        expected = check_folders.loss_of_windows(model, weights, ids[0], 11)
        hub_folder.write_folder(folder / "model", kind, dict(changed), "f64")
    except (ArithmeticError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:  # no such model
        expected, why = None, error
        hub_folder.write_folder(folder / "model", kind, dict(fields), "f64")
        ids = torch.arange(12)[None]
    config = folder / "model/config.json"
    written = json.loads(config.read_text())
    written.pop(field, None)
    if value is not MISSING:
        written[field] = value
    config.write_text(json.dumps(written))
    (folder / "ids.u32").write_bytes(ids[0].to(torch.int32).numpy().tobytes())
    done = check_folders.run(tsprun, "eval", "--model", folder / "model", "--data", folder / "ids.u32", "--seq", 11, "--dtype", "f64",
                             "--json", folder / "report.json")
    if done.returncode != 0:
        named = re.search(r'config\.json: field "([^"]*)"|"(tie_word_embeddings)"', done.stderr)
        if not named:
            raise AssertionError(f"refused, but not by name: {done.stderr.strip()}")
        return "refused"
    if expected is None:
        raise AssertionError(f"computed, though its witness doesn't: {why}; {done.stderr.strip()[:200]}")
    loss = json.loads((folder / "report.json").read_text())["loss"]
    if abs(loss - expected) > 1e-11 * abs(expected):
        raise AssertionError(f"a loss of {loss}, where PyTorch has {expected}; {done.stderr.strip()[:200]}")
    return "honoured"


def check_fields(tsprun, folder, kind, _number):
    family = families.FAMILIES[kind]
    wrong, counts = [], {}
    for variant in family.TINY:
        fields = hub_folder.fields_of(kind, "tiny", variant)
        if check_field(tsprun, folder, kind, fields, "model_type", kind) != "honoured":
            continue  # what is special in it isn't supported
        for field, value in changes_of(family, fields):
            try:
                came = check_field(tsprun, folder, kind, fields, field, value)
            except AssertionError as error:
                wrong.append(f"{variant}, {field} {'missing' if value is MISSING else value}: {error}")
                continue
            counts[came] = counts.get(came, 0) + 1
    print(f"{kind}: {counts}", flush=True)
    if min(counts.get("honoured", 0), counts.get("refused", 0)) < LEAST:
        wrong.append(f"{counts}, where at least {LEAST} fields are honoured and as many refused in each family")
    if wrong:
        raise AssertionError("\n".join(wrong))


if __name__ == "__main__":
    check_folders.for_each_family(check_fields, and_within=False)
