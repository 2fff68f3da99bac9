#!/usr/bin/env python3
"""quire kv, quire top and --ledger as a user meets them.

    cli_ledger_test.py QUIRE_PROGRAM
"""

import json
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

QUIRE = sys.argv.pop(1)
GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
BUDGET = 256 << 20
SMALL = ["--kv-dtype", "f32", "--device-memory", str(BUDGET), "--page-unit",
         "64KiB", "--threads", "1"]


def run(*arguments, **keywords):
    return subprocess.run([QUIRE, *map(str, arguments)], capture_output=True,
                          text=True, timeout=120, **keywords)


class LedgerTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.ledger = "quire-test-%d-%s" % (os.getpid(),
                                            self._testMethodName)
        self.object = pathlib.Path("/dev/shm") / self.ledger
        self.holder = None

    def tearDown(self):
        if self.holder is not None:
            self.holder.kill()
            self.holder.wait()
            run("kv", "list", "--ledger", self.ledger)
        self.assertFalse(self.object.exists())
        self.scratch.cleanup()

    def start_holder(self):
        """A process that decodes until it is killed."""
        source = GOLDEN / "plain-f32"
        self.model = pathlib.Path(self.scratch.name) / "endless"
        shutil.copytree(source, self.model)
        config = json.loads((source / "config.json").read_text())
        config["max_position_embeddings"] = 1 << 20
        (self.model / "config.json").write_text(json.dumps(config))
        self.holder = subprocess.Popen(
            [QUIRE, "generate", str(self.model), "--tokens", "1,2,3",
             "--max-new-tokens", "1000000", "--ignore-eos", "--ledger",
             self.ledger, "--ledger-min", "4MiB", *SMALL],
            stdout=subprocess.DEVNULL)
        while True:
            self.assertIsNone(self.holder.poll())
            result = run("kv", "list", "--json", "--ledger", self.ledger)
            if result.returncode != 0:
                continue
            entries = json.loads(result.stdout)["entries"]
            if any(e["name"] == "kv" and e["claim"] > 0 for e in entries):
                return

    def read(self):
        result = run("kv", "list", "--json", "--ledger", self.ledger)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def process(self):
        return next(e for e in self.read()["entries"] if e["parent"] is None)

    def check_fails(self, status, mention, *arguments):
        result = run(*arguments)
        self.assertEqual(result.returncode, status, (arguments, result.stderr))
        self.assertEqual(result.stdout, "")
        if status == 1:
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for word in mention:
            self.assertIn(word, result.stderr)

    def test_where_there_is_none_it_says_so_and_makes_none(self):
        for verb in (["kv", "list"], ["kv", "limit", "a", "1GiB"],
                     ["kv", "watch"], ["top"], ["top", "1"]):
            self.check_fails(1, [self.ledger, "there is none"], *verb,
                             "--ledger", self.ledger)

    def test_wrong_usage(self):
        for arguments in (["kv"], ["kv", "fly"], ["kv", "limit"],
                          ["kv", "limit", "a"], ["kv", "limit", "a", "much"],
                          ["kv", "limit", "a", "0"], ["kv", "limit", "a", "0%"],
                          ["kv", "limit", "a", "101%"],
                          ["kv", "limit", "a", "nan%"],
                          ["kv", "watch", "--interval", "0"],
                          ["top", "-1"], ["top", "x"]):
            self.check_fails(2, [], *arguments)
        for arguments in (["kv"], ["kv", "list"], ["kv", "limit"],
                          ["kv", "watch"], ["top"]):
            self.assertEqual(run(*arguments, "--help").returncode, 0)

    def test_names_are_checked(self):
        self.check_fails(1, ["../etc"], "kv", "list", "--ledger", "../etc")

    def test_damage_is_named(self):
        self.object.write_bytes(b"\x7fELF" * 100)
        self.object.chmod(0o600)
        self.check_fails(1, ["damaged", str(self.object)], "kv", "list",
                         "--ledger", self.ledger)
        self.object.unlink()

    def test_a_process_is_listed_and_limited(self):
        self.start_holder()
        ledger = self.read()
        self.assertEqual(ledger["budget"], BUDGET)
        process = self.process()
        self.assertEqual(process["pid"], self.holder.pid)
        self.assertEqual(process["name"], "endless")
        self.assertEqual(process["min"], 4 << 20)
        self.assertIsNone(process["limit"])
        self.assertLessEqual(process["claim"], BUDGET)
        self.assertEqual(ledger["claimed"], process["claim"])
        owners = {e["name"]: e for e in ledger["entries"] if e["parent"]}
        self.assertEqual(set(owners), {"weights", "kv"})
        self.assertEqual(owners["kv"]["parent"], process["id"])

        def limit(*arguments):
            result = run("kv", "limit", *arguments, "--ledger", self.ledger)
            self.assertEqual(result.returncode, 0, result.stderr)
            return result.stdout

        table = limit("endless", "50%")
        self.assertIn("endless", table)
        self.assertIn("128.00 MiB", table)
        self.assertEqual(self.process()["limit"], BUDGET // 2)
        # It comes down to it by itself.
        while self.process()["claim"] > BUDGET // 2:
            self.assertIsNone(self.holder.poll())
        limit(str(self.holder.pid), "100MiB")
        self.assertEqual(self.process()["limit"], 100 << 20)
        limit("%d/endless" % self.holder.pid, "none")
        self.assertIsNone(self.process()["limit"])
        limit("kv", "64MiB")
        self.check_fails(1, ["nobody", "endless"], "kv", "limit", "other",
                         "1GiB", "--ledger", self.ledger)
        self.check_fails(1, ["minimum"], "kv", "limit", "endless", "1MiB",
                         "--ledger", self.ledger)

        # By the environment as well.
        result = run("kv", "list", env={**os.environ,
                                        "QUIRE_LEDGER": self.ledger})
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("endless", result.stdout)

    def test_views(self):
        self.start_holder()
        watched = run("kv", "watch", "--json", "--count", "3", "--interval",
                      "0.001", "--ledger", self.ledger)
        self.assertEqual(watched.returncode, 0, watched.stderr)
        lines = watched.stdout.splitlines()
        self.assertEqual(len(lines), 3)
        for line in lines:
            self.assertEqual(json.loads(line)["budget"], BUDGET)
        # Once, where nobody watches.
        top = run("top", "--ledger", self.ledger)
        self.assertEqual(top.returncode, 0, top.stderr)
        self.assertEqual(top.stdout.count("endless"), 1)
        self.assertNotIn("\033", top.stdout)
        one = run("top", self.holder.pid, "--json", "--ledger", self.ledger)
        self.assertEqual(json.loads(one.stdout)["entries"][0]["pid"],
                         self.holder.pid)
        self.check_fails(1, ["process 1"], "top", "1", "--ledger", self.ledger)

        # Ctrl-C is how it ends.
        watch = subprocess.Popen([QUIRE, "kv", "watch", "--interval", "0.01",
                                  "--ledger", self.ledger],
                                 stdout=subprocess.PIPE, text=True)
        while "endless" not in watch.stdout.readline():
            pass
        watch.send_signal(signal.SIGINT)
        watch.stdout.read()
        self.assertEqual(watch.wait(), 0)
        watch.stdout.close()

        # In place on a terminal.
        terminal, side = pty.openpty()
        watch = subprocess.Popen([QUIRE, "kv", "watch", "--interval", "0.01",
                                  "--count", "2", "--ledger", self.ledger],
                                 stdout=side)
        os.close(side)
        seen = b""
        while True:
            try:
                part = os.read(terminal, 65536)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            seen += part
        os.close(terminal)
        self.assertEqual(watch.wait(), 0)
        self.assertEqual(seen.count(b"\033["), 2)

    def test_a_killed_process_leaves_the_ledger_to_others(self):
        self.start_holder()
        self.assertGreater(self.read()["claimed"], 0)
        self.holder.kill()
        self.holder.wait()
        ledger = self.read()
        self.assertEqual(ledger["claimed"], 0)
        self.assertEqual(ledger["entries"], [])
        # Nobody is left: whoever has looked has removed it.
        self.check_fails(1, ["there is none"], "kv", "list", "--ledger",
                         self.ledger)

    def test_tokens_do_not_depend_on_it(self):
        case = next(p for p in sorted(GOLDEN.iterdir())
                    if p.name.startswith("gptq-w4") and
                    (p / "expect.json").exists())
        expect = json.loads((case / "expect.json").read_text())
        arguments = ["generate", case, "--tokens",
                     ",".join(map(str, expect["prompt"])), "--max-new-tokens",
                     len(expect["greedy"]), "--json", "--ledger", self.ledger,
                     *SMALL]
        result = run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        self.assertEqual(json.loads(result.stdout)["tokens"], expect["greedy"])
        self.check_fails(2, [self.ledger, "contiguous", "static"], *arguments,
                         "--kv-cache", "static")


if __name__ == "__main__":
    unittest.main()
