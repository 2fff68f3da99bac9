#!/usr/bin/env python3
"""quire quantize as a user meets it: bounded memory, and an output that is whole
or not there.

    cli_quantize_test.py QUIRE_PROGRAM
"""

import json
import math
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

QUIRE = sys.argv.pop(1)
GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
DEVICE = ["--device-memory", "1GiB"]
SHORT = ["--group-size", "32", "--calibration-sequences", "4",
         "--calibration-length", "48", *DEVICE]


def run(*arguments):
    result = subprocess.run([QUIRE, *map(str, arguments)], capture_output=True,
                            text=True, timeout=120)
    assert "still holds" not in result.stderr, result.stderr
    return result


class QuantizeTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.model = self.model_of("plain-f32")

    def tearDown(self):
        self.temporary.cleanup()

    def model_of(self, case):
        """A golden case with a tokenizer, in a folder of its own."""
        model = self.folder / f"{case}.model"
        model.mkdir()
        tokens = sorted((GOLDEN / "tokenizers").iterdir())[0]
        files = [*(GOLDEN / case).iterdir(), tokens / "tokenizer.json"]
        for file in files:
            (model / file.name).write_bytes(file.read_bytes())
        return model

    def quantize(self, out, *arguments, model=None):
        result = run("quantize", model or self.model, out, *SHORT, "--json",
                     *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def check_fails(self, mention, *arguments):
        result = run("quantize", *arguments)
        self.assertEqual(result.returncode, 1, result.stderr)
        for text in mention:
            self.assertIn(text, result.stderr)

    def beside(self, prefix):
        return sorted(p.name for p in self.folder.iterdir()
                      if p.name.startswith(prefix))

    def test_wherever_weights_are_kept_the_checkpoint_is_the_same(self):
        everywhere = self.folder / "map.json"
        layers = {f"model.layers.{i}": ("cpu", "disk")[i % 2]
                  for i in range(json.loads((self.model / "config.json")
                                            .read_text())["num_hidden_layers"])}
        everywhere.write_text(json.dumps(
            {"model.embed_tokens": "disk", "model.norm": 0, "lm_head": "cpu",
             **layers}))
        for method in ("gptq", "rtn"):
            expected = None
            for name, arguments in (
                    ("device", ["--max-memory", "0:1GiB"]),
                    ("host", ["--weight-cache", "1GiB"]),
                    ("disk", ["--weight-cache", "24MiB"]),
                    ("mixed", ["--device-map", everywhere])):
                out = self.folder / f"{method}-{name}"
                report = self.quantize(out, "--method", method, *arguments)
                self.assertEqual(report["weight_cache"] > 0,
                                 name in ("host", "mixed"), report)
                written = (out / "model.safetensors").read_bytes()
                expected = expected or written
                self.assertEqual(written == expected, True, name)

    def random_model(self, layers, hidden=256, ffn=512, vocabulary=300):
        """Returns the folder, and the bytes of one layer."""
        shapes = {"lm_head": [vocabulary, hidden],
                  "model.embed_tokens": [vocabulary, hidden],
                  "model.norm": [hidden]}
        for i in range(layers):
            layer = f"model.layers.{i}."
            for norm in ("input_layernorm", "post_attention_layernorm"):
                shapes[layer + norm] = [hidden]
            for name in "qkvo":
                shapes[f"{layer}self_attn.{name}_proj"] = [hidden, hidden]
            shapes[layer + "mlp.gate_proj"] = [ffn, hidden]
            shapes[layer + "mlp.up_proj"] = [ffn, hidden]
            shapes[layer + "mlp.down_proj"] = [hidden, ffn]
        generator, header, data = random.Random(layers), {}, bytearray()
        for name, shape in shapes.items():
            count = math.prod(shape)
            # float16 of a usual size: any sign and mantissa, one exponent.
            values = bytearray(generator.randbytes(2 * count))
            values[1::2] = bytes(byte & 0x83 | 0x24 for byte in values[1::2])
            header[name + ".weight"] = {
                "dtype": "F16", "shape": shape,
                "data_offsets": [len(data), len(data) + len(values)]}
            data += values
        model = self.folder / f"{layers}-layers"
        shutil.copytree(self.model, model)
        text = json.dumps(header).encode()
        (model / "model.safetensors").write_bytes(
            struct.pack("<Q", len(text)) + text + data)
        (model / "config.json").write_text(json.dumps(
            {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
             "hidden_act": "silu", "hidden_size": hidden,
             "intermediate_size": ffn, "num_attention_heads": 4,
             "num_key_value_heads": 4, "num_hidden_layers": layers,
             "vocab_size": vocabulary, "max_position_embeddings": 128,
             "rms_norm_eps": 1e-5, "tie_word_embeddings": False}))
        return model, 2 * (4 * hidden * hidden + 3 * hidden * ffn)

    @unittest.skipIf(b"__asan_init" in pathlib.Path(QUIRE).read_bytes(),
                     "AddressSanitizer keeps what was freed")
    def test_memory_is_two_caches_and_one_layer(self):
        fixed = 8 << 20  # program, tokenizer and index
        weight_cache, activation_cache = 24 << 20, 2 << 20
        peaks = []
        for layers in (2, 12):
            model, layer_bytes = self.random_model(layers)
            report = self.quantize(
                self.folder / f"{layers}-out", "--weight-cache",
                f"{weight_cache}", "--activation-cache",
                f"{activation_cache}", model=model)
            self.assertLessEqual(report["activation_cache"], activation_cache)
            self.assertLessEqual(
                report["anonymous_peak"],
                weight_cache + activation_cache + report["layer"] + fixed)
            peaks.append(report["anonymous_peak"])
        # However many layers there are. Ten more would cost what they hold;
        # what threads leave in their heaps is at most a few of them.
        self.assertLess(peaks[1] - peaks[0], 4 * layer_bytes, peaks)

    def test_memory_is_what_the_command_line_says(self):
        needed = 4 * (4 + 2) * 48 * json.loads(
            (self.model / "config.json").read_text())["hidden_size"]
        report = self.quantize(self.folder / "out", "--activation-cache",
                               f"{needed}")
        self.assertEqual(report["activation_cache"], needed)
        self.assertGreater(report["layer"], 0)
        self.assertGreater(report["anonymous_peak"], 0)
        self.check_fails([str(needed), str(needed - 1)], self.model,
                         self.folder / "none", *SHORT, "--activation-cache",
                         f"{needed - 1}")
        self.assertEqual(self.beside("none"), [])
        for size in ("23MiB", "none"):
            wrong = run("quantize", self.model, self.folder / "none",
                        "--weight-cache", size)
            self.assertEqual(wrong.returncode, 2, wrong.stderr)
            self.assertIn("--weight-cache", wrong.stderr)

    def test_what_fails_leaves_nothing(self):
        source = self.model / "model.safetensors"
        raw = bytearray(source.read_bytes())
        length = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8:8 + length])
        name = "model.layers.1.mlp.up_proj"
        at = 8 + length + header[name + ".weight"]["data_offsets"][0]
        raw[at:at + 4] = struct.pack("<f", float("nan"))
        source.write_bytes(raw)
        for method, mention in (("gptq", "NaN"), ("rtn", name)):
            self.check_fails([mention], self.model, self.folder / "out",
                             *SHORT, "--method", method)
            self.assertEqual(self.beside("out"), [])

    # The same options for both methods compare them.
    def test_rounding_says_that_it_does_not_calibrate(self):
        result = run("quantize", self.model, self.folder / "out", *SHORT,
                     "--method", "rtn", "--act-order")
        self.assertEqual(result.returncode, 0, result.stderr)
        for option in ("--calibration-sequences 4", "--calibration-length 48",
                       "--act-order"):
            self.assertIn(f"warning: {option} has no effect with --method rtn",
                          result.stderr)

    def test_a_model_that_is_quantized_already_is_refused_at_once(self):
        for case in ("gptq-w4-sym", "awq-w4-g16", "fp8-row"):
            model = self.model_of(case)
            self.check_fails(["quantised already"], model, self.folder / "out",
                             *SHORT)
            self.assertEqual(self.beside("out"), [])

    def test_what_is_there_stays(self):
        out = self.folder / "out"
        out.mkdir()
        (out / "precious").write_text("x")
        self.check_fails(["not empty"], self.model, out, *SHORT)
        self.assertEqual(sorted(p.name for p in out.iterdir()), ["precious"])
        self.assertEqual(self.beside("out"), ["out"])

    def test_a_model_without_a_tokenizer(self):
        """Only a text in a file needs one."""
        for file in self.model.glob("tokenizer*"):
            file.unlink()
        for method in ("rtn", "gptq"):
            out = self.folder / method
            self.quantize(out, "--method", method)
            self.assertEqual(list(out.glob("tokenizer*")), [])
            self.assertEqual(run("inspect", out).returncode, 0)
        text = self.folder / "text"
        text.write_text("some text")
        self.check_fails(["tokenizer.json"], self.model, self.folder / "out",
                         "--calibration-file", text, *SHORT)

    def test_a_killed_run_leaves_what_the_next_one_replaces(self):
        out = self.folder / "out"
        process = subprocess.Popen(
            [QUIRE, "quantize", self.model, out, "--group-size", "32",
             "--calibration-sequences", "64", "--calibration-length", "64",
             *DEVICE],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        # As soon as it writes; and if it should be done by then, it has
        # written everything.
        while process.poll() is None and not list(
                self.folder.glob("out.partial/model.safetensors*")):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self.assertIn(self.beside("out"), (["out"], ["out.partial"]))
        if out.exists():
            self.assertEqual(run("inspect", out).returncode, 0)
            return
        self.quantize(out)
        self.assertEqual(self.beside("out"), ["out"])
        self.assertEqual(run("inspect", out).returncode, 0)


if __name__ == "__main__":
    unittest.main()
