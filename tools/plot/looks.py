"""How pictures look: colours that differ for eyes that don't tell red from green, markers besides, legends beside the panels and never on
them, log axes with numbers, equal scales for panels that are to be compared; and complaints(), which checks a picture for all that."""

import itertools
import math
import re

from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

# Okabe and Ito's, without yellow, which is too light for lines.
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
# From purple (below 1) over white to orange.
RATIO_MAP = "PuOr_r"
PRINTED = {"linestyle": "--", "linewidth": 1, "marker": "none"}


# A scheme has one colour in all pictures.
COLOR_OF = {"tsp": COLORS[0], "tp": COLORS[1], "sp": COLORS[2], "zero3": COLORS[3], "tp+sp": COLORS[4], "tp+tsp": COLORS[5]}
REST = COLORS[6]


def scheme_of(label):
    """"tp+sp" of "dp=2,tp=4,sp=2 (ring)" and of "TP4+SP2": the axes beside dp, which replicates."""
    axes = re.findall(r"zero3|tsp|tp|sp|pp|ep", label.split(" ")[0].lower())
    return "+".join(unique(axes))


def unique(values):
    return list(dict.fromkeys(values))


def look(label, labels):
    """Colour and marker of a layout's line: its scheme's colour, and a marker that no other of eight labels has."""
    return {"color": COLOR_OF.get(scheme_of(label), REST), "marker": MARKERS[labels.index(label) % len(MARKERS)]}


def numbered(label, labels):
    """Colour and marker of lines that aren't schemes: no two of up to 56 are alike in both."""
    number = labels.index(label)
    return {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)]}


def together(one, other, height):
    """Whether two lines ([x], [y]) lie on each other where both have points, in a panel whose y axis has that height."""
    mine, theirs = dict(zip(*one)), dict(zip(*other))
    both = mine.keys() & theirs.keys()
    return bool(both) and all(abs(mine[x] - theirs[x]) <= 0.015 * height for x in both)


def plot_lines(axes, lines, log=False):
    """Draws lines (x, y, keywords of plot(); a label of None: another line of the same look has it). Of those of one line style that lie
    on each other the earlier are drawn wider, with larger markers, so that each is seen; a lone point is no line. `log`: of the y axis."""
    heights = [[math.log(value) if log else value for value in y] for _, y, _ in lines]
    every = [value for of in heights for value in of]
    height = max(every, default=0) - (min(every, default=0) if log else 0)
    for number, (x, y, more) in enumerate(lines):
        style_of = more.get("linestyle")
        over = sum(
            lines[later][2].get("linestyle") == style_of and together((x, heights[number]), (lines[later][0], heights[later]), height)
            for later in range(number + 1, len(lines))
        )
        style = {"linewidth": 1.6 + 1.6 * over, **more, "markersize": more.get("markersize", 5) + 2.5 * over}
        if len(x) == 1:
            style["linestyle"] = "none"
        for line in axes.plot(x, y, **style):
            if style["label"] is None:
                line.tsp_explained = True


def style_entry(label, **look_of_it):
    """A legend's entry for a way of drawing that several lines share."""
    return Line2D([], [], color="dimgray", label=label, **look_of_it)


def legend_below(figure, *more):
    """One legend for all panels, below them, each label once; `more`: entries for styles."""
    found = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            found.setdefault(label, handle)
    entries = [*found.values(), *more]
    width = max((len(entry.get_label()) for entry in entries), default=1)
    # A letter is some 0.063 inches wide, and what is drawn beside it 0.55.
    columns = max(1, min(len(entries), int(figure.get_size_inches()[0] / (0.063 * width + 0.55))))
    figure.legend(entries, [entry.get_label() for entry in entries], loc="upper center", bbox_to_anchor=(0.5, 0), ncol=columns, fontsize=8)


def plain(value, _=None):
    """0.02, 1, 500, 20000: a tick of a log axis."""
    return f"{value:.10g}" if value < 1 else f"{value:,.0f}".replace(",", " ")


