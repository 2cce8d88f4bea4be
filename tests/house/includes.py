#!/usr/bin/env python3
"""Checks that includes go only along the allowed arrows: transport → core → layers → launcher, and those between the parts of layers.
All may include the public headers in include/, which include each other and the standard library alone. Oracles, by which tests judge
layers, include nothing that they judge, by whatever way.

Usage: includes.py ROOT. Prints each include that runs against an arrow, and exits with 1 if there is one.
"""

import pathlib
import re
import sys

# What the files below a folder may include, beside the folder itself and include/. The longest matching folder decides.
ALLOWED = {
    "include": [],
    "transport": [],
    "core": ["transport"],
    "layers/io": ["core", "transport"],
    "layers/layout": ["layers/io", "core", "transport"],
    "layers/parameters": ["layers/io", "layers/layout", "core", "transport"],
    "layers/checkpoints": ["layers/io", "layers/layout", "layers/parameters", "core", "transport"],
    "layers/schedules": ["layers/io", "layers/layout", "layers/parameters", "core", "transport"],
    "layers/model": ["layers/io", "layers/layout", "layers/parameters", "layers/schedules", "core", "transport"],
    "layers/theory": ["layers/io", "layers/layout", "layers/parameters", "layers/schedules", "layers/model", "core", "transport"],
    "layers/text": ["layers/io", "core", "transport"],
    "bindings": [],
    "launcher": ["layers/io", "layers/layout", "layers/parameters", "layers/checkpoints", "layers/schedules", "layers/model",
                 "layers/theory", "layers/text", "core", "transport"],
}

# Files and folders of tests that say what must come out, and what they must not stand on.
ORACLES = ["tests/layers/closed_formulas.h", "tests/layers/decoding_formulas.h", "tests/layers/step_formulas.h", "tests/reference",
           "tests/oracle"]
JUDGED = ["layers/theory", "layers/schedules", "layers/model"]

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
SYSTEM_INCLUDE = re.compile(r"^#include <([^>]+)>", re.MULTILINE)
# Headers of the C++ standard library have neither folder nor ending.
STANDARD = re.compile(r"^[a-z_]+$")


def folder_of(path):
    """The longest folder of ALLOWED that `path` lies in, or None."""
    matching = [folder for folder in ALLOWED if path == folder or path.startswith(folder + "/")]
    return max(matching, key=len, default=None)


def wrong_arrows(root):
    """All includes against the arrows, as 'file includes other'."""
    wrong = []
    for room in sorted({folder.split("/")[0] for folder in ALLOWED}):
        for file in sorted((root / room).rglob("*")):
            if file.suffix not in (".h", ".cpp"):
                continue
            name = str(file.relative_to(root))
            here = folder_of(name)
            if here is None:
                wrong.append(f"{name} lies in no part of {room}: give its folder a row in {pathlib.Path(__file__).name}")
                continue
            text = file.read_text()
            for included in INCLUDE.findall(text):
                there = "include" if (root / "include" / included).exists() else folder_of(included)
                if there not in (None, here, "include") and there not in ALLOWED[here]:
                    wrong.append(f"{name} includes {included}: {here} may include {', '.join([here] + ALLOWED[here])}")
            if here == "include":
                others = [included for included in SYSTEM_INCLUDE.findall(text) if not STANDARD.match(included)]
                wrong += [f"{name} includes <{other}>: public headers include the standard library alone" for other in others]
    return wrong


def files_of(path):
    """The sources and headers below a folder, or the file itself."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sorted(file for file in files if file.suffix in (".h", ".cpp"))


def judged_by_themselves(root):
    """Includes by which an oracle reaches what it judges, as 'oracle includes …, which includes other'."""
    wrong = []
    for file in [file for oracle in ORACLES for file in files_of(root / oracle)]:
        ways = [[str(file.relative_to(root))]]
        seen = set()
        while ways:
            way = ways.pop(0)
            for included in INCLUDE.findall((root / way[-1]).read_text()):
                if any(included.startswith(part + "/") for part in JUDGED):
                    wrong.append(f"{', which includes '.join([*way, included]).replace(', which', '', 1)}: an oracle stands on its own")
                elif included not in seen and (root / included).is_file():
                    seen.add(included)
                    ways.append([*way, included])
    return wrong


def main():
    root = pathlib.Path(sys.argv[1])
    missing = [place for place in [*ALLOWED, *ORACLES, *JUDGED] if not (root / place).exists()]
    if missing:
        sys.exit(f"includes.py: {root} has no {missing[0]}")
    wrong = wrong_arrows(root) + judged_by_themselves(root)
    print("\n".join(wrong) or "all includes follow the arrows")
    sys.exit(1 if wrong else 0)


main()
