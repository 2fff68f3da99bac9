"""What scripts rely on: exit statuses, JSON on stdout, messages on stderr."""

import json
import pathlib
import pickle
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
KEYS = {"policy", "peak_requested", "peak_reserved", "ratio", "oom",
        "driver_calls", "virtual_ms", "validated", "rank", "first_oom",
        "largest_allocatable", "steady_state", "survived", "settings"}


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True,
                          check=False)


class FragmentationStressTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, text):
        path = self.folder / "trace.csv"
        path.write_text(text)
        return str(path)

    def test_one_object_per_policy(self):
        trace = self.write("op,id,bytes\nalloc,0,67108864\nalloc,1,4096\n"
                           "free,0,0\n")
        ran = run("--trace", trace, "--policies", "quire,pytorch,bfc",
                  "--device-memory", "1GiB", "--json", "--repeat", "2",
                  "--timeline", "3")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        objects = json.loads(ran.stdout)
        self.assertEqual([o["policy"] for o in objects],
                         ["quire", "pytorch", "bfc"])
        for o in objects:
            self.assertLessEqual(KEYS, o.keys())
            self.assertEqual(o["peak_requested"], 67108864 + 4096)
            self.assertFalse(o["oom"])
            self.assertEqual(len(o["timeline"]), 3)
            self.assertTrue(o["survived"])
            options = o["settings"].pop("options")
            self.assertEqual(options["trace"], [trace])
            self.assertEqual((options["repeat"], options["seed"]), ("2", "1"))
            self.assertEqual(o["settings"].pop("command")[:3],
                             ["fragmentation_stress", "--trace", trace])
            self.assertEqual(o["settings"], {
                "trace": trace, "policy": o["policy"], "repeat": 2,
                "device_memory": 1 << 30, "timeline": 3, "page_maps": 0,
                "driver_costs": "A100"})
            for look in o["timeline"]:
                self.assertLessEqual(
                    look["requested"] + look["largest_allocatable"], 1 << 30)
                self.assertLessEqual(look["driver_calls"], o["driver_calls"])
            self.assertGreaterEqual(o["driver_calls"],
                                    o["steady_state"]["driver_calls"])
        # 64 MiB, and a segment of 2 MiB.
        self.assertEqual(objects[1]["peak_reserved"], 66 << 20)
        self.assertEqual(objects[1]["steady_state"]["driver_calls"], 0)

    def test_page_maps(self):
        # 3 MiB fill a page and half of the next one.
        trace = self.write("op,id,bytes\nalloc,0,3145728\nalloc,1,2097152\n"
                           "free,1,0\n")
        ran = run("--trace", trace, "--policies", "cudamalloc",
                  "--device-memory", "1GiB", "--json", "--page-maps", "2")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        maps = json.loads(ran.stdout)[0]["page_map"]
        self.assertEqual((maps["page_size"], maps["pages"],
                          maps["cell_pages"]), (2 << 20, 3, 1))
        self.assertEqual(maps["at_peak"], {"event": 1, "cells": [100, 50, 100]})
        self.assertEqual(maps["at_end"], {"event": 3, "cells": [100, 50, -1]})
        self.assertIsNone(maps["at_failure"])
        self.assertEqual(maps["heat"]["events"], [0, 2])
        self.assertEqual(maps["heat"]["requested"],
                         [[100, 50, -1], [100, 50, -1]])
        self.assertEqual(maps["heat"]["held"], [[100, 100, 0], [100, 100, 0]])

    def test_out_of_memory_says_what_came_before(self):
        trace = self.write("phase,op,id,bytes\nload,mark,0,0\n"
                           "load,alloc,0,67108864\n")
        ran = run("--trace", trace, "--policies", "quire", "--page-maps", "1",
                  "--device-memory", "32MiB", "--json")
        result = json.loads(ran.stdout)[0]
        failure = result["first_oom"]
        self.assertEqual(failure["phases_before"], ["load"])
        self.assertEqual(failure["requests_before"], ["allocate 64.00 MiB"])
        self.assertEqual(failure["device_free"], 32 << 20)
        self.assertEqual(result["largest_request"], 64 << 20)
        self.assertEqual(result["page_map"]["at_failure"]["event"], 1)

    def test_a_device_of_a_snapshot_is_chosen(self):
        def events(size):
            return [{"action": "alloc", "addr": 4096, "size": size,
                     "stream": 0, "time_us": 1, "frames": []}]

        path = self.folder / "two.pickle"
        path.write_bytes(pickle.dumps({"segments": [], "device_traces": [
            events(5 << 20), [], events(9 << 20)]}))
        ran = run("--trace", str(path))
        self.assertEqual(ran.returncode, 1)
        self.assertIn("two.pickle: snapshot.device_traces has events of "
                      "devices 0, 2: choose one", ran.stderr)
        ran = run("--trace", str(path), "--device", "2", "--policies",
                  "quire", "--json")
        result, = json.loads(ran.stdout)
        self.assertEqual(result["peak_requested"], 9 << 20)
        self.assertEqual(result["settings"]["device"], 2)

    def test_out_of_memory_is_a_result(self):
        trace = self.write("op,id,bytes\nalloc,0,67108864\n")
        ran = run("--trace", trace, "--policies", "quire,pytorch",
                  "--device-memory", "32MiB", "--json")
        self.assertEqual(ran.returncode, 0)
        for o in json.loads(ran.stdout):
            self.assertTrue(o["oom"])
            self.assertEqual(o["first_oom"]["kind"], "capacity")

    def test_loads_follow_their_seed(self):
        arguments = ("--load", "churn,sawtooth", "--events", "3000", "--live",
                     "256MiB", "--policies", "pytorch", "--json")
        first, again, other = (run(*arguments, "--seed", seed).stdout
                               for seed in ("7", "7", "8"))

        settings = json.loads(first)[1]["settings"]
        self.assertEqual((settings["load"], settings["seed"],
                          settings["events"], settings["live"]),
                         ("sawtooth", 7, 3000, 256 << 20))

        def reserved(text):
            return [o["peak_reserved"] for o in json.loads(text)]

        self.assertEqual(reserved(first), reserved(again))
        self.assertNotEqual(reserved(first), reserved(other))

    def test_table(self):
        ran = run("--load", "lifo", "--events", "2000", "--live", "64MiB")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertIn("survivors: quire, pytorch, pytorch-expandable",
                      ran.stdout)

    def test_refuses_a_trace_of_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "empty.csv"
            path.write_text("op,id,bytes\n")
            ran = run("--trace", str(path))
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        self.assertIn("empty.csv: there are no events", ran.stderr)

    def test_wrong_usage(self):
        for arguments, message in (
                (("--load", "lifo", "--policies", "glibc"),
                 'no policy "glibc"; there are quire, pytorch'),
                (("--load", "life"), "there are churn"),
                (("--load", "lifo", "--device-memory", "much"),
                 '--device-memory "much"'),
                (("--load", "lifo", "--policies", "bfc:preallocate=2"),
                 "bfc: preallocate"),
                ((), "give --trace or --load"),
                (("--load", "lifo", "--repeat", "0"), "--repeat"),
                (("--load", "lifo", "--device", "0"),
                 "--device 0 has no effect without --trace"),
                (("--trace", "t", "--events", "9"),
                 "--events 9 has no effect without --load"),
                (("--load", "lifo", "--timeline", "9"),
                 "--timeline 9 has no effect without --json"),
                (("--lod", "lifo"), "--lod")):
            with self.subTest(arguments):
                ran = run(*arguments)
                self.assertEqual((ran.returncode, ran.stdout), (2, ""))
                self.assertIn(message, ran.stderr)

    def test_bad_files(self):
        trace = self.write("op,id,bytes\nalloc,0,many\n")
        ran = run("--trace", trace)
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        self.assertIn("trace.csv: line 2", ran.stderr)
        ran = run("--trace", str(self.folder / "none"))
        self.assertEqual(ran.returncode, 1)
        self.assertIn("none: cannot open", ran.stderr)


if __name__ == "__main__":
    unittest.main()
