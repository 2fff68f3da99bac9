#!/usr/bin/env python3
"""Our reader of safetensors headers against the reference, file by file.

  safetensors_differential_test.py VERDICTS CACHE [SEED [FILES]]

Thousands of files are made from a seed: sound ones, changed in one to three
places of their length, their JSON or their end. The reference is the package
`safetensors` of this Python, or is fetched from PyPI, once, to the folder CACHE;
exits with 77 where it is not to be had.

What the reference refuses we refuse. What it accepts we accept, with the same
tensors, names, types, shapes and bytes, unless the file breaks a rule of the
table "Where this differs from the reference" in docs/formats.md; then we refuse
it. Which of these rules it breaks is found here, by other means.
"""

import collections
import copy
import importlib
import json
import os
import pathlib
import random
import struct
import subprocess
import sys

SKIPPED = 77
VERSION = "0.8.0"

DTYPES = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8,
          "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
          "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
          "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
          "U64": 64}
NAMES = ["a", "b.weight", "model.layers.0.qweight", "caf\u00e9", "\U0001f600",
         "with space", 'quo"te', "back\\slash", "__metadata", ""]
# Texts that stand for a value in JSON, wherever one is replaced.
VALUES = ["0", "1", "2", "3", "8", "-0", "-1", "1.0", "1e0", "1E2", "0.5",
          "4294967296", "18446744073709551615", "18446744073709551616",
          "9223372036854775808", "1e999", "00", "01", "+1", "null", "true",
          '"x"', '""', "[]", "{}", "[1]", "[0,4]", '{"a":1}', "NaN", "Infinity",
          '"F32"', '"f32"', '"F32 "', '"I4"', '"F8_E4M3"', "[1,2,3]",
          "[4294967296,4294967296,0]", "[0,4294967296,4294967296]",
          '["F32",[1],[0,4]]']
