#!/usr/bin/env python3
"""Lists the sources that a change reaches: those that differ from a commit, and those that include, through whatever headers, one that
does.

Usage: affected.py COMMIT [FOLDER]. Prints paths of .cpp files below FOLDER (default: the repository), relative to it, one a line; "all" alone where
the rules of clang-tidy differ or git doesn't know the commit.
"""

import pathlib
import re
import subprocess
import sys

INCLUDE = re.compile(r'^\s*#\s*include "([^"]+)"', re.MULTILINE)
RULES = ".clang-tidy"


def changed_since(commit, root):
    """Paths that differ between the commit and the files as they are, also those that git doesn't track yet; None: no such commit."""
    git = ["git", "-C", str(root)]
    differing = subprocess.run([*git, "diff", "--name-only", commit, "--"], capture_output=True, text=True)
    if differing.returncode != 0:
        return None
    untracked = subprocess.run([*git, "ls-files", "--others", "--exclude-standard"], capture_output=True, text=True, check=True)
    return set(differing.stdout.split("\n") + untracked.stdout.split("\n")) - {""}


def sources_of(root):
    """The project's sources and headers, each with the files that it includes."""
    files = {str(path.relative_to(root)): path for suffix in ("*.cpp", "*.h", "*.h.in") for path in root.rglob(suffix)
             if path.relative_to(root).parts[0] not in ("build", ".git")}
    includes = {}
    for name, path in files.items():
        folder = pathlib.PurePosixPath(name).parent
        found = set()
        for included in INCLUDE.findall(path.read_text()):
            candidates = [included, f"include/{included}", str(folder / included), f"{included}.in"]
            candidates.append(str(pathlib.PurePosixPath(included).with_suffix(".h.in")))
            found |= {candidate for candidate in candidates if candidate in files}
        includes[name] = found
    for name in list(includes):  # public headers include each other by <>, which is rare enough to take all of them together
        if name.startswith("include/"):
            includes[name] |= {other for other in files if other.startswith("include/")}
    return includes


def reached(changed, includes):
    """All files that include a changed one, and the changed ones."""
    including = {}
    for name, included in includes.items():
        for other in included:
            including.setdefault(other, set()).add(name)
    found, new = set(), [name for name in changed if name in includes]
    while new:
        name = new.pop()
        if name not in found:
            found.add(name)
            new += including.get(name, ())
    return found


def main(commit, folder="."):
    root = pathlib.Path(folder).resolve()
    changed = changed_since(commit, root)
    if changed is None or RULES in changed:
        print("all")
        return
    for name in sorted(reached(changed, sources_of(root))):
        if name.endswith(".cpp"):
            print(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
