"""What the scripts share: options, launches, processes, medians, verdicts, and the file of figures."""

import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20


def log(text):
    print(text, file=sys.stderr, flush=True)


def options(description):
    """A parser with the options that all scripts have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release", help="CMake's build folder")
    parser.add_argument("--json", type=pathlib.Path, help="write all figures to this file")
    return parser


def run(command, limit_s=60):
    """The command's output, or None if it failed or took longer. What hangs is ended with all that it started."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
    try:
        output, errors = process.communicate(timeout=limit_s)
    except BaseException as stop:
        os.killpg(process.pid, signal.SIGKILL)
        if not isinstance(stop, subprocess.TimeoutExpired):
            raise
        output, errors = process.communicate()
        errors += f"it took more than {limit_s} s\n"
    if process.returncode != 0:
        log(f"  failed ({process.returncode}): {' '.join(map(str, command))}\n{output}{errors}")
        return None
    return output


def children(pid):
    """The processes that `pid` started."""
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def pss(pid):
    """Proportional set size of a process in bytes; 0 once it is gone."""
    try:
        match = re.search(r"^Pss:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match.group(1)) * 1024 if match else 0


def median(values):
    """The median of those that aren't None; None if there are none."""
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def print_bars(bars):
    """Prints rows {bar, reached, measured}; `reached` is None where there is nothing to reach."""
    for row in bars:
        word = {True: "reached", False: "MISSED", None: ""}[row["reached"]]
        print(f"{word:<8} {row['bar']}: {row['measured']}")


def write_figures(path, figures):
    """Writes them as JSON, if a file was asked for."""
    if path:
        path.write_text(json.dumps(figures, indent=1) + "\n")
