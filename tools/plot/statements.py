#!/usr/bin/python3
"""Which of the paper's statements about TSP hold in measured reports of `tsprun compare`, in words.

    tools/plot/statements.py measured.json…

Compared are points of the same config, batch, sequence length and number of ranks. A statement holds, doesn't hold (with the points
where it fails), or can't be judged for want of layouts or lengths. Exit code 0, or 2 if a report can't be read.
"""

import json
import sys

import points

# Speeds of one machine differ by a few per cent from run to run.
SAME_SPEED = 0.95
# "Nearly identical" memory at the shortest length: the paper's 31.0 and 31.5 GB.
NEARLY = 1.05


def settings_of(rows):
    """Points by setting, measured ones with what is known."""
    table = {}
    for row in rows:
        if row.measured and row.memory:
            table.setdefault((row.config, row.batch, row.seq, row.ranks), []).append(row)
    return table


def axis_of(row):
    """"tsp" of "tsp=4", "tp+sp" of "tp=2,sp=2 (ring)"."""
    return "+".join(part.split("=")[0] for part in row.label.split(" ")[0].split(","))


def only(rows, axis):
    return [row for row in rows if axis_of(row) == axis]


def where(setting):
    config, batch, seq, ranks = setting
    return f"{config}, B={batch}, S={seq}, {ranks} ranks"


def verdict(points):
    """Of points that could be judged: "" where the statement holds, else where it fails."""
    points = list(points)
    failed = [point for point in points if point]
    if not points:
        return "can't be judged: no such layouts or lengths in the reports"
    if not failed:
        return f"holds at all {len(points)} points"
    return f"holds at {len(points) - len(failed)} of {len(points)} points; not at " + "; ".join(failed)


def lowest_memory(table):
    for setting, rows in table.items():
        tsp = only(rows, "tsp")
        others = [row for row in rows if axis_of(row) != "tsp"]
        if not tsp or not others:
            continue
        least = min(others, key=lambda row: row.memory["total"])
        mine = tsp[0].memory["total"]
        yield "" if mine <= least.memory["total"] else f"{where(setting)} ({least.label} takes {least.memory['total'] / mine:.2f} of it)"


def near_tp_when_short(table):
    for config, batch, ranks in sorted({(c, b, r) for c, b, _, r in table}):
        shortest = min(seq for c, b, seq, r in table if (c, b, r) == (config, batch, ranks))
        rows = table[config, batch, shortest, ranks]
        tsp, tp = only(rows, "tsp"), only(rows, "tp")
        if not tsp or not tp:
            continue
        ratio = tp[0].memory["total"] / tsp[0].memory["total"]
        yield "" if 1 <= ratio <= NEARLY else f"{where((config, batch, shortest, ranks))} (TP takes {ratio:.2f} of TSP)"


def grows_apart(table, value, better):
    """Whether better(tsp, other) grows with the sequence length, from the shortest to the longest."""
    for config, batch, ranks in sorted({(c, b, r) for c, b, _, r in table}):
        lengths = sorted(seq for c, b, seq, r in table if (c, b, r) == (config, batch, ranks))
        for axis in ("tp", "tp+sp"):
            ratios = []
            for seq in lengths:
                rows = table[config, batch, seq, ranks]
                tsp, other = only(rows, "tsp"), only(rows, axis)
                if tsp and other and value(tsp[0]) and value(other[0]):
                    ratios.append(better(value(tsp[0]), value(other[0])))
            if len(ratios) >= 2:
                text = f"{config}, B={batch}, {ranks} ranks against {axis} ({ratios[0]:.2f} → {ratios[-1]:.2f})"
                yield "" if ratios[-1] > ratios[0] else text


def break_even(table, hidden):
    """Forward bytes of TSP fall below TP's where BS > 8h (less with grouped K/V heads: the formula is compare's own)."""
    for setting, rows in table.items():
        tsp, tp = only(rows, "tsp"), only(rows, "tp")
        if not tsp or not tp or not tp[0].forward or setting[0] not in hidden:
            continue
        if setting[1] * setting[2] <= 8 * hidden[setting[0]]:
            continue
        ratio = tsp[0].forward / tp[0].forward
        yield "" if ratio < 1 else f"{where(setting)} (TSP receives {ratio:.2f} of TP's bytes)"


