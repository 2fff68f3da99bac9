"""The HTML page of a report: one file that needs nothing else.

No script, and no reference to anything outside: what opens it may have no
network. The style is that of the page of a memory snapshot, read from its
template, with what charts need added to it.
"""

import pathlib
import re

from bench.reporting.tables import escape

_TEMPLATE = (pathlib.Path(__file__).resolve().parents[2]
             / "alloc" / "memory_page.html")

_STYLE = """
main, .page, nav { max-width: 1180px; }
.page, nav { margin: 0 auto; padding: 24px 20px 0; }
main { padding-top: 0; }
h3 { font-size: 15px; margin: 26px 0 8px; }
nav ul { columns: 2 240px; padding-left: 20px; overflow-wrap: anywhere; }
h1, h2, h3 { overflow-wrap: anywhere; }
a { color: var(--accent); }
.skip { position: absolute; left: -9999px; }
.skip:focus {
  left: 12px; top: 8px; background: var(--panel); padding: 6px 10px;
}
a:focus-visible, .scroll:focus-visible {
  outline: 3px solid var(--accent); outline-offset: 2px;
}
caption span {
  position: sticky; left: 0; display: inline-block;
  max-width: min(100%, calc(100vw - 60px));
}
thead th { white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { white-space: nowrap; }
.text { min-width: 9em; overflow-wrap: break-word; }
.findings { padding-left: 20px; }
.findings li { margin: 4px 0; overflow-wrap: anywhere; }
.figures {
  display: grid; gap: 16px; margin: 12px 0 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr));
}
figure { margin: 0; }
figcaption { margin: 0 0 6px; color: var(--soft); overflow-wrap: anywhere; }
svg.map, svg.chart { display: block; width: 100%; height: auto; }
svg.chart { min-width: 600px; }
svg.map { border: 1px solid var(--line); border-radius: 4px; }
svg.chart text { fill: var(--soft); font-size: 12px; font-family: inherit; }
svg.chart .letter { font-weight: 700; }
.definitions { position: absolute; }
.line { fill: none; stroke-width: 2.4; stroke-linejoin: round; }
.grid { stroke: var(--line); fill: none; }
.limit {
  stroke: var(--alarm); stroke-width: 1.5; stroke-dasharray: 9 5; fill: none;
}
.frame { fill: none; stroke: var(--soft); }
.mark { stroke: var(--mark); stroke-width: 1.2; fill: none; }
.dot { fill: var(--mark); }
:root {
  --o0: #f4c9bd; --o1: #f0d9a8; --o2: #cfe0ef; --o3: #86b2da; --o4: #2f6ea8;
  --mark: #7a2a1d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --o0: #5b2a22; --o1: #5f4a1c; --o2: #24435f; --o3: #3f77a8; --o4: #9ccaf2;
    --mark: #f3b6a6;
  }
}
.o0 { fill: var(--o0); } .o1 { fill: var(--o1); } .o2 { fill: var(--o2); }
.o3 { fill: var(--o3); } .o4 { fill: var(--o4); }
""" + "\n".join(f".c{i} {{ stroke: var(--c{i}); }}" for i in range(8))


def _shared_style():
    return re.search(r"<style>(.*?)</style>",
                     _TEMPLATE.read_text(encoding="utf-8"), re.DOTALL).group(1)


class Page:
    """Collects sections, each with a heading and an entry in the list."""

    def __init__(self, title, subtitle):
        self._title = title
        self._subtitle = subtitle
        self._sections = []

    def add_section(self, title, content):
        """`content` is HTML, whose headings are of level 3."""
        identity = f"section-{len(self._sections) + 1}"
        self._sections.append((identity, title, content))

    def render(self):
        entries = "".join(
            f'<li><a href="#{identity}">{escape(title)}</a></li>'
            for identity, title, _ in self._sections)
        sections = "\n".join(
            f'<section aria-labelledby="{identity}">'
            f'<h2 id="{identity}">{escape(title)}</h2>\n{content}\n</section>'
            for identity, title, content in self._sections)
        return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(self._title)}</title>
<style>{_shared_style()}{_STYLE}</style>
</head>
<body>
<a class="skip" href="#content">To the results</a>
<header class="page">
<h1>{escape(self._title)}</h1>
<p class="soft">{escape(self._subtitle)}</p>
</header>
<nav aria-label="Sections"><ul>{entries}</ul></nav>
<main id="content">
{sections}
</main>
</body>
</html>
"""


def paragraph(text, soft=False):
    return f'<p class="soft">{escape(text)}</p>' if soft else (
        f"<p>{escape(text)}</p>")


def bullet_list(sentences):
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="findings">{items}</ul>'


def heading(text):
    return f"<h3>{escape(text)}</h3>"


def panel(*content):
    return f'<div class="panel">{"".join(content)}</div>'


def figure(caption, content):
    return (f"<figure><figcaption>{escape(caption)}</figcaption>{content}"
            "</figure>")


def figures(*content):
    return f'<div class="figures">{"".join(content)}</div>'


def details(summary, content):
    return (f"<details><summary>{escape(summary)}</summary>{content}"
            "</details>")
