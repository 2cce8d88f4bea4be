#!/usr/bin/python3
"""Tries model folders as the hub has them (hub_folder.py), as a new user would: eval, train, generate, and chat where there is a
template, with no option but --model and what to read. Of every family that tsprun names, models that see images, too, among them.

  check_folders.py TSPRUN [MODEL_TYPE...]

Folders are tiny, in bf16, by turns as transformers 4 and 5 write them, in shards and in one file, with the tokenizers of
tests/text/fixtures. Losses of eval and the text of generate, which is greedy as generation_config.json wants it here, are held against
families/families.py. Exits with 1 if anything is wrong, and with 77 where there is no PyTorch.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "families"))

try:
    import torch
except ImportError:
    print("no PyTorch here: Debian's python3-torch brings it")
    sys.exit(77)

import families  # noqa: E402
import hub_folder  # noqa: E402

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "text/fixtures"
VOCABULARY = 448  # of every tiny model: more than each fixture has, as the hub's models are padded
POSITIONS = 256
TEXT = "".join(f"Line {number} says that {number * number % 97} birds, héé, sing.\n" for number in range(60))
PROMPT = "Line 7 says that"
# Tokenizers and their ends; templates in the styles of ChatML, Llama 2 and Gemma. No template: a base model.
TOKENIZERS = [("byte_level.json", 390, 391, "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
               "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"),
              ("byte_fallback.json", 3, 1, "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
               "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ message['content'] + '</s>' }}{% endif %}{% endfor %}"),
              ("unigram_bytes.json", 2, 1, "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + "
               "('model' if message['role'] == 'assistant' else message['role']) + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
               "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"),
              ("byte_level.json", 390, 391, None)]


def run(tsprun, *words, text=None):
    return subprocess.run([tsprun, *map(str, words)], input=text, capture_output=True, text=True, timeout=120)


def report_of(tsprun, folder, *words, text=None):
    """Runs a command that must succeed, and returns its report."""
    file = folder / "report.json"
    done = run(tsprun, *words, "--json", file, text=text)
    if done.returncode != 0:
        raise AssertionError(f"tsprun {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr}")
    unknown = [line for line in done.stderr.splitlines() if "not known" in line]
    if unknown:
        raise AssertionError("\n".join(unknown))
    return json.loads(file.read_text())


def kinds_of(tsprun, folder):
    """The families that tsprun names when it refuses another."""
    (folder / "none.json").write_text('{"model_type": "none"}')
    found = re.search(r"expected one of (.*) \(no other", run(tsprun, "plan", "--config", folder / "none.json").stderr)
    kinds = found.group(1).split(", ") if found else []
    if len(kinds) < 2:
        raise AssertionError("tsprun doesn't name its families")
    return kinds


def tokens_of(tsprun, folder, file):
    """The ids of a text file, by the folder's tokenizer."""
    done = subprocess.run([tsprun, "tokenize", "--special", "--model", folder, file, "--output", "-"], capture_output=True, check=True)
    return torch.frombuffer(bytearray(done.stdout), dtype=torch.int32).long()


def loss_of_windows(model, weights, ids, length):
    """The mean loss of a stream of ids in windows of so many tokens, the last one short."""
    total = 0.0
    with torch.no_grad():
        for first in range(0, len(ids) - 1, length):
            labels = ids[None, first + 1:first + 1 + length]
            logits = model.logits(weights, ids[None, first:first + labels.shape[1]], length=length)
            total += families.loss_of(logits, labels).item() * labels.shape[1]
    return total / (len(ids) - 1)


