"""Pictures of the arrays `plan` and `compare`: each function gives a matplotlib figure, or None where its data isn't there."""

import math
from dataclasses import replace

import matplotlib.pyplot as pyplot

from drawing import MIB, ratio_bar, ratio_map, ratio_scale, stacked, tokens
from looks import legend_below, log_scale, look, plot_lines, powers_of_two, same_scale, style_entry, unique
from points import CATEGORIES, one_each

COLUMNS = 3  # of panels, at most
PLANNED = {"linestyle": "--", "markerfacecolor": "none", "markersize": 8}
MEASURED = {"linestyle": "-"}


def groups(points, *names):
    """Points by the values of these attributes, in the order of their first."""
    found = {}
    for point in points:
        found.setdefault(tuple(getattr(point, name) for name in names), []).append(point)
    return found


def panels_for(count, width, height):
    """A figure with that many panels in rows, and the panels; those that are too many are empty."""
    columns = min(COLUMNS, count)
    rows = math.ceil(count / columns)
    figure, panels = pyplot.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained")
    for axes in panels.flat[count:]:
        axes.remove()
    return figure, list(panels.flat[:count])


def scales_by(panels, keys, bottom=None):
    """Panels with the same key are compared with each other, so they get one scale."""
    for key in unique(keys):
        same_scale([axes for axes, of in zip(panels, keys) if of == key], bottom)


def draw_layouts(axes, points, labels, x, y, log=False):
    """A line for each layout, planned ones below measured ones. The legend has an entry for a layout, another for how it was found."""
    measured = {point.label for point in points if point.measured}
    lines = []
    for line in sorted(groups(points, "label", "measured").values(), key=lambda line: line[0].measured):
        line = sorted(line, key=x)
        first = line[0]
        entry = first.label if first.measured or first.label not in measured else None
        style = {**look(first.label, labels), **(MEASURED if first.measured else PLANNED), "label": entry}
        lines.append(([x(point) for point in line], [y(point) for point in line], style))
    plot_lines(axes, lines, log)


def how_found(points):
    """Legend entries for planned and measured lines, where there are both."""
    if len({point.measured for point in points}) < 2:
        return []
    return [
        style_entry("measured", marker="o", markersize=5, **MEASURED),
        style_entry("planned", marker="o", **PLANNED),
    ]


def memory_bars(points):
    """As Fig. 1: a panel for each setting, with one scale for those of a model on as many ranks."""
    known = [point for point in points if point.memory]
    settings = groups(known, "measured", "config", "batch", "seq", "ranks")
    if not settings:
        return None
    figure, panels = panels_for(len(settings), 5, 3.8)
    for axes, ((measured, config, batch, seq, ranks), here) in zip(panels, settings.items()):
        stacked(axes, [point.label for point in here], {c: [p.memory.get(c, 0) for p in here] for c in CATEGORIES}, MIB)
        axes.set_title(f"{config} B={batch} S={tokens(seq)} on {ranks}, {'measured' if measured else 'planned'}", fontsize=9)
        axes.set_ylabel("MiB a rank")
    scales_by(panels, [(config, ranks) for _, config, _, _, ranks in settings], bottom=0)
    legend_below(figure)
    return figure


def over(points, along, others, value, label, title):
    """Lines of value(point) over the attribute `along`, one for each label and for plan and measurement; a panel for each setting
    of the attributes `others`. None unless some line has two points."""
    known = [point for point in points if value(point) is not None]
    panels_of = {
        key: here for key, here in groups(known, *others).items() if len({getattr(point, along) for point in here}) > 1
    }
    if not panels_of:
        return None
    figure, panels = panels_for(len(panels_of), 5.2, 4)
    labels = unique(point.label for here in panels_of.values() for point in here)
    for axes, (key, here) in zip(panels, panels_of.items()):
        draw_layouts(axes, here, labels, lambda point: getattr(point, along), value)
        powers_of_two(axes, sorted({getattr(point, along) for point in here}), tokens)
        axes.set_xlabel({"seq": "sequence length", "batch": "batch"}.get(along, along))
        axes.set_ylabel(label)
        axes.set_title(", ".join(f"{name} {value}" for name, value in zip(others, key)), fontsize=9)
    scales_by(panels, [(key[others.index("config")], key[others.index("ranks")]) for key in panels_of], bottom=0)
    legend_below(figure, *how_found([point for here in panels_of.values() for point in here]))
    figure.suptitle(title)
    return figure


