#!/usr/bin/python3
"""Pictures from tsprun's reports, as PNG and SVG.

    tsprun train … --json train.json
    tools/plot/plot.py --out pictures train.json bench.json simulate.json search.json …

    tsprun plan --paper --json paper.json
    tsprun plan --config small -n 8 --seq 1024 --json plan.json
    tools/plot/plot.py --out pictures paper.json plan.json …

From `train`: loss and tokens/s over steps, a line for each report. From `bench`: bus bandwidth and time over the size. From `simulate` and
`plan --search`: where the time of a step goes, for each layout (of a search those that it puts first). From played.json, which played.py
writes: from how many tokens on TSP is as fast as TP, over FLOPs a byte; and what four GPUs do in TSP's MLP (as Fig. 4).
In the manner of the paper's figures 1, 5, 6, 7 and 9 to 12:

From `plan --paper`: figures 1, 5, 6, 7 and 9 by the printed formulas and as counted. From the arrays `plan` and `compare` of any
number of reports: memory by category (as Fig. 1), memory and received bytes over sequence lengths and over parameters (5, 6, 9), the
ratio of TSP to TP over batch and sequence (7), tokens/s over sequence lengths and batches (10 to 12). Planned points are dashed,
measured ones solid. A picture whose data isn't there is left out, and said so.

Needs Debian's python3-matplotlib (tools/packages.txt, label plot). Exit code 0, or 2 with a line that says what is wrong; with --check
1 if a picture isn't as looks.py wants pictures, and lines that say how.
"""

import argparse
import json
import os
import pathlib
import sys

import points


def read_report(path):
    """A report as a dict; exits with 2 if it is none."""
    try:
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    except (OSError, ValueError) as error:
        refuse(f"{path}: {error}")
    if not isinstance(report, dict):
        refuse(f"{path}: expected a report of tsprun (--json), a JSON object")
    return report


def refuse(message):
    print(f"plot.py: {message}", file=sys.stderr)
    sys.exit(2)


def draw(paper, rows, runs, folder, check):
    """Draws what there is data for; how many pictures, and what is wrong with them. Only here is matplotlib needed, which takes a second
    to load."""
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot.py: python3-matplotlib isn't installed; apt-get install python3-matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot  # after the backend is chosen

    import figures
    import looks
    import paper as paper_pictures
    import runs as run_pictures

    os.makedirs(folder, exist_ok=True)
    drawn = 0
    wrong = []
    for name, figure in paper_pictures.of_paper(paper) + figures.of_points(rows) + run_pictures.of_runs(runs):
        if figure is None:
            print(f"{name}: left out, there is no data for it")
            continue
        if check:
            wrong += [f"{name}: {complaint}" for complaint in looks.complaints(figure)]
        for kind in ("png", "svg"):
            figure.savefig(os.path.join(folder, f"{name}.{kind}"), dpi=150, bbox_inches="tight")
        pyplot.close(figure)
        print(f"{os.path.join(folder, name)}.png, .svg")
        drawn += 1
    return drawn, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("reports", nargs="+", metavar="REPORT", help="JSON of tsprun train, bench, simulate, plan or compare")
    parser.add_argument("--out", default=".", metavar="FOLDER", help="where the pictures go; made if missing")
    parser.add_argument("--check", action="store_true", help="hold every picture against the rules of looks.py")
    arguments = parser.parse_args()

    paper = None
    rows = []
    runs = {}
    for path in arguments.reports:
        report = read_report(path)
        name = pathlib.PurePath(path).stem
        runs[name if name not in runs else path] = report
        paper = report.get("paper", {}).get("figures", paper) if isinstance(report.get("paper", {}), dict) else paper
        try:
            rows += points.points_of(report)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            refuse(f"{path}: not a report that this version knows: {error!r}")
    rows = points.told_apart(points.one_each(rows))
    if paper is None and not rows and not any(report.get(key) for report in runs.values() for key in ("steps", "bench", "simulate", "crossover")):
        refuse(f"{', '.join(arguments.reports)}: none has rows in `plan`, `compare`, `steps`, `bench`, `simulate` or `crossover`, or `paper`")

    try:
        drawn, wrong = draw(paper, rows, runs, arguments.out, arguments.check)
    except (KeyError, TypeError, AttributeError, ValueError, ZeroDivisionError) as error:
        refuse(f"{', '.join(arguments.reports)}: not reports that this version knows: {error!r}")
    if drawn == 0:
        refuse("there was nothing to draw: no point that can be, or fits")
    for line in wrong:
        print(f"plot.py: {line}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
