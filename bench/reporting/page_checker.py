"""Reads a page as a browser and a screen reader would, and says what is wrong.

Used by tests: structure, accessible names, nothing from outside, no script.
"""

import html.parser
import re

_VOID = {"meta", "br", "hr", "img", "input", "link"}
# Attributes that make a browser fetch something.
_FETCHING = {"src", "srcset", "data", "poster", "action", "formaction",
             "background", "xlink:href", "manifest", "ping"}
_OUTSIDE = re.compile(r"url\(\s*(?!#)|@import|expression\(", re.IGNORECASE)


class PageChecker(html.parser.HTMLParser):
    """Feed it a page, close it, and read `problems` and `texts`."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.problems = []
        self.texts = []      # all that a reader sees or hears
        self.headings = []   # (level, text)
        self.tags = {}       # how often
        self._open = []
        self._identities = set()
        self._references = []
        self._svg = None
        self._tables = []

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        attributes = dict(attrs)
        self.tags[tag] = self.tags.get(tag, 0) + 1
        if len(names) != len(set(names)):
            self.problems.append(f"<{tag}> has an attribute twice")
        self._check_fetches(tag, attributes)
        identity = attributes.get("id")
        if identity is not None:
            if identity in self._identities:
                self.problems.append(f"id {identity} twice")
            self._identities.add(identity)
        for name in ("aria-labelledby", "aria-describedby"):
            self._references += (attributes.get(name) or "").split()
        self._check_names(tag, attributes)
        if tag not in _VOID:
            self._open.append((tag, attributes))

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if not self._open or self._open[-1][0] != tag:
            self.problems.append(f"</{tag}> closes nothing")
            return
        self._open.pop()
        if tag == "table":
            if not self._tables.pop():
                self.problems.append("a table without a caption")
        elif tag == "svg" and self._svg is not None:
            if not {"title", "desc"} <= self._svg:
                self.problems.append("a chart without title and description")
            self._svg = None

    def handle_data(self, data):
        tag = self._open[-1][0] if self._open else ""
        if tag == "style":
            if _OUTSIDE.search(data) or "//" in data:
                self.problems.append("the style refers to something outside")
            return
        if data.strip():
            self.texts.append(data)
            if re.fullmatch("h[1-6]", tag):
                level, _ = self.headings[-1]
                self.headings[-1] = (level, self.headings[-1][1] + data)

    def _check_fetches(self, tag, attributes):
        if tag in ("script", "img", "link", "iframe", "object", "embed",
                   "base", "image", "use", "form", "foreignobject"):
            self.problems.append(f"<{tag}>")
        for name, value in attributes.items():
            if name in _FETCHING or name.startswith("on"):
                self.problems.append(f"<{tag} {name}>")
            if name == "href" and not (value or "").startswith("#"):
                self.problems.append(f"<{tag} href={value!r}>")
            if name in ("style", "fill") and _OUTSIDE.search(value or ""):
                self.problems.append(f"<{tag} {name}={value!r}>")
            if name == "href" and (value or "").startswith("#"):
                self._references.append(value[1:])

    def _check_names(self, tag, attributes):
        if re.fullmatch("h[1-6]", tag):
            level = int(tag[1])
            before = self.headings[-1][0] if self.headings else 0
            if level > before + 1:
                self.problems.append(f"<{tag}> after level {before}")
            self.headings.append((level, ""))
        elif tag == "html" and not attributes.get("lang"):
            self.problems.append("no language")
        elif tag == "table":
            self._tables.append(False)
        elif tag == "caption":
            self._tables[-1] = True
        elif tag == "th" and attributes.get("scope") not in ("col", "row"):
            self.problems.append("<th> without a scope")
        elif tag == "svg":
            if attributes.get("aria-hidden") == "true":
                return
            if (attributes.get("role") != "img"
                    or not attributes.get("aria-labelledby")):
                self.problems.append("<svg> is neither hidden nor named")
            self._svg = set()
        elif tag in ("title", "desc") and self._svg is not None:
            self._svg.add(tag)
        if "tabindex" in attributes and not (
                attributes.get("role") and attributes.get("aria-label")):
            self.problems.append(f"<{tag}> takes the focus without a name")

    def close(self):
        super().close()
        for tag, _ in self._open:
            self.problems.append(f"<{tag}> is not closed")
        for identity in self._references:
            if identity not in self._identities:
                self.problems.append(f"there is no id {identity}")
        for tag, count in (("main", 1), ("h1", 1), ("header", 1)):
            if self.tags.get(tag, 0) != count:
                self.problems.append(f"not one <{tag}>")


def check(text):
    """The checker after the whole page."""
    checker = PageChecker()
    checker.feed(text)
    checker.close()
    if "prefers-color-scheme: dark" not in text:
        checker.problems.append("no dark colours")
    return checker
