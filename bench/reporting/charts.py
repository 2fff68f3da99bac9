"""Charts as SVG inside a page: lines over events, page maps, heat maps.

Each says in words what it shows (title and description), takes its colours from
the page's style, so that light and dark come by themselves, and tells series
and classes apart by dashes, marks, letters and patterns as well as by colour.
Nothing needs a script. Texts are escaped here.
"""

from bench.reporting.tables import escape, format_bytes, format_count

# Nine, so that eight policies and what was asked for differ without colours;
# and 72 lines go by before two look alike.
_DASHES = ("", "7 4", "2 3", "10 3 2 3", "5 2", "14 4", "8 2 2 2 2 2", "1 5",
           "16 3 6 3")
_COLOURS = 8

# Classes of how much of a page that is held is in use: name, the least percent.
OCCUPANCY = (
    ("empty", 0),
    ("under half full", 1),
    ("half full to 90 %", 50),
    ("90 % to nearly full", 90),
    ("full", 100),
)


def occupancy_class(percent):
    """Index into OCCUPANCY; None where nothing is held."""
    if percent < 0:
        return None
    best = 0
    for i, (_, least) in enumerate(OCCUPANCY):
        if percent >= least:
            best = i
    return best


def pattern_definitions():
    """Fills that all charts of a page share: once a page, before the charts."""
    marks = ('<path d="M0 6L6 0" class="mark"/>',
             '<circle cx="3" cy="3" r="1.3" class="dot"/>',
             '<path d="M0 3H6" class="mark"/>', "", "")
    parts = ['<svg class="definitions" width="0" height="0" aria-hidden="true" '
             'focusable="false"><defs>']
    for i, mark in enumerate(marks):
        parts.append(f'<pattern id="occupied{i}" width="6" height="6" '
                     'patternUnits="userSpaceOnUse">'
                     f'<rect width="6" height="6" class="o{i}"/>{mark}'
                     "</pattern>")
    parts.append("</defs></svg>")
    return "".join(parts)


