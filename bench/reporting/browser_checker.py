"""Shows a page in headless Chromium, and says what is wrong with it there.

Used by tests. The page itself is not touched: it lies in frames of several
widths, under its own content security policy, and a script around them measures
what was laid out. Without a network and without a debugging port.
"""

import html
import json
import pathlib
import re
import shutil
import subprocess
import tempfile

PROGRAM = shutil.which("chromium")
WIDTHS = (360, 768, 1280)
SCHEMES = {"dark": 0, "light": 1}  # as --blink-settings counts them
_SECONDS = 120
# Of text and what is behind it, as WCAG 2.1 asks for (level AA, small text).
_LEAST_CONTRAST = 4.5

_MEASURE = """
function channels(color) {
  return color.match(/[0-9.]+/g).map(Number);
}
function luminance(color) {
  const [r, g, b] = channels(color).slice(0, 3).map(c => {
    c /= 255;
    return c <= 0.04045 ? c / 12.92 : Math.pow((c + 0.055) / 1.055, 2.4);
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function behind(view, element) {
  for (let e = element; e !== null; e = e.parentElement) {
    const color = view.getComputedStyle(e).backgroundColor;
    const parts = channels(color);
    if (parts.length < 4 || parts[3] > 0.5) return color;
  }
  return 'rgb(255, 255, 255)';
}
function contrast(view, element) {
  const color = view.getComputedStyle(element).color;
  const [low, high] = [luminance(color), luminance(behind(view, element))]
      .sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}
function own_text(element) {
  return [...element.childNodes].some(
      n => n.nodeType === Node.TEXT_NODE && n.textContent.trim() !== '');
}
function measure(frame) {
  const page = frame.contentDocument;
  const view = frame.contentWindow;
  const root = page.documentElement;
  const told = {width: root.clientWidth, needs: root.scrollWidth,
                dark: view.matchMedia('(prefers-color-scheme: dark)').matches,
                background: luminance(behind(view, page.body)),
                headings: page.querySelectorAll('h1').length,
                faint: [], empty: []};
  for (const e of page.body.querySelectorAll('*')) {
    const box = e.getBoundingClientRect();
    const name = e.tagName.toLowerCase() + ' "' +
        e.textContent.trim().slice(0, 40) + '"';
    if (e.namespaceURI.endsWith('xhtml') && own_text(e) && box.width > 0 &&
        contrast(view, e) < LEAST) {
      told.faint.push(name + ' ' + contrast(view, e).toFixed(2));
    }
    if (e.matches('svg[role=img]') && e.checkVisibility() &&
        (box.width < 20 || box.height < 1)) {
      told.empty.push(name);
    }
  }
  return told;
}
addEventListener('load', () => {
  document.getElementById('told').textContent = JSON.stringify(
      [...document.querySelectorAll('iframe')].map(measure));
});
"""


def _around(page):
    frames = "".join(
        f'<iframe style="width:{width}px;height:900px;border:0" '
        f'srcdoc="{html.escape(page)}"></iframe>' for width in WIDTHS)
    script = _MEASURE.replace("LEAST", str(_LEAST_CONTRAST))
    return (f'<!DOCTYPE html><meta charset="utf-8">{frames}'
            f'<pre id="told"></pre><script>{script}</script>')


def _show(page, scheme):
    """(what was measured in each frame, lines of the console)"""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "around.html"
        path.write_text(_around(page), encoding="utf-8")
        ran = subprocess.run(
            [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--disable-background-networking",
             "--enable-logging=stderr", "--window-size=1400,1000",
             f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
             f"--user-data-dir={folder}/profile", "--dump-dom",
             path.as_uri()],
            capture_output=True, text=True, check=False, timeout=_SECONDS)
    found = re.search(r'<pre id="told">(.+?)</pre>', ran.stdout, re.DOTALL)
    if not found:
        raise RuntimeError("Chromium shows nothing: "
                           f"{ran.stderr.strip()[-2000:]}")
    console = [line for line in ran.stderr.splitlines() if ":CONSOLE" in line]
    return json.loads(html.unescape(found.group(1))), console


def check(page):
    """What is wrong, in words; nothing where all is well."""
    problems = []
    for scheme in SCHEMES:
        frames, console = _show(page, scheme)
        problems += [f"{scheme}: {line}" for line in console]
        for told in frames:
            where = f"{scheme}, {told['width']} px"
            if told["needs"] > told["width"]:
                problems.append(f"{where}: needs {told['needs']} px")
            if told["headings"] != 1:
                problems.append(f"{where}: {told['headings']} <h1>")
            if told["dark"] != (scheme == "dark") or (
                    told["background"] < 0.5) != told["dark"]:
                problems.append(f"{where}: the background's luminance is "
                                f"{told['background']:.2f}")
            problems += [f"{where}: hardly to be read: {one}"
                         for one in told["faint"]]
            problems += [f"{where}: not drawn: {one}" for one in told["empty"]]
    return problems
