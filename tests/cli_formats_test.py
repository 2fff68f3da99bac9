#!/usr/bin/env python3
"""What the quire program says of each checkpoint format, sound and broken.

    cli_formats_test.py QUIRE_PROGRAM
"""

import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

QUIRE = sys.argv.pop(1)
GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
EXACT = ["--kv-dtype", "f32", "--device-memory", "64MiB", "--page-unit",
         "64KiB"]
LINEARS = 14  # of two layers

# What inspect must say: method, bits, and what shares a scale.
CASES = {
    "awq-w4-g16": ("awq", [4], None),
    "awq-w4-per-channel": ("awq", [4], None),
    "fp8-block": ("fp8", [8], ["16x24"]),
    "fp8-tensor-static": ("fp8", [8], ["tensor"]),
    "fp8-row": ("fp8", [8], ["row"]),
    "ct-w4-group-asym": ("compressed-tensors", [4], ["1x16"]),
    "ct-w4-channel": ("compressed-tensors", [4], ["row"]),
    "ct-w4-actorder": ("compressed-tensors", [4], ["1x16"]),
    "ct-w8-packed-asym": ("compressed-tensors", [8], ["1x16"]),
    "ct-int8-asym": ("compressed-tensors", [8], ["row"]),
    "ct-fp8-tensor": ("compressed-tensors", [8], ["tensor"]),
    "ct-mixed": ("compressed-tensors", [4, 8], ["16x16", "1x16"]),
    "onecomp-mixed-wrapped": ("gptq", [2, 3, 4, 8], None),
}


def run(*arguments):
    return subprocess.run([QUIRE, *map(str, arguments)], capture_output=True,
                          text=True, timeout=120)


def read_file(path):
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + length])
    metadata = header.pop("__metadata__", None)
    data = raw[8 + length:]
    return metadata, {name: [entry["dtype"], entry["shape"],
                             data[slice(*entry["data_offsets"])]]
                      for name, entry in header.items()}


def write_file(path, metadata, tensors):
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class RenamedTest(unittest.TestCase):
    """The same model as other tools and versions write it."""

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.scratch.name) / "model"

    def tearDown(self):
        self.scratch.cleanup()

    def logits(self, folder, case, *arguments):
        """The values of the .npy file, and those of the reference."""
        expect = json.loads((GOLDEN / case / "expect.json").read_text())
        output = pathlib.Path(self.scratch.name) / "out.npy"
        result = run("logits", folder, "--tokens",
                     ",".join(map(str, expect["prompt"])), "--output", output,
                     *arguments, *EXACT)
        self.assertEqual(result.returncode, 0, result.stderr)

        def values(path):
            raw = path.read_bytes()
            begin = 10 + struct.unpack("<H", raw[8:10])[0]
            return struct.unpack(f"<{(len(raw) - begin) // 4}f", raw[begin:])

        return values(output), values(GOLDEN / case / expect["logits"])

    def check_logits(self, folder, case, *arguments):
        ours, reference = self.logits(folder, case, *arguments)
        self.assertEqual(len(ours), len(reference))
        self.assertLess(max(abs(a - b) for a, b in zip(ours, reference)),
                        2e-3 * max(map(abs, reference)))

    def rename(self, path, old, new):
        metadata, tensors = read_file(path)
        renamed = {name.replace(old, new, 1): tensor
                   for name, tensor in tensors.items()}
        self.assertNotEqual(set(renamed), set(tensors))
        write_file(path, metadata or {}, renamed)

    def test_an_adapter_of_a_wrapped_model(self):
        case = "lora-patterns"
        for model_prefix in ("model.language_model.", "language_model.model."):
            shutil.rmtree(self.folder, ignore_errors=True)
            shutil.copytree(GOLDEN / case, self.folder)
            self.rename(self.folder / "model.safetensors", "model.",
                        model_prefix)
            adapter = self.folder / "adapter"
            self.rename(adapter / "adapter_model.safetensors",
                        "base_model.model.model.",
                        "base_model.model." + model_prefix)
            config = adapter / "adapter_config.json"
            config.write_text(config.read_text().replace(
                '"model.layers.', f'"{model_prefix}layers.'))
            with self.subTest(model_prefix):
                self.check_logits(self.folder, case, "--adapter", adapter)

    def test_the_first_name_of_quantization_config(self):
        case = "ct-w4-channel"
        for has_method in (True, False):
            shutil.rmtree(self.folder, ignore_errors=True)
            shutil.copytree(GOLDEN / case, self.folder)
            file = self.folder / "config.json"
            config = json.loads(file.read_text())
            legacy = config.pop("quantization_config")
            if not has_method:
                del legacy["quant_method"]
            config["compression_config"] = legacy
            file.write_text(json.dumps(config))
            with self.subTest(has_method=has_method):
                self.check_logits(self.folder, case)
        legacy["config_groups"] = 7
        file.write_text(json.dumps(config))
        result = run("inspect", self.folder)
        self.assertEqual(result.returncode, 1)
        self.assertIn("compression_config", result.stderr)