def log_scale(axis):
    """Powers of ten and what lies between, with numbers: at least two stand within the limits of any data."""
    set_scale = axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale
    set_scale("log")
    low, high = axis.get_view_interval()
    few = high / low < 1000
    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if few else (1,), numticks=20))
    axis.set_major_formatter(FuncFormatter(plain))
    axis.set_minor_formatter(NullFormatter())
    axis.set_tick_params(labelsize=8)


def powers_of_two(axes, values, text):
    """The x axis in powers of two, a tick for each value."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(round(value))))


def same_scale(panels, bottom=None):
    """The same heights mean the same in all these panels."""
    low = min(axes.get_ylim()[0] for axes in panels) if bottom is None else bottom
    high = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(low, high)
        axes.tsp_scale = panels  # for complaints()


def on_color(color):
    """Black or white: what can be read on it."""
    red, green, blue = to_rgb(color)
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"


# --- checks


def seen_without_green(color):
    """As deuteranopes see it (Machado, Oliveira, Fernandes 2009, severity 1)."""
    red, green, blue = to_rgb(color)
    return (
        0.367322 * red + 0.860646 * green - 0.227968 * blue,
        0.280085 * red + 0.672501 * green + 0.047413 * blue,
        -0.011820 * red + 0.042940 * green + 0.968881 * blue,
    )


def like_colors(colors, least=0.2):
    """Pairs that eyes without green take for one."""
    seen = {color: seen_without_green(color) for color in colors}
    return [
        pair
        for pair in itertools.combinations(seen, 2)
        if sum((a - b) ** 2 for a, b in zip(seen[pair[0]], seen[pair[1]])) ** 0.5 < least
    ]


def complaints(figure):
    """What is wrong with a picture, in words: a line that no legend names, a line through two heights at one place, a legend on a panel, a
    log axis without numbers, panels that should have one scale and don't, text that lies on other text or outside the picture, lines that
    look alike."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    legends = figure.legends + [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    named = {text.get_text() for legend in legends for text in legend.get_texts()}
    found = []
    for axes in figure.axes:
        title = axes.get_title() or axes.get_ylabel()
        looks = {}
        for handle, label in zip(*axes.get_legend_handles_labels()):
            if label not in named:
                found.append(f"{title}: the legend doesn't name {label}")
            if isinstance(handle, Line2D):
                alike = looks.setdefault((handle.get_color(), handle.get_marker(), handle.get_linestyle()), label)
                if alike != label:
                    found.append(f"{title}: {label} looks like {alike}")
        found += [
            f"{title}: {line.get_label()} has two heights at one place"
            for line in axes.lines
            if line.get_linestyle() != "None" and len(set(line.get_xdata())) < len(line.get_xdata())
        ]
        found += [
            f"{title}: a line without a label" for line in axes.lines if line.get_label().startswith("_") and not hasattr(line, "tsp_explained")
        ]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            numbers = [place for place, text in zip(axis.get_majorticklocs(), axis.get_majorticklabels()) if low <= place <= high and text.get_text()]
            if axis.get_scale() == "log" and len(numbers) < 2:
                found.append(f"{title}: a log axis with {len(numbers)} numbers")
        if any(other.get_ylim() != axes.get_ylim() for other in getattr(axes, "tsp_scale", [])):
            found.append(f"{title}: its scale differs from that of a panel like it")
        for legend in legends:
            if legend.get_window_extent(renderer).overlaps(axes.get_window_extent(renderer)):
                found.append(f"{title}: a legend lies on it")
        ticks = [text.get_window_extent(renderer) for text in axes.get_yticklabels() if text.get_text()]
        if any(first.y1 > second.y0 + 1 and second.y1 > first.y0 + 1 for first, second in itertools.pairwise(ticks)):
            found.append(f"{title}: numbers of the y axis lie on each other")
    titles = [axes.title for axes in figure.axes if axes.get_title()] + ([figure._suptitle] if figure._suptitle else [])
    for first, second in itertools.combinations(titles, 2):
        if first.get_window_extent(renderer).overlaps(second.get_window_extent(renderer)):
            found.append(f"the titles {first.get_text()} and {second.get_text()} lie on each other")
    found += [f"the colours {first} and {second} are alike without green" for first, second in like_colors(COLORS)]
    return found
