#!/usr/bin/env python3
"""Checks that docs/reference/report.md describes the reports of --json: runs small commands and compares every key that they write.

Usage: report_keys.py PAGE TSPRUN. Prints what is wrong, and exits with 1 if anything is.

Each section of the page is a table of keys. The page's first table says which sections make up a command's report; a type "object [x](#y)"
or "list of [x](#y)" leads to the section of what lies within. A key that the page doesn't name is wrong, and so is one that has another
type, or that is missing although the page doesn't say when it may be.
"""

import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SECONDS = 300
SECTION = re.compile(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+?) \|[^|]*\|([^|]*)\|$", re.MULTILINE)
COMMAND = re.compile(r"^\| `(\w+)` \| (\[.*\]\(#.*\)) \|$", re.MULTILINE)
PLAIN = {"text": str, "boolean": bool, "integer": int, "number": (int, float)}


def anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


class Page:
    """The page's sections: by anchor, what each key's type is, and whether it may be missing."""

    def __init__(self, text):
        self.sections = {anchor(heading): {key: (kind, bool(absent.strip())) for key, kind, absent in ROW.findall(body)}
                         for heading, body in SECTION.findall(text)}
        self.commands = {command: re.findall(r"\(#([^)]*)\)", links) for command, links in COMMAND.findall(text)}

    def keys(self, anchors):
        return {key: row for each in anchors for key, row in self.sections[each].items()}

    def compare(self, value, rows, where):
        """What is wrong with an object whose keys are `rows`."""
        for key in rows.keys() - value.keys():
            if not rows[key][1]:
                yield f"{where}.{key} is missing, and the page doesn't say when it may be"
        for key, each in value.items():
            if key in rows:
                yield from self.compare_value(each, rows[key][0], f"{where}.{key}")
            else:
                yield f"{where}.{key} isn't named by the page"

    def compare_value(self, value, kind, where):
        if kind.endswith(" or null"):
            if value is None:
                return
            kind = kind.removesuffix(" or null")
        if kind.startswith("list of "):
            if not isinstance(value, list):
                yield f"{where} is no list: {value!r}"
                return
            for each in value:
                yield from self.compare_value(each, kind.removeprefix("list of "), where + "[]")
            return
        link = re.search(r"\(#([^)]*)\)", kind)
        if link and isinstance(value, dict):
            yield from self.compare(value, self.sections[link.group(1)], where)
        elif link or not isinstance(value, PLAIN[kind]) or (isinstance(value, bool) and kind != "boolean"):
            yield f"{where} isn't of the type \"{kind}\": {json.dumps(value)[:80]}"

    def dead_rows(self):
        """Types that are neither plain nor lead to a section."""
        for heading, rows in self.sections.items():
            for key, (kind, _) in rows.items():
                plain = kind.removesuffix(" or null").removeprefix("list of ")
                link = re.search(r"\(#([^)]*)\)", kind)
                if not (link and link.group(1) in self.sections) and plain not in PLAIN:
                    yield f"## {heading}: `{key}` has the type \"{kind}\", which leads nowhere"


FIXTURES = pathlib.Path(__file__).parent.parent / "text/fixtures"
TRAIN = "train --config nano --data book.txt --batch 4 --seq 32"
MODEL = "--machine mi300x --config nano --dtype bf16 --batch 8 --seq 64"
# Command lines, and their exit codes. Later ones use what earlier ones saved.
RUNS = [
    ("-n 2 run -- true", 0),
    (f"-n 2 {TRAIN} --steps 3 --save runs/one --save-every 2", 0),
    (f"--layout dp=2,tp=2 {TRAIN} --steps 1", 0),
    (f"-n 2 {TRAIN} --resume runs/one --steps 4", 0),
    (f"-n 4 --fault kill:rank=2,step=5 {TRAIN} --steps 6 --save runs/two --save-every 2 --max-restarts 1", 0),
    (f"-n 2 --fault kill:rank=1,step=5 {TRAIN} --steps 6 --save runs/three --save-every 2", 1),
    ("-n 2 eval --model runs/one --data book.txt --seq 32 --batch 2", 0),
    ("-n 2 generate --model runs/one --prompt All --tokens 4", 0),
    ("--layout dp=2 generate --model runs/one --prompts prompts.txt --tokens 4", 0),
    ("--mem-per-rank 2M compare --layouts tsp=2;dp=2 --config nano --data book.txt --steps 2 --seq 32 --batch 2", 0),
    ("compare --forward --layouts tsp=2;tsp=3 --config nano --data book.txt --steps 2 --seq 32 --batch 2", 0),
    ("plan --layout tsp=8 --config nano --batch 8 --seq 64", 0),
    (f"plan --search --gpus 4 --mem 1G --simulate 1 {MODEL}", 0),
    ("plan --search --gpus 2 --mem 4G --machine mi300x --config paper-7b --dtype bf16 --batch 2 --seq 1024", 0),
    ("plan --paper", 0),
    (f"simulate --gpus 4 --layouts tsp=4;tsp=3 {MODEL}", 0),
    ("plan --layout tsp=2 --config nano --batch 2 --seq 64 --documents 40,24", 0),
    (f"simulate --gpus 2 --documents 2x {MODEL}", 0),
    ("calibrate --layouts tsp=2 --config nano --seq 32 --batch 2 --passes 1", 0),
    ("-n 2 bench all_reduce,broadcast,pingpong --sizes 1K --min-time 0.01", 0),
    ("-n 2 bench all_reduce --sizes 1K --min-time 0.01 --no-check --no-in-place", 0),
    ("tokenize --model . book.txt --output tokens.u32", 0),
    ("doctor", None),
    ("train --config nothing-like-it --data book.txt", 2),
]