def as_fast(table, axis):
    for setting, rows in table.items():
        tsp, others = only(rows, "tsp"), only(rows, axis)
        if not tsp or not others or not tsp[0].tokens_per_s:
            continue
        fastest = max(others, key=lambda row: row.tokens_per_s or 0)
        if not fastest.tokens_per_s:
            continue
        ratio = tsp[0].tokens_per_s / fastest.tokens_per_s
        yield "" if ratio >= SAME_SPEED else f"{where(setting)} ({ratio:.2f} of {fastest.label})"


def received(row):
    return (row.forward or 0) + (row.backward or 0)


def waits(row):
    return f"{row.label} {100 * row.exposed[0]:.0f} to {100 * row.exposed[1]:.0f}%" if row.exposed else f"{row.label} ?"


def as_fast_as_the_best(table, hidden):
    """Where BS >= 8h; where it is not, what the two receive and wait says why."""
    for setting, rows in table.items():
        tsp = only(rows, "tsp")
        others = [row for row in rows if axis_of(row) != "tsp" and row.tokens_per_s]
        if not tsp or not others or not tsp[0].tokens_per_s:
            continue
        if setting[0] not in hidden or setting[1] * setting[2] < 8 * hidden[setting[0]]:
            continue
        best = max(others, key=lambda row: row.tokens_per_s)
        ratio = tsp[0].tokens_per_s / best.tokens_per_s
        bytes_text = f"receives {received(tsp[0]) / received(best):.1f} times its bytes" if received(best) else "it receives nothing"
        yield "" if ratio >= 0.9 else f"{where(setting)} ({ratio:.2f} of {best.label}; {bytes_text}; exposed: {waits(tsp[0])}, {waits(best)})"


def exposed_times(table):
    """How far each scheme's exposed communication is from zero, where it ran longest."""
    if not table:
        return "can't be judged: no measured points in the reports"
    setting = max(table, key=lambda key: (key[1] * key[2], key[3]))
    rows = [row for row in table[setting] if row.exposed and row.ranks > 1]
    if not rows:
        return "can't be judged: the reports don't say"
    return f"{where(setting)}: " + ", ".join(waits(row) for row in rows)


def main():
    rows = []
    for path in sys.argv[1:]:
        try:
            with open(path, encoding="utf-8") as file:
                rows += points.points_of(json.load(file))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            print(f"statements.py: {path}: not a report of compare: {error!r}", file=sys.stderr)
            sys.exit(2)
    table = settings_of(rows)
    hidden = {row.config: row.hidden for row in rows if row.hidden}
    statements = [
        ("Fig. 9: TSP has the lowest peak memory of all, at every length", verdict(lowest_memory(table))),
        ("Fig. 9: at the shortest length TSP and TP take nearly the same", verdict(near_tp_when_short(table))),
        (
            "Fig. 9: TSP's advantage in memory grows with the length",
            verdict(grows_apart(table, lambda row: row.memory["total"], lambda tsp, other: other / tsp)),
        ),
        ("Figs. 5, 7: above BS = 8h TSP receives less than TP in the forward pass", verdict(break_even(table, hidden))),
        ("Figs. 10, 11: TSP is as fast as TP+SP on the same ranks", verdict(as_fast(table, "tp+sp"))),
        ("            … and as TP", verdict(as_fast(table, "tp"))),
        (
            "Fig. 11: its advantage in tokens/s grows with the length",
            verdict(grows_apart(table, lambda row: row.tokens_per_s, lambda tsp, other: tsp / other)),
        ),
        ("Where BS >= 8h TSP reaches 0.9 of the best other scheme's tokens/s", verdict(as_fast_as_the_best(table, hidden))),
        ("Exposed communication, of the rank that waits least to that which waits most", exposed_times(table)),
    ]
    for statement, judgement in statements:
        print(f"{statement}: {judgement}")


if __name__ == "__main__":
    main()
