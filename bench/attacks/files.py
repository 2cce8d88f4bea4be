"""Attacks by files: shared save folders, checkpoints that lie, nodes whose files differ, values that aren't finite."""
import json
import math
import shutil
import struct
import time

from harness import attack, need
from networks import free_port


def read_safetensors(path):
    """(header, bytes of the tensors) of a safetensors file."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), bytearray(data[8 + size:])


def write_safetensors(path, header, data):
    """Writes what read_safetensors gave."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def poison(path, name, value, element=0):
    """Sets one f32 element of a tensor."""
    header, data = read_safetensors(path)
    begin = header[name]["data_offsets"][0] + 4 * element
    data[begin:begin + 4] = struct.pack("<f", value)
    write_safetensors(path, header, data)


def model_folder(checkpoint, to):
    """Copies a checkpoint's model without its manifest, as a plain Hugging Face folder."""
    to.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(checkpoint / name, to / name)
    return to


@attack()
def two_runs_in_one_folder(bench):
    """A second run into a save folder that a run is using is refused by name."""
    first = bench.start("-n", 2, "--fault", "delay:from=0,to=1,ms=2,prob=0.5",
                        *bench.train("--seed", 1, "--steps", 400, "--save", "mix", "--save-every", 10))
    deadline = time.monotonic() + 30
    while not list(bench.folder.glob("mix/step-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    second = bench.tsprun_ends("-n", 2, *bench.train("--seed", 2, "--steps", 20, "--save", "mix", "--save-every", 20))
    first.signal(15)
    first.end()
    need(second.code == 2 and "mix" in second.err, f"the second run wasn't refused: {second}")


@attack()
def a_dead_runs_folder_is_free(bench):
    """A folder whose run was killed is taken over by the next run."""
    first = bench.start("-n", 2, *bench.train("--steps", 5000, "--save", "mix", "--save-every", 10))
    first.ranks(2)
    first.signal(9)
    first.end()
    second = bench.tsprun_ends("-n", 2, *bench.train("--steps", 10, "--save", "mix", "--save-every", 10))
    need(second.code == 0, f"the folder of a dead run wasn't taken over: {second}")


@attack()
def restarts_take_own_checkpoints(bench):
    """A restart goes on from a checkpoint of its own run, never from another's in the same folder."""
    other = bench.tsprun_ends("-n", 2, *bench.train("--seed", 2, "--steps", 80, "--save", "mix", "--save-every", 80))
    need(other.code == 0, f"the other run failed: {other}")
    mine = bench.tsprun_ends("-n", 2, "--fault", "kill:rank=1,step=15",
                             *bench.train("--seed", 1, "--steps", 20, "--save", "mix", "--save-every", 10, "--max-restarts", 1))
    alone = bench.tsprun_ends("-n", 2, *bench.train("--seed", 1, "--steps", 20))
    if mine.code == 2 and "mix" in mine.err:
        return
    losses = [step["loss"] for step in mine.report.get("steps", [])]
    need(mine.code == 0 and losses and losses[-1] == alone.report["steps"][-1]["loss"],
         f"the restarted run isn't the run alone: {losses[-1:]} against {alone.report['steps'][-1]['loss']}; {mine}")


@attack()
def a_checkpoint_that_lies(bench):
    """A model file that differs from its manifest's checksum is used by no command."""
    folder = bench.checkpoint()
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    for words in (["eval", "--model", folder, "--data", bench.text], ["generate", "--model", folder, "--prompt", "The", "--tokens", 4],
                  bench.train("--resume", folder.parent, "--steps", 8)):
        ended = bench.tsprun_ends("-n", 2, *words)
        need(ended.code == 2 and "model.safetensors" in ended.err, f"{words[0]} used it: {ended}")


@attack()
def text_after_a_nul(bench):
    """Text behind a NUL in config.json, manifest.json or a safetensors header is refused."""
    folder = bench.checkpoint()
    for name in ("config.json", "manifest.json"):
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes(kept + b"\0{}")
        ended = bench.tsprun_ends("-n", 1, "eval", "--model", folder, "--data", bench.text)
        need(ended.code == 2 and name in ended.err, f"{name} with text after a NUL was used: {ended}")
        (folder / name).write_bytes(kept)
    plain = model_folder(folder, bench.folder / "plain")
    header, data = read_safetensors(plain / "model.safetensors")
    text = json.dumps(header).encode() + b"\0junk"
    text += b" " * (-len(text) % 8)
    (plain / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    ended = bench.tsprun_ends("-n", 1, "eval", "--model", plain, "--data", bench.text)
    need(ended.code == 2 and "model.safetensors" in ended.err, f"a header with text after a NUL was used: {ended}")


@attack()
def a_nan_in_a_weight(bench):
    """A weight that isn't finite is named by every command, and none ends well."""
    folder = model_folder(bench.checkpoint(), bench.folder / "plain")
    name = "model.layers.1.self_attn.q_proj.weight"
    for value in (math.nan, math.inf):
        poison(folder / "model.safetensors", name, value)
        for words in (["eval", "--model", folder, "--data", bench.text], ["generate", "--model", folder, "--prompt", "The", "--tokens", 4],
                      ["train", "--model", folder, "--data", bench.text, "--seq", 32, "--steps", 2]):
            ended = bench.tsprun_ends("-n", 2, *words)
            need(ended.code in (1, 2) and ended.failure() and name in ended.err, f"{words[0]} with {value} in {name}: {ended}")


@attack()
def a_nan_in_an_unused_embedding_row(bench):
    """A NaN in an embedding row that no token uses is found, too."""
    folder = model_folder(bench.checkpoint(), bench.folder / "plain")
    poison(folder / "model.safetensors", "model.embed_tokens.weight", math.nan, element=200 * 64 + 3)
    ended = bench.tsprun_ends("-n", 2, "train", "--model", folder, "--data", bench.text, "--seq", 32, "--steps", 2, "--save", "saved")
    need(ended.code in (1, 2) and "embed_tokens" in ended.err, f"it was trained: {ended}")


def two_nodes(bench, words, first=None, second=None, environments=({}, {}), seconds=60):
    """Two launchers on this machine, each in a folder of its own; their ends."""
    port = free_port()
    folders = [first or bench.folder, second or bench.folder]
    runs = [bench.start("-n", 2, "--nnodes", 2, "--node-rank", node, "--rendezvous", f"127.0.0.1:{port}", "--secret-file",
                        bench.folder / "secret", "--timeout", 10, *words, cwd=folders[node], environment=environments[node])
            for node in range(2)]
    return [run.end(seconds) for run in runs]


def secret(bench):
    """A common secret."""
    (bench.folder / "secret").write_text("0123456789abcdef0123456789abcdef\n")
    (bench.folder / "secret").chmod(0o600)


@attack()
def nodes_with_other_weights(bench):
    """Two nodes whose model folders differ start no rank, and say so."""
    secret(bench)
    checkpoint = bench.checkpoint()
    nodes = []
    for node in range(2):
        folder = bench.folder / f"node{node}"
        model_folder(checkpoint, folder / "model")
        nodes.append(folder)
    poison(nodes[1] / "model" / "model.safetensors", "model.norm.weight", 1.5)
    for words in (["eval", "--model", "model", "--data", bench.text], ["generate", "--model", "model", "--prompt", "The", "--tokens", 4],
                  ["train", "--model", "model", "--data", bench.text, "--seq", 32, "--steps", 2]):
        ends = two_nodes(bench, words, *nodes)
        need(all(end.code == 2 for end in ends), f"{words[0]}: {ends[0]}; {ends[1]}")


@attack()
def nodes_with_other_kernels(bench):
    """Two nodes whose kernel levels are set differently start no rank, and say so."""
    secret(bench)
    ends = two_nodes(bench, bench.train("--steps", 2), environments=({}, {"TSP_KERNELS": "avx2"}))
    need(all(end.code == 2 and "avx2" in end.err for end in ends), f"{ends[0]}; {ends[1]}")


@attack()
def a_save_folder_that_isnt_shared(bench):
    """--save into a folder that the nodes don't share is refused before the first step."""
    secret(bench)
    nodes = [bench.folder / f"node{node}" for node in range(2)]
    for node in nodes:
        node.mkdir()
    ends = two_nodes(bench, bench.train("--steps", 4, "--save", "runs", "--save-every", 2), *nodes)
    need(all(end.code in (1, 2) and "runs" in end.err and not end.report.get("steps") for end in ends), f"{ends[0]}; {ends[1]}")


@attack()
def an_axis_that_isnt_one(bench):
    """An axis that doesn't exist is refused wherever a layout is read."""
    for words in (["plan", "--config", "nano", "--layout", "xyz=2"], ["plan", "--config", "nano", "--layouts", "xyz=2"],
                  ["compare", "--config", "nano", "--data", bench.text, "--layouts", "xyz=2"], ["--layout", "xyz=2", *bench.train("--steps", 1)]):
        ended = bench.tsprun_ends(*words)
        need(ended.code == 2, f"{words}: {ended}")


@attack()
def budgets_that_fit(bench):
    """What plan says fits a budget runs in it, step after step; what doesn't fit is refused or fails."""
    for layout, options in (("zero3=2", []), ("sp=2", ["--sp", "ulysses"]), ("tsp=2", []), ("tp=2", [])):
        words = ["--layout", layout, *options]
        free = bench.tsprun_ends(*words, *bench.train("--steps", 3))
        need(free.code == 0, f"{layout} without a budget: {free}")
        peak = max(rank["memory_peak_bytes"]["total"] for rank in free.report["per_rank"])
        tight = bench.tsprun_ends("--mem-per-rank", int(peak * 1.01), *words, *bench.train("--steps", 3))
        need(tight.code == 0, f"{layout} fails with 1% more than its peak of {peak}: {tight}")
        short = bench.tsprun_ends("--mem-per-rank", int(peak * 0.99), *words, *bench.train("--steps", 3))
        need(short.code != 0, f"{layout} runs with 1% less than its peak of {peak}")
