#!/usr/bin/env python3
"""The C++ example in README.md is the consumer program, word for word."""

import pathlib
import sys

root = pathlib.Path(__file__).resolve().parents[2]
program = (root / "tests/consumer/consumer.cc").read_text()
body = program[program.index("#include"):].strip()
readme = (root / "README.md").read_text()
if f"```cpp\n{body}\n```" not in readme:
    sys.exit("README.md does not contain tests/consumer/consumer.cc as its "
             "```cpp example")
