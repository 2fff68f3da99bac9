"""What scripts rely on: exit statuses, JSON lines on stdout, messages on stderr."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
SMALL = ("--device-memory", "24GiB", "--max-model-len", "1024",
         "--max-num-seqs", "16")


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True,
                          check=False)


class ServingReplayTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.trace = str(pathlib.Path(folder.name) / "conv.csv")
        rows = [f"2023-11-16 18:15:{i:02d}.0000000,{100 + i},{20 + i}"
                for i in range(40)]
        pathlib.Path(self.trace).write_text(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")

    def test_serves_every_request(self):
        ran = run(self.trace, *SMALL, "--load-factors", "1,20", "--json")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        lines = [json.loads(line) for line in ran.stdout.splitlines()]
        self.assertEqual([line["load_factor"] for line in lines],
                         [1] * 3 + [20] * 3)
        for line in lines:
            self.assertEqual(line["requests_served"], 40)
            self.assertLessEqual(line["goodput"], line["requests_per_second"])
            first = line["seconds_to_first_token"]
            self.assertLess(0, first["p50"])
            self.assertLessEqual(first["p50"], first["p99"])
            self.assertGreaterEqual(line["peak_reserved"],
                                    line["mean_live_bytes"])
            self.assertEqual(line["settings"]["model"], "qwen3-8b")
        # One request a second is no load: all promises are kept.
        for line in lines[:3]:
            self.assertEqual(line["attainment"], 1)
            self.assertAlmostEqual(line["requests_per_second"], 1, delta=0.05)
        self.assertGreater(lines[5]["wasted_share"], 0.5)  # static slots
        self.assertLess(lines[4]["wasted_share"], 0.1)  # blocks

    def test_who_has_no_room_is_told_beside_the_others(self):
        # A static slot of 40,960 tokens takes 5.6 GiB; 15.3 are weights.
        arguments = (self.trace, "--device-memory", "22GiB", "--json")
        ran = run(*arguments, "--caches", "static,blocks:16")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        static, blocks = map(json.loads, ran.stdout.splitlines())
        self.assertEqual((static["cache"], static["oom"]), ("static", True))
        self.assertIn("5.6", static["failure"])
        self.assertEqual(static["settings"]["model"], "qwen3-8b")
        self.assertEqual((blocks["oom"], blocks["requests_served"]),
                         (False, 40))
        table = run(*arguments[:-1], "--caches", "static,blocks:16")
        self.assertEqual(table.returncode, 0)
        self.assertRegex(table.stdout, r"static +no room")
        self.assertIn("static: " + static["failure"], table.stdout)
        ran = run(*arguments, "--caches", "static")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("static: " + static["failure"], ran.stderr)

    def write(self, *times):
        path = pathlib.Path(self.trace).with_name("times.csv")
        path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
            f"{time},100,20\n" for time in times))
        return str(path)

    def test_years_between_requests(self):
        # The clock counts nanoseconds: here they are no whole numbers as
        # doubles any more.
        trace = self.write("1950-01-01 00:00:00.0000000",
                           "1987-06-05 04:03:02.1234567",
                           "2049-11-16 18:15:46.6805900")
        ran = run(trace, *SMALL, "--caches", "contiguous:auto", "--json")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        line = json.loads(ran.stdout)
        self.assertEqual(line["requests_served"], 3)
        self.assertLess(line["seconds_to_first_token"]["max"], 1)

    def test_centuries_between_requests(self):
        trace = self.write("0001-01-01 00:00:00.0000000",
                           "2023-11-16 18:15:46.6805900")
        ran = run(trace, *SMALL)
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        self.assertIn("times.csv: a request arrives 2.02e+03 years behind the "
                      "first one", ran.stderr)
        # A million seconds between two of them are no reason to be refused.
        ran = run(self.trace, *SMALL, "--caches", "static", "--load-factors",
                  "1e-6")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))

    def test_repeats(self):
        first, second = (run(self.trace, *SMALL, "--json") for _ in range(2))
        self.assertEqual(first.stdout, second.stdout)

    def test_table(self):
        ran = run(*SMALL, "--requests", "20", "--caches", "blocks:16")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertEqual(len(ran.stdout.splitlines()), 2)

    def test_wrong_usage_and_bad_files(self):
        for arguments, status, message in (
                ((self.trace, "--load-factors", "0"), 2, "--load-factors"),
                ((self.trace, "--model", "gpt-9"), 2, "--model"),
                ((self.trace, "--caches", "heap"), 2, "no kind of cache"),
                ((self.trace, "--device-memory", "8GiB"), 2, "leave nothing"),
                ((self.trace, "--device-memory", "1PiB"), 2,
                 "--device-memory 1PiB: more than 2097152 pages of 2.00 MiB"),
                ((self.trace, "--page-size", "1PiB"), 2,
                 "--page-size 1PiB is more than there is"),
                ((self.trace, "--page-size", "3MiB"), 2,
                 "'3MiB' is no power of two from 2MiB on"),
                ((self.trace, "--prompt-mean", "5"), 2,
                 "--prompt-mean 5 has no effect with a trace"),
                (("--arrivals-per-second", "5"), 2,
                 "--arrivals-per-second 5 has no effect without a trace"),
                ((self.trace, "--saturate", "--load-factors", "2"), 2,
                 "--load-factors 2 has no effect with --saturate"),
                ((self.trace, "--caches", "static", "--waste-limit", "0.1"), 2,
                 "--waste-limit 0.1 has no effect without a cache"),
                ((self.trace, "--page-ahead", "0", "--park"), 2,
                 "--park has no effect without --page-ahead"),
                ((self.trace, "--halve-above", "0.5", "--grow-below", "0.6"), 2,
                 "--grow-below 0.6 is to be from 0 to --halve-above, 0.5"),
                (("/nowhere/t.csv",), 1, "/nowhere/t.csv")):
            with self.subTest(arguments):
                ran = run(*arguments)
                self.assertEqual((ran.returncode, ran.stdout), (status, ""))
                self.assertIn(message, ran.stderr)


if __name__ == "__main__":
    unittest.main()