# What is put between two characters of the JSON, or in place of one.
BITS = [b" ", b"\n", b"\t", b"\r", b",", b":", b"{", b"}", b"[", b"]", b'"',
        b"\\", b"\0", b"\x0c", b"\x0b", b"\xa0", b"\xc3\xa9", b"\xff", b"\x1f",
        b"0", b"1", b"-", b".", b"e", b"\\u0000", b"\\u0061", b"\\ud800",
        b"\\ud83d\\ude00", b"\\/", b"\\x", b"//", b"/**/", b"\xef\xbb\xbf",
        b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\x7f"]


# ---- Files ------------------------------------------------------------------


class Raw(str):
    """JSON as it is to be written."""


class Pairs(list):
    """An object as its members: one name may be there twice."""


def dump(value):
    if isinstance(value, Raw):
        return value
    if isinstance(value, Pairs):
        return "{" + ",".join(
            (name if isinstance(name, Raw) else json.dumps(
                name, ensure_ascii=False)) + ":" + dump(member)
            for name, member in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dump, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def sound_file(rng):
    """The members of a header, and how many bytes of data it describes."""
    header = Pairs()
    if rng.random() < 0.4:
        header.append(("__metadata__", Pairs(
            [("format", "pt"), ("k\u00e9y", "value")][:rng.randrange(3)])))
    end = 0
    names = rng.sample(NAMES[:-1], rng.randrange(5))
    for name in names:
        dtype = rng.choice(list(DTYPES))
        shape = [rng.choice([0, 1, 1, 2, 3, 4, 8])
                 for _ in range(rng.randrange(4))]
        bits = DTYPES[dtype]
        for dimension in shape:
            bits *= dimension
        if bits % 8:
            shape, bits = [*shape, 8], bits * 8
        header.append((name, Pairs([("dtype", dtype), ("shape", shape),
                                    ("data_offsets", [end, end + bits // 8])])))
        end += bits // 8
    if rng.random() < 0.5:
        rng.shuffle(header)
    return header, end


def change_members(rng, header):
    """One change of the document, before it is written."""
    entries = [i for i, (_, value) in enumerate(header)
               if isinstance(value, Pairs)]
    kind = rng.randrange(9)
    if kind == 0 or not entries:
        name = rng.choice([*NAMES, "__metadata__", Raw('"\\u0061"'),
                           Raw('"nul\\u0000"')])
        value = Pairs([("dtype", "F32"), ("shape", [0]),
                       ("data_offsets", [0, 0])])
        if rng.random() < 0.3:
            value = Raw(rng.choice(VALUES))
        header.insert(rng.randrange(len(header) + 1), (name, value))
        return
    at = rng.choice(entries)
    name, entry = header[at]
    if kind == 1:  # there twice
        header.insert(rng.randrange(len(header) + 1),
                      (name, copy.deepcopy(entry)))
    elif kind == 2:
        null = name == "__metadata__" and rng.random() < 0.5
        header[at] = (name, Raw("null" if null else rng.choice(VALUES)))
    elif kind == 3 and name != "__metadata__":  # serde takes structs this way
        header[at] = (name, [value for _, value in entry])
    elif kind == 4 and entry:  # a field less
        entry.pop(rng.randrange(len(entry)))
    elif kind == 5:  # a field more
        entry.insert(rng.randrange(len(entry) + 1),
                     (rng.choice(["extra", "dtype", "format", "Shape"]),
                      Raw(rng.choice(VALUES))))
    elif kind == 6 and entry:
        i = rng.randrange(len(entry))
        entry[i] = (entry[i][0], Raw(rng.choice(VALUES)))
    elif kind == 7:
        rng.shuffle(entry)
    else:
        for i, (field, value) in enumerate(entry):
            if isinstance(value, list) and value:
                value = list(value)
                j = rng.randrange(len(value))
                value[j] = rng.choice(
                    [Raw(rng.choice(VALUES)), value[j] + 1
                     if isinstance(value[j], int) else value[j]])
                entry[i] = (field, value)
                break


def change_text(rng, text):
    """One change of the bytes of the JSON."""
    at = rng.randrange(len(text) + 1)
    kind = rng.randrange(5)
    if kind == 0:
        return text[:at] + rng.choice(BITS) + text[at:]
    if kind == 1:
        return text[:at] + text[at + rng.randrange(1, 4):]
    if kind == 2:
        return text[:at] + rng.choice(BITS) + text[at + 1:]
    if kind == 3 and text:
        i = rng.randrange(len(text))
        return text[:i] + bytes([text[i] ^ 1 << rng.randrange(8)]) + text[i + 1:]
    return rng.choice([b" ", b"\n", b"", b"\0", b"\xef\xbb\xbf"]) + text + \
        rng.choice([b" ", b"  \n", b"", b"\0", b"x", b"{}"])


def make_file(rng):
    header, size = sound_file(rng)
    changes = rng.randrange(4)
    where = [rng.randrange(8) for _ in range(changes)]
    for kind in where:
        if kind < 4:
            change_members(rng, header)
    text = dump(header).encode()
    if rng.random() < 0.3:
        text += b" " * rng.randrange(9)
    for kind in where:
        if 4 <= kind < 6:
            text = change_text(rng, text)
    length = len(text)
    if 6 in where:
        length = rng.choice([0, 1, length - 1, length + 1, length + size,
                             100_000_000, 100_000_001, 2**63, 2**64 - 1])
    file = struct.pack("<Q", length % 2**64) + text + bytes(
        i % 251 for i in range(size))
    if 7 in where:
        file = rng.choice([file[:-1], file + b"\0", file[:rng.randrange(12)],
                           file[:rng.randrange(len(file) + 1)], file + file])
    return file


# ---- Verdicts ---------------------------------------------------------------


def find_reference(cache):
    try:
        return importlib.import_module("safetensors")
    except ImportError:
        pass
    target = pathlib.Path(cache) / f"safetensors-{VERSION}"
    if not target.exists():
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
             "--only-binary", ":all:", "--disable-pip-version-check",
             "--no-cache-dir", "--root-user-action", "ignore",
             "--target", str(target) + ".partial", f"safetensors=={VERSION}"],
            check=True, timeout=120, stdout=subprocess.DEVNULL)
        os.rename(str(target) + ".partial", target)
    sys.path.insert(0, str(target))
    return importlib.import_module("safetensors")


def reference_verdict(reference, file):
    """The tensors by name, or None where the file is refused."""
    try:
        tensors = reference.deserialize(file)
    except Exception:  # of the package's own class, and OverflowError
        return None
    return {name: (tensor["dtype"], list(tensor["shape"]),
                   bytes(tensor["data"])) for name, tensor in tensors}


def our_verdicts(program, files):
    stream = b"".join(struct.pack("<Q", len(file)) + file for file in files)
    lines = subprocess.run([program], input=stream, stdout=subprocess.PIPE,
                           check=True, timeout=120).stdout.decode().splitlines()
    assert len(lines) == len(files), (len(lines), len(files))
    verdicts = []
    for line, file in zip(lines, files):
        verdict = json.loads(line)
        if "error" in verdict:
            verdicts.append((None, verdict["error"]))
            continue
        verdicts.append((
            {name: (dtype, shape, file[offset:offset + size])
             for name, dtype, shape, offset, size in verdict["tensors"]}, ""))
    return verdicts


def broken_rules(file):
    """Of a file that the reference accepts: what only we refuse."""
    length, = struct.unpack("<Q", file[:8])
    text = file[8:8 + length].decode()
    rules = set()
    if text[0] != "{":
        rules.add("white space before {")

    def members(pairs):
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            rules.add("duplicate names")
        return dict(pairs)

    header = json.loads(text, object_pairs_hook=members)
    for name, entry in header.items():
        if name == "__metadata__":
            if entry is None:
                rules.add("__metadata__: null")
            continue
        if name == "" or "\0" in name:
            rules.add("an empty tensor name, a NUL character in one")
        if isinstance(entry, list):
            rules.add("an entry written as an array")
            continue
        if set(entry) != {"dtype", "shape", "data_offsets"}:
            rules.add("unknown fields in an entry")
    return rules


def main():
    program, cache = sys.argv[1:3]
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 8000
    try:
        reference = find_reference(cache)
    except (ImportError, OSError, subprocess.SubprocessError) as error:
        print("skipped: the package safetensors is not installed and cannot be "
              f"fetched: {error}")
        return SKIPPED
    rng = random.Random(seed)
    files = [make_file(rng) for _ in range(count)]
    seen = collections.Counter()
    failures = 0
    for file, (ours, error) in zip(files, our_verdicts(program, files)):
        theirs = reference_verdict(reference, file)
        rules = broken_rules(file) if theirs is not None else set()
        if rules:
            expected = None
            for rule in rules:
                seen[rule] += 1
        else:
            expected = theirs
            seen["refused" if theirs is None else "accepted"] += 1
        if ours != expected:
            failures += 1
            if failures <= 10:
                print(f"{file!r}\n  reference: {theirs}\n  rules: {rules}\n"
                      f"  ours: {ours} {error}")
    print(f"seed {seed}, {count} files, {failures} disagreements:")
    for verdict, number in seen.most_common():
        print(f"  {number:6} {verdict}")
    # A test that never reaches a rule shows nothing of it.
    missing = {"accepted", "refused", "duplicate names", "white space before {",
               "__metadata__: null", "an entry written as an array",
               "unknown fields in an entry",
               "an empty tensor name, a NUL character in one"} - set(seen)
    if count >= 8000 and missing:
        print(f"never seen: {missing}")
        return 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
