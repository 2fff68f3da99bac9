#!/usr/bin/env python3
"""Loads as a program sees them: events, orders, checks, and their end.

    cli_loading_test.py QUIRE_PROGRAM
"""

import fcntl
import json
import math
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import zlib

QUIRE = sys.argv.pop(1)
GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
# Bytes of four events at least, and of less than a small load has in all.
EVENTS_ROOM = 600


def run(*arguments):
    return subprocess.run([QUIRE, *map(str, arguments)], capture_output=True,
                          text=True, timeout=120)


def events(stderr):
    return [json.loads(line) for line in stderr.splitlines()
            if line.startswith("{")]


def queued_bytes(pipe):
    count = bytearray(4)
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)


def write_zeros(path, shapes):
    """A safetensors file of float32 zeros that takes no room on disk."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": shape,
                        "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def write_llama(folder, hidden=256, ffn=1024, layers=8, vocabulary=1024):
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
              "hidden_act": "silu", "hidden_size": hidden,
              "intermediate_size": ffn, "num_attention_heads": 4,
              "num_key_value_heads": 4, "num_hidden_layers": layers,
              "vocab_size": vocabulary, "max_position_embeddings": 128,
              "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"lm_head.weight": [vocabulary, hidden],
              "model.embed_tokens.weight": [vocabulary, hidden],
              "model.norm.weight": [hidden]}
    for i in range(layers):
        layer = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[layer + norm + ".weight"] = [hidden]
        for name in "qkvo":
            shapes[f"{layer}self_attn.{name}_proj.weight"] = [hidden, hidden]
        shapes[layer + "mlp.gate_proj.weight"] = [ffn, hidden]
        shapes[layer + "mlp.up_proj.weight"] = [ffn, hidden]
        shapes[layer + "mlp.down_proj.weight"] = [hidden, ffn]
    write_zeros(folder / "model.safetensors", shapes)
    return shapes


def checksums(path):
    """The CRC-32 of each tensor of a safetensors file."""
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    return {name: zlib.crc32(raw[8 + length + begin:8 + length + end])
            for name, (begin, end) in ((name, tensor["data_offsets"])
                                       for name, tensor in header.items())}


def write_manifest(folder, sums):
    tensors = {name: {"crc32": "%08x" % crc} for name, crc in sums.items()}
    manifest = {"files": {"model.safetensors": {"tensors": tensors}}}
    (folder / "manifest.json").write_text(json.dumps(manifest))


class LoadingTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name) / "model"
        self.folder.mkdir()

    def tearDown(self):
        self.temporary.cleanup()

    def test_progress_is_one_event_a_line(self):
        shapes = write_llama(self.folder)
        result = run("load", self.folder, "--progress", "json", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        progress = events(result.stderr)
        self.assertGreaterEqual(len(progress), 2)
        total = json.loads(result.stdout)["bytes"]
        for event in progress:
            self.assertEqual(event["event"], "progress")
            self.assertEqual(event["total"], total)
            self.assertGreaterEqual(event["bytes_per_second"], 0)
            self.assertGreaterEqual(event["seconds_left"], 0)
        done = [event["bytes"] for event in progress]
        self.assertEqual(done, sorted(done))
        self.assertEqual((done[0], done[-1]), (0, total))
        self.assertEqual(progress[-1]["seconds_left"], 0)
        self.assertEqual(len(shapes), json.loads(result.stdout)["tensors"])
        quiet = run("load", self.folder, "--progress", "none")
        self.assertEqual(quiet.stderr, "")

    def test_layers_arrive_in_their_order(self):
        # By name: layer 10 stands before layer 2, and the head first of all.
        write_llama(self.folder, hidden=64, ffn=64, layers=12)
        result = run("load", self.folder, "--order", "layers", "--progress",
                     "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        arrived = [event for event in events(result.stderr)
                   if event["event"] == "arrived"]
        self.assertEqual([event["module"] for event in arrived],
                         ["embedding"] +
                         [f"model.layers.{i}" for i in range(12)] + ["head"])
        self.assertEqual([event["tensors"] for event in arrived],
                         [1 + 9 * i for i in range(13)] + [1 + 9 * 12 + 2])

    def test_verifies_by_a_second_pass_where_there_is_no_manifest(self):
        write_llama(self.folder)
        result = run("load", self.folder, "--verify", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["verified_by"], "second pass")
        self.assertEqual(report["verified_tensors"], report["tensors"])
        self.assertEqual(report["read_retries"], 0)

    def test_verbs_that_run_a_model_verify_what_they_load(self):
        for case, extra in (("plain-bf16-tied", []),
                            ("gptq-w4-act-order", []),
                            ("plain-f32", ["--quantization", "int8"])):
            model = pathlib.Path(self.temporary.name) / case
            shutil.copytree(GOLDEN / case, model)
            shutil.copy(GOLDEN / "tokenizers" / "added" / "tokenizer.json",
                        model)
            text = self.folder / "text"
            text.write_text("ABCDEFGH")  # of ids below 64
            sums = checksums(model / "model.safetensors")
            verbs = (["generate", model, "--tokens", "1,2,3", "--json"],
                     ["bench", model, "--prompt-tokens", "4", "--new-tokens",
                      "2", "--json"],
                     ["logits", model, "--tokens", "1,2", "--output",
                      self.folder / "logits.npy"],
                     ["perplexity", model, "--text-file", text, "--window",
                      "4", "--json"])
            for verb in verbs:
                with self.subTest(case=case, verb=verb[0]):
                    arguments = [*verb, *extra, "--verify", "--device-memory",
                                 "1GiB"]
                    (model / "manifest.json").unlink(missing_ok=True)
                    self.assertEqual(run(*arguments).returncode, 0)
                    write_manifest(model, sums)
                    result = run(*arguments)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    # Also of what no pass reads, as the indices of groups.
                    for wrong in sums:
                        if not wrong.endswith(("layers.0.mlp.up_proj.weight",
                                               "layers.0.mlp.up_proj.g_idx",
                                               "embed_tokens.weight")):
                            continue
                        write_manifest(model, sums | {wrong: sums[wrong] ^ 1})
                        result = run(*arguments)
                        self.assertEqual(result.returncode, 1, wrong)
                        self.assertIn(wrong, result.stderr)
                        self.assertIn("%08x" % sums[wrong], result.stderr)
                    write_manifest(model, dict(list(sums.items())[1:]))
                    result = run(*arguments)
                    self.assertEqual(result.returncode, 1)
                    self.assertIn(next(iter(sums)), result.stderr)

    def test_reads_past_the_page_cache_for_verbs_that_run_a_model(self):
        model = GOLDEN / "gptq-w4-act-order"
        answers = []
        for direct in ([], ["--direct-io"]):
            result = run("generate", model, "--tokens", "1,2,3", "--json",
                         "--max-new-tokens", "8", "--device-memory", "1GiB",
                         *direct)
            self.assertEqual(result.returncode, 0, result.stderr)
            answers.append(json.loads(result.stdout))
        self.assertEqual(answers[0]["tokens"], answers[1]["tokens"])
        self.assertFalse(answers[0]["load"]["direct_io"])
        # As far as the file system has such reads: what `load` finds.
        result = run("load", model, "--direct-io", "--json")
        self.assertEqual(answers[1]["load"]["direct_io"],
                         json.loads(result.stdout)["direct_io"])

    def test_loads_onto_tiers(self):
        shapes = write_llama(self.folder, hidden=64, ffn=64, layers=4)
        def size(prefix):
            return 4 * sum(math.prod(shape) for name, shape in shapes.items()
                           if name.startswith(prefix))
        places = {"model.embed_tokens": "cpu", "model.layers.0": "0",
                  "model.layers.1": "1", "model.layers.2": "cpu",
                  "model.layers.3": "disk", "model.norm": "0", "lm_head": "0"}
        path = pathlib.Path(self.temporary.name) / "map.json"
        path.write_text(json.dumps(places))
        expected = {}
        for module, place in places.items():
            expected[place] = expected.get(place, 0) + size(module + ".")
        result = run("load", self.folder, "--device-map", path, "--verify",
                     "--device-memory", "256MiB", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["tiers"], expected)
        self.assertEqual(report["device_map"], places)
        self.assertEqual(report["bytes"], size(""))
        self.assertEqual(report["verified_tensors"], len(shapes))
        self.assertEqual(report["memory"]["offload"]["disk"], expected["disk"])
        text = run("load", self.folder, "--device-map", path,
                   "--device-memory", "256MiB")
        self.assertEqual(text.returncode, 0, text.stderr)
        for place in expected:
            self.assertRegex(text.stdout, rf"(?m)^on {place} ")
        limited = run("load", self.folder, "--max-memory",
                      "0:32MiB,cpu:1GiB", "--json")
        self.assertEqual(limited.returncode, 0, limited.stderr)
        self.assertEqual(sum(json.loads(limited.stdout)["tiers"].values()),
                         size(""))
        for idle in (["--backing", "none"], ["--order", "layers"],
                     ["--driver", "cuda"]):
            refused = run("load", self.folder, "--device-map", "auto", *idle)
            self.assertEqual(refused.returncode, 2, refused.stderr)
            self.assertIn(idle[0], refused.stderr)

    def test_plan_lists_every_tensor(self):
        for model in ("plain-bf16-tied", "gptq-w4-act-order"):
            raw = (GOLDEN / model / "model.safetensors").read_bytes()
            length = struct.unpack("<Q", raw[:8])[0]
            header = json.loads(raw[8:8 + length])
            header.pop("__metadata__", None)
            result = run("plan", GOLDEN / model, "--device-memory", "1GiB",
                         "--tensors", "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            plan = json.loads(result.stdout)
            parts = {}
            for tensor in plan["tensors"]:
                stored = header[tensor["name"]]
                begin, end = stored["data_offsets"]
                self.assertEqual(tensor["file_bytes"], end - begin)
                self.assertEqual(tensor["shape"], stored["shape"])
                self.assertEqual(tensor["dtype"], stored["dtype"])
                self.assertEqual(tensor["device"], 0)
                parts[tensor["module"]] = (parts.get(tensor["module"], 0) +
                                           tensor["bytes"] +
                                           tensor["workspace"])
            self.assertEqual(parts, {part["module"]: part["bytes"]
                                     for part in plan["placement"]
                                     if part["bytes"] > 0})
            text = run("plan", GOLDEN / model, "--device-memory", "1GiB",
                       "--tensors").stdout
            for tensor in plan["tensors"]:
                self.assertIn(tensor["name"], text)
            self.assertIn(str(plan["rule_of_thumb"]), text)
            self.assertNotIn("tensors", json.loads(
                run("plan", GOLDEN / model, "--device-memory", "1GiB",
                    "--json").stdout))


def memory_group(limit):
    """A control group of this many bytes, page cache included; None where the
    system lets nobody make one.
    """
    root = pathlib.Path("/sys/fs/cgroup")
    name = f"quire-loading-test-{os.getpid()}"
    for parent, file in ((root / "memory", "memory.limit_in_bytes"),
                         (root, "memory.max")):
        group = parent / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / file).write_text(str(limit))
            return group
        except OSError:
            group.rmdir()
    return None


class LimitTest(unittest.TestCase):
    """A load in a control group that is a small part of what it reads."""

    LIMIT = 64 << 20

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.group = memory_group(self.LIMIT)
        if self.group is None:
            self.skipTest("no control group for memory can be made here")
        self.addCleanup(self.group.rmdir)

    def run_in_group(self, *command):
        # Joined by the shell, which then becomes the program.
        return subprocess.run(
            ["sh", "-c", 'echo 0 > "$0" && exec "$@"',
             str(self.group / "cgroup.procs"), *map(str, command)],
            capture_output=True, text=True, timeout=240)

    def test_a_load_of_eight_times_the_limit(self):
        # What takes more is killed, unless it may swap.
        greedy = self.run_in_group(
            sys.executable, "-c", f"len(b'x' * {2 * self.LIMIT})")
        if greedy.returncode != -signal.SIGKILL:
            self.skipTest("a control group of this system is no hard limit")
        model = pathlib.Path(self.temporary.name) / "model.safetensors"
        write_zeros(model, {f"t{i}": [1 << 22] for i in range(32)})
        result = self.run_in_group(QUIRE, "load", model, "--backing", "none",
                                   "--device-memory", "1GiB", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["bytes"], 8 * self.LIMIT)
        self.assertLess(report["anonymous_peak"], self.LIMIT)


class KillTest(unittest.TestCase):
    """A process that is killed in mid-load leaves nothing behind."""

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        root = pathlib.Path(self.temporary.name)
        self.folder, self.home, self.offload = (root / name for name in
                                                ("model", "home", "offload"))
        for folder in (self.folder, self.home, self.offload):
            folder.mkdir()

    def tearDown(self):
        self.temporary.cleanup()

    def kill_in_mid_load(self, *arguments):
        environment = dict(os.environ)
        for name in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
            environment[name] = str(self.home)
        # A pipe with room for a few events: the load waits to write the next.
        reader, writer = os.pipe()
        capacity = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ,
                               os.sysconf("SC_PAGESIZE"))
        filled = capacity - EVENTS_ROOM
        os.write(writer, b"\n" * filled)
        process = subprocess.Popen(
            [QUIRE, *map(str, arguments), "--progress", "json"],
            stdout=subprocess.DEVNULL, stderr=writer, env=environment)
        os.close(writer)
        try:
            while queued_bytes(reader) < filled + EVENTS_ROOM // 2:
                self.assertIsNone(process.poll(), "the load ended")
                time.sleep(0.001)
            # Nothing that it holds has a name, but what it reads.
            proc = pathlib.Path("/proc") / str(process.pid)
            for entry in (proc / "fd").iterdir():
                try:
                    target = os.readlink(entry)
                except FileNotFoundError:
                    continue
                if (target.startswith("/") and not
                        target.startswith(("/memfd:", "/dev/null", "/proc/"))
                        and not target.endswith("(deleted)")):
                    self.assertEqual(pathlib.Path(target).parent, self.folder)
            locks = pathlib.Path("/proc/locks").read_text().splitlines()
            self.assertEqual([lock for lock in locks
                              if lock.split()[-4] == str(process.pid)], [])
        finally:
            process.kill()
            process.wait()
            with open(reader, encoding="utf-8") as pipe:
                told = events(pipe.read())
        self.assertEqual(process.returncode, -signal.SIGKILL)
        self.assertTrue(0 < told[-1]["bytes"] < told[-1]["total"], told[-1])
        self.assertEqual(list(self.home.rglob("*")), [])
        self.assertEqual(list(self.offload.rglob("*")), [])
        if pathlib.Path("/dev/shm").is_dir():
            self.assertEqual([name for name in os.listdir("/dev/shm")
                              if str(process.pid) in name.split("-")], [])

    def test_a_load(self):
        # More than is read between a few events.
        write_zeros(self.folder / "model.safetensors",
                    {f"t{i}": [1 << 28] for i in range(96)})
        self.kill_in_mid_load("load", self.folder / "model.safetensors",
                              "--backing", "none", "--device-memory", "128GiB")

    def test_a_load_to_an_offload_folder(self):
        write_llama(self.folder)
        self.kill_in_mid_load(
            "generate", self.folder, "--tokens", "1", "--device-memory", "1GiB",
            "--device-map", self.write_map(), "--offload-folder", self.offload)

    def write_map(self):
        path = pathlib.Path(self.temporary.name) / "map.json"
        path.write_text('{"": "disk"}')
        return path


if __name__ == "__main__":
    unittest.main()