def over_models(points):
    """As Fig. 6: bytes and memory over the number of parameters; a row of panels for each batch, length and number of ranks."""
    known = [point for point in points if point.parameters and point.forward is not None and point.memory]
    known = one_each(replace(point, config="", settings={}) for point in known)  # a model is its size here
    settings = {
        key: here
        for key, here in groups(known, "batch", "seq", "ranks").items()
        if len({point.parameters for point in here}) > 1
    }
    if not settings:
        return None
    labels = unique(point.label for here in settings.values() for point in here)
    figure, rows = pyplot.subplots(len(settings), 2, figsize=(11, 4 * len(settings)), squeeze=False, layout="constrained")
    for panels, ((batch, seq, ranks), here) in zip(rows, settings.items()):
        wanted = (
            (lambda point: point.forward / MIB, "MiB received a rank, forward (log scale)"),
            (lambda point: point.memory["total"] / MIB, "MiB a rank (log scale)"),
        )
        for axes, (value, label) in zip(panels, wanted):
            draw_layouts(axes, [point for point in here if value(point) > 0], labels, lambda point: point.parameters / 1e6, value, log=True)
            log_scale(axes.xaxis)
            log_scale(axes.yaxis)
            axes.set_xlabel("parameters, 10⁶ (log scale)")
            axes.set_ylabel(label)
            axes.set_title(f"batch {batch}, seq {tokens(seq)}, ranks {ranks}", fontsize=9)
    for column in (0, 1):
        same_scale([panels[column] for panels in rows])
    legend_below(figure, *how_found([point for here in settings.values() for point in here]))
    figure.suptitle("Traffic and memory over model size (as Fig. 6)")
    return figure


def tsp_over_tp(points):
    """As Fig. 7: forward bytes of tsp=D over those of tp=D."""
    for (measured, config, ranks), here in groups(points, "measured", "config", "ranks").items():
        bytes_of = {(p.label, p.batch, p.seq): p.forward for p in here if p.forward}
        both = [
            (batch, seq)
            for label, batch, seq in bytes_of
            if label == f"tsp={ranks}" and (f"tp={ranks}", batch, seq) in bytes_of
        ]
        if len(both) < 2:
            continue

        def ratio(batch, seq):
            if (batch, seq) not in both:
                return None
            return bytes_of[f"tsp={ranks}", batch, seq] / bytes_of[f"tp={ranks}", batch, seq]

        figure, axes = pyplot.subplots(figsize=(6.5, 4), layout="constrained")
        scale = ratio_scale([ratio(*cell) for cell in both])
        image = ratio_map(axes, sorted({b for b, _ in both}), sorted({s for _, s in both}), ratio, scale)
        ratio_bar(figure, image, axes)
        figure.suptitle(
            f"Forward bytes of tsp={ranks} over tp={ranks}, {config}, {'measured' if measured else 'planned'} (as Fig. 7)", fontsize=10
        )
        return figure
    return None


def of_points(points):
    if not points:
        return []
    mib = lambda number: None if number is None else number / MIB  # noqa: E731
    by_length = ("config", "batch", "ranks")
    by_batch = ("config", "seq", "ranks")
    return [
        ("memory_by_category", memory_bars(points)),
        (
            "traffic_over_sequence",
            over(points, "seq", by_length, lambda p: mib(p.forward), "MiB received a rank, forward", "Traffic (as Fig. 5a)"),
        ),
        (
            "memory_over_sequence",
            over(points, "seq", by_length, lambda p: mib(p.memory.get("total")), "MiB a rank", "Peak memory (as Figs. 5b, 9)"),
        ),
        ("over_model_size", over_models(points)),
        ("tsp_over_tp", tsp_over_tp(points)),
        (
            "throughput_over_sequence",
            over(points, "seq", by_length, lambda p: p.tokens_per_s, "tokens/s", "Throughput (as Figs. 10, 11)"),
        ),
        (
            "throughput_over_batch",
            over(points, "batch", by_batch, lambda p: p.tokens_per_s, "tokens/s", "Throughput (as Fig. 12)"),
        ),
    ]
