#!/usr/bin/env python3
"""Checks that no source of the rooms names a family of models (model_type) but the family's own file in layers/io/families/, and that
docs/how-to/use-your-model.md has a row for each family.

Usage: families.py ROOT. Prints what is wrong, and exits with 1 if anything is.
"""

import pathlib
import re
import sys

ROOMS = ("transport", "core", "layers", "launcher")
FAMILIES = "layers/io/families"
NAME = re.compile(r'(?:\.|type\.)name = "([^"]+)"')


def main():
    root = pathlib.Path(sys.argv[1])
    names = {name: file for file in sorted((root / FAMILIES).glob("*.cpp")) for name in NAME.findall(file.read_text())}
    wrong = [] if len(names) > 1 else [f"{FAMILIES}: found the families {sorted(names)} alone"]
    table = (root / "docs/how-to/use-your-model.md").read_text()
    wrong += [f"docs/how-to/use-your-model.md has no row for {name}" for name in names if f"\n| `{name}` |" not in table]
    for file in (file for room in ROOMS for file in sorted((root / room).rglob("*")) if file.suffix in (".h", ".cpp")):
        text = file.read_text()
        wrong += [f"{file.relative_to(root)} names the family {name}: {own.relative_to(root)} alone may"
                  for name, own in names.items() if f'"{name}"' in text.replace('\\"', '"') and file != own]
    print("\n".join(wrong) or "families are named in their own files alone, and each has a row in the documents")
    sys.exit(1 if wrong else 0)


main()
