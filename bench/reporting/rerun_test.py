"""Every line makes itself again: bench/rerun on what each program prints.

    rerun_test.py PROGRAMS   the folder with the programs
"""

import copy
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from bench.reporting import rerun  # noqa: E402

PROGRAMS = pathlib.Path(sys.argv.pop(1))
GOLDEN = ROOT / "tests/golden"
TRACE = ROOT / "bench/traces/pytorch_medium_128_inference.csv"

# A small run of each program, and its option that must be told with the default
# that it has.
SMALL_CACHES = ["--device-memory", "1GiB", "--headroom", "64MiB", "--requests",
                "20", "--prompt-mean", "200", "--output-mean", "20"]
RUNS = (
    (["fragmentation_stress", "--load", "churn,random-death", "--events",
      "2000", "--live", "128MiB", "--policies", "quire,pytorch,gmlake"],
     ("seed", "1")),
    (["fragmentation_stress", "--trace", str(TRACE), "--policies", "quire,bfc",
      "--repeat", "2", "--timeline", "3"], ("device-memory", "24GiB")),
    (["model_switching", "--generate", "12", "--traces", "TRACES",
      "--arrivals", "bursts", "--device-memory", "1GiB", "--policies",
      "quire,pytorch"], ("keep-alive-seconds", "300")),
    (["model_switching", "--real", "REAL", "--turns", "2", "--page-size",
      "64KiB"], ("prompt-tokens", "8")),
    (["kv_stress", *SMALL_CACHES], ("layers-per-row", ["1", "4", "36"])),
    (["kv_stress", *SMALL_CACHES, "--attention-rows", "64"], ("seed", "1")),
    (["kv_stress", "--bursts", "qwen3-0.6b", "--device-memory", "4GiB",
      "--requests", "5"], ("gpu-memory-utilization", "0.9")),
    (["serving_replay", "--requests", "20", "--device-memory", "24GiB",
      "--load-factors", "1,2"],
     ("caches", ["contiguous:auto", "blocks:16", "static"])),
    (["allocator_replay", str(TRACE)], ("page-size", "2MiB")),
)


def call(command):
    return subprocess.run([PROGRAMS / command[0], *command[1:], "--json"],
                          capture_output=True, text=True, check=True).stdout


class RerunTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "traces").mkdir()
        for name, size in (("small", 1 << 20), ("large", 300 << 20)):
            (self.folder / "traces" / f"{name}.csv").write_text(
                "phase,op,id,bytes\n"
                f"load,mark,0,0\nload,alloc,0,{size}\n"
                f"run1,mark,0,0\nrun1,alloc,1,{size // 2}\n"
                "run1,free,1,0\nunload,mark,0,0\nunload,free,0,0\n")

    def command(self, command):
        real = ",".join(str(GOLDEN / name) for name in (
            "gptq-w8-sym", "plain-bf16-tied"))
        names = {"TRACES": str(self.folder / "traces"), "REAL": real}
        return [names.get(one, one) for one in command]

    def rerun(self, *files):
        return subprocess.run(
            [ROOT / "bench/rerun", "--build", PROGRAMS, *files],
            capture_output=True, text=True, check=False)

    def keep(self, items):
        path = self.folder / "kept.json"
        path.write_text(json.dumps(items), encoding="utf-8")
        return path

    def test_every_line_has_all_options_and_makes_itself_again(self):
        for command, (option, default) in RUNS:
            command = self.command(command)
            with self.subTest(" ".join(command)):
                results = rerun.records.split_output(call(command))
                self.assertTrue(results)
                for result in results:
                    settings = result["settings"]
                    self.assertEqual(settings["command"],
                                     [*command, "--json"])
                    self.assertEqual(settings["options"][option], default)
                ran = self.rerun(self.keep(results))
                self.assertEqual((ran.returncode, ran.stderr), (0, ""),
                                 ran.stdout)
                self.assertIn(f"{len(results)} of {len(results)} lines came "
                              "out the same, of 1 commands", ran.stdout)

    def test_help_and_options_name_the_same(self):
        for program in {command[0] for command, _ in RUNS}:
            shown = subprocess.run([PROGRAMS / program, "--help"],
                                   capture_output=True, text=True,
                                   check=True).stdout
            command = self.command(next(c for c, _ in RUNS
                                        if c[0] == program))
            options = rerun.records.split_output(
                call(command))[0]["settings"]["options"]
            names = set(re.findall(r"^  (?:-\w,)?--([\w-]+)", shown, re.M))
            self.assertGreater(len(names), 5)
            self.assertEqual(names - {"help"} - options.keys(), set(), program)

    def test_one_line_of_several_is_enough(self):
        results = json.loads(call(RUNS[0][0]))
        path = self.folder / "one.jsonl"
        path.write_text(json.dumps(results[3]) + "\n", encoding="utf-8")
        ran = self.rerun(path)
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertIn("1 of 1 lines", ran.stdout)

    def test_what_differs_is_told(self):
        results = json.loads(call(RUNS[0][0]))
        changed = copy.deepcopy(results)
        changed[1]["peak_reserved"] += 1
        changed[1]["seconds"] += 100  # a time
        ran = self.rerun(self.keep(changed))
        self.assertEqual((ran.returncode, ran.stderr), (1, ""))
        was = results[1]["peak_reserved"]
        self.assertIn(f"  peak_reserved: {was + 1} before, {was} now\n",
                      ran.stdout)
        self.assertNotIn("seconds", ran.stdout)
        self.assertIn("5 of 6 lines came out the same", ran.stdout)

    def test_ages_of_events_are_times(self):
        text = ("out of device memory (capacity): 6.75 KiB requested; the last "
                "events: commit 64.00 KiB (model/weights){} ms before, allocate "
                "6.00 KiB (model/weights){} ms before, allocate 96 B")
        was = {"failure": text.format(" 0.0", " 12.5")}
        same = {"failure": text.format(" 0.1", " 3.0")}
        self.assertEqual(rerun.differences(was, same), [])
        # An event more recent than the clock can tell has no age at all.
        text = text.replace(" ms before", "")
        self.assertEqual(rerun.differences(
            was, {"failure": text.format("", "")}), [])
        other = {"failure": same["failure"].replace("96 B", "80 B")}
        self.assertEqual(len(rerun.differences(was, other)), 1)

    def test_records_of_scripts_are_made_by_them(self):
        trace = self.folder / "t.csv"
        trace.write_text("op,id,bytes\nalloc,0,9000000\nalloc,1,5000000\n"
                         "free,0,0\nalloc,2,12000000\n")
        kept = self.folder / "kept.jsonl"
        for script in (["bench/reproduce_oom", "--trace", str(trace)],
                       ["bench/reproduce_oom", "--model",
                        str(GOLDEN / "plain-bf16-tied"), "--kv-room", "2MiB"],
                       ["bench/worked_13b", "--batch", "2", "--length",
                        "512"]):
            with self.subTest(" ".join(script)):
                subprocess.run([ROOT / script[0], *script[1:], "--build",
                                PROGRAMS, "--records", kept],
                               capture_output=True, text=True, check=True)
                ran = self.rerun(kept)
                self.assertEqual((ran.returncode, ran.stderr), (0, ""),
                                 ran.stdout)

    def test_only_programs_of_experiments_are_run(self):
        mark = self.folder / "ran"
        for line in ({"settings": {"command": ["/bin/touch", str(mark)]}},
                     {"settings": {"command": ["../bin/touch", str(mark)]}},
                     {"format": "quire-experiment", "version": 1,
                      "result": {}, "script": ["/bin/touch", str(mark)]},
                     {"settings": {"command": []}}, {"settings": 3}, {}, 7):
            with self.subTest(line):
                ran = self.rerun(self.keep([line]))
                self.assertEqual(ran.returncode, 1, ran.stdout)
                self.assertIn("kept.json: object 0: ", ran.stderr)
                self.assertFalse(mark.exists())


if __name__ == "__main__":
    unittest.main()
