# SPDX-License-Identifier: BSD-3-Clause
#
# Draws measurements as SVG, one file per question, both axes logarithmic. Called by bench/report.py.
import math
import os
from xml.sax.saxutils import escape

from perftest import size_text

KIB, MIB = 1 << 10, 1 << 20

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 76, 58
# Where the names of the lines stand: the lines lie apart at small sizes and together at large ones.
NAMES = 130
# Okabe and Ito's colours, told apart by all; a shape of marker beside, for paper.
STYLES = {
    "cuda_ipc": ("cuda_ipc", "#D55E00", "square", 2.5),
    "nvlink": ("nvlink", "#0072B2", "circle", 3.5),
    "copy_engine": ("copy engine only", "#009E73", "triangle", 1.5),
    "ring": ("ring only", "#A0529C", "diamond", 1.5),
    "raw": ("raw limit", "#222222", "diamond", 0.8),
}
INK, FAINT, GRID = "#222222", "#666666", "#DDDDDD"
FONT = "font-family=\"Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif\""

# File, question, test, kind, title of the y axis, largest size.
QUESTIONS = [
    ("time-put", "How long does one put take?", "put_one", "time", None),
    ("time-get", "How long does one get take?", "get_one", "time", None),
    ("time-tag", "How long does a tagged message take, one way?", "tag_one", "time", None),
    ("time-am", "How long does an active message take, one way?", "am_one", "time", None),
    ("bandwidth-put", "How fast is a stream of puts?", "put_stream", "bandwidth", None),
    ("bandwidth-get", "How fast is a stream of gets?", "get_stream", "bandwidth", None),
    ("bandwidth-tag", "How fast is a stream of tagged messages?", "tag_stream", "bandwidth", None),
    ("bandwidth-am", "How fast is a stream of active messages?", "am_stream", "bandwidth", None),
    ("rate-put", "How many puts a second?", "put_stream", "rate", 64 * KIB),
    ("rate-get", "How many gets a second?", "get_stream", "rate", 64 * KIB),
]
AXES = {"time": "microseconds, less is better", "bandwidth": "GB/s, more is better", "rate": "million a second, more is better"}


class LogAxis:
    """From a value to a pixel."""

    def __init__(self, low, high, first_px, last_px):
        self.low, self.high = low, high
        self.first_px = first_px
        self.scale = (last_px - first_px) / (math.log(high) - math.log(low))

    def px(self, value):
        return self.first_px + (math.log(value) - math.log(self.low)) * self.scale


def round_ticks(low, high):
    """1, 2, 5 of each decade within, fewer when there would be many."""
    decades = math.log10(high / low)
    steps = (1, 2, 5) if decades < 3.6 else (1,)
    ticks = []
    for power in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1):
        ticks += [step * 10.0 ** power for step in steps if low * 0.999 <= step * 10.0 ** power <= high * 1.001]
    return ticks


def tick_text(value):
    return f"{value:,.0f}".replace(",", " ") if value >= 1 else f"{value:g}"


def y_range(lines):
    values = [value for points in lines.values() for _, value in points]
    low, high = min(values), max(values)
    if high / low < 4:
        middle = math.sqrt(low * high)
        low, high = min(low, middle / 2), max(high, middle * 2)
    return low / 1.5, high * 1.25


def marker(shape, x, y, colour, size):
    r = 2.4 + size / 2
    style = f'fill="{colour}" stroke="#ffffff" stroke-width="1"'
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}" {style}/>'
    corners = {"square": [(-1, -1), (1, -1), (1, 1), (-1, 1)], "triangle": [(0, -1.25), (1.15, 0.9), (-1.15, 0.9)],
               "diamond": [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)]}[shape]
    points = " ".join(f"{x + r * dx:.1f},{y + r * dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}" {style}/>'


def text(x, y, content, size=13, anchor="start", colour=INK, weight="normal"):
    # A white rim keeps it legible on a line of the grid.
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
            f'font-weight="{weight}" stroke="#ffffff" stroke-width="3" paint-order="stroke">{escape(content)}</text>')


