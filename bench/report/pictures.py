"""Bars as SVG: a group of bars for each row of a table, readable on dark and on light pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from bench.report.figures import Spread, number

WIDTH = 760
NAME_WIDTH = 190
BAR_WIDTH = 380
BAR_HEIGHT = 16
BAR_STEP = 21
GROUP_GAP = 34

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f; }
.title { font-weight: 600; }
.bar { fill: #8b949e; }
.own { fill: #1f7a4d; }
.limit { fill: none; stroke: #8b949e; stroke-dasharray: 3 2; }
.range { stroke: #24292f; stroke-width: 1.5; opacity: .55; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .bar { fill: #6e7681; }
  .own { fill: #3fb950; }
  .limit { stroke: #8b949e; }
  .range { stroke: #e6edf3; }
}
"""


class Bar(NamedTuple):
    name: str
    value: Spread
    # "own": this project; "limit": not a product, but what the machine allows; "bar": the others.
    kind: str = "bar"


class Group(NamedTuple):
    """Bars of one unit, drawn on a scale of their own."""

    title: str
    unit: str
    bars: Sequence[Bar]


def picture(title: str, groups: Sequence[Group]) -> str:
    """An SVG document; the range of the rounds is a thin line over each bar."""
    lines: list[str] = []
    y = 10
    for group in groups:
        y += GROUP_GAP - 12
        lines.append(f'<text class="title" x="0" y="{y}">{escape(group.title)}</text>')
        y += 8
        longest = max((bar.value.high for bar in group.bars), default=0.0) or 1.0
        for bar in group.bars:
            lines += _bar(bar, y, longest, group.unit)
            y += BAR_STEP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 8}" viewBox="0 0 {WIDTH} {y + 8}"'
    return "\n".join(
        [f'{head} role="img">', f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", *lines, "</svg>\n"]
    )


def _bar(bar: Bar, y: int, longest: float, unit: str) -> list[str]:
    def x_of(value: float) -> float:
        return round(NAME_WIDTH + BAR_WIDTH * value / longest, 1)

    middle, text_y = y + BAR_HEIGHT / 2, y + BAR_HEIGHT - 4
    end = max(x_of(bar.value.median), NAME_WIDTH + 1.0)
    text_x = max(end, x_of(bar.value.high)) + 6
    kind = escape(bar.kind)
    found = [
        f'<text x="{NAME_WIDTH - 8}" y="{text_y}" text-anchor="end">{escape(bar.name)}</text>',
        f'<rect class="{kind}" x="{NAME_WIDTH}" y="{y}" width="{end - NAME_WIDTH:.1f}" height="{BAR_HEIGHT}" rx="2"/>',
        f'<text x="{text_x}" y="{text_y}">{escape(f"{number(bar.value.median)} {unit}")}</text>',
    ]
    if bar.value.low != bar.value.high:
        low, high = x_of(bar.value.low), x_of(bar.value.high)
        found.append(f'<line class="range" x1="{low}" y1="{middle}" x2="{high}" y2="{middle}"/>')
    return found
