#!/usr/bin/env python3
"""Writes tsprun's man page and its completions for bash and zsh, from what `tsprun --list-commands` says: the table of options of --help.

Usage: manual.py TSPRUN FOLDER

Into FOLDER go tsprun.1.gz (groff's man macros, UTF-8), tsprun.bash and _tsprun. `cmake --install` calls this (cmake/package/package.cmake).
"""

import argparse
import gzip
import json
import os
import pathlib
import re
import subprocess
import tempfile

DOCUMENTS = "/usr/share/doc/tsprun"


def run(tsprun, option):
    return subprocess.run([tsprun, option], capture_output=True, text=True, check=True, timeout=60).stdout


def names_of(option):
    """"-n,--ranks" as a list; a flag's "--check,!--no-check" without the mark of a name that denies."""
    return [name.lstrip("!") for name in option["names"].split(",")]


def is_named(option):
    return option["names"].startswith("-")


# The man page.


def roff(text):
    """Text as groff takes it: nothing in it is a request or an escape, and hyphens can be copied and searched for."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def bold(text):
    return f"\\fB{roff(text)}\\fR"


def italic(text):
    return f"\\fI{roff(text)}\\fR"


def roff_option(option):
    heading = ", ".join(map(bold, names_of(option))) if is_named(option) else ""
    value = italic(option["value"]) + (" ..." if option["repeats"] else "") if option["value"] else ""
    facts = [option["help"]]
    if option["required"]:
        facts.append("required")
    elif option["default"]:
        facts.append(f"default: {option['default']}")
    return [".TP", " ".join(filter(None, [heading, value])), roff("; ".join(facts))]


def roff_options(options):
    """The options under their headings, where there is more than one heading."""
    lines = []
    for group in dict.fromkeys(option["group"] for option in options):
        lines += [".PP", roff(f"{group}:")]
        for option in options:
            if option["group"] == group:
                lines += roff_option(option)
    return lines


def roff_examples(lines):
    return [".PP", ".nf", ".RS", *map(roff, lines), ".RE", ".fi"]


def man_page(listed, version):
    what = listed["help"].removeprefix("tsprun: ")
    lines = [
        "'\\\" -*- coding: UTF-8 -*-",
        f'.TH TSPRUN 1 "" "{version}" "User Commands"',
        ".nh",
        ".ad l",
        ".SH NAME",
        f"tsprun \\- {roff(what)}",
        ".SH SYNOPSIS",
        f"{bold('tsprun')} [{italic('GLOBAL OPTIONS')}] {italic('COMMAND')} [{italic('OPTIONS')}]",
        ".br",
        f"{bold('tsprun')} [{italic('COMMAND')}] {bold('--help')}",
        ".br",
        f"{bold('tsprun')} {bold('--version')}",
        ".SH DESCRIPTION",
        "A rank is a process that stands for one GPU. Ranks talk by collectives over shared memory, TCP or RDMA, and run transformers",
        "whose weights and sequence are shared among them.",
        ".SH COMMANDS",
    ]
    for command in listed["commands"]:
        lines += [f".SS {roff(command['name'])}", roff(command["help"]), ".PP", italic(command["usage"])]
        lines += [".PP", roff(command["prose"])] if command["prose"] else []
        lines += roff_options(command["options"]) + roff_examples(command["examples"])
    lines += [".SH GLOBAL OPTIONS", "They stand before or after the command."]
    for option in listed["options"]:
        lines += roff_option(option)
    lines += [
        ".SH SEE ALSO",
        f"The documentation is in {roff(DOCUMENTS)} where Debian's package is installed: docs/tutorial.md,",
        "docs/reference/exit\\-codes.md, docs/reference/environment.md and others, and examples.",
    ]
    return "\n".join(lines) + "\n"


# The shells' completions.


def kind_of(option):
    """How a value is completed: words between blanks, "file", "folder", or None: it isn't."""
    if option["words"]:
        return " ".join(option["words"])
    if option["value"] == "DIR":
        return "folder"
    return "file" if option["file"] else None


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def names_in(options):
    return [name for option in options if is_named(option) for name in names_of(option)]


def bash_pattern(command, option):
    """What a case matches against "COMMAND WORD". `command`: "*" for options of all commands."""
    return "|".join(("*" if command == "*" else "") + quoted(f"{command.strip('*')} {name}") for name in names_of(option))


def bash_value(command, option):
    """The branch of a case that completes an option's value."""
    kind = kind_of(option)
    action = {"file": "_tsprun_paths -f", "folder": "_tsprun_paths -d"}.get(kind) or f"_tsprun_words {quoted(kind)}"
    return f"{bash_pattern(command, option)}) {action} ;;"


