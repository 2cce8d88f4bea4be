#!/usr/bin/env python3
"""Checks the packages of this build: what is in the Debian one, its man page and completions, that pkg-config's flags link a program, and
that the tarball's program brings its libraries.

Usage: check.py BUILD SOURCE CXX. BUILD: a build folder in which tsprun is built. Prints what is wrong, and exits with 1 if anything is; with
77, the code of a skipped test, where a program that makes packages is missing.

They are CPack's of BUILD, unpacked into a folder of BUILD. Nothing is compiled but one small program.
"""

import gzip
import pathlib
import re
import shutil
import subprocess
import sys

PROGRAM = """
#include <tsprun/tsprun.h>
#include <span>
int main() {
  tsprun::Context context = tsprun::Context::from_environment();
  float sum = 1;
  context.world().all_reduce(std::span(&sum, 1), tsprun::Reduction::sum);
  return sum == 1 ? 0 : 1;
}
"""
# What programs, people and shells look for, as globs below /usr.
PARTS = ["bin/tsprun", "include/tsprun/tsprun.h", "lib/**/libtsprun_core.a", "lib/**/libtsprun_transport.a", "lib/**/cmake/tsprun/tsprunConfig.cmake",
         "lib/**/pkgconfig/tsprun.pc", "share/man/man1/tsprun.1.gz", "share/bash-completion/completions/tsprun",
         "share/zsh/vendor-completions/_tsprun", "share/doc/tsprun/copyright", "share/doc/tsprun/changelog.gz", "share/doc/tsprun/README.md",
         "share/doc/tsprun/docs/tutorial.md", "share/doc/tsprun/examples/all_reduce/CMakeLists.txt", "share/tsprun/machines/h100.json"]
# A user's shell offers this for what is typed; the last word is being completed.
COMPLETED = [
    ("tsprun tr", {"train"}),
    ("tsprun -n 4 ben", {"bench"}),
    ("tsprun --layout train --rec", set()),  # "train" is the value of --layout, and no other command was typed
    ("tsprun train --rec", {"--recompute"}),
    ("tsprun train --recompute ", {"none", "selective", "full"}),
    ("tsprun train --recompute = se", {"selective"}),  # as bash splits --recompute=se
    ("tsprun --inter verbs train --intra s", {"shm"}),
    ("tsprun train --batch ", set()),
    ("tsprun bench --rec", set()),
]


def output(*words, **keywords):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **keywords)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def complaints(*words, **keywords):
    """What a checking program says, whatever its exit code."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **keywords)
    text = done.stderr.strip()
    return [f"{words[0]}: {text or f'exit code {done.returncode}'}"] if text or done.returncode else []


def packed(build, work, generator, pattern, *options):
    """Makes a package in the folder `work`, and returns its path."""
    output("cpack", "--config", build / "CPackConfig.cmake", "-G", generator, "-B", work, *options, cwd=build)
    shutil.rmtree(work / "_CPack_Packages")
    [package] = work.glob(pattern)
    return package


def unpacked_deb(build, work):
    """Makes the Debian package and unpacks it. Returns the folder of its /usr, and the package's own fields."""
    package = packed(build, work, "DEB", "tsprun_*.deb", "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=none")
    output("dpkg-deb", "--extract", package, work / "root")
    fields = dict(re.findall(r"^([\w-]+): (.*)$", output("dpkg-deb", "--field", package), re.MULTILINE))
    return work / "root" / "usr", fields


def wrong_tarball(build, work):
    """Of the system's libraries the tarball's program takes the C library's alone, and licences lie beside the others."""
    package, unpacked = packed(build, work, "TGZ", "tsprun-*.tar.gz"), work / "unpacked"
    unpacked.mkdir()
    output("tar", "--extract", "--file", package, "--directory", unpacked, "--strip-components", 1)
    for name, path in re.findall(r"^\s*(\S+) => (.*?)(?: \(0x\w+\))?$", output("ldd", unpacked / "bin" / "tsprun"), re.MULTILINE):
        if name not in ("libc.so.6", "libm.so.6") and not path.startswith(f"{unpacked}/"):
            yield f"the tarball's program takes {name} from the system: {path}"
    for licence in ("libhwloc15", "libssl3", "libstdc++6", "GPL-3", "LGPL-2.1", "nlohmann-json3-dev"):
        if not (unpacked / "lib/tsprun/licences" / licence).is_file():
            yield f"the tarball has no lib/tsprun/licences/{licence}"


def wrong_contents(usr, fields, source):
    for part in PARTS:
        if not any(path.is_file() for path in usr.glob(part)):
            yield f"there is no /usr/{part}"
    if sorted(path.name for path in usr.parent.iterdir()) != ["usr"]:
        yield f"there is more than /usr: {sorted(usr.parent.iterdir())}"
    for path in usr.rglob("*"):
        if path.is_file() and str(source).encode() in path.read_bytes():
            yield f"{path.relative_to(usr)} names the folder in which it was built"
    for library in ("libc6", "libfmt9", "libssl3", "libhwloc15"):
        if not re.search(rf"\b{library}\b", fields.get("Depends", "")):
            yield f"it doesn't depend on {library}: {fields.get('Depends')}"
    if "libibverbs1" not in fields.get("Recommends", "") or "libibverbs1" in fields["Depends"]:
        yield f"libibverbs1, which is loaded where there is RDMA, is to be recommended, and no more: {fields}"
    said = output(usr / "bin" / "tsprun", "--version").split()
    if said != ["tsprun", fields["Version"]]:
        yield f"the program says {said}, the package {fields['Version']}"


