#!/usr/bin/env python3
"""Checks the documents: relative links lead somewhere, commands are understood, and versions agree.

Usage: documents.py ROOT TSPRUN. Prints what is wrong, and exits with 1 if anything is.

Commands stand in code blocks, also behind `;`, `&&` and `|`, and in code spans of the text. One of tsprun is tried with an impossible
value of --log-level behind it: tsprun reads the whole command line first and then refuses that value, so nothing runs, and any other
refusal means that the command line itself isn't understood. A code span may leave out what a command requires, and has capitals
where a value belongs (`-n N`). A program of bench/ or tools/ must be there, and know the options that are shown.

A code span that begins with an option (`--steps K`) must name one that tsprun or a program named on the same page knows.
"""

import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PROBE = "documents-test"
# Values in place of the capitals that code spans have.
VALUES = {"N": "2", "K": "2", "OP": "all_reduce", "S": "1K", "PID": "4711", "FILE": "file", "DIR": "folder"}
# Options of other programs, which pages name.
OTHERS = {"--allow-run-as-root", "--cpus-per-task"}


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


def simple_commands(line):
    """The words of each command of a shell line, with $(…) filled in, and comments and redirections cut off."""
    line = re.sub(r"\s#.*$", "", line.strip().removeprefix("$ "))
    line = re.sub(r"\$\([^)]*\)", "4711", line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    found, redirected = [[]], False
    for word in lexer:
        if redirected:
            redirected = False
        elif re.fullmatch(r"[<>&|;]*[<>][<>&]*", word):
            redirected = True
            if found[-1] and found[-1][-1] in "012":
                found[-1].pop()
        elif re.fullmatch(r"[;&|]+", word):
            found.append([])
        else:
            found[-1].append(word)
    return found


def program_and_words(words):
    """(program, its words) of a command of tsprun, bench/, tools/ or build/; None if it is of something else."""
    words = list(words)
    while words and (re.match(r"[A-Z_]+=", words[0]) or words[0] in ("exec", "sudo", "time", "python3")):
        words.pop(0)
    if words and words[0] == "srun":
        words.pop(0)
        while words and words[0].startswith("-"):
            words.pop(0)
    if words and pathlib.PurePath(words[0]).name == "tsprun":
        return "tsprun", words[1:]
    if words and re.match(r"(\./)?(bench/.*\.py|tools/.*\.(sh|py)|build/release/bench/)", words[0]):
        return words[0].removeprefix("./"), words[1:]
    return None


def commands(page):
    """(program, words, whether it stands in the text) of every command that a page shows."""
    text = page.read_text()
    for language, block in FENCE.findall(text):
        if language not in ("", "sh", "bash", "console"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            try:
                simple = simple_commands(line)
            except ValueError:  # output that isn't shell
                continue
            for words in simple:
                found = program_and_words(words)
                if found:
                    yield *found, False
    for span in SPAN.findall(FENCE.sub("", text)):
        if not re.match(r"(\S*/)?tsprun |(bench|tools|build)/", span):
            continue
        for words in simple_commands(span):
            found = program_and_words(words)
            if found and not any("OPTIONS]" in word for word in found[1]):  # a usage line
                yield *found, True


def options_of(root, program):
    """The text in which a program's options stand: its help, or its source where Python lacks a module or it isn't Python."""
    source = root / program
    if program.startswith("build/release/bench/"):
        source = root / "bench" / (source.name + ".cpp")
        names = (source, source.with_name("arguments.h"), source.with_name("team.h"))
        return "".join(name.read_text() for name in names if name.exists()) if source.exists() else None
    if not source.exists():
        return None
    if source.suffix == ".py" and re.search("argparse|import harness|from harness", source.read_text()):
        answer = subprocess.run([sys.executable, "-B", str(source), "--help"], capture_output=True, text=True, timeout=60,
                                stdin=subprocess.DEVNULL)
        if answer.returncode == 0:
            return answer.stdout
    return source.read_text()


def knows(text, option):
    return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text) is not None


def not_understood(tsprun, words, in_text, folder):
    """Why tsprun doesn't understand a command; None if it does. In `folder`, for it writes the report of a refusal where --json says."""
    shown = " ".join(["tsprun", *words])
    words = [word for word in words if word not in ("…", "...")]
    if "--version" in words or "--help" in words or "-h" in words or "COMMAND" in words or not words:
        return None
    if in_text:
        words = [VALUES.get(word, word) for word in words]
    at = words.index("--") if "--" in words else len(words)
    words[at:at] = ["--log-level", PROBE]
    answer = subprocess.run([tsprun] + words, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, cwd=folder)
    if answer.returncode == 2 and (PROBE in answer.stderr or in_text and " is missing" in answer.stderr):
        return None
    return f"`{shown}` isn't understood: {answer.stderr.strip() or answer.returncode}"


class Programs:
    """The programs of bench/ and tools/, and tsprun, with the texts in which their options stand."""

    def __init__(self, root, tsprun):
        self.root = root
        self.texts = {"tsprun": all_help(tsprun)}

    def text(self, program):
        if program not in self.texts:
            self.texts[program] = options_of(self.root, program)
        return self.texts[program]

    def complaints(self, program, words):
        """What is wrong with a command of bench/ or tools/."""
        text = self.text(program)
        if text is None:
            yield f"`{program}`: there is no such program"
            return
        for word in words[: words.index("--")] if "--" in words else words:
            option = word.partition("=")[0]
            if re.match(r"--?[a-z]", option) and not knows(text, option):
                yield f"`{program} {' '.join(words)}`: it has no option {option}"


def all_help(tsprun):
    def help_of(*words):
        return subprocess.run([tsprun, *words, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout

    names = re.findall(r"^  ([a-z]+) {2,}\S", help_of().partition("Subcommands:")[2], re.MULTILINE)
    return help_of() + "".join(help_of(name) for name in names)


def unknown_options(page, programs):
    """Options in code spans that neither tsprun nor a program named on the page knows."""
    text = FENCE.sub("", page.read_text())
    named = {match for match in re.findall(r"(?:bench|tools)/[\w/]+\.(?:py|sh)", text)}
    for script in [*(programs.root / "bench").glob("*.py"), *(programs.root / "tools").glob("*.sh")]:
        if script.name in text:
            named.add(str(script.relative_to(programs.root)))
    named |= {f"build/release/bench/{source.stem}" for source in (programs.root / "bench").glob("*_bench.cpp") if source.stem in text}
    known = "\n".join(filter(None, (programs.text(name) for name in ["tsprun", *sorted(named)])))
    for span in SPAN.findall(text):
        if not span.startswith("--"):
            continue
        for option in re.findall(r"(?<!\S)--[a-z][\w-]*", span):
            if not knows(known, option) and option not in OTHERS:
                yield f"`{span}`: neither tsprun nor a program named on the page has an option {option}"


def versions_that_differ(root, tsprun):
    """Places whose version isn't that of the program."""
    answer = subprocess.run([tsprun, "--version"], capture_output=True, text=True, check=True, timeout=60)
    version = answer.stdout.split()[-1]
    newest = re.search(r"^## (\d+\.\d+\.\d+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if not newest or newest.group(1) != version:
        yield f"CHANGELOG.md: its newest version is {newest.group(1) if newest else 'none'}; tsprun says {version}"
    for page in [root / "README.md", *sorted((root / "examples").rglob("*")), *sorted((root / "docs" / "how-to").glob("*.md"))]:
        if not page.is_file():
            continue
        for name, shown in re.findall(r"(tsprun)(?:[ :@]|[ -]version |.{0,40}\bVERSION )v?(\d+\.\d+\.\d+)", page.read_text()):
            if shown != version:
                yield f"{page.relative_to(root)}: {name} {shown}; tsprun says {version}"


def main():
    root, tsprun = pathlib.Path(sys.argv[1]).absolute(), str(pathlib.Path(sys.argv[2]).absolute())
    wrong, tried = [], {}
    programs = Programs(root, tsprun)
    with tempfile.TemporaryDirectory() as folder:
        for page in documents(root):
            name = page.relative_to(root)
            wrong += [f"{name}: {text}" for text in broken_links(page)]
            if name.name != "CHANGELOG.md":  # it names options that are gone
                wrong += [f"{name}: {text}" for text in unknown_options(page, programs)]
            for program, words, in_text in commands(page):
                tried[name] = tried.get(name, 0) + 1
                if program != "tsprun":
                    wrong += [f"{name}: {text}" for text in programs.complaints(program, words)]
                elif complaint := not_understood(tsprun, words, in_text, folder):
                    wrong.append(f"{name}: {complaint}")
    wrong += versions_that_differ(root, tsprun)
    for name in ("README.md", "docs/tutorial.md", "docs/measurements.md"):
        if pathlib.Path(name) not in tried:
            wrong.append(f"{name}: no command was found on it")
    print("\n".join(wrong) or f"{sum(tried.values())} commands are understood, all links lead somewhere, and versions agree")
    sys.exit(1 if wrong else 0)


main()
