"""Points out of the arrays `plan` and `compare` of tsprun's reports: what a layout needs, moves and yields at one setting."""

import pathlib
import statistics
from dataclasses import dataclass, field, replace

MOST_FOUND = 12  # layouts of a search that pictures show
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "communication", "workspace")


@dataclass
class Point:
    measured: bool  # of `compare`; else planned
    label: str
    config: str
    seq: int
    batch: int
    ranks: int
    hidden: int | None  # of the model, if the report says so
    parameters: int | None
    memory: dict = field(default_factory=dict)  # bytes by category and `total`; empty if unknown
    forward: float | None = None  # received bytes a rank, mean
    backward: float | None = None
    tokens_per_s: float | None = None
    exposed: tuple[float, float] | None = None  # share of its time that the rank waits which waits least, and most
    fits: bool | None = None
    settings: dict = field(default_factory=dict)  # of SETTINGS, those that the report says


def config_of(row):
    """A file without its folder and ending."""
    config = row.get("config", "")
    return pathlib.PurePath(config).stem if config.endswith(".json") else config


def received(traffic, direction, ranks):
    """Mean bytes a rank over all purposes; None where nothing is known."""
    if not traffic or direction not in traffic:
        return None
    return sum(purpose["received"] for purpose in traffic[direction].values()) / ranks


def exposed_of(row):
    if row.get("exposed_share") is None:
        return None
    return row["exposed_share_least"], row["exposed_share"]


# What tells apart two measurements of one layout, model and size.
SETTINGS = ("forward_only", "recompute", "micro_batches", "threads", "link_gbps", "host")


def is_search(report):
    """Whether it is a report of `plan --search`."""
    return any(option["name"] == "--search" for option in (report.get("origin") or {}).get("options") or [])


def first_of_search(report):
    """The rows of a search that fit and are the fastest; of no other report."""
    if not is_search(report):
        return []
    rows = [row for row in report.get("plan") or [] if row.get("fits") and row.get("step_seconds")]
    return sorted(rows, key=lambda row: row["step_seconds"])[:MOST_FOUND]


def told_apart(points):
    """Points whose labels say in which settings they differ from others, planned and measured ones apart: "tsp=4, forward_only True"."""
    values = {}
    for point in points:
        for name, value in point.settings.items():
            values.setdefault((point.measured, name), set()).add(value)

    def label(point):
        unlike = [f"{name} {value}" for name, value in point.settings.items() if len(values[point.measured, name]) > 1]
        return ", ".join([point.label, *unlike])

    return [replace(point, label=label(point)) for point in points]


def one_each(points):
    """Points of which each layout at a setting has one, where several reports have it: the median of speeds, the largest peaks."""
    found = {}
    for point in points:
        settings = tuple(sorted(point.settings.items(), key=lambda pair: pair[0]))
        key = (point.measured, point.label, point.config, point.seq, point.batch, point.ranks, point.parameters, settings)
        found.setdefault(key, []).append(point)

    def joined(same):
        speeds = [point.tokens_per_s for point in same if point.tokens_per_s is not None]
        fullest = max(same, key=lambda point: point.memory.get("total") or 0)
        return replace(fullest, tokens_per_s=statistics.median(speeds) if speeds else None)

    return [joined(same) for same in found.values()]


def settings_of(report, row):
    host = (report.get("origin") or {}).get("host") if report.get("compare") else None
    stated = {**row, "host": host}
    return {name: stated[name] for name in SETTINGS if stated.get(name) is not None}


def points_of(report):
    points = []
    for key, measured in (("plan", False), ("compare", True)):
        for row in first_of_search(report) if key == "plan" and is_search(report) else report.get(key) or []:
            ranks = row["ranks"]
            points.append(
                Point(
                    measured=measured,
                    label=row["label"],
                    config=config_of(row),
                    seq=row["seq"],
                    batch=row["batch"],
                    ranks=ranks,
                    hidden=row.get("hidden"),
                    parameters=row.get("parameters"),
                    memory=row.get("memory_peak_bytes") or {},
                    forward=received(row.get("traffic_bytes"), "forward", ranks),
                    backward=received(row.get("traffic_bytes"), "backward", ranks),
                    tokens_per_s=row.get("tokens_per_s"),
                    exposed=exposed_of(row),
                    fits=row.get("fits"),
                    settings=settings_of(report, row),
                )
            )
    return points
