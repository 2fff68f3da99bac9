"""The policy in docs/experiments.md is the one that is compiled and tested.

    example_in_docs_test.py DOCUMENT HEADER
"""

import pathlib
import re
import sys

document, header = (pathlib.Path(path).read_text(encoding="utf-8")
                    for path in sys.argv[1:3])
block = re.search(r"```cpp\n// bench/policies/binned_policy\.h\n(.*?)```",
                  document, re.DOTALL)
if not block:
    sys.exit(f"{sys.argv[1]}: there is no bench/policies/binned_policy.h")
# What a header has besides: its comment and its guard.
code = re.search(r"(#include <.*)\n#endif", header, re.DOTALL).group(1)
if block.group(1).strip() != code.strip():
    sys.exit(f"{sys.argv[1]}: the example is not that of {sys.argv[2]}")