BASH = """\
# Completion of tsprun's command line for bash. Made by tools/manual.py from tsprun's table of options.

_tsprun_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$current"); }

_tsprun_paths() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen "$1" -- "$current")
}

_tsprun() {
  local current=${COMP_WORDS[COMP_CWORD]} command= option= word i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    # bash takes --option=value for three words.
    [[ $word == = ]] && continue
    if [[ $option ]]; then
      option=
      continue
    fi
    case "$command $word" in
      *' --')
        compopt -o default 2>/dev/null
        [[ $i -lt $((COMP_CWORD - 1)) ]] || mapfile -t COMPREPLY < <(compgen -c -- "$current")
        return
        ;;
      @COMMANDS@) command=$word ;;
      @VALUED@) option=$word ;;
    esac
  done
  [[ $current == = ]] && current=
  if [[ $option ]]; then
    case "$command $option" in
      @VALUES@
    esac
  elif [[ $current == -* ]]; then
    case $command in
      @OPTIONS@
    esac
  elif [[ $command ]]; then
    _tsprun_paths -f
  else
    _tsprun_words '@NAMES@'
  fi
}

complete -F _tsprun tsprun
"""


def bash(listed):
    names = [command["name"] for command in listed["commands"]]
    shared = names_in(listed["options"]) + ["--help"]
    options = [f"'') _tsprun_words {quoted(' '.join(shared + ['--version']))} ;;"]
    valued = []
    for command in listed["commands"]:
        options.append(f"{command['name']}) _tsprun_words {quoted(' '.join(names_in(command['options']) + shared))} ;;")
        valued += [(command["name"], option) for option in command["options"] if is_named(option) and option["value"]]
    valued += [("*", option) for option in listed["options"] if option["value"]]
    filled = {
        "COMMANDS": "|".join(quoted(" " + name) for name in names),
        "VALUED": "|".join(bash_pattern(*each) for each in valued),
        "VALUES": "\n      ".join(bash_value(*each) for each in valued if kind_of(each[1])),
        "OPTIONS": "\n      ".join(options),
        "NAMES": " ".join(names),
    }
    return re.sub(r"@([A-Z]+)@", lambda mark: filled[mark.group(1)], BASH)


def zsh_option(option):
    """The descriptions of an option's names as zsh's _arguments takes them, quoted."""
    names = names_of(option)
    help_text = re.sub(r"([\[\]:\\])", r"\\\1", option["help"].partition("; ")[0])
    value = ""
    if option["value"]:
        kind = kind_of(option)
        action = {"file": "_files", "folder": "_files -/", None: ""}
        metavar = re.sub(r"([:\\])", r"\\\1", option["value"])
        value = f":{metavar}:{action[kind] if kind in action else f'({kind})'}"
    once = "*" if option["repeats"] else f"({' '.join(names)})"
    for name in names:
        ends = "" if not value else "=" if name.startswith("--") else "+"
        yield quoted(f"{once}{name}{ends}[{help_text}]{value}")


def zsh_options(options):
    return [text for option in options if is_named(option) for text in zsh_option(option)]


ZSH = """\
#compdef tsprun
# Completion of tsprun's command line for zsh. Made by tools/manual.py from tsprun's table of options.

_tsprun() {
  local curcontext=$curcontext state line
  typeset -A opt_args
  local -a shared names own
  shared=(
    '(- *)--help[print a help message and exit]'
@SHARED@
  )
  names=(
@COMMANDS@
  )
  _arguments -C $shared '(- *)--version[print the version and exit]' '1: :->command' '*:: :->words' && return
  case $state in
    command) _describe -t commands command names ;;
    words)
      local -i dashes=$words[(i)--]
      if (( dashes < CURRENT )); then  # a program of one's own follows
        shift dashes words
        (( CURRENT -= dashes ))
        _normal
        return
      fi
      case $words[1] in
@OWN@
      esac
      _arguments $shared $own '*:file:_files'
      ;;
  esac
}

_tsprun "$@"
"""


def zsh(listed):
    shared = zsh_options(listed["options"])
    commands = [quoted(f"{command['name']}:{command['help'].replace(':', chr(92) + ':')}") for command in listed["commands"]]
    own = []
    for command in listed["commands"]:
        own += [f"        {command['name']}) own=("]
        own += [f"          {text}" for text in zsh_options(command["options"])]
        own += ["        ) ;;"]
    text = ZSH
    for mark, lines in (("SHARED", shared), ("COMMANDS", commands)):
        text = text.replace(f"@{mark}@", "\n".join("    " + line for line in lines))
    return text.replace("@OWN@", "\n".join(own))


def write(path, content):
    """Writes a file at once, because others may be installing it."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tsprun", metavar="TSPRUN", type=pathlib.Path)
    parser.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
    options = parser.parse_args()
    tsprun = str(options.tsprun.absolute())
    listed = json.loads(run(tsprun, "--list-commands"))
    options.folder.mkdir(parents=True, exist_ok=True)
    # Without a time, so that the same program gives the same file.
    write(options.folder / "tsprun.1.gz", gzip.compress(man_page(listed, run(tsprun, "--version").strip()).encode(), mtime=0))
    write(options.folder / "tsprun.bash", bash(listed).encode())
    write(options.folder / "_tsprun", zsh(listed).encode())


main()
