"""What all programs here do alike: what is printed arrives or the program
fails, and what is wrong on the command line ends with status 2.

    programs_test.py PROGRAM...
"""

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
NAMES = {"fragmentation_stress": ["--load", "lifo", "--trace", ""],
         "kv_stress": ["--trace", ""],
         "model_switching": ["--generate", "3", "--traces", ""],
         "serving_replay": [""],
         "sleep_bench": ["--folder", ""]}


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


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