def options_in_help(tsprun, command):
    """The names that begin the lines of --help, and of its last paragraph, the global options."""
    text = output(tsprun, *command, "--help")
    own = re.findall(r"^  (-[^ {]*)", text.partition("\nGlobal options, before or after")[0], re.MULTILINE)
    return {name for names in own for name in names.split(",")} - {"-h"}


def wrong_manual(usr):
    tsprun, page = usr / "bin" / "tsprun", usr / "share/man/man1/tsprun.1.gz"
    yield from complaints("man", "--warnings", "--encoding=UTF-8", "--local-file", "-Tutf8", "-Z", page, env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"})
    source = gzip.decompress(page.read_bytes()).decode().replace("\\-", "-")
    sections = dict(re.findall(r"^\.S[SH] ([^\n]*)\n(.*?)(?=^\.S[SH] |\Z)", source, re.MULTILINE | re.DOTALL))
    for command in ["GLOBAL OPTIONS", *commands_of(tsprun)]:
        shown = set(re.findall(r"\\fB(-[^\\]*)\\fR", sections.get(command, "")))
        wanted = options_in_help(tsprun, [] if command == "GLOBAL OPTIONS" else [command]) - {"--help", "--version"}
        if shown != wanted:
            yield f"man page, {command}: has {sorted(shown - wanted)}, lacks {sorted(wanted - shown)}"


def commands_of(tsprun):
    return re.findall(r"^  (\w+) {2,}", output(tsprun, "--help").partition("Subcommands:\n")[2], re.MULTILINE)


def completed(script, typed):
    words = typed.split(" ")
    lines = [f'. "{script}"', f"COMP_WORDS=({' '.join(words)} {repr(words[-1]) if not words[-1] else ''})", f"COMP_CWORD={len(words) - 1}", "_tsprun",
             'printf "%s\\n" "${COMPREPLY[@]}"']
    return set(output("bash", "-c", "\n".join(lines)).split())


def wrong_completions(usr):
    tsprun, script = usr / "bin" / "tsprun", usr / "share/bash-completion/completions/tsprun"
    yield from complaints("bash", "-n", script)
    for typed, wanted in COMPLETED:
        if (found := completed(script, typed)) != wanted:
            yield f"bash completes '{typed}' by {sorted(found)}, and should by {sorted(wanted)}"
    zsh = usr / "share/zsh/vendor-completions/_tsprun"
    if shutil.which("zsh"):
        yield from complaints("zsh", "-n", zsh)
    lists = re.findall(r"^ *(?:(\w+)\) )?(?:shared|own)=\(\n(.*?)^ *\)", zsh.read_text(), re.MULTILINE | re.DOTALL)
    in_zsh = {command: set(re.findall(r"^ *'(?:\*|\([^)]*\))(-[\w-]+)", text, re.MULTILINE)) for command, text in lists}
    shared = options_in_help(tsprun, [])
    for command in commands_of(tsprun):
        wanted = options_in_help(tsprun, [command]) | shared
        found = completed(script, f"tsprun {command} -")
        if found != wanted - {"--version"}:
            yield f"bash completes 'tsprun {command} -': too many {sorted(found - wanted)}, too few {sorted(wanted - {'--version'} - found)}"
        if (found := in_zsh[command] | in_zsh[""]) != wanted - {"--version"}:
            yield f"zsh completes 'tsprun {command} -': too many {sorted(found - wanted)}, too few {sorted(wanted - {'--version'} - found)}"


def wrong_link(usr, work, compiler):
    (work / "program.cpp").write_text(PROGRAM)
    [folder] = {path.parent for path in usr.glob("lib/**/pkgconfig/tsprun.pc")}
    # Where Debian's own are, which it requires, pkg-config looks by itself.
    flags = output("pkg-config", "--cflags", "--libs", "tsprun", env={"PKG_CONFIG_PATH": str(folder), "PATH": "/usr/bin:/bin"}).split()
    yield from complaints(compiler, "-std=c++20", work / "program.cpp", "-o", work / "program", *flags)
    yield from complaints(work / "program")


def main():
    build, source, compiler = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), sys.argv[3]
    for needed in ("cpack", "dpkg-shlibdeps", "man", "pkg-config"):
        if not shutil.which(needed):
            print(f"{needed} isn't installed: tools/packages.txt names what the tests need")
            sys.exit(77)
    work = build / "package_test"
    shutil.rmtree(work, ignore_errors=True)
    usr, fields = unpacked_deb(build, work)
    wrong = [*wrong_contents(usr, fields, source), *wrong_manual(usr), *wrong_completions(usr), *wrong_link(usr, work, compiler),
             *wrong_tarball(build, work)]
    if wrong:
        sys.exit("\n".join(wrong))
    shutil.rmtree(work)


main()
