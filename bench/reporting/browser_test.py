"""The page of a report in a real browser: light and dark, narrow and wide.

Chromium is what bench/setup --tests installs. What a browser is not needed for
(structure, names for screen readers, nothing from outside), report_test checks.
"""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from bench.reporting import browser_checker, document  # noqa: E402
from bench.reporting.sample_records import all_records  # noqa: E402


@unittest.skipUnless(browser_checker.PROGRAM,
                     "Chromium is not installed: bench/setup --tests")
class BrowserTest(unittest.TestCase):

    def test_a_report_is_well_laid_out(self):
        page = document.to_html(all_records(), "Every experiment there is")
        self.assertEqual(browser_checker.check(page), [])

    def test_the_checker_sees_what_is_wrong(self):
        page = document.to_html(all_records()[:1], "T")
        spoiled = page.replace(
            "</main>", "<p style='width:2000px'>wide</p>"
            "<p style='color:#777;background:#888'>faint</p>"
            "<script>1</script></main>").replace(
                "svg.chart { min-width: 600px; }",
                "svg.chart { max-width: 1px; }").replace(
                    "prefers-color-scheme: dark",
                    "prefers-color-scheme: never")
        told = "\n".join(browser_checker.check(spoiled))
        for problem in ("needs", 'hardly to be read: p "faint"',
                        "Content Security Policy", "not drawn",
                        "the background's luminance"):
            self.assertIn(problem, told)


if __name__ == "__main__":
    unittest.main()