class SoundTest(unittest.TestCase):
    def test_inspect_names_the_format(self):
        for name, (method, bits, blocks) in CASES.items():
            with self.subTest(name):
                result = run("inspect", GOLDEN / name, "--json")
                self.assertEqual(result.returncode, 0, result.stderr)
                report = json.loads(result.stdout)
                self.assertTrue(report["runnable"])
                quantization = report["quantization"]
                self.assertEqual(quantization["method"], method)
                self.assertEqual(quantization["bits"], bits)
                if blocks is not None:
                    self.assertEqual(quantization["blocks"], blocks)
                plain = 1 if name == "ct-w4-group-asym" else 0
                self.assertEqual(quantization["modules"], LINEARS - plain)

    def test_load_and_plan_know_the_bytes(self):
        for name in CASES:
            with self.subTest(name):
                _, tensors = read_file(GOLDEN / name / "model.safetensors")
                total = sum(len(data) for _, _, data in tensors.values())
                load = json.loads(run("load", GOLDEN / name, "--json").stdout)
                self.assertEqual(load["bytes"], total)
                plan = json.loads(
                    run("plan", GOLDEN / name, "--json", *EXACT).stdout)
                self.assertTrue(plan["fits"])
                # Indices of groups come to it; perm, and what is on the device
                # in another form, do not.
                index = sum(len(data) for n, (_, _, data) in tensors.items()
                            if n.endswith((".perm", "g_idx", "weight_shape",
                                           "input_scale")))
                self.assertGreaterEqual(plan["weights"], total - index)
                self.assertLessEqual(plan["weights"], total + 4096)

    def test_static_scales_of_activations_are_a_warning(self):
        result = run("inspect", GOLDEN / "fp8-tensor-static", "--json")
        warnings = json.loads(result.stdout)["warnings"]
        self.assertEqual(len(warnings), 1)
        self.assertIn("14 scale(s) of activations", warnings[0])

    def test_quantized_at_load_takes_what_was_planned(self):
        case = GOLDEN / "load-nf4"
        sizes = {}
        for quantization in ("none", "int8", "nf4"):
            plan = run("plan", case, "--json", *EXACT, "--quantization",
                       quantization)
            self.assertEqual(plan.returncode, 0, plan.stderr)
            sizes[quantization] = json.loads(plan.stdout)["weights"]
        linears = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 64)
        rows = 2 * (64 + 32 + 32 + 64 + 3 * 64)
        self.assertEqual(sizes["none"] - sizes["int8"],
                         linears - 4 * rows)
        self.assertEqual(sizes["none"] - sizes["nf4"],
                         2 * linears - linears // 2 - 4 * linears // 64)

    def test_what_is_quantized_already_is_not_quantized_at_load(self):
        for name in ("awq-w4-g16", "ct-w4-channel", "gptq-w4-sym"):
            result = run("generate", GOLDEN / name, "--tokens", "1",
                         "--quantization", "int8", *EXACT)
            self.assertEqual(result.returncode, 1)
            self.assertIn("quantised already", result.stderr)


class BrokenTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)

    # The case with tensor `module`.`part` as `change` makes it (None: removed).
    def broken(self, name, part, change):
        folder = pathlib.Path(self.scratch.name) / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(GOLDEN / name, folder)
        metadata, tensors = read_file(folder / "model.safetensors")
        tensor = next(n for n in sorted(tensors) if n.endswith(part))
        changed = change(*tensors[tensor])
        if changed is None:
            del tensors[tensor]
        else:
            tensors[tensor] = changed
        write_file(folder / "model.safetensors", metadata, tensors)
        return folder, tensor

    def test_broken_tensors_are_one_line_with_name_and_numbers(self):
        def missing(dtype, shape, data):
            return None

        def a_row_less(dtype, shape, data):
            return [dtype, [shape[0] - 1] + shape[1:],
                    data[:len(data) // shape[0] * (shape[0] - 1)]]

        def other_type(dtype, shape, data):
            same_size = {"I32": "U32", "F16": "I16", "BF16": "U16",
                         "F32": "U32", "I8": "U8", "F8_E4M3": "U8",
                         "I64": "U64"}
            return [same_size[dtype], shape, data]

        parts = {
            "awq-w4-g16": [".qweight", ".qzeros", ".scales"],
            "fp8-block": [".weight_scale_inv", "q_proj.weight"],
            "ct-w4-group-asym": [".weight_packed", ".weight_scale",
                                 ".weight_zero_point", ".weight_shape"],
            "ct-int8-asym": ["q_proj.weight", ".weight_scale",
                             ".weight_zero_point"],
            "ct-w4-actorder": [".weight_g_idx"],
            "onecomp-mixed-wrapped": [".qweight", ".qzeros", ".scales"],
        }
        for name, endings in parts.items():
            for part in endings:
                for change in (missing, a_row_less, other_type):
                    if part == ".weight_g_idx" and change is missing:
                        continue  # then inputs are in order
                    with self.subTest(f"{name} {part} {change.__name__}"):
                        folder, tensor = self.broken(name, part, change)
                        result = run("inspect", folder, "--json")
                        self.assertEqual(result.returncode, 1, result.stdout)
                        self.assertEqual(result.stderr.count("\n"), 1)
                        module = tensor.rsplit(".", 1)[0]
                        self.assertIn(module, result.stderr)

    def test_scales_that_are_nan_are_counted(self):
        for name, part, nan in (("awq-w4-g16", ".scales", b"\x00\x7e"),
                                ("fp8-block", ".weight_scale_inv",
                                 b"\xc0\x7f"),
                                ("ct-w4-channel", ".weight_scale",
                                 b"\x00\x7c")):
            with self.subTest(name):
                folder, tensor = self.broken(
                    name, part,
                    lambda dtype, shape, data: [dtype, shape, nan + data[2:]])
                result = run("generate", folder, "--tokens", "1,5",
                             "--max-new-tokens", "1", *EXACT)
                self.assertIn("1 scale(s) are NaN or infinite", result.stderr)
                self.assertIn(tensor.rsplit(".", 1)[0], result.stderr)
                for verb in ("inspect", "load"):
                    result = run(verb, folder, "--json")
                    self.assertEqual(result.returncode, 0, result.stderr)
                    self.assertIn("1 scale(s) are NaN or infinite",
                                  " ".join(json.loads(result.stdout)
                                           ["warnings"]))


if __name__ == "__main__":
    unittest.main()
