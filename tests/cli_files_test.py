#!/usr/bin/env python3
"""Checkpoints, logits and snapshots that the quire program reads and writes.

    cli_files_test.py QUIRE_PROGRAM
"""

import json
import pickle
import shutil
import struct
import unittest
import zlib

from cli_testing import (EXACT, GOLDEN, VerbCase, golden_case,
                         read_safetensors, run, write_safetensors)

SHARED = GOLDEN.parents[2] / "shared" / "golden"


class FilesTest(VerbCase):
    def test_inspect_counts_what_the_file_has(self):
        case = golden_case("gptq")
        report = self.run_json("inspect", case, "--json")
        tensors = size = 0
        for file in case.glob("*.safetensors"):
            header, data = read_safetensors(file)
            header.pop("__metadata__", None)
            tensors += len(header)
            size += len(data)
        self.assertEqual(report["tensors"], tensors)
        self.assertEqual(report["bytes"], size)
        self.assertEqual(report["defects"], [])
        self.assertTrue(report["runnable"])
        self.assertEqual(report["family"], "llama")

    def test_inspect_shows_the_chat_templates(self):
        model = self.folder / "model"
        shutil.copytree(golden_case("plain"), model)
        self.assertNotIn("chat_templates",
                         self.run_json("inspect", model, "--json"))

        def templates(config=None, **files):
            if config is not None:
                (model / "tokenizer_config.json").write_text(
                    json.dumps({"chat_template": config}))
            for name, text in files.items():
                (model / (name + ".jinja")).write_text(text)
            return self.run_json("inspect", model, "--json")["chat_templates"]

        text = "{% for m in messages %}\n<\u00e9>{{ m }}{% endfor %}"
        self.assertEqual(templates(text), {"default": text})
        named = [{"name": "default", "template": text},
                 {"name": "tool_use", "template": "{{ tools }}"}]
        self.assertEqual(templates(named),
                         {"default": text, "tool_use": "{{ tools }}"})
        # A file of its own counts before the configuration.
        self.assertEqual(templates(chat_template="{{ 1 }}"),
                         {"default": "{{ 1 }}", "tool_use": "{{ tools }}"})
        (model / "additional_chat_templates").mkdir()
        more = "additional_chat_templates/rag"
        self.assertEqual(templates("{{ 2 }}", **{more: "{{ 3 }}"}),
                         {"default": "{{ 1 }}", "rag": "{{ 3 }}"})
        self.assertIn("chat template", run("inspect", model).stdout)
        for wrong in (7, [{"name": "a"}], ["a"], [{"name": 1,
                                                   "template": "b"}]):
            (model / "tokenizer_config.json").write_text(
                json.dumps({"chat_template": wrong}))
            result = run("inspect", model)
            self.assertEqual(result.returncode, 1)
            self.assertIn("chat_template", result.stderr)

    def test_inspect_shows_the_chat_templates_of_gguf(self):
        def text(value):
            return struct.pack("<Q", len(value)) + value.encode()

        keys = {"general.architecture": "other",
                "tokenizer.chat_template": "{{ 1 }}",
                "tokenizer.chat_template.tool_use": "{{ 2 }}",
                "tokenizer.chat_templates_that_are_none": "x"}
        tensor = text("t") + struct.pack("<IQIQ", 1, 1, 0, 0)  # F32 [1]
        header = (b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys)) +
                  b"".join(text(key) + struct.pack("<I", 8) + text(value)
                           for key, value in keys.items()) + tensor)
        file = self.folder / "model.gguf"
        file.write_bytes(header + bytes(-len(header) % 32) + bytes(4))
        self.assertEqual(
            self.run_json("inspect", file, "--json")["chat_templates"],
            {"default": "{{ 1 }}", "tool_use": "{{ 2 }}"})

    @unittest.skipUnless((SHARED / "bad").is_dir(),
                         f"there is no {SHARED / 'bad'}")
    def test_malformed_checkpoints_are_refused_by_name(self):
        cases = sorted((SHARED / "bad").iterdir())
        self.assertTrue(cases)
        for case in cases:
            expect = json.loads((case / "expect.json").read_text())
            self.assertEqual(expect["outcome"], "error")
            for arguments in (["inspect", case], ["load", case],
                              ["plan", case],
                              ["generate", case, "--tokens", "1,2", *EXACT]):
                with self.subTest(case=case.name, verb=arguments[0]):
                    result = run(*arguments)
                    self.assertEqual(result.returncode, 1, result.stdout)
                    self.assertEqual(result.stderr.count("\n"), 1,
                                     result.stderr)
                    for mention in expect["error_must_mention"]:
                        self.assertIn(mention, result.stderr)

    def test_load_verifies_against_a_manifest(self):
        data = bytes(range(256)) * 64
        write_safetensors(self.folder / "model.safetensors",
                          {"w": {"dtype": "U8", "shape": [len(data)],
                                 "data_offsets": [0, len(data)]}}, data)
        (self.folder / "config.json").write_text('{"model_type": "any"}')
        entry = {"crc32": "%08x" % zlib.crc32(data)}
        manifest = {"files": {"model.safetensors": {"tensors": {"w": entry}}}}
        (self.folder / "manifest.json").write_text(json.dumps(manifest))
        for backing in ("memory", "none"):
            report = self.run_json("load", self.folder, "--verify", "--backing",
                                   backing, "--json")
            self.assertEqual(report["bytes"], len(data))
            self.assertEqual(report["verified_tensors"], 1)
            self.assertLessEqual(report["staging_peak"], 64 << 20)
        entry["crc32"] = "00000000"
        (self.folder / "manifest.json").write_text(json.dumps(manifest))
        result = run("load", self.folder, "--verify")
        self.assertEqual(result.returncode, 1)
        self.assertIn("tensor w", result.stderr)

    def test_load_refuses_what_inspect_finds_wrong(self):
        case = GOLDEN / "gptq-w4-sym"
        for file in case.iterdir():
            (self.folder / file.name).write_bytes(file.read_bytes())
        self.assertEqual(run("load", self.folder).returncode, 0)
        header, data = read_safetensors(case / "model.safetensors")
        name = "model.layers.0.mlp.up_proj.qweight"
        shape = header[name]["shape"]
        header[name]["shape"] = [shape[0] * 2, shape[1] // 2]
        write_safetensors(self.folder / "model.safetensors", header, data)
        for verb in ("load", "inspect"):
            result = run(verb, self.folder)
            self.assertEqual(result.returncode, 1, verb)
            self.assertIn(name, result.stderr)
        # Where nothing says what it is, it is a sound file.
        for file in ("config.json", "quantize_config.json"):
            (self.folder / file).write_text("{}")
        self.assertEqual(run("load", self.folder).returncode, 0)

    def test_logits_are_a_numpy_file(self):
        case = golden_case("plain")
        output = self.folder / "out.npy"
        expect = json.loads((case / "expect.json").read_text())
        prompt = expect["prompt"]
        result = run("logits", case, "--tokens", ",".join(map(str, prompt)),
                     "--output", output, *EXACT)
        self.assertEqual(result.returncode, 0, result.stderr)
        reference = (case / expect["logits"]).read_bytes()
        written = output.read_bytes()

        def parse(raw):
            length = struct.unpack("<H", raw[8:10])[0]
            values = raw[10 + length:]
            return eval(raw[10:10 + length]), struct.unpack(
                "<%df" % (len(values) // 4), values)

        header, values = parse(written)
        reference_header, reference_values = parse(reference)
        self.assertEqual(header["shape"], reference_header["shape"])
        self.assertEqual(len(written) % 64, len(values) * 4 % 64)
        largest = max(map(abs, reference_values))
        error = max(abs(a - b) for a, b in zip(values, reference_values))
        self.assertLessEqual(error / largest, expect["rtol"])

    def test_quantized_checkpoint_runs(self):
        self.check_quantization(golden_case("plain"))

    def test_quantized_checkpoint_of_another_family_runs(self):
        self.check_quantization(golden_case("qwen3-plain"))

    def check_quantization(self, case):
        tokens = sorted((GOLDEN / "tokenizers").iterdir())[0]
        model = self.folder / "model"
        model.mkdir()
        for file in list(case.iterdir()) + [tokens / "tokenizer.json"]:
            (model / file.name).write_bytes(file.read_bytes())
        for method in ("gptq", "rtn"):
            out = self.folder / method
            report = self.run_json(
                "quantize", model, out, "--group-size", "32", "--method",
                method, "--calibration-sequences", "4", "--calibration-length",
                "48", "--json", "--device-memory", "1GiB")
            self.assertGreater(report["modules"], 0)
            inspected = self.run_json("inspect", out, "--json")
            self.assertEqual(inspected["quantization"]["modules"],
                             report["modules"])
            answer = self.run_json("generate", out, "--tokens", "1,2,3",
                                   "--max-new-tokens", "4", "--ignore-eos",
                                   "--json", *EXACT)
            self.assertEqual(len(answer["tokens"]), 4)
        again = run("quantize", model, self.folder / "rtn", "--method", "rtn")
        self.assertEqual(again.returncode, 1)
        self.assertIn("not empty", again.stderr)

    def test_memory_snapshot_can_be_read_back(self):
        snapshot = self.folder / "snapshot.json"
        page = self.folder / "page.html"
        result = run("generate", golden_case("gptq"), "--tokens", "1,2",
                     "--max-new-tokens", "4", "--memory-snapshot", snapshot,
                     "--memory-report", *EXACT)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("weights", result.stderr)
        pickled = self.folder / "snapshot.pickle"
        result = run("memory", snapshot, "--html", page, "--pytorch", pickled)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("weights", result.stdout)
        self.assertNotIn("http://", page.read_text().replace(
            "http://www.w3.org/", ""))
        blocks = [block
                  for segment in pickle.loads(pickled.read_bytes())["segments"]
                  for block in segment["blocks"]]
        self.assertIn("weights", [block["frames"][0]["name"]
                                  for block in blocks if block["frames"]])


if __name__ == "__main__":
    unittest.main()
