#!/usr/bin/env python3
"""Defects in the data of a checkpoint: that every verb that meets them counts
them, in one sentence for each kind.

    cli_defects_test.py QUIRE_PROGRAM
"""

import json
import shutil
import struct
import unittest

from cli_testing import (EXACT, GOLDEN, VerbCase, read_safetensors, run,
                         write_safetensors)


def gguf_tensors(data):
    """(name, type, offset in the file) of each tensor: the layout of
    https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3.
    """
    at = 8
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8,
             12: 8}

    def number(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)[0]
        at += struct.calcsize("<" + form)
        return value

    def text():
        nonlocal at
        length = number("Q")
        at += length
        return bytes(data[at - length:at]).decode()

    def value(kind):
        nonlocal at
        if kind == 8:
            return text()
        if kind == 9:
            kind, count = number("I"), number("Q")
            return [value(kind) for _ in range(count)]
        at += sizes[kind]
        return int.from_bytes(data[at - sizes[kind]:at], "little")

    tensors, keys = number("Q"), number("Q")
    metadata = {}
    for _ in range(keys):
        key = text()
        metadata[key] = value(number("I"))
    found = []
    for _ in range(tensors):
        name = text()
        for _ in range(number("I")):
            number("Q")
        found.append((name, number("I"), number("Q")))
    alignment = metadata.get("general.alignment", 32)
    start = (at + alignment - 1) // alignment * alignment
    return [(name, kind, start + offset) for name, kind, offset in found]


class DefectsTest(VerbCase):
    def check_warnings(self, command, expected):
        """All that is odd, each kind in one sentence that begins like this."""
        report = self.run_json(*command, "--json")
        self.assertEqual(len(report["warnings"]), len(expected),
                         report["warnings"])
        for beginning in expected:
            self.assertEqual(sum(warning.startswith(beginning)
                                 for warning in report["warnings"]), 1,
                             (beginning, report["warnings"]))
        if command[0] == "inspect":
            self.assertEqual(report["defects"], [])

    def changed(self, name, change):
        """A copy of a case whose tensors {name: [dtype, shape, bytes]} went
        through `change`.
        """
        folder = self.folder / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(GOLDEN / name, folder)
        header, data = read_safetensors(folder / "model.safetensors")
        header.pop("__metadata__", None)
        tensors = {}
        for tensor, entry in header.items():
            begin, end = entry["data_offsets"]
            tensors[tensor] = [entry["dtype"], entry["shape"], data[begin:end]]
        change(tensors)
        header, data = {}, b""
        for tensor, (dtype, shape, values) in tensors.items():
            header[tensor] = {"dtype": dtype, "shape": shape,
                              "data_offsets": [len(data),
                                               len(data) + len(values)]}
            data += values
        write_safetensors(folder / "model.safetensors", header, data)
        return folder

    def check_all_verbs(self, folder, expected):
        for verb in ("inspect", "load"):
            with self.subTest(verb):
                self.check_warnings([verb, folder], expected)
        result = run("logits", folder, "--tokens", "1,5", "--output",
                     self.folder / "out.npy", *EXACT)
        for beginning in expected:
            self.assertIn(beginning, result.stderr)

    def test_a_defect_of_every_module_is_one_sentence(self):
        def nan_in_every_table(tensors):
            for name, tensor in tensors.items():
                if name.endswith(".scales"):
                    tensor[2] = b"\x00\x7e" + tensor[2][2:]
            tensors["junk.weight"] = ["F32", [4], bytes(16)]

        modules = sum(name.endswith(".scales") for name in read_safetensors(
            GOLDEN / "gptq-w4-sym" / "model.safetensors")[0])
        self.check_all_verbs(
            self.changed("gptq-w4-sym", nan_in_every_table),
            [f"{modules} scale(s) are NaN or infinite, in {modules} module(s)",
             "1 tensor(s) of the checkpoint are not used by a llama model, the "
             "first is junk.weight"])

    def test_a_wrong_label_of_zero_points_is_one_sentence(self):
        folder = self.changed("gptq-w4-sym", lambda tensors: None)
        for name in ("quantize_config.json", "config.json"):
            config = json.loads((folder / name).read_text())
            settings = config.get("quantization_config", config)
            settings.pop("format", None)
            settings["checkpoint_format"] = "gptq_v2"
            (folder / name).write_text(json.dumps(config))
        self.check_all_verbs(
            folder, ["zero points labelled gptq_v2 are those of symmetric v1"])

    def test_odd_group_indices_are_one_sentence(self):
        def all_zero(tensors):
            for name, tensor in tensors.items():
                if name.endswith(".g_idx"):
                    tensor[2] = bytes(len(tensor[2]))

        def unequal(tensors):
            for name, tensor in tensors.items():
                if name.endswith(".g_idx"):
                    tensor[2] = bytes(64) + tensor[2][64:]

        self.check_all_verbs(
            self.changed("gptq-w4-sym", all_zero),
            ["g_idx is all zero, though there are several groups"])
        self.check_all_verbs(
            self.changed("gptq-w4-act-order", unequal),
            ["g_idx makes groups of other sizes than the configuration says"])

    def test_weights_that_are_nan_are_counted_by_inspect(self):
        def nan(tensors):
            for name in ("model.norm.weight", "lm_head.weight"):
                dtype, shape, data = tensors[name]
                bad = {"F32": b"\x00\x00\xc0\x7f", "F16": b"\x00\x7c",
                       "BF16": b"\xc0\x7f"}[dtype]
                tensors[name][2] = data[:-len(bad)] + bad

        folder = self.changed("plain-f32", nan)
        expected = ["2 weight(s) are NaN or infinite, in 2 module(s)"]
        self.check_warnings(["inspect", folder], expected)
        self.check_warnings(["load", folder, "--verify"], expected)
        self.check_warnings(["inspect", folder, "--headers-only"], [])

    def test_nan_in_blocks_of_gguf_is_counted_and_never_silent(self):
        case = GOLDEN / "llama-blocks-gguf"
        source = next(case.glob("*.gguf"))
        data = bytearray(source.read_bytes())
        name, offset = next(
            (name, offset) for name, kind, offset in gguf_tensors(data)
            if kind == 8 and name.startswith("blk."))  # Q8_0: { f16 d; int8 q[32] }
        data[offset:offset + 2] = b"\x00\x7e"
        data[offset + 34:offset + 36] = b"\x00\xfc"
        file = self.folder / "model.gguf"
        file.write_bytes(data)
        self.check_warnings(
            ["inspect", file],
            ["2 scale(s) are NaN or infinite, in 1 module(s), the first is "
             '"' + name.removesuffix(".weight") + '"'])
        result = run("logits", file, "--tokens", "1,5", "--output",
                     self.folder / "out.npy", *EXACT)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("logit(s) are NaN or infinite", result.stderr)
        result = run("generate", file, "--tokens", "1,5", "--max-new-tokens",
                     "1", *EXACT)
        self.assertEqual(result.returncode, 1)
        self.assertIn("logits are NaN", result.stderr)


if __name__ == "__main__":
    unittest.main()
