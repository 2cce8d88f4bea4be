"""What several pictures draw alike: stacked bars, maps of ratios; and units."""

import math

from matplotlib.colors import LogNorm
import matplotlib.pyplot as pyplot

from looks import COLORS, RATIO_MAP, on_color, plain

GIB = 1 << 30
MIB = 1 << 20
GB = 1e9


def tokens(count):
    """65536 as 64K."""
    return f"{count // 1024}K" if count % 1024 == 0 else str(count)


def stacked(axes, labels, parts, unit):
    """Bars of `parts` {category: [value per label]}, one on the other; a category keeps its colour, and is left out where it is empty."""
    bottom = [0.0] * len(labels)
    for number, (category, values) in enumerate(parts.items()):
        if not any(values):
            continue
        heights = [value / unit for value in values]
        axes.bar(labels, heights, bottom=bottom, label=category, color=COLORS[number], edgecolor="white", linewidth=0.3)
        bottom = [low + height for low, height in zip(bottom, heights)]
    axes.tick_params(axis="x", rotation=45)
    for tick in axes.get_xticklabels():
        tick.set_horizontalalignment("right")
        tick.set_rotation_mode("anchor")
    axes.margins(y=0.06)


def ratio_scale(ratios):
    """The colour scale of ratios: as far below 1 as above it, and at least a factor of two."""
    most = max([2.0, *ratios, *(1 / ratio for ratio in ratios)])
    return LogNorm(1 / most, most)


def ratio_map(axes, batches, lengths, ratio, scale):
    """Cells of ratio(batch, length), in colours of `scale`; None is hatched."""
    cells = [[ratio(batch, length) for length in lengths] for batch in batches]
    numbers = [[math.nan if cell is None else cell for cell in row] for row in cells]
    axes.set_facecolor("whitesmoke")
    image = axes.imshow(numbers, cmap=RATIO_MAP, norm=scale, aspect="auto", origin="lower")
    colors = pyplot.get_cmap(RATIO_MAP)
    for i, row in enumerate(cells):
        for j, cell in enumerate(row):
            if cell is None:
                axes.add_patch(pyplot.Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, hatch="//", edgecolor="lightgray", linewidth=0))
                axes.text(j, i, "not in the reports", ha="center", va="center", fontsize=7, color="dimgray")
            else:
                axes.text(j, i, f"{cell:.2f}", ha="center", va="center", fontsize=8, color=on_color(colors(scale(cell))))
    axes.set_xticks(range(len(lengths)), [tokens(length) for length in lengths])
    axes.set_yticks(range(len(batches)), batches)
    axes.set_xlabel("sequence length")
    axes.set_ylabel("batch")
    return image


def ratio_bar(figure, image, panels):
    """The colour bar of ratio maps."""
    bar = figure.colorbar(image, ax=panels, label="below 1 TSP moves less")
    low, high = image.norm.vmin, image.norm.vmax
    steps = [first * 10**power for power in range(-6, 7) for first in (1, 2, 5)]
    bar.set_ticks([step for step in steps if low <= step <= high], minor=False)
    bar.ax.yaxis.set_major_formatter(plain)
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=8)
