"""What several pictures draw alike: stacked bars, maps of ratios; and units."""

import math

import matplotlib.pyplot as pyplot

from looks import COLORS, RATIO_MAP, on_color

GIB = 1 << 30
MIB = 1 << 20
GB = 1e9
# Of the colour scale: below 1 TSP moves less than TP.
RATIO_RANGE = (0.5, 1.5)


def unique(values):
    return list(dict.fromkeys(values))


def tokens(count):
    """65536 as 64K."""
    return f"{count // 1024}K" if count % 1024 == 0 else str(count)


def stacked(axes, labels, parts, unit):
    """Bars of `parts` {category: [value per label]}, one on the other."""
    bottom = [0.0] * len(labels)
    for number, (category, values) in enumerate(parts.items()):
        heights = [value / unit for value in values]
        axes.bar(labels, heights, bottom=bottom, label=category, color=COLORS[number], edgecolor="white", linewidth=0.3)
        bottom = [low + height for low, height in zip(bottom, heights)]
    axes.tick_params(axis="x", rotation=45)
    for tick in axes.get_xticklabels():
        tick.set_horizontalalignment("right")
        tick.set_rotation_mode("anchor")
    axes.margins(y=0.06)


def ratio_map(axes, batches, lengths, ratio):
    """Cells of ratio(batch, length); None is left blank."""
    cells = [[ratio(batch, length) for length in lengths] for batch in batches]
    numbers = [[math.nan if cell is None else cell for cell in row] for row in cells]
    image = axes.imshow(numbers, cmap=RATIO_MAP, vmin=RATIO_RANGE[0], vmax=RATIO_RANGE[1], aspect="auto", origin="lower")
    colors = pyplot.get_cmap(RATIO_MAP)
    for i, row in enumerate(cells):
        for j, cell in enumerate(row):
            if cell is not None:
                behind = colors((cell - RATIO_RANGE[0]) / (RATIO_RANGE[1] - RATIO_RANGE[0]))
                axes.text(j, i, f"{cell:.2f}", ha="center", va="center", fontsize=8, color=on_color(behind))
    axes.set_xticks(range(len(lengths)), [tokens(length) for length in lengths])
    axes.set_yticks(range(len(batches)), batches)
    axes.set_xlabel("sequence length")
    axes.set_ylabel("batch")
    return image
