"""The charts of a report as PNG and SVG files, by matplotlib.

The same figures as in the page, for papers and slides. Deterministic: no date
and no random identifiers are written.
"""

import pathlib
import re

try:
    import matplotlib
except ImportError:
    matplotlib = None

from bench.reporting import findings, fragmentation_section, switching_section

_DASHES = ("solid", "dashed", "dotted", "dashdot")
_MARKERS = ("", "o", "s", "^", "v", "D", "x", "P")


class PlotsMissing(Exception):
    """matplotlib cannot be had."""


def _prepare():
    if matplotlib is None:
        raise PlotsMissing("plots need matplotlib: bench/setup --report "
                           "installs Debian's (python3-matplotlib)")
    matplotlib.use("Agg")
    # Names from files are names, not formulas.
    matplotlib.rcParams["text.parse_math"] = False
    matplotlib.rcParams["svg.hashsalt"] = "quire"
    matplotlib.rcParams["figure.constrained_layout.use"] = True


def _file_name(text):
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip("-")[:80] or "unnamed"


def _save(figure, folder, name, written):
    for kind in ("png", "svg"):
        path = folder / f"{name}.{kind}"
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(path, dpi=150, metadata=metadata)
        written.append(path)
    matplotlib.pyplot.close(figure)


def _lines(series, title, x_name, limit):
    figure, axes = matplotlib.pyplot.subplots(figsize=(8, 4.2))
    for i, (name, points) in enumerate(series):
        axes.plot([x for x, _ in points],
                  [y / (1 << 30) for _, y in points], label=name,
                  linestyle=_DASHES[i % len(_DASHES)],
                  marker=_MARKERS[i % len(_MARKERS)],
                  markevery=max(len(points) // 8, 1), markersize=4)
    highest = max((y for _, points in series for _, y in points), default=0)
    if limit <= 1.6 * highest:
        axes.axhline(limit / (1 << 30), color="black", linewidth=1)
        axes.annotate("device", (0, limit / (1 << 30)), xytext=(4, 3),
                      textcoords="offset points")
    axes.set(title=title, xlabel=x_name, ylabel="GiB")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    return figure


def _image(rows, title, x_name, y_name):
    columns = max(map(len, rows))
    values = [[value if value >= 0 else float("nan") for value in row]
              + [float("nan")] * (columns - len(row)) for row in rows]
    figure, axes = matplotlib.pyplot.subplots(figsize=(8, 4.2))
    image = axes.imshow(values, aspect="auto", vmin=0, vmax=100,
                        cmap="cividis", interpolation="nearest")
    axes.set(title=title, xlabel=x_name, ylabel=y_name)
    figure.colorbar(image, label="% in use of what is held")
    return figure


def _write_fragmentation(results, folder, written):
    for runs in fragmentation_section.group(results):
        name = fragmentation_section.name_trace(runs[0])
        base = f"fragmentation-{_file_name(name)}"
        series = fragmentation_section.timeline_series(runs)
        if series:
            _save(_lines(series, f"Reserved memory, {name}", "event",
                         runs[0]["device_memory"]),
                  folder, f"{base}-timeline", written)
        for run in runs:
            policy = findings.name_policy(run)
            place = f"{base}-{_file_name(run['policy'])}"
            looks = fragmentation_section.heat_looks(run)
            if looks:
                bands = [list(band) for band in zip(*looks)]
                _save(_image(bands, f"{policy}, {name}", "look",
                             "memory, in bands"), folder, f"{place}-heat",
                      written)
            for words, drawn in fragmentation_section.maps_of(run):
                cells = drawn["cells"]
                rows = [cells[i:i + 128] for i in range(0, len(cells), 128)]
                _save(_image(rows, f"{policy}, {words}", "128 cells a row",
                             "memory"), folder,
                      f"{place}-pages-{_file_name(words.split(',')[0])}",
                      written)


def _write_switching(results, folder, written):
    for runs in switching_section.group(results):
        for strategy in dict.fromkeys(r["strategy"] for r in runs):
            same = [r for r in runs if r["strategy"] == strategy
                    and r["steps"]]
            if not same:
                continue
            series = [(findings.name_policy(r),
                       [(i, s.get("peak_reserved", 0))
                        for i, s in enumerate(r["steps"])]) for r in same]
            name = f"{runs[0]['scenario']}, {strategy}"
            _save(_lines(series, f"Reserved memory, {name}", "step",
                         runs[0]["device_memory"]),
                  folder, f"switching-{_file_name(name)}", written)


def write(records, folder):
    """Writes all plots and returns their paths."""
    _prepare()
    import matplotlib.pyplot  # pylint: disable=import-outside-toplevel
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    by_experiment = {}
    for record in records:
        by_experiment.setdefault(record["experiment"],
                                 []).append(record["result"])
    _write_fragmentation(by_experiment.get("fragmentation_stress", []), folder,
                         written)
    _write_switching(by_experiment.get("model_switching", []), folder, written)
    return written
