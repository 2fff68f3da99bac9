"""What scripts rely on: exit statuses, JSON on stdout, messages on stderr."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden"
MIB = 1 << 20
MODEL = ("phase,op,id,bytes\nload,mark,0,0\nload,alloc,0,67108864\n"
         "run1,mark,0,0\nrun1,alloc,1,33554432\nrun1,free,1,0\n"
         "unload,mark,0,0\nunload,free,0,0\n")


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True,
                          check=False)


class ModelSwitchingTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "a.csv").write_text(MODEL)
        (self.folder / "b.csv").write_text(MODEL)

    def write(self, usable, **more):
        scenario = {
            "name": "day", "class": "tight", "usable_bytes": usable,
            "minimum_peak_bytes_of_each_step": [64 * MIB, 128 * MIB, 160 * MIB,
                                                128 * MIB],
            "steps": [{"do": "load", "workload": "a"},
                      {"do": "load", "workload": "b"},
                      {"do": "run", "workload": "b", "phase": "run1"},
                      {"do": "unload", "workload": "a"}], **more}
        path = self.folder / "scenarios.json"
        path.write_text(json.dumps({"scenarios": [scenario]}))
        return str(path)

    def test_keeps_and_restarts(self):
        ran = run(self.write(160 * MIB), "--policies", "quire,pytorch", "--json",
                  "--strategies", "keep,restart", "--disk-rate", "64MiB")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        objects = json.loads(ran.stdout)
        self.assertEqual([(o["policy"], o["strategy"]) for o in objects],
                         [("quire", "keep"), ("quire", "restart"),
                          ("pytorch", "keep"), ("pytorch", "restart")])
        for o in objects:
            self.assertTrue(o["as_good_as_can_be"])
            self.assertFalse(o["oom"])
            self.assertEqual(o["settings"]["disk_rate"], "64MiB")
            self.assertEqual(o["peak_requested"], 160 * MIB)
            self.assertGreater(o["seconds_to_first_token"]["mean"], 1)
            self.assertEqual((o["switches"], o["switches_survived"]), (3, 3))
        self.assertEqual([o["bytes_loaded"] // MIB for o in objects],
                         [128, 256, 128, 256])
        # 64 MiB a second: a restart for b reads both models.
        self.assertGreater(objects[1]["seconds_to_switch"]["worst"], 2)
        self.assertLess(objects[0]["seconds_to_switch"]["worst"], 1.5)

    def test_sleeps_and_reloads(self):
        # Room for one model: b is switched to once, and a never again.
        file = self.write(96 * MIB)
        ran = run(file, "--policies", "quire", "--strategies", "sleep,reload",
                  "--host-rate", "32MiB", "--disk-rate", "64MiB", "--json")
        sleep, reload = json.loads(ran.stdout)
        self.assertEqual((sleep["strategy"], reload["strategy"]),
                         ("sleep", "reload"))
        for o in (sleep, reload):
            self.assertEqual(o["switches"], o["switches_survived"])
            self.assertEqual(o["minimum_peak"], 96 * MIB)
            self.assertTrue(o["as_good_as_can_be"])
        self.assertEqual((sleep["bytes_copied_out"], sleep["bytes_copied_in"]),
                         (64 * MIB, 0))
        self.assertEqual(sleep["host_memory_peak"], 64 * MIB)
        self.assertEqual(sleep["bytes_moved"], 192 * MIB)
        self.assertGreater(sleep["steps"][1]["seconds_to_switch"], 3)
        self.assertEqual(reload["bytes_moved"], 128 * MIB)
        self.assertEqual(reload["host_memory_peak"], 0)

    def test_tells_the_last_day_apart(self):
        file = self.write(256 * MIB)
        for days, expected in (("1", type(None)), ("3", dict)):
            ran = run(file, "--policies", "pytorch", "--strategies", "keep",
                      "--days", days, "--json")
            o, = json.loads(ran.stdout)
            self.assertIsInstance(o["last_day"], expected)
            self.assertEqual(len(o["steps"]), 4)
        self.assertEqual(o["last_day"], {"driver_calls": 0, "virtual_ms": 0})

    def test_generates(self):
        day = self.folder / "day.json"
        arguments = ("--generate", "50", "--traces", str(self.folder), "--seed",
                     "3", "--mix", "a=2,b", "--device-memory", "128MiB",
                     "--arrivals", "bursts", "--policies", "quire", "--json",
                     "--strategies", "keep")
        ran = run(*arguments, "--write", str(day))
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        generated, = json.loads(ran.stdout)
        again, = json.loads(run(*arguments).stdout)
        for one in (generated, again):  # not how it was called
            del one["settings"]["command"], one["settings"]["options"]
        self.assertEqual(again, generated)
        self.assertEqual(generated["settings"]["generate"]["seed"], 3)
        self.assertTrue(generated["as_good_as_can_be"])
        read, = json.loads(run(str(day), "--traces", str(self.folder),
                               "--policies", "quire", "--strategies", "keep",
                               "--json").stdout)
        del generated["settings"], read["settings"]
        self.assertEqual(read, generated)

    def test_real_models_say_what_they_say_alone(self):
        models = [str(GOLDEN / name)
                  for name in ("gptq-w8-sym", "plain-bf16-tied")]
        ran = run("--real", ",".join(models), "--page-size", "64KiB",
                  "--turns", "2", "--tokens-per-turn", "4", "--threads", "1",
                  "--json")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        reload, keep, sleep, restart = json.loads(ran.stdout)
        for o in (reload, sleep):
            self.assertTrue(o["all_equal"])
            self.assertFalse(o["oom"])
            self.assertEqual([m["model"] for m in o["models"]], models)
            self.assertEqual([m["tokens"] for m in o["models"]], [8, 8])
            self.assertEqual(o["switches_survived"], 4)
            self.assertEqual(o["settings"]["turns"], 2)
            self.assertEqual([s["model"] for s in o["steps"]], 2 * models)
            times = [s["seconds_to_first_token"] for s in o["steps"]]
            self.assertEqual(o["seconds_to_first_token"]["count"], 4)
            self.assertEqual(o["seconds_to_first_token"]["worst"], max(times))
            for s in o["steps"]:
                self.assertEqual(s["reserved"] + s["headroom"],
                                 o["device_memory"])
        for o in (keep, restart):
            self.assertTrue(o["oom"])
            self.assertEqual((o["switches"], o["switches_survived"],
                              len(o["steps"])), (4, 1, 1))
        self.assertGreater(sleep["bytes_copied_in"], 0)
        self.assertEqual(reload["bytes_copied_in"], 0)

    def test_tells_capacity(self):
        ran = run(self.write(158 * MIB, first_step_over=2), "--policies",
                  "quire", "--strategies", "keep,shared,restart", "--json")
        for o in json.loads(ran.stdout):
            self.assertTrue(o["oom"])
            self.assertEqual(o["first_step_over"], 2)
            self.assertEqual(o["first_failed_step"], 2)
            self.assertEqual(o["steps"][2]["failure"], "capacity")
            self.assertEqual(o["steps"][2]["dropped"], "b")
            self.assertTrue(o["as_good_as_can_be"])

    def test_table(self):
        ran = run(self.write(256 * MIB))
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertEqual(len(ran.stdout.splitlines()), 16)

    def test_wrong_usage_and_bad_files(self):
        file = self.write(256 * MIB)
        for arguments, status, message in (
                ((), 2, "FILE"),
                ((file, "--generate", "5"), 2, "one of FILE, --generate and --real"),
                (("--generate", "5"), 2, "--generate needs --traces"),
                ((file, "--strategies", "hope"), 2, 'no strategy "hope"'),
                ((file, "--host-rate", "0"), 2, '--host-rate "0"'),
                ((file, "--pool-minimum", "2"), 2, "--pool-minimum"),
                (("--generate", "5", "--traces", "/", "--mix", "=1"), 2,
                 "is no model with a weight"),
                ((file, "--real", "/nowhere"), 2,
                 "one of FILE, --generate and --real"),
                (("--real", "/nowhere", "--strategies", "shared"), 2,
                 "do not know the strategy shared"),
                (("--real", "/nowhere", "--page-size", "big"), 2,
                 '--page-size "big"'),
                (("--real", "/nowhere"), 1, "/nowhere"),
                (("--generate", "5", "--traces", "/nowhere"), 1,
                 "there are no traces"),
                ((file, "--write", "/nowhere/day.json"), 1,
                 "cannot open for writing"),
                (("--generate", "5", "--traces", "/", "--scenario", "x"), 2,
                 "--scenario requires FILE"),
                ((file, "--mix", "a=1"), 2, "--mix requires --generate"),
                ((file, "--turns", "2"), 2, "--turns requires --real"),
                ((file, "--device-memory", "8GiB"), 2,
                 "FILE excludes --device-memory"),
                ((file, "--policies", "glibc"), 2, 'no policy "glibc"'),
                ((file, "--disk-rate", "fast"), 2, '--disk-rate "fast"'),
                ((file, "--scenario", "night"), 2,
                 "--scenario night: there is none of that name; there are day"),
                ((file, "--seed", "3"), 2, "--seed 3 has no effect with FILE"),
                (("--real", "/nowhere", "--days", "2"), 2,
                 "--days 2 has no effect with --real"),
                (("--generate", "5", "--traces", "/", "--burst-size", "3"), 2,
                 "--burst-size 3 has no effect without --arrivals bursts"),
                ((file, "--strategies", "keep", "--pool-minimum", "0.1"), 2,
                 "--pool-minimum 0.1 has no effect without the strategy"),
                ((file, "--traces", "/nowhere"), 1, "a.csv: cannot open"),
                (("/nowhere/s.json",), 1, "s.json: cannot open")):
            with self.subTest(arguments):
                ran = run(*arguments)
                self.assertEqual((ran.returncode, ran.stdout), (status, ""))
                self.assertIn(message, ran.stderr)
        minima = [64 * MIB, 128 * MIB, 160 * MIB + 1, 128 * MIB]
        ran = run(self.write(256 * MIB, minimum_peak_bytes_of_each_step=minima))
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        self.assertIn("scenario day: step 2: minimum_peak_bytes_of_each_step "
                      f"says {160 * MIB + 1}, where {160 * MIB} are live",
                      ran.stderr)
        file = self.write(256 * MIB)
        (self.folder / "a.csv").write_text("phase,op,id,bytes\nload,jump,0,0\n")
        ran = run(file)
        self.assertEqual(ran.returncode, 1)
        self.assertIn("a.csv: line 2", ran.stderr)


if __name__ == "__main__":
    unittest.main()
