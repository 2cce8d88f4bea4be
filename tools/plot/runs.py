"""Pictures of single runs: what `train`, `bench`, `simulate` and `plan --search` report. Each function gives a matplotlib figure, or None
where its data isn't there. `runs`: reports by the names of their files."""

import matplotlib.pyplot as pyplot

from drawing import stacked, tokens
from looks import COLORS, legend_below, log_scale, numbered, plot_lines, powers_of_two, unique
from points import first_of_search

MS = 1e-3


def loss_curves(runs):
    """Loss of training and of evaluations over steps, and tokens/s."""
    trained = {name: report for name, report in runs.items() if report.get("steps")}
    if not trained:
        return None
    names = list(trained)
    figure, (losses, speeds) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    of_loss = []
    of_speed = []
    for name, report in trained.items():
        color = numbered(name, names)["color"]
        known = [row for row in report["steps"] if row.get("loss") is not None]  # of a run that failed the last may lack it
        steps = [row["step"] for row in known]
        of_loss.append((steps, [row["loss"] for row in known], {"color": color, "label": name}))
        of_speed.append((steps, [row["tokens_per_s"] for row in known], {"color": color, "label": name}))
        held_out = report.get("evaluations") or []
        if held_out:
            x = [row["step"] for row in held_out]
            style = {"color": color, "marker": "s", "linestyle": "--", "label": f"{name}, evaluated"}
            of_loss.append((x, [row["loss"] for row in held_out], style))
    for axes, lines, label in ((losses, of_loss, "loss, nats a token"), (speeds, of_speed, "tokens/s")):
        plot_lines(axes, [(x, y, {"marker": "o" if len(x) == 1 else "", **style}) for x, y, style in lines])
        axes.set_xlabel("step")
        axes.set_ylabel(label)
    speeds.set_ylim(bottom=0)
    legend_below(figure)
    return figure


def size(count):
    """1048576 as 1M."""
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if count >= unit and count % unit == 0:
            return f"{count // unit}{name}"
    return str(count)


def bench_curves(runs):
    """Bus bandwidth and median time over the size, a line for each operation and report."""
    rows = [(name, row) for name, report in runs.items() for row in report.get("bench") or []]
    if not rows:
        return None
    several = len({name for name, _ in rows}) > 1
    lines = {}
    for name, row in rows:
        label = f"{row['op']} on {row['ranks']}" + (f", {name}" if several else "")
        lines.setdefault(label, []).append(row)
    if not any(row["bytes"] for _, row in rows):
        return None  # barriers alone
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    wanted = (
        (lambda row: row.get("busbw_gbps"), "bus bandwidth, GB/s (log scale)"),
        (lambda row: row["seconds_p50"] * 1e6, "median time, µs (log scale)"),
    )
    for axes, (value, label) in zip(panels, wanted):
        drawn = []
        for name, of in lines.items():
            known = sorted((row for row in of if value(row) and row["bytes"]), key=lambda row: row["bytes"])
            if known:
                drawn.append(([row["bytes"] for row in known], [value(row) for row in known], {**numbered(name, list(lines)), "label": name}))
        if not drawn:
            axes.remove()
            continue
        plot_lines(axes, drawn, log=True)
        powers_of_two(axes, sorted({bytes_of for x, _, _ in drawn for bytes_of in x}), size)
        log_scale(axes.yaxis)
        axes.set_xlabel("size, bytes (log scale)")
        axes.set_ylabel(label)
    legend_below(figure)
    return figure