def write(folder, kind, number, dtype="bf16"):
    """Writes a folder with its tokenizer. Returns whether it has a chat template."""
    of_text = hub_folder.WITHIN.get(kind, (kind,))[0]
    tokenizer, end, begin, template = TOKENIZERS[number % len(TOKENIZERS)]
    family = families.FAMILIES[of_text]
    positions = family.RENAMED.get("max_position_embeddings", "max_position_embeddings")
    fields = hub_folder.fields_of(of_text, "tiny", None,
                                  {"vocab_size": VOCABULARY, positions: POSITIONS, "eos_token_id": end, "bos_token_id": begin})
    transformers = 4 + number % 2
    hub_folder.write_folder(folder, of_text, fields, dtype, shard_bytes=20000 if number % 3 else 10 ** 9, transformers=transformers)
    if kind != of_text:
        hub_folder.put_within(folder, kind, transformers)
    generation = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**generation, "do_sample": False}))
    shutil.copyfile(FIXTURES / tokenizer, folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "add_bos_token": False, "bos_token": "<s>", "eos_token": "</s>", "clean_up_tokenization_spaces": False, "model_max_length": 256,
        "tokenizer_class": "PreTrainedTokenizerFast", **({} if template is None else {"chat_template": template})}))
    (folder / "README.md").write_text("A model card.\n")
    return template is not None


def check_commands(tsprun, folder, kind, number):
    talks = write(folder / "model", kind, number)
    folder_of_model = folder / "model"
    book = folder / "book.txt"
    book.write_text(TEXT)
    model, weights = families.load(folder_of_model)

    report = report_of(tsprun, folder, "eval", "--model", folder_of_model, "--data", book)
    ids = tokens_of(tsprun, folder_of_model, book)
    expected = loss_of_windows(model, weights, ids, report["seq"])
    if abs(report["loss"] - expected) > 1e-4 * expected:
        raise AssertionError(f"eval: a loss of {report['loss']}, where PyTorch has {expected}")

    report = report_of(tsprun, folder, "train", "--model", folder_of_model, "--data", book)
    losses = [step["loss"] for step in report["steps"]]
    if not losses or not all(0 < loss < 1e3 for loss in losses):
        raise AssertionError(f"train: losses {losses}")

    report = report_of(tsprun, folder, "generate", "--model", folder_of_model, "--prompt", PROMPT)
    text = folder / "prompt.txt"
    text.write_text(PROMPT)
    prompt, added = tokens_of(tsprun, folder_of_model, text).tolist(), report["generate"]["tokens"]
    with torch.no_grad():
        logits = model.logits(weights, torch.tensor([prompt + added]))[0, len(prompt) - 1:-1]
    behind = logits.max(-1).values - logits[range(len(added)), added]
    # bf16: of two that are almost equally likely it may take the other one.
    if not added or (behind > 0.05 * (logits.max(-1).values - logits.min(-1).values)).any():
        raise AssertionError(f"generate: {added} isn't what PyTorch goes on with; behind by {behind.tolist()}")

    if talks:
        report = report_of(tsprun, folder, "chat", "--model", folder_of_model, text="Why is the sky blue?\n")
        if len(report["chat"]["answers"]) != 1 or not report["chat"]["answers"][0]["tokens"]:
            raise AssertionError(f"chat: {report['chat']}")
    else:
        done = run(tsprun, "chat", "--model", folder_of_model, text="Hello\n")
        if done.returncode == 0 or "chat_template" not in done.stderr:
            raise AssertionError(f"chat without a template: {done.returncode}, {done.stderr}")


def for_each_family(check, and_within):
    """Calls check(tsprun, folder, model_type, number) with an empty folder for the families that the command line names, or for all.
    and_within: also for models that see images, too. Ends the program."""
    tsprun = str(pathlib.Path(sys.argv[1]).resolve())
    torch.set_num_threads(1)
    began, failed, ran = time.monotonic(), [], 0
    with tempfile.TemporaryDirectory() as temporary:
        for number, kind in enumerate(kinds_of(tsprun, pathlib.Path(temporary))):
            if sys.argv[2:] and kind not in sys.argv[2:] or kind in hub_folder.WITHIN and not and_within:
                continue
            ran += 1
            folder = pathlib.Path(temporary) / kind
            folder.mkdir()
            try:
                check(tsprun, folder, kind, number)
            except (AssertionError, ValueError) as error:
                failed.append(kind)
                print(f"{kind}: {error}", file=sys.stderr)
            shutil.rmtree(folder)
    print(f"{ran - len(failed)} of {ran} families, {time.monotonic() - began:.1f} s")
    sys.exit(bool(failed) or ran == 0)


if __name__ == "__main__":
    for_each_family(check_commands, and_within=True)
