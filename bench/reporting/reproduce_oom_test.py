"""bench/reproduce_oom on a trace whose outcome is known by hand, and a model.

    reproduce_oom_test.py PROGRAMS   the folder with the programs
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from bench.reporting import experiments, reproduction  # noqa: E402

PROGRAMS = pathlib.Path(sys.argv.pop(1))
SCRIPT = ROOT / "bench" / "reproduce_oom"
MIB = 1 << 20
BLOCK = 19 * MIB // 2


def reproduce(*arguments):
    return subprocess.run([str(SCRIPT), "--build", str(PROGRAMS),
                           *map(str, arguments)], capture_output=True,
                          text=True, check=False)


class TraceTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        # 24 blocks of 9.5 MiB; every second one is freed; then 96 MiB, which
        # only those have side by side who map memory anew.
        rows = ["phase,op,id,bytes", "load,mark,0,0"]
        rows += [f"load,alloc,{i},{BLOCK}" for i in range(24)]
        rows += ["run1,mark,0,0"]
        rows += [f"run1,free,{i},0" for i in range(0, 24, 2)]
        rows += [f"run1,alloc,24,{96 * MIB}"]
        self.trace = self.folder / "t.csv"
        self.trace.write_text("\n".join(rows) + "\n", encoding="utf-8")

    def test_fragmentation_is_the_policys(self):
        kept = self.folder / "r.jsonl"
        ran = reproduce("--trace", self.trace, "--policies", "quire,pytorch",
                        "--device-memory", "260MiB", "--records", kept)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertIn("needs 228.00 MiB at its peak and 96.00 MiB in one",
                      ran.stdout)
        self.assertTrue(ran.stdout.endswith(
            "fragmentation, for pytorch; quire survives on the same device\n"),
            ran.stdout)
        self.assertIn("  phases: load, run1\n", ran.stdout)
        self.assertIn("    free 9.50 MiB\n    allocate 96.00 MiB\n",
                      ran.stdout)
        records = [json.loads(line) for line in
                   kept.read_text("utf-8").splitlines()]
        failure = records[1]["result"]["first_oom"]
        self.assertEqual(failure["size"], 96 * MIB)
        self.assertEqual(failure["requested"], 12 * BLOCK)
        # Two blocks to a segment of 20 MiB, and none is free as a whole.
        self.assertEqual(failure["reserved"], 240 * MIB)
        self.assertEqual(failure["device_free"], 20 * MIB)

    def test_capacity_is_nobodys(self):
        ran = reproduce("--trace", self.trace, "--device-memory", "128MiB")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertIn("100.00 MiB are missing", ran.stdout)
        self.assertTrue(ran.stdout.endswith(
            "capacity: no policy can serve this on 128.00 MiB\n"), ran.stdout)

    def test_least_devices(self):
        play = reproduction.TraceReproduction(str(self.trace), PROGRAMS)
        peak, largest = play.measure()
        self.assertEqual((peak, largest), (228 * MIB, 96 * MIB))
        self.assertLessEqual(play.find_least("quire", peak), 232 * MIB)
        # 12 segments of 20 MiB, each half empty, beside one of 96 MiB.
        least = play.find_least("pytorch", peak)
        self.assertGreaterEqual(least, 336 * MIB)
        self.assertLessEqual(least, 338 * MIB)

    def test_errors(self):
        for arguments, status, message in (
                (("--device-memory", "much"), 2, "'much' is no size"),
                (("--context", "0"), 2, "--context"),
                (("--trace", self.folder / "none"), 1, "none: cannot open"),
                (("--trace", self.trace, "--policies", "x"), 1,
                 "there are quire"),
                (("--model", self.folder / "none"), 1, "none")):
            with self.subTest(arguments):
                ran = reproduce(*arguments)
                self.assertEqual(ran.returncode, status, ran.stderr)
                self.assertIn(message, ran.stderr)
                self.assertNotIn("Traceback", ran.stderr)


class ModelTest(unittest.TestCase):

    def test_grows_until_the_typed_error(self):
        # 2 KiB a token: the pages beside its weights hold 1,024 tokens.
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([PROGRAMS / "synthetic_model", folder], check=True,
                           capture_output=True)
            ran = reproduce("--model", folder, "--kv-room", "2MiB",
                            "--context", 500)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        steps = [line.split() for line in ran.stdout.splitlines()
                 if line.startswith("  context ")]
        self.assertEqual([step[1] for step in steps],
                         ["500:", "1,000:", "2,000:"])
        self.assertEqual([step[-1] for step in steps],
                         ["held", "held", "fails"])
        self.assertIn("\nquire: out of device memory (capacity): ", ran.stdout)
        self.assertTrue(ran.stdout.endswith("\ncapacity\n"), ran.stdout)

    def test_other_errors_are_errors(self):
        self.assertEqual(reproduction.kind_of(
            "quire: out of device memory (other process): 1 B"),
            "other process")
        with self.assertRaisesRegex(experiments.RunError, "no such file"):
            reproduction.kind_of("quire: no such file")


if __name__ == "__main__":
    unittest.main()