def step_times(runs):
    """Where the time of a step goes, as played (`simulate`) and as planned (`plan --search`): computing, and communication that it
    waits for. A panel for each report."""
    found = {}
    for name, report in runs.items():
        played = [row for row in report.get("simulate") or [] if row.get("seconds")]
        rows = [(row["layout"], row, row["seconds"]) for row in played]
        rows += [(row["label"], row, row["step_seconds"]) for row in first_of_search(report)]
        if rows:
            found[name] = rows
    if not found:
        return None
    width = max(len(rows) for rows in found.values())
    figure, panels = pyplot.subplots(
        len(found), 1, figsize=(max(6, 2 + 0.75 * width), 4.6 * len(found)), squeeze=False, layout="constrained"
    )
    for axes, (name, rows) in zip(panels[:, 0], found.items()):
        fields = (("config", "", str), ("batch", "B=", str), ("seq", "S=", tokens))
        alike = [field for field in fields if len({row[field[0]] for _, row, _ in rows}) == 1]

        def words(row, of):
            return ", ".join(prefix + text(row[key]) for key, prefix, text in of)

        labels = []
        for layout, row, _ in rows:
            if row.get("recompute", "none") != "none":
                layout += f", recompute {row['recompute']}"
            labels.append("\n".join(filter(None, (layout, words(row, [field for field in fields if field not in alike])))))
        if len(unique(labels)) < len(labels):
            labels = [f"{number}: {text}" for number, text in enumerate(labels, 1)]
        waits = [row["exposed_seconds"] for _, row, _ in rows]
        computes = [seconds - wait for (_, _, seconds), wait in zip(rows, waits)]
        stacked(axes, labels, {"computing, and what hides behind it": computes, "waiting for communication": waits}, MS)
        axes.set_title(": ".join(filter(None, (name, words(rows[0][1], alike)))), fontsize=9)
        axes.set_ylabel("ms a step")
    legend_below(figure)
    return figure


def crossovers(runs):
    """From how many tokens on TSP is as fast as TP on a node, over what a GPU computes at its peak while it sends a byte: of played.py."""
    rows = [row for report in runs.values() for row in report.get("crossover") or [] if row["tokens"]]
    if not rows:
        return None
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    labels = ["forward", "forward and backward"]
    lines = []
    for label in labels:
        of = sorted((row for row in rows if row["forward"] == (label == "forward")), key=lambda row: row["flops_per_byte"])
        if of:
            lines.append(([row["flops_per_byte"] for row in of], [row["tokens"] for row in of], {**numbered(label, labels), "label": label}))
    plot_lines(axes, lines, log=True)
    log_scale(axes.xaxis)
    log_scale(axes.yaxis)
    axes.set_xlabel("FLOPs of a GPU at its peak a byte of a link (log scale)")
    axes.set_ylabel("tokens from which on TSP is faster (log scale)")
    legend_below(figure)
    return figure


def mlp_turns(runs):
    """What GPUs do in TSP's MLP, as the paper's Fig. 4 shows it: in each turn a GPU computes with another one's shard of the weights, while
    the next one comes from its neighbour. Of played.py."""
    found = next((report["mlp"] for report in runs.values() if report.get("mlp")), None)
    if not found:
        return None
    ranks = sorted({row["rank"] for row in found["kernels"]})
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.8 * len(ranks)), layout="constrained")
    for rows, below, height in ((found["kernels"], 0, 0.44), (found["rotations"], -0.36, 0.2)):
        for shard in ranks:
            of = [row for row in rows if row["shard"] == shard]
            axes.barh([row["rank"] + below for row in of], [row["end_ms"] - row["begin_ms"] for row in of], height,
                      [row["begin_ms"] for row in of], color=COLORS[shard % len(COLORS)], edgecolor="white", linewidth=0.8,
                      label=f"weights of GPU {shard}")
    axes.set_yticks(ranks, [f"GPU {rank}" for rank in ranks])
    axes.invert_yaxis()
    axes.use_sticky_edges = False
    axes.margins(x=0.02)
    axes.set_xlabel("ms since the pass began; thin: the next weights arrive")
    legend_below(figure)
    return figure


def of_runs(runs):
    pictures = [("loss_over_steps", loss_curves(runs)), ("bench_over_size", bench_curves(runs)), ("step_times", step_times(runs)),
                ("crossover", crossovers(runs)), ("mlp_turns", mlp_turns(runs))]
    return [(name, figure) for name, figure in pictures if figure is not None]
