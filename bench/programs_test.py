"""What all programs here do alike: what is printed arrives or the program
fails, and what is wrong on the command line ends with status 2.

    programs_test.py PROGRAM...
"""

import json
import os
import pathlib
import subprocess
import sys
import unittest

PROGRAMS = [pathlib.Path(path) for path in sys.argv[1:]]
# Of those that are made of Google Benchmark's, --help ends before they do.
BENCHMARKS = {"micro_bench", "ops_bench"}
SEEDED = {"allocator_bench", "fragmentation_stress", "kv_stress",
          "model_switching", "serving_replay", "synthetic_model"}
# An empty name is no file, where no name at all means something else.
NAMES = {"convert_trace": ["", "out.csv"],
         "fragmentation_stress": ["--load", "lifo", "--trace", ""],
         "kv_stress": ["--trace", ""],
         "load_bench": [""],
         "model_switching": ["--generate", "3", "--traces", ""],
         "serving_replay": [""],
         "sleep_bench": ["--folder", ""]}


# Options of kv_stress that are wrong, and what is said of them.
KV_STRESS = (
    (("--layers", "0"), "--layers: Value 0 not in range 1 to 4096"),
    (("--kv-heads", "0"), "--kv-heads"),
    (("--head-dim", "0"), "--head-dim"),
    (("--layers-per-row", "0"), "--layers-per-row"),
    (("--layers-per-row", "37"), "'contiguous:37' is no kind of cache for 36"),
    (("--caches", "heap"), "'heap' is no kind of cache"),
    (("--page-size", "1MiB"), "'1MiB' is no power of two from 2MiB on"),
    (("--device-memory", "16EiB"), "'16EiB' is no size such as 8GiB"),
    (("--layers", "4", "--model", "qwen3-8b"),
     "--layers 4 has no effect with --model"),
    (("--layers-per-row", "1", "--caches", "static"),
     "--layers-per-row 1 has no effect with --caches"),
    (("--trace", "t", "--prompt-mean", "9"),
     "--prompt-mean 9 has no effect with a trace"),
    (("--gpu-memory-utilization", "0.5"), "has no effect without --model"),
    (("--bursts", "qwen3-8b", "--caches", "static"),
     "--caches static has no effect with --bursts"),
    (("--bursts", "qwen3-8b", "--saturate"),
     "--saturate has no effect with --bursts"),
    (("--halve-above", "0.5", "--grow-below", "0.6"),
     "--grow-below 0.6 is to be from 0 to --halve-above, 0.5"))


def run(program, *arguments, stdout=subprocess.PIPE):
    return subprocess.run([program, *arguments], stdout=stdout,
                          stderr=subprocess.PIPE, text=True, check=False,
                          timeout=60)


def named(names):
    return [program for program in PROGRAMS if program.name in names]


class ProgramsTest(unittest.TestCase):

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_what_cannot_be_written_is_a_failure(self):
        for program in PROGRAMS:
            option = ("--benchmark_list_tests"
                      if program.name in BENCHMARKS else "--help")
            with self.subTest(program.name), open("/dev/full", "w") as full:
                self.assertEqual(run(program, option).returncode, 0)
                ran = run(program, option, stdout=full)
                self.assertEqual(ran.returncode, 1, ran.stderr)
                self.assertIn(
                    f"{program.name}: standard output cannot be written",
                    ran.stderr)

    def test_an_unknown_option_is_wrong_usage(self):
        for program in PROGRAMS:
            with self.subTest(program.name):
                self.assertEqual(run(program, "--no-such-option").returncode, 2)

    def test_a_seed_has_64_bits(self):
        for program in named(SEEDED):
            for seed in (str(1 << 64), "-1", "1.5", ""):
                with self.subTest(program.name, seed=seed):
                    ran = run(program, "--seed", seed)
                    self.assertEqual(ran.returncode, 2)
                    self.assertIn("seed", ran.stderr)

    def test_an_empty_name_is_no_file(self):
        for program in named(NAMES):
            with self.subTest(program.name):
                ran = run(program, *NAMES[program.name])
                self.assertEqual(ran.returncode, 2, ran.stderr)
                self.assertIn("is empty", ran.stderr)

    def test_kv_stress_names_what_is_wrong(self):
        for program in named({"kv_stress"}):
            for arguments, message in KV_STRESS:
                with self.subTest(arguments):
                    ran = run(program, *arguments)
                    self.assertEqual((ran.returncode, ran.stdout), (2, ""))
                    self.assertIn(message, ran.stderr)

    def test_allocator_replay_names_what_is_wrong(self):
        for program in named({"allocator_replay"}):
            for arguments, message in (
                    (("--page-size", "3MiB"),
                     "--page-size: '3MiB' is no power of two from 2MiB on"),
                    (("--limit", "x"), "--limit: 'x' is no size such as 8GiB"),
                    (("--limit", "1KiB"),
                     "--limit 1KiB holds no page of 2MiB"),
                    (("--device-memory", "0"),
                     "--device-memory 0 holds no page of 2MiB")):
                with self.subTest(arguments):
                    ran = run(program, "file", *arguments)
                    self.assertEqual((ran.returncode, ran.stdout), (2, ""))
                    self.assertIn(message, ran.stderr)

    def test_a_level_of_the_batch_limit_takes_the_other_along(self):
        for program in named({"kv_stress"}):
            for level in (("--halve-above", "0.5"), ("--grow-below", "0.9")):
                ran = run(program, *level, "--requests", "5", "--device-memory",
                          "1GiB", "--headroom", "64MiB", "--layers-per-row",
                          "36", "--json")
                self.assertEqual(ran.returncode, 0, ran.stderr)

    def test_bursts_are_a_table_or_json(self):
        for program in named({"kv_stress"}):
            arguments = ("--bursts", "qwen3-0.6b", "--device-memory", "4GiB",
                         "--requests", "5")
            table = run(program, *arguments)
            self.assertEqual(table.returncode, 0, table.stderr)
            self.assertRegex(table.stdout, r"qwen3-0\.6b +15 +0 ")
            model, = json.loads(run(program, *arguments, "--json").stdout
                                )["models"]
            self.assertEqual(model["requests_served"], 15)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
