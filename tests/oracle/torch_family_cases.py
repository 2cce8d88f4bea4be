#!/usr/bin/python3
"""Model folders as the hub has them (hub_folder.py), with what families/families.py says of them in f64.

  torch_family_cases.py FAMILY[:VARIANT[:VERSION[:untied[:documents|images]]]][,...] FOLDER

VERSION is that of transformers whose config.json it is, 4 or 5. untied: the head isn't the embedding, with which a tiny model would
say the last token again and again. documents: several in each sequence, whose ends case.json names as document_end; their successors
aren't predicted. images: the folder is that of a model that sees images, too, as the version of transformers names its tensors.
FOLDER/FAMILY-VARIANT-VERSION are model folders of tiny models, with
  case.json             batch, sequence, ids [B][S], labels [B][S] (-1: none), steps (the loss before each of some steps of AdamW and
                        after the last, with the defaults of `tsprun train` but no clipping), prompt (ids), greedy (the ids that follow)
  expected.safetensors  logits [B, S, V], grad.<parameter name> of the loss, after.<parameter name> after the steps; F64
"""
import json
import pathlib
import sys

import hub_folder
import families
import tensor_files
import torch

BATCH, SEQUENCE, STEPS, GREEDY = 2, 11, 5, 6
END, ENDS = 5, ((2, 3, 7), (0, 5, 10))  # an id, and where it stands


def write_case(folder, kind, variant, version, untied, form):
    changes = {"tie_word_embeddings": False} if untied else {}
    hub_folder.write_folder(folder, kind, hub_folder.fields_of(kind, "tiny", variant or None, changes), "f64", transformers=version,
                            shard_bytes=20000)
    if form == "images":
        within = {text: name for name, (text, _) in hub_folder.WITHIN.items()}
        hub_folder.put_within(folder, within.get(kind, "mistral3"), version)
    model, weights = families.load(folder)
    ids, labels = families.draw(model.c.vocab_size, f"{BATCH},{SEQUENCE},7")
    prompt = ids[:1, :5].clone()
    if form == "documents":
        for row, places in enumerate(ENDS):
            ids[row, list(places)] = END
        labels[ids == END] = -1
        model.document_end = END
    logits, loss, grads = families.gradients(model, weights, ids, labels)
    losses, after = families.train(model, weights, ids, labels, STEPS, clip=0)
    model.document_end = None
    (folder / "case.json").write_text(json.dumps({
        "batch": BATCH, "sequence": SEQUENCE, "ids": ids.tolist(), "labels": labels.tolist(), "steps": losses,
        "prompt": prompt[0].tolist(), "greedy": families.greedy(model, weights, prompt, GREEDY)[0],
        **({"document_end": END} if form == "documents" else {})}))
    tensor_files.write_tensors(folder / "expected.safetensors", {
        "logits": logits, **{f"grad.{name}": grad for name, grad in grads.items()},
        **{f"after.{name}": tensor for name, tensor in after.items()}})


def main():
    torch.set_num_threads(1)
    for case in sys.argv[1].split(","):
        kind, variant, version, untied, form = case.split(":") + ["", "4", "", ""][case.count(":"):]
        folder = pathlib.Path(sys.argv[2]) / f"{kind}-{variant}-{version}{'-' + form if form else ''}"
        write_case(folder, kind, variant, int(version or 4), bool(untied), form)


if __name__ == "__main__":
    main()
