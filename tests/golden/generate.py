#!/usr/bin/env python3
"""Writes the golden data in this folder; README.md says what it is.

    pip install -r requirements.txt
    python3 generate.py [case or tokenizer ...]

Everything is seeded by its name, so cases can be made one by one, and a second
run changes nothing.
"""

import pathlib
import sys

import checkpoints
import formats
import parts_data
import rope_data
import tokenizers_data

FOLDER = pathlib.Path(__file__).resolve().parent


def main():
  wanted = set(sys.argv[1:])
  for name in checkpoints.CASES:
    if not wanted or name in wanted:
      checkpoints.write(name, FOLDER / name)
  for name in formats.CASES:
    if not wanted or name in wanted:
      formats.write(name, FOLDER / name)
  if not wanted or "mxfp4" in wanted:
    formats.write_mxfp4(FOLDER / "mxfp4")
  if not wanted or "rope" in wanted:
    rope_data.write(FOLDER)
  for name in tokenizers_data.TOKENIZERS:
    if not wanted or name in wanted:
      tokenizers_data.write(name, FOLDER / "tokenizers" / name)
  for kind in parts_data.KINDS:
    if not wanted or kind in wanted:
      parts_data.write(kind, FOLDER / "tokenizer_parts")


if __name__ == "__main__":
  main()
