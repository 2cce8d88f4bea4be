"""The pictures: each function gives a matplotlib figure, or None where its data isn't there."""

import math

import matplotlib.pyplot as pyplot

from points import CATEGORIES

GIB = 1 << 30
MIB = 1 << 20
GB = 1e9
DEVICE_GIB = 192  # of an MI300X: the paper's dotted line
COLORS = pyplot.rcParams["axes.prop_cycle"].by_key()["color"]
# The heights of Fig. 7's colour scale: below 1 TSP moves less than TP.
RATIO_RANGE = (0.5, 1.5)


def unique(values):
    return list(dict.fromkeys(values))


def color_of(label, labels):
    return COLORS[labels.index(label) % len(COLORS)]


def tokens(count):
    """65536 as 64K."""
    return f"{count // 1024}K" if count % 1024 == 0 else str(count)


def stacked(axes, labels, parts, unit):
    """Bars of `parts` {category: [value per label]}, one on the other."""
    bottom = [0.0] * len(labels)
    for category, values in parts.items():
        heights = [value / unit for value in values]
        axes.bar(labels, heights, bottom=bottom, label=category)
        bottom = [low + height for low, height in zip(bottom, heights)]
    axes.tick_params(axis="x", rotation=45)
    for tick in axes.get_xticklabels():
        tick.set_horizontalalignment("right")


def log_axes(axes, values):
    axes.set_xscale("log", base=2)
    axes.set_xticks(values)
    axes.set_xticklabels([tokens(value) for value in values])
    axes.minorticks_off()


# --- from `plan --paper`


def paper_figure1(figures):
    rows = figures["fig1"]
    lengths = unique(row["seq"] for row in rows)
    figure, panels = pyplot.subplots(1, len(lengths), figsize=(5 * len(lengths), 4), squeeze=False)
    for axes, length in zip(panels[0], lengths):
        here = [row for row in rows if row["seq"] == length]
        parts = {category: [row[category] for row in here] for category in CATEGORIES[:4]}
        stacked(axes, [row["scheme"] for row in here], parts, GIB)
        axes.plot([row["scheme"] for row in here], [row["counted"] / GIB for row in here], "k_", markersize=18, label="counted here")
        axes.axhline(DEVICE_GIB, color="black", linestyle=":", linewidth=1)
        axes.set_title(f"S = {tokens(length)}")
        axes.set_ylabel("GiB a GPU")
    panels[0][0].legend(fontsize=7)
    figure.suptitle("Fig. 1: memory a GPU, selective recomputation, D = 8, by the printed formulas")
    return figure


def paper_figure5(figures):
    rows = figures["fig5"]
    schemes = unique(row["scheme"] for row in rows)
    lengths = unique(row["seq"] for row in rows)
    figure, (traffic, memory) = pyplot.subplots(1, 2, figsize=(11, 4))
    for scheme in schemes:
        here = [row for row in rows if row["scheme"] == scheme]
        color = color_of(scheme, schemes)
        for axes, name, unit in ((traffic, "", GB), (memory, "memory_", GIB)):
            if axes is traffic and scheme == "DP":
                continue  # moves nothing forward
            axes.plot(lengths, [row[name + "printed"] / unit for row in here], "--", color=color, linewidth=1)
            axes.plot(lengths, [row[name + "counted"] / unit for row in here], "o-", color=color, markersize=4, label=scheme)
    for axes, label in ((traffic, "forward GB a layer and device"), (memory, "GiB a GPU")):
        log_axes(axes, lengths)
        axes.set_yscale("log")
        axes.set_xlabel("sequence length")
        axes.set_ylabel(label)
        axes.legend(fontsize=7)
    figure.suptitle("Fig. 5: traffic (a) and memory (b), D = 8; dashed as printed, solid as counted")
    return figure


def paper_figure6(figures):
    rows = figures["fig6"]
    schemes = [key for key in rows[0] if isinstance(rows[0][key], dict)]
    sizes = [row["parameters"] / GB for row in rows]
    figure, (traffic, memory) = pyplot.subplots(1, 2, figsize=(11, 4))
    for scheme in schemes:
        color = color_of(scheme, schemes)
        if scheme != "DP":
            traffic.plot(sizes, [row[scheme]["printed"] / GB for row in rows], "--", color=color, linewidth=1)
            traffic.plot(sizes, [row[scheme]["counted"] / GB for row in rows], "o-", color=color, markersize=4, label=scheme)
        memory.plot(sizes, [row[scheme]["memory_printed"] / GIB for row in rows], "o--", color=color, markersize=4, label=scheme)
    for axes, label in ((traffic, "forward GB a layer and device"), (memory, "GiB a GPU (printed formulas)")):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("parameters, 1e9")
        axes.set_ylabel(label)
        axes.legend(fontsize=7)
    figure.suptitle("Fig. 6: traffic (a) and memory (b) over model size, S = 32K, D = 8; dashed as printed, solid as counted")
    return figure


def ratio_map(axes, batches, lengths, ratio):
    """Cells of ratio(batch, length); None is left blank."""
    cells = [[ratio(batch, length) for length in lengths] for batch in batches]
    numbers = [[math.nan if cell is None else cell for cell in row] for row in cells]
    image = axes.imshow(numbers, cmap="RdYlGn_r", vmin=RATIO_RANGE[0], vmax=RATIO_RANGE[1], aspect="auto", origin="lower")
    for i, row in enumerate(cells):
        for j, cell in enumerate(row):
            if cell is not None:
                axes.text(j, i, f"{cell:.2f}", ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(lengths)), [tokens(length) for length in lengths])
    axes.set_yticks(range(len(batches)), batches)
    axes.set_xlabel("sequence length")
    axes.set_ylabel("batch")
    return image