def spread_out(wanted, gap, low, high):
    """Positions near the wanted ones, in their order, at least gap apart and within low and high."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    placed = [0.0] * len(wanted)
    previous = low - gap
    for index in order:
        placed[index] = previous = max(wanted[index], previous + gap)
    limit = high + gap
    for index in reversed(order):
        placed[index] = limit = min(placed[index], limit - gap)
    return placed


def draw_grid(x, y, sizes):
    parts = []
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for value in round_ticks(y.low, y.high):
        at = y.px(value)
        parts.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}" stroke="{GRID}"/>')
        parts.append(text(LEFT - 8, at + 4.5, tick_text(value), anchor="end", colour=FAINT))
    last = -1000.0
    for size in sizes:
        at = x.px(size)
        parts.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{bottom}" stroke="{GRID}" stroke-width="0.6"/>')
        # No room for every name where sizes lie close.
        if at - last >= 50:
            parts.append(text(at, bottom + 20, size_text(size).replace("iB", ""), 12, "middle", FAINT))
            last = at
    parts.append(f'<line x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}" stroke="{FAINT}"/>')
    return parts


def draw_lines(x, y, lines):
    parts = []
    columns = list(lines)
    starts = [y.px(lines[column][0][1]) for column in columns]
    names = spread_out(starts, 19, TOP + 8, HEIGHT - BOTTOM - 14)
    # The main one on top.
    for column in sorted(columns, key=lambda name: STYLES[name][3]):
        name, colour, shape, width = STYLES[column]
        points = [(x.px(size), y.px(value)) for size, value in lines[column]]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"/>')
        parts += [marker(shape, px, py, colour, width) for px, py in points]
        at = names[columns.index(column)]
        first_x, first_y = points[0]
        parts.append(f'<polyline points="{LEFT + NAMES - 2},{at:.1f} {first_x - 7:.1f},{first_y:.1f}" fill="none" '
                     f'stroke="{colour}" stroke-width="0.8"/>')
        parts.append(text(LEFT + NAMES - 6, at + 4.5, name, 14, "end", colour, "bold" if column == "nvlink" else "normal"))
    return parts


def draw(title, subtitle, axis, lines):
    """lines: {column: [(size, value)]}, not empty."""
    sizes = sorted({size for points in lines.values() for size, _ in points})
    low, high = y_range(lines)
    first = LEFT + NAMES + 22
    x = LogAxis(sizes[0], max(sizes[-1], sizes[0] * 2), first, WIDTH - RIGHT - 16)
    y = LogAxis(low, high, HEIGHT - BOTTOM, TOP)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" {FONT}>',
             f"<title>{escape(title)}</title>", f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
             text(LEFT - 40, 30, title, 19, weight="bold"), text(LEFT - 40, 51, f"{axis}  ·  {subtitle}", 12.5, colour=FAINT)]
    parts += draw_grid(x, y, sizes)
    parts += draw_lines(x, y, lines)
    parts.append(text((first + WIDTH - RIGHT) / 2, HEIGHT - 12, "bytes in one operation", 13, "middle", FAINT))
    return "\n".join(parts + ["</svg>"]) + "\n"


def machine_line(machine):
    gpu = machine["gpus"][0].split(",")[0].strip() if machine["gpus"] else "no GPU"
    if machine["emulated"]:
        gpu = "EMULATED, the figures mean nothing"
    return f"{gpu}, UCX {machine['ucx']}, {machine['date'][:10]}"


def write(out, machine, reading, commands):
    """reading(test, kind) gives {column: [(size, value)]}; commands[test] is ucx_perftest's. The names of the files."""
    written = []
    for name, title, test, kind, largest in QUESTIONS:
        lines = {column: [(size, value) for size, value in points if largest is None or size <= largest]
                 for column, points in reading(test, kind).items()}
        lines = {column: points for column, points in lines.items() if points}
        if lines:
            with open(os.path.join(out, name + ".svg"), "w") as file:
                file.write(draw(title, f"ucx_perftest {commands[test]}  ·  {machine_line(machine)}", AXES[kind], lines))
            written.append(name + ".svg")
    return written
