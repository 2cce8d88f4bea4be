#!/usr/bin/env python3
"""Attacks on tsprun's promises, each a small program: what must hold, and whether it does. Those that need no network of their own, no
thousand ranks and no core that the kernel has written are tests of tests/multiprocess.

  bench/attacks/run.py                        # all of them: several minutes; those with network namespaces need root
  bench/attacks/run.py --list                 # names and promises
  bench/attacks/run.py NAME… --verbose        # some, with the whole of what was seen

Exit code 1 if a promise is broken, 77 if nothing of what was asked for can be attacked on this machine. What can't be is named with
the reason, and isn't counted as kept.
"""
import argparse
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))

# pylint: disable=wrong-import-position,unused-import
import networks  # noqa: E402,F401
import processes  # noqa: E402,F401
from harness import ATTACKS, Bench, Broken, NotHere  # noqa: E402

NOTHING_HERE = 77  # ctest takes it for a skipped test


def make(attack, tsprun):
    """Makes one attack in a folder of its own: ('kept' | 'BROKEN' | 'not here', what was seen)."""
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        bench = Bench(tsprun, folder)
        try:
            attack.run(bench)
        except Broken as broken:
            return "BROKEN", str(broken)
        except NotHere as reason:
            return "not here", str(reason)
        finally:
            bench.end_all()
    return "kept", ""


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="attacks to make; all if none is given")
    parser.add_argument("--tsprun", default=str(root / "build/release/launcher/tsprun"), help="the program (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="print names and promises, and make none")
    parser.add_argument("--verbose", action="store_true", help="print all that was seen")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {attack.name for attack in ATTACKS}
    if unknown:
        parser.error(f"no attack is called {', '.join(sorted(unknown))}; --list names them")
    chosen = [attack for attack in ATTACKS if not arguments.names or attack.name in arguments.names]
    if arguments.list:
        for attack in chosen:
            print(f"{attack.name:40} {attack.promise}")
        return 0
    counts = {"kept": 0, "BROKEN": 0, "not here": 0}
    for attack in chosen:
        began = time.monotonic()
        result, seen = make(attack, arguments.tsprun)
        counts[result] += 1
        print(f"{result:9} {attack.name} ({time.monotonic() - began:.1f} s): {attack.promise}", flush=True)
        if seen:
            print(f"          {seen if arguments.verbose else seen[:1200]}", flush=True)
    print(f"{counts['kept']} kept, {counts['BROKEN']} broken, {counts['not here']} that can't be made here")
    if counts["BROKEN"]:
        return 1
    return 0 if counts["kept"] else NOTHING_HERE


if __name__ == "__main__":
    sys.exit(main())
