#!/usr/bin/env python3
"""Checks that the product's own rooms use each of the packages on which tsprun stands, and that tools/packages.txt installs it: for a build
what is included, for tests what is loaded where it is chosen.

Usage: packages.py ROOT. Prints what is missing, and exits with 1 if anything is.
"""

import pathlib
import sys

ROOMS = ("transport", "core", "layers", "launcher")
# Name, how a source uses it, the line of tools/packages.txt.
PACKAGES = (
    ("Boost.Interprocess", "#include <boost/interprocess/", "build libboost-dev"),
    ("libibverbs", "#include <infiniband/verbs.h>", "build libibverbs-dev"),
    ("OpenBLAS", '::dlopen("libopenblas.so.0"', "test libopenblas0-pthread"),
    ("CLI11", "#include <CLI/", "build libcli11-dev"),
    ("spdlog", "#include <spdlog/", "build libspdlog-dev"),
)


def main():
    root = pathlib.Path(sys.argv[1])
    sources = [file for room in ROOMS for file in sorted((root / room).rglob("*")) if file.suffix in (".h", ".cpp")]
    lines = [line.strip() for file in sources for line in file.read_text().splitlines()]
    installed = (root / "tools/packages.txt").read_text().splitlines()
    missing = []
    for name, use, package in PACKAGES:
        if not any(use in line and not line.startswith("//") for line in lines):
            missing.append(f"{name}: no source of {', '.join(ROOMS)} has {use}…")
        if package not in installed:
            missing.append(f"{name}: tools/packages.txt has no line `{package}`")
    print("\n".join(missing) or "the rooms use all of their packages")
    sys.exit(1 if missing else 0)


main()
