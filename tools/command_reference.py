#!/usr/bin/env python3
"""Writes what `tsprun --help` says into docs/reference/commands.md.

Usage: command_reference.py [--check] TSPRUN PAGE

The page is written by hand, but for its blocks between `<!-- help: COMMAND -->` and `<!-- end of help -->`: those hold the command's
help text, its options as tables and its examples, and the global options where COMMAND is `tsprun`. Everything else stays as it is. A
command that has no block yet gets a section at the end of the page.

With --check nothing is written: it exits with 1, and says where, if the page differs from what the program says.
"""

import argparse
import difflib
import os
import pathlib
import re
import subprocess
import sys

BLOCK = re.compile(r"<!-- help: (\w+) -->\n.*?<!-- end of help -->", re.DOTALL)
# CLI11 begins descriptions in this column, or there on the next line after a longer name.
COLUMN = 30


def help_of(tsprun, command):
    """The lines of a command's help; `tsprun` stands for the program itself."""
    words = [tsprun] + ([] if command == "tsprun" else [command]) + ["--help"]
    # So wide that each description is one line.
    wide = os.environ | {"COLUMNS": "100000"}
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, env=wide).stdout.splitlines()


def entries(lines):
    """The (name, description) pairs of a section of options or subcommands."""
    found = []
    rest = iter(lines)
    for line in rest:
        name, description = line[:COLUMN].strip(), line[COLUMN:].strip()
        if len(line) > COLUMN and line[COLUMN - 1] != " " or not description:
            name, description = line.strip(), next(rest, "").strip()
        found.append((name, description))
    return found


def sections(lines):
    """The (heading, lines) pairs of a help text. Prose has no heading; neither has the first section: what the command does, its usage."""
    found = [("", [])]
    for line in lines:
        if re.fullmatch(r"[A-Z][^`.]*:", line) or line.startswith(("Examples:", "Global options")):
            found.append((line.rstrip(":"), []))
        elif line and not line.startswith(" ") and found[-1][0]:
            found.append(("", [line]))
        elif line:
            found[-1][1].append(line)
    return found


def cell(text):
    return text.replace("|", "\\|")


def option_row(name, description):
    """A row of a table of options: CLI11 writes `--name VALUE=default`, and other defaults stand in the description."""
    name = re.sub(r"\{\w+\}", "", name)
    name, _, value = name.partition(" ")
    value, required = value.removesuffix("REQUIRED").strip(), value.endswith("REQUIRED")
    value, _, default = value.partition("=")
    other = re.search(r"; default: ([^;]+)$", description)
    if other and not default:
        description, default = description[: other.start()], other.group(1)
    elif default:
        default = f"`{default}`"
    default = "required" if required else cell(default) or "–"
    option = f"`{cell(name)}{' ' + cell(value) if value else ''}`"
    return f"| {option} | {default} | {cell(description)} |"


def table(heading, rows):
    options = [option_row(name, text) for name, text in rows if name not in ("-h,--help", "--version")]
    if not options:
        return []
    return [f"| {heading} | default | meaning |", "|---|---|---|", *options, ""]


def capitalised(text):
    return text[:1].upper() + text[1:]


def block(tsprun, command):
    """What stands between a command's two marks."""
    text = []
    for heading, lines in sections(help_of(tsprun, command)):
        if heading == "Examples":
            text += ["```", *(line.strip() for line in lines), "```", ""]
        elif heading == "Subcommands":
            text += ["| command | what it does |", "|---|---|"]
            text += [f"| [`{name}`](#{name}) | {cell(description)} |" for name, description in entries(lines)] + [""]
        elif heading.startswith("Global options") and command != "tsprun":
            continue  # only their names, which the program's own help explains
        elif heading:
            name = {"Options": "option", "Positionals": "argument"}.get(heading, heading.partition(" (")[0].lower())
            text += table(name, entries(lines))
        elif lines and any(line.startswith("Usage: ") for line in lines):
            usage = next(line for line in lines if line.startswith("Usage: ")).removeprefix("Usage: ")
            text += [f"`{usage}`", "", f"{capitalised(lines[0])}.", ""] if command != "tsprun" else []
        elif lines and command != "tsprun":
            text += [*lines, ""]
    return "\n".join([f"<!-- help: {command} -->", *text[:-1], "<!-- end of help -->"])


def commands_of(tsprun):
    for heading, lines in sections(help_of(tsprun, "tsprun")):
        if heading == "Subcommands":
            return [name for name, _ in entries(lines)]
    raise SystemExit(f"{tsprun} --help lists no subcommands")


def current(tsprun, page):
    """The page as it should be."""
    names = commands_of(tsprun)
    present = BLOCK.findall(page)
    for gone in set(present) - set(names) - {"tsprun"}:
        raise SystemExit(f"there is no command {gone}: delete its section")
    for name in names:
        if name not in present:
            page = page.rstrip("\n") + f"\n\n## {name}\n\n<!-- help: {name} -->\n<!-- end of help -->\n"
    return BLOCK.sub(lambda match: block(tsprun, match.group(1)), page)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page isn't current")
    parser.add_argument("tsprun", metavar="TSPRUN", type=pathlib.Path)
    parser.add_argument("page", metavar="PAGE", type=pathlib.Path)
    options = parser.parse_args()
    there = options.page.read_text()
    wanted = current(str(options.tsprun.absolute()), there)
    if not options.check:
        options.page.write_text(wanted)
        return
    difference = list(difflib.unified_diff(there.splitlines(), wanted.splitlines(), str(options.page), "tsprun --help", lineterm=""))
    if difference:
        print("\n".join(difference))
        sys.exit(f"{options.page} isn't current: run {sys.argv[0]} {options.tsprun} {options.page}")


main()
