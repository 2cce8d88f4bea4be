"""The paper's figures out of `plan --paper`: each function gives a matplotlib figure."""

import matplotlib.pyplot as pyplot

from drawing import GB, GIB, ratio_bar, ratio_map, ratio_scale, stacked, tokens
from looks import PRINTED, legend_below, log_scale, look, plot_lines, powers_of_two, same_scale, style_entry, unique
from points import CATEGORIES

DEVICE_GIB = 192  # of an MI300X: the paper's dotted line
COUNTED = {"linestyle": "-", "markersize": 4}


def as_printed(axes, x, y, color):
    """A line that the legend explains for all schemes at once."""
    for line in axes.plot(x, y, color=color, **PRINTED):
        line.tsp_explained = True


def figure1(figures):
    rows = figures["fig1"]
    lengths = unique(row["seq"] for row in rows)
    figure, panels = pyplot.subplots(1, len(lengths), figsize=(5 * len(lengths), 4), squeeze=False, layout="constrained")
    for axes, length in zip(panels[0], lengths):
        here = [row for row in rows if row["seq"] == length]
        parts = {category: [row[category] for row in here] for category in CATEGORIES[:4]}
        stacked(axes, [row["scheme"] for row in here], parts, GIB)
        axes.plot([row["scheme"] for row in here], [row["counted"] / GIB for row in here], "k_", markersize=18, label="counted here")
        axes.axhline(DEVICE_GIB, color="black", linestyle=":", linewidth=1, label=f"memory of an MI300X, {DEVICE_GIB} GiB")
        axes.set_title(f"S = {tokens(length)}")
        axes.set_ylabel("GiB a GPU")
    same_scale(list(panels[0]), bottom=0)
    legend_below(figure)
    figure.suptitle("Fig. 1: memory a GPU, selective recomputation, D = 8, by the printed formulas")
    return figure


def figure5(figures):
    rows = figures["fig5"]
    schemes = unique(row["scheme"] for row in rows)
    lengths = unique(row["seq"] for row in rows)
    figure, (traffic, memory) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for scheme in schemes:
        here = [row for row in rows if row["scheme"] == scheme]
        for axes, name, unit in ((traffic, "", GB), (memory, "memory_", GIB)):
            if axes is traffic and scheme == "DP":
                continue  # moves nothing forward
            as_printed(axes, lengths, [row[name + "printed"] / unit for row in here], look(scheme, schemes)["color"])
            axes.plot(lengths, [row[name + "counted"] / unit for row in here], label=scheme, **COUNTED, **look(scheme, schemes))
    for axes, label in ((traffic, "forward GB a layer and device (log scale)"), (memory, "GiB a GPU (log scale)")):
        powers_of_two(axes, lengths, tokens)
        log_scale(axes.yaxis)
        axes.set_xlabel("sequence length")
        axes.set_ylabel(label)
    legend_below(figure, style_entry("as printed", **PRINTED), style_entry("as counted", linestyle="-", marker="o", markersize=4))
    figure.suptitle("Fig. 5: traffic (a) and memory (b), D = 8")
    return figure


def figure6(figures):
    rows = figures["fig6"]
    schemes = [key for key in rows[0] if isinstance(rows[0][key], dict)]
    sizes = [row["parameters"] / GB for row in rows]
    figure, (traffic, memory) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for scheme in schemes:
        of = look(scheme, schemes)
        if scheme != "DP":
            as_printed(traffic, sizes, [row[scheme]["printed"] / GB for row in rows], of["color"])
            traffic.plot(sizes, [row[scheme]["counted"] / GB for row in rows], label=scheme, **COUNTED, **of)
        memory.plot(sizes, [row[scheme]["memory_printed"] / GIB for row in rows], label=scheme, linestyle="--", markersize=4, **of)
    for axes, label in ((traffic, "forward GB a layer and device (log scale)"), (memory, "GiB a GPU, printed formulas (log scale)")):
        log_scale(axes.xaxis)
        log_scale(axes.yaxis)
        axes.set_xlabel("parameters, 10⁹ (log scale)")
        axes.set_ylabel(label)
    legend_below(figure, style_entry("as printed", **PRINTED), style_entry("as counted", linestyle="-", marker="o", markersize=4))
    figure.suptitle("Fig. 6: traffic (a) and memory (b) over model size, S = 32K, D = 8")
    return figure


def figure7(figures):
    rows = figures["fig7"]
    batches = unique(row["batch"] for row in rows)
    lengths = unique(row["seq"] for row in rows)
    table = {(row["batch"], row["seq"]): row for row in rows}
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 3.5), layout="constrained")
    scale = ratio_scale([row[kind] for row in rows for kind in ("printed", "counted")])
    for axes, kind in zip(panels, ("printed", "counted")):
        image = ratio_map(axes, batches, lengths, lambda batch, length, kind=kind: table[batch, length][kind], scale)
        axes.set_title(f"as {kind}")
    ratio_bar(figure, image, list(panels))
    figure.suptitle("Fig. 7: forward bytes of TSP over those of TP, h = 4096, D = 8")
    return figure


def figure9(figures):
    rows = figures["fig9"]
    schemes = unique(row["scheme"] for row in rows)
    figure, axes = pyplot.subplots(figsize=(6.5, 4), layout="constrained")
    lines = []
    for key, style in (("measured", {"linestyle": "-"}), ("counted", {"linestyle": "--", "markerfacecolor": "none"})):
        for scheme in schemes:
            here = [row for row in rows if row["scheme"] == scheme]
            label = scheme if key == "measured" else None
            lines.append(([row["seq"] for row in here], [row[key] / GB for row in here], {**style, **look(scheme, schemes), "label": label}))
    plot_lines(axes, lines)
    powers_of_two(axes, unique(row["seq"] for row in rows), tokens)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("sequence length")
    axes.set_ylabel("GB a GPU")
    legend_below(
        figure,
        style_entry("measured by the paper", linestyle="-", marker="o", markersize=5),
        style_entry("counted here", linestyle="--", marker="o", markersize=5, markerfacecolor="none"),
    )
    figure.suptitle(
        "Fig. 9: peak memory a GPU on one node. Counted: what tsprun's schedules\nallocate, layers recomputed; not PyTorch's allocator and buffers",
        fontsize=9,
    )
    return figure


def of_paper(figures):
    if figures is None:
        return []
    drawn = {1: figure1, 5: figure5, 6: figure6, 7: figure7, 9: figure9}
    return [(f"paper_figure_{number}", draw(figures)) for number, draw in drawn.items()]