def run(tsprun, words, folder, said=""):
    answer = subprocess.run([tsprun, "--json", "report.json", *words], cwd=folder, capture_output=True, text=True, errors="replace",
                            timeout=SECONDS, input=said)
    return answer.returncode, json.loads((folder / "report.json").read_text()), answer.stderr


def status(tsprun, folder):
    """The report of `status` on a job whose ranks wait for each other."""
    job = subprocess.Popen([tsprun, "-n", "2", "--fault", "stall:rank=1,step=2,seconds=60", *f"{TRAIN} --steps 9".split()], cwd=folder,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        end = time.monotonic() + SECONDS / 4
        while time.monotonic() < end:
            code, report, _ = run(tsprun, ["status", str(job.pid)], folder)
            if code == 0 and any(rank["activities"] for rank in report["status"]):
                return report
            time.sleep(0.05)
        sys.exit("no rank of a stalled job was seen in an operation")
    finally:
        job.send_signal(signal.SIGTERM)
        job.wait(timeout=SECONDS)


def chat(tsprun, folder):
    """The report of `chat` with a model that an earlier run saved."""
    model = max((folder / "runs/one").glob("step-*"))
    shutil.copy(FIXTURES / "word_piece.json", model / "tokenizer.json")
    (model / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }} {% endfor %}")
    code, report, errors = run(tsprun, ["chat", "--model", "runs/one", "--tokens", "2"], folder, "the cat\n")
    if code != 0:
        sys.exit(f"chat: ended with {code}: {errors.strip()}")
    return report


def main():
    page, tsprun = Page(pathlib.Path(sys.argv[1]).read_text()), str(pathlib.Path(sys.argv[2]).absolute())
    wrong = list(page.dead_rows())
    seen = set()

    def check(line, report, refused):
        seen.add(report["command"])
        rows = page.keys(page.commands[report["command"]])
        if refused or report["failure"]:
            rows = {key: (kind, absent or key not in ("command", "failure")) for key, (kind, absent) in rows.items()}
        wrong.extend(f"{line}: {text}" for text in page.compare(report, rows, report["command"]))

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "book.txt").write_text("All work and no play makes a dull boy. " * 200)
        shutil.copy(FIXTURES / "byte_level.json", folder / "tokenizer.json")
        (folder / "prompts.txt").write_text("All work\nNo play\nA dull boy\n")
        for line, expected in RUNS:
            code, report, errors = run(tsprun, line.split(), folder)
            if expected is not None and code != expected:
                wrong.append(f"{line}: ended with {code} instead of {expected}: {errors.strip()}")
            check(line, report, code == 2)
        check("chat", chat(tsprun, folder), False)
        check("status", status(tsprun, folder), False)
    # block is left to the sections that it shares with train: it needs tensors, which nothing here writes.
    for command in page.commands.keys() - seen - {"block"}:
        wrong.append(f"no run shows the report of {command}")
    help_text = subprocess.run([tsprun, "--help"], capture_output=True, text=True, check=True, timeout=SECONDS).stdout
    commands = re.findall(r"^  ([a-z]+) {2,}\S", help_text.partition("Subcommands:")[2], re.MULTILINE)
    if not commands:
        wrong.append("--help lists no commands as this test reads them; is COLUMNS set?")
    for command in commands:
        if command not in page.commands:
            wrong.append(f"the page has no row for the command {command}")
    print("\n".join(dict.fromkeys(wrong)) or f"{len(RUNS) + 2} reports have the keys that the page names")
    sys.exit(1 if wrong else 0)


main()
