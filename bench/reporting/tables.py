"""Tables that are written as HTML and as Markdown, and how figures are written.

A cell is text; what it says is escaped where it is written, so that names from
files stay names.
"""

import dataclasses
import html
import re

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def escape(text):
    """For HTML, in text and in attributes."""
    return html.escape(str(text), quote=True)


def format_bytes(count):
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit + 1 < len(_UNITS):
        value /= 1024
        unit += 1
    return f"{count} B" if unit == 0 else f"{value:.2f} {_UNITS[unit]}"


def format_count(count):
    return f"{count:,}"


def format_ms(milliseconds):
    if milliseconds >= 10000:
        return f"{milliseconds / 1000:,.1f} s"
    return f"{milliseconds:,.1f} ms"


def format_share(fraction):
    return f"{100 * fraction:.1f} %"


def join_words(words):
    """"a", "a and b", "a, b and c"."""
    words = list(words)
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


@dataclasses.dataclass
class Column:
    header: str
    words: bool = False  # flush left, and may wrap


@dataclasses.dataclass
class Table:
    """`caption` names it; the first cell of a row names the row."""
    caption: str
    columns: list
    rows: list = dataclasses.field(default_factory=list)

    def add(self, *cells):
        assert len(cells) == len(self.columns), cells
        self.rows.append([str(cell) for cell in cells])

    def to_html(self):
        parts = [f"<table><caption><span>{escape(self.caption)}</span>"
                 "</caption><thead><tr>"]
        for column in self.columns:
            kind = ' class="text"' if column.words else ""
            parts.append(f'<th scope="col"{kind}>{escape(column.header)}</th>')
        parts.append("</tr></thead><tbody>\n")
        for row in self.rows:
            parts.append(f'<tr><th scope="row">{escape(row[0])}</th>')
            for column, cell in zip(self.columns[1:], row[1:]):
                kind = ' class="text"' if column.words else ""
                parts.append(f"<td{kind}>{escape(cell)}</td>")
            parts.append("</tr>\n")
        parts.append("</tbody></table>")
        return (f'<div class="scroll" tabindex="0" role="group" '
                f'aria-label="{escape(self.caption)}">{"".join(parts)}</div>')

    def to_markdown(self):
        lines = ["| " + " | ".join(escape_markdown(column.header)
                                   for column in self.columns) + " |"]
        lines.append("|" + "|".join(
            "---" if column.words or i == 0 else "---:"
            for i, column in enumerate(self.columns)) + "|")
        for row in self.rows:
            lines.append("| " + " | ".join(map(escape_markdown, row)) + " |")
        return f"**{escape_markdown(self.caption)}**\n\n" + "\n".join(lines)


def escape_markdown(text):
    """Text that Markdown takes for text, on one line."""
    text = re.sub(r"\s+", " ", str(text))
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", text)


def to_text(table):
    """Aligned columns for a terminal."""
    rows = [[column.header for column in table.columns]] + table.rows
    widths = [max(len(row[i]) for row in rows)
              for i in range(len(table.columns))]
    return ["  ".join(cell.ljust(width) if i == 0 or column.words
                      else cell.rjust(width)
                      for i, (cell, width, column) in enumerate(
                          zip(row, widths, table.columns))).rstrip()
            for row in rows]
