#!/usr/bin/env python3
"""Checks that includes go only along the allowed arrows: transport → core → layers → launcher, and those between the parts of layers.
All may include the public headers in include/, which include each other and the standard library alone.

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
    "layers/parameters": ["layers/io", "core", "transport"],
    "layers/checkpoints": ["layers/io", "layers/layout", "layers/parameters", "core", "transport"],
    "layers/schedules": ["layers/io", "layers/layout", "layers/parameters", "core", "transport"],
    "layers/model": ["layers/io", "layers/layout", "layers/parameters", "layers/schedules", "core", "transport"],
    "layers/theory": ["layers/io", "layers/layout", "layers/schedules", "layers/model", "core", "transport"],
    "layers/text": ["layers/io", "core", "transport"],
    "bindings": [],
    "launcher": ["layers/io", "layers/layout", "layers/parameters", "layers/checkpoints", "layers/schedules", "layers/model",
                 "layers/theory", "layers/text", "core", "transport"],
}

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


def main():
    root = pathlib.Path(sys.argv[1])
    missing = [room for room in ALLOWED if not (root / room).is_dir()]
    if missing:
        sys.exit(f"includes.py: {root} has no folder {missing[0]}")
    wrong = wrong_arrows(root)
    print("\n".join(wrong) or "all includes follow the arrows")
    sys.exit(1 if wrong else 0)


main()
