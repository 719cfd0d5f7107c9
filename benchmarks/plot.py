"""The picture of a measurement: speed over standard mode, one set of bars for each group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from benchmarks.runs import LOOKUP, STANDARD
from benchmarks.summary import Figure

# Read on white and on black alike, and told apart without colour vision.
_COLOURS = ("#2f81f7", "#2da44e", "#d98c00", "#bf5af2", "#e5534b")
_THEIRS = "#8c8c8c"
_INK = "#7d8590"


def draw(figures: Sequence[Figure], path: Path, title: str) -> None:
    """Write an SVG: the median of each arm and group, with the 10–90 % spread. Same rows, same file."""
    groups = list(dict.fromkeys(figure.group for figure in figures))
    arms = [
        arm
        for arm in dict.fromkeys(figure.arm for figure in figures)
        if arm == LOOKUP or not arm.startswith("generate")
        if arm != STANDARD
    ]
    height = 0.8 / max(len(arms), 1)
    with plt.rc_context({"svg.hashsalt": "draftgate", "svg.fonttype": "none", "font.size": 9}):
        canvas, axes = plt.subplots(figsize=(8, 0.8 + 0.2 * len(groups) * (len(arms) + 0.7)))
        for at, arm in enumerate(arms):
            mine = {figure.group: figure for figure in figures if figure.arm == arm}
            places = [
                (number + (at - (len(arms) - 1) / 2) * height, mine[group])
                for number, group in enumerate(groups)
                if group in mine
            ]
            axes.barh(
                [place for place, _ in places],
                [figure.ratio.median for _, figure in places],
                height=height,
                label=arm,
                color=_THEIRS if arm == LOOKUP else _COLOURS[at % len(_COLOURS)],
            )
            for place, figure in places:
                axes.plot([figure.ratio.low, figure.ratio.high], [place] * 2, color=_INK, lw=1)
        axes.axvline(1.0, color=_INK, lw=1)
        axes.set_yticks(range(len(groups)), [group.replace("_", " ") for group in groups])
        axes.invert_yaxis()
        axes.set_xlabel("tokens per second, of standard decoding")
        axes.set_title(title, color=_INK, fontsize=9, pad=24)
        axes.legend(
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            ncols=len(arms),
            frameon=False,
            labelcolor=_INK,
        )
        axes.margins(y=0.01)
        axes.tick_params(colors=_INK)
        axes.xaxis.label.set_color(_INK)
        for spine in axes.spines.values():
            spine.set_color(_INK)
        canvas.savefig(
            path, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None}
        )
        plt.close(canvas)
