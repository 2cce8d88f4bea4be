#!/usr/bin/env python3
"""Checks the documents: every relative link leads somewhere, and every tsprun command shown is one that tsprun understands.

Usage: documents.py ROOT TSPRUN. Prints what is wrong, and exits with 1 if anything is.

A command is tried with an impossible value of --log-level behind it: tsprun reads the whole command line first and then refuses that value,
so nothing runs, and any other refusal means that the command line itself isn't understood.
"""

import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROBE = "documents-test"


def documents(root):
    return sorted(page for page in root.rglob("*.md") if "build" not in page.relative_to(root).parts)


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        found.add(words.replace(" ", "-"))
    return found


def broken_links(page):
    text = page.read_text()
    for match in LINK.finditer(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        target = match.group(1) or match.group(2)
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path) if path else page
        if not there.exists():
            yield f"link to {target}: there is no such file"
        elif anchor and there.suffix == ".md" and anchor not in anchors(there.read_text()):
            yield f"link to {target}: that page has no such heading"


def commands(page):
    """The lines of code blocks that start tsprun, with continued lines joined, $(…) filled in, and comments, redirections and pipes cut off."""
    for language, block in FENCE.findall(page.read_text()):
        if language not in ("", "sh", "bash", "console"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"\s#.*$", "", line.removeprefix("$ ").strip())
            line = re.sub(r"\$\([^)]*\)", "4711", line)
            line = re.split(r"\s(?:[0-9]?>|\||&&|&$|;)", line)[0]
            start = re.match(r"^(?:[A-Z_]+=\S+ )*(?:srun (?:-\S+ )*)?(?:\S*/)?tsprun (.*)$", line)
            if start:
                yield start.group(1)


def not_understood(tsprun, command, folder):
    """Why tsprun doesn't understand a command; None if it does. In `folder`, for it writes the report of a refusal where --json says."""
    words = [word for word in shlex.split(command) if word != "…"]
    if "--version" in words or "--help" in words or "-h" in words or "COMMAND" in words:
        return None
    at = words.index("--") if "--" in words else len(words)
    words[at:at] = ["--log-level", PROBE]
    answer = subprocess.run([tsprun] + words, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, cwd=folder)
    if answer.returncode == 2 and PROBE in answer.stderr:
        return None
    return f"`tsprun {command}` isn't understood: {answer.stderr.strip() or answer.returncode}"


def main():
    root, tsprun = pathlib.Path(sys.argv[1]), str(pathlib.Path(sys.argv[2]).absolute())
    wrong, tried = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for page in documents(root):
            name = page.relative_to(root)
            wrong += [f"{name}: {text}" for text in broken_links(page)]
            for command in commands(page):
                tried += 1
                complaint = not_understood(tsprun, command, folder)
                if complaint:
                    wrong.append(f"{name}: {complaint}")
    print("\n".join(wrong) or f"{tried} commands are understood, and all links lead somewhere")
    sys.exit(1 if wrong or tried == 0 else 0)


main()