def occupancy_legend():
    items = []
    for i, (name, _) in enumerate(OCCUPANCY):
        items.append('<li><svg width="22" height="22" aria-hidden="true" '
                     'focusable="false"><rect width="22" height="22" rx="3" '
                     f'fill="url(#occupied{i})"/></svg>{escape(name)}</li>')
    items.append('<li><svg width="22" height="22" aria-hidden="true" '
                 'focusable="false"><rect x="1" y="1" width="20" height="20" '
                 'rx="3" class="frame"/></svg>not held</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def _open(identity, width, height, title, description, kind):
    return (f'<svg class="{kind}" role="img" viewBox="0 0 {width} {height}" '
            f'aria-labelledby="{identity}-title {identity}-about" '
            f'focusable="false"><title id="{identity}-title">{escape(title)}'
            f'</title><desc id="{identity}-about">{escape(description)}</desc>')


def _cells(rows, width, height):
    """Rectangles of equal class in one path each, runs merged along a row."""
    paths = [[] for _ in OCCUPANCY]
    for y, row in enumerate(rows):
        x = 0
        while x < len(row):
            kind = occupancy_class(row[x])
            end = x + 1
            while end < len(row) and occupancy_class(row[end]) == kind:
                end += 1
            if kind is not None:
                run = (end - x) * width
                paths[kind].append(f"M{x * width} {y * height}h{run}v{height}"
                                   f"h-{run}z")
            x = end
    return "".join(f'<path fill="url(#occupied{i})" d="{"".join(path)}"/>'
                   for i, path in enumerate(paths) if path)


def page_map(identity, cells, title, description):
    """Cells in reading order, 128 in a row."""
    columns, size = 128, 6
    rows = [cells[i:i + columns] for i in range(0, len(cells), columns)]
    height = max(len(rows), 1) * size
    return (_open(identity, columns * size, height, title, description, "map")
            + _cells(rows, size, size) + "</svg>")


def heat_map(identity, looks, title, description):
    """Columns are looks, from left to right, each a list of bands."""
    width, height = 8, 5
    bands = max(map(len, looks))
    rows = [[look[band] if band < len(look) else -1 for look in looks]
            for band in range(bands)]
    return (_open(identity, len(looks) * width, bands * height, title,
                  description, "map heat")
            + _cells(rows, width, height) + "</svg>")


def _nice_step(largest, steps=4):
    """A step of binary size that cuts `largest` into about so many."""
    step = 1
    while largest / step > steps:
        step *= 2
    return step


def line_legend(names):
    items = []
    for i, name in enumerate(names):
        items.append('<li><svg width="40" height="16" aria-hidden="true" '
                     'focusable="false"><path d="M1 8H39" '
                     f'class="line c{i % _COLOURS}" '
                     f'stroke-dasharray="{_DASHES[i % len(_DASHES)]}"/></svg>'
                     f'{_letter(i)}: {escape(name)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def _letter(index):
    return chr(ord("A") + index % 26)


def _spread(places, gap, least, most):
    """Moves labels apart that would lie over each other."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = list(places)
    for before, now in zip(order, order[1:]):
        moved[now] = max(moved[now], moved[before] + gap)
    overshoot = max(moved, default=least) - most
    if overshoot > 0:
        moved[order[-1]] = most
        for now, before in zip(reversed(order), list(reversed(order))[1:]):
            moved[before] = min(moved[before], moved[now] - gap)
    return moved


def line_chart(identity, series, limit, title, description, x_name="event"):
    """`series`: (name, [(x, bytes), ...]). `limit`: the device, or None."""
    width, height = 760, 300
    left, right, top, bottom = 74, 24, 12, 34
    points = [point for _, line in series for point in line]
    x_end = max((x for x, _ in points), default=1) or 1
    y_end = max((y for _, y in points), default=1) or 1
    show_limit = limit is not None and limit <= 1.6 * y_end
    if show_limit:
        y_end = max(y_end, limit)
    y_end *= 1.04

    def at(x, y):
        return (left + (width - left - right) * x / x_end,
                height - bottom - (height - top - bottom) * y / y_end)

    parts = [_open(identity, width, height, title, description, "chart")]
    step = _nice_step(y_end)
    for i in range(int(y_end / step) + 1):
        _, y = at(0, i * step)
        parts.append(f'<path class="grid" d="M{left} {y:.1f}H{width - right}"/>'
                     f'<text x="{left - 8}" y="{y + 4:.1f}" '
                     f'text-anchor="end">{format_bytes(i * step)}</text>')
    for share, anchor in ((0, "start"), (0.5, "middle"), (1, "end")):
        x, _ = at(x_end * share, 0)
        parts.append(f'<text x="{x:.1f}" y="{height - 12}" '
                     f'text-anchor="{anchor}">{escape(x_name)} '
                     f'{format_count(round(x_end * share))}</text>')
    if show_limit:
        _, y = at(0, limit)
        parts.append(f'<path class="limit" d="M{left} {y:.1f}'
                     f'H{width - right}"/><text x="{left + 4}" '
                     f'y="{y - 4:.1f}">device: {format_bytes(limit)}</text>')
    ends = []
    for i, (_, line) in enumerate(series):
        places = [at(x, y) for x, y in line]
        ends.append(places[-1][1] if places else height - bottom)
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        if path:
            parts.append(f'<path class="line c{i % _COLOURS}" '
                         f'stroke-dasharray="{_DASHES[i % len(_DASHES)]}" '
                         f'd="M{path}"/>')
    for i, y in enumerate(_spread(ends, 13, top + 8, height - bottom)):
        parts.append(f'<text class="letter" '
                     f'x="{width - right + 6}" y="{y + 4:.1f}">'
                     f'{_letter(i)}</text>')
    parts.append("</svg>")
    return (f'<div class="scroll" tabindex="0" role="group" '
            f'aria-label="{escape(title)}">{"".join(parts)}</div>')
