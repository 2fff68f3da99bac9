#!/usr/bin/env python3
"""The examples in the documents are parts of programs that are built and run,
word for word."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def between(program, begin, end):
    """From the first `begin` up to the `end` that follows it."""
    text = (ROOT / program).read_text()
    first = text.index(begin)
    return text[first:text.index(end, first) if end else len(text)].strip()


EXAMPLES = {
    "README.md": between("tests/consumer/consumer.cc", "#include", None),
    "docs/adapters.md": between("tests/adapters_test.cc",
                                "absl::StatusOr<std::vector<TokenId>> Recite",
                                "// The end of the example."),
    "docs/compaction.md": between("tests/compaction_example_test.cc",
                                  "absl::Status LendTheDevice",
                                  "// The end of the example."),
}

for document, example in EXAMPLES.items():
    if f"```cpp\n{example}\n```" not in (ROOT / document).read_text():
        sys.exit(f"{document} does not contain this as its ```cpp example:\n"
                 f"{example}")
