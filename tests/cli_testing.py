"""What the tests of the quire program share: the program, the golden cases, and
how it is run. Imported by a test whose first argument is the program.
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

QUIRE = sys.argv.pop(1)
GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
EXACT = ["--kv-dtype", "f32", "--activations", "f32", "--device-memory", "1GiB"]


def run(*arguments, **keywords):
    result = subprocess.run([QUIRE, *map(str, arguments)], capture_output=True,
                            text=True, timeout=120, **keywords)
    # However a verb ends, nobody holds device memory then.
    assert "still holds" not in result.stderr, result.stderr
    return result


def golden_case(prefix):
    return sorted(p for p in GOLDEN.iterdir()
                  if p.name.startswith(prefix) and (p / "expect.json").exists()
                  )[0]


def write_safetensors(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + length]), raw[8 + length:]


class VerbCase(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.scratch.name)

    def tearDown(self):
        self.scratch.cleanup()

    def run_json(self, *arguments):
        result = run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)
