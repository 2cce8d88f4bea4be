#!/usr/bin/env python3
"""Checks that the product's own rooms use each of the packages on which tsprun stands, and that tools/packages.txt installs it for a build.

Usage: packages.py ROOT. Prints what is missing, and exits with 1 if anything is.
"""

import pathlib
import re
import sys

ROOMS = ("transport", "core", "layers", "launcher")
# Name, what an include of it begins with, Debian's package.
PACKAGES = (
    ("Boost.Interprocess", "boost/interprocess/", "libboost-dev"),
    ("libibverbs", "infiniband/verbs.h", "libibverbs-dev"),
    ("OpenBLAS", "cblas.h", "libopenblas-dev"),
    ("CLI11", "CLI/", "libcli11-dev"),
    ("spdlog", "spdlog/", "libspdlog-dev"),
)
INCLUDE = re.compile(r"^#include <([^>]+)>", re.MULTILINE)


def main():
    root = pathlib.Path(sys.argv[1])
    sources = [file for room in ROOMS for file in sorted((root / room).rglob("*")) if file.suffix in (".h", ".cpp")]
    included = {header for file in sources for header in INCLUDE.findall(file.read_text())}
    installed = set(re.findall(r"^build (\S+)$", (root / "tools/packages.txt").read_text(), re.MULTILINE))
    missing = []
    for name, header, package in PACKAGES:
        if not any(each.startswith(header) for each in included):
            missing.append(f"{name}: no source of {', '.join(ROOMS)} includes <{header}…>")
        if package not in installed:
            missing.append(f"{name}: tools/packages.txt doesn't install {package} for `build`")
    print("\n".join(missing) or "the rooms use all of their packages")
    sys.exit(1 if missing else 0)


main()