def paper_figure7(figures):
    rows = figures["fig7"]
    batches = unique(row["batch"] for row in rows)
    lengths = unique(row["seq"] for row in rows)
    table = {(row["batch"], row["seq"]): row for row in rows}
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 3.5))
    for axes, kind in zip(panels, ("printed", "counted")):
        image = ratio_map(axes, batches, lengths, lambda batch, length, kind=kind: table[batch, length][kind])
        axes.set_title(f"as {kind}")
        figure.colorbar(image, ax=axes)
    figure.suptitle("Fig. 7: forward bytes of TSP over those of TP, h = 4096, D = 8")
    return figure


def paper_figure9(figures):
    rows = figures["fig9"]
    schemes = unique(row["scheme"] for row in rows)
    figure, axes = pyplot.subplots(figsize=(6, 4))
    for scheme in schemes:
        here = [row for row in rows if row["scheme"] == scheme]
        lengths = [row["seq"] for row in here]
        color = color_of(scheme, schemes)
        axes.plot(lengths, [row["measured"] / GB for row in here], "s-", color=color, label=f"{scheme}, measured by the paper")
        axes.plot(lengths, [row["counted"] / GB for row in here], "o--", color=color, label=f"{scheme}, counted here")
    log_axes(axes, unique(row["seq"] for row in rows))
    axes.set_xlabel("sequence length")
    axes.set_ylabel("GB a GPU")
    axes.legend(fontsize=7)
    figure.suptitle("Fig. 9: peak memory a GPU on one node (here: recompute full)")
    return figure


def of_paper(figures):
    if figures is None:
        return []
    drawn = {1: paper_figure1, 5: paper_figure5, 6: paper_figure6, 7: paper_figure7, 9: paper_figure9}
    return [(f"paper_figure_{number}", draw(figures)) for number, draw in drawn.items()]


# --- from `plan` and `compare`


def groups(points, *names):
    """Points by the values of these attributes, in the order of their first."""
    found = {}
    for point in points:
        found.setdefault(tuple(getattr(point, name) for name in names), []).append(point)
    return found


def style(point):
    return "o-" if point.measured else "o--"


def said(point):
    return point.label if point.measured else f"{point.label} (plan)"


def memory_bars(points):
    """As Fig. 1: a panel for each setting."""
    known = [point for point in points if point.memory]
    settings = groups(known, "measured", "config", "batch", "seq", "ranks")
    if not settings:
        return None
    columns = min(3, len(settings))
    lines = math.ceil(len(settings) / columns)
    figure, panels = pyplot.subplots(lines, columns, figsize=(5 * columns, 3.8 * lines), squeeze=False)
    for axes in panels.flat[len(settings):]:
        axes.axis("off")
    for axes, ((measured, config, batch, seq, ranks), here) in zip(panels.flat, settings.items()):
        stacked(axes, [point.label for point in here], {c: [p.memory.get(c, 0) for p in here] for c in CATEGORIES}, MIB)
        axes.set_title(f"{config} B={batch} S={tokens(seq)} on {ranks}, {'measured' if measured else 'planned'}", fontsize=9)
        axes.set_ylabel("MiB a rank")
    panels[0][0].legend(fontsize=7)
    figure.tight_layout()
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
    figure, panels = pyplot.subplots(1, len(panels_of), figsize=(6.5 * len(panels_of), 4.2), squeeze=False)
    labels = unique(point.label for point in known)
    for axes, (key, here) in zip(panels[0], panels_of.items()):
        for (name, _), line in groups(here, "label", "measured").items():
            line = sorted(line, key=lambda point: getattr(point, along))
            axes.plot(
                [getattr(point, along) for point in line],
                [value(point) for point in line],
                style(line[0]),
                color=color_of(name, labels),
                markerfacecolor=color_of(name, labels) if line[0].measured else "none",
                markersize=5,
                label=said(line[0]),
            )
        values = sorted({getattr(point, along) for point in here})
        log_axes(axes, values)
        axes.set_ylim(bottom=0)
        axes.set_xlabel({"seq": "sequence length", "batch": "batch"}.get(along, along))
        axes.set_ylabel(label)
        axes.set_title(", ".join(f"{name} {value}" for name, value in zip(others, key)), fontsize=9)
        axes.legend(fontsize=6)
    figure.suptitle(title)
    return figure


def over_models(points):
    """As Fig. 6: bytes and memory over the number of parameters."""
    known = [point for point in points if point.parameters and point.forward is not None and point.memory]
    if len({point.parameters for point in known}) < 2:
        return None
    labels = unique(point.label for point in known)
    figure, (traffic, memory) = pyplot.subplots(1, 2, figsize=(12, 4.2))
    for (name, _, _, _), line in groups(known, "label", "measured", "batch", "seq").items():
        line = sorted(line, key=lambda point: point.parameters)
        sizes = [point.parameters / 1e6 for point in line]
        color = color_of(name, labels)
        traffic.plot(sizes, [point.forward / MIB for point in line], style(line[0]), color=color, markersize=4, label=said(line[0]))
        memory.plot(sizes, [point.memory["total"] / MIB for point in line], style(line[0]), color=color, markersize=4)
    for axes, label in ((traffic, "MiB received a rank, forward"), (memory, "MiB a rank")):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("parameters, 1e6")
        axes.set_ylabel(label)
    traffic.legend(fontsize=6)
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

        figure, axes = pyplot.subplots(figsize=(6.5, 4))
        image = ratio_map(axes, sorted({b for b, _ in both}), sorted({s for _, s in both}), ratio)
        figure.colorbar(image, ax=axes)
        figure.suptitle(f"Forward bytes of tsp={ranks} over tp={ranks}, {config}, {'measured' if measured else 'planned'} (as Fig. 7)")
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
