#!/usr/bin/env python3
"""What the quire program says would fit, before a weight is read.

    cli_plan_test.py QUIRE_PROGRAM
"""

import json
import pathlib
import re
import struct
import subprocess
import unittest

from cli_testing import (EXACT, GOLDEN, QUIRE, VerbCase, golden_case, run)


def gguf_of(fields):
    """A GGUF file of these fields, and one tensor of 16 floats."""
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def field(name, value):
        if isinstance(value, str):
            return text(name) + struct.pack("<I", 8) + text(value)
        return text(name) + struct.pack("<II", 4, value)

    raw = b"GGUF" + struct.pack("<IQQ", 3, 1, len(fields))
    raw += b"".join(field(*item) for item in fields.items())
    raw += text("output_norm.weight") + struct.pack("<IQIQ", 1, 16, 0, 0)
    return raw + bytes(-len(raw) % 32) + bytes(64)


class PlanTest(VerbCase):
    def test_plan_says_what_fits(self):
        case = golden_case("gptq")
        plan = self.run_json("plan", case, "--device-memory", "64MiB",
                             "--page-unit", "64KiB", "--kv-dtype", "f16",
                             "--json")
        config = json.loads((case / "config.json").read_text())
        heads = config["num_key_value_heads"]
        head_dim = config.get("head_dim") or (
            config["hidden_size"] // config["num_attention_heads"])
        self.assertEqual(plan["kv"]["bytes_per_token"],
                         config["num_hidden_layers"] * 2 * heads * head_dim * 2)
        self.assertEqual(plan["weights"],
                         sum(part["bytes"] for part in plan["placement"]))
        self.assertTrue(plan["fits"])
        small = self.run_json("plan", case, "--device-memory", "128KiB",
                              "--page-unit", "64KiB", "--json")
        self.assertFalse(small["fits"])
        self.assertIn("are missing", small["advice"][0])
        result = run("plan", case, "--max-model-len", "1000000")
        self.assertEqual(result.returncode, 1)
        self.assertIn("--max-model-len 1000000 exceeds", result.stderr)

    # Pages under a sequence, how many sequences memory holds, and how many run.
    def test_sequences_at_once_are_those_that_memory_and_options_allow(self):
        case = golden_case("plain")
        for model, most in ((case, 2), (case, 64), ("gpt-oss-20b", 3)):
            plan = self.run_json("plan", model, "--device-memory", "64MiB",
                                 "--page-unit", "64KiB", "--max-num-seqs", most,
                                 "--json")
            page = plan["page_size"]
            for batch in plan["batches"]:
                self.assertGreaterEqual(batch["mapped"], batch["kept"])
                self.assertEqual(batch["mapped"] % page, 0)
                self.assertEqual(batch["room"],
                                 plan["kv"]["bytes"] // batch["mapped"])
                self.assertEqual(batch["sequences"],
                                 min(batch["room"], most))
        text = run("plan", case, "--device-memory", "64MiB", "--max-num-seqs",
                   "2").stdout
        self.assertIn("bytes in pages", text)
        self.assertIn("with --max-num-seqs 2", text)

    def test_a_plan_is_a_device_map(self):
        case = GOLDEN / "gptq-w2-asym"
        expect = json.loads((case / "expect.json").read_text())
        # So little that most of the model goes to the host.
        flags = ["--page-unit", "4KiB", "--max-model-len", "64",
                 "--max-num-batched-tokens", "16", "--max-memory",
                 "0:112KiB,1:48KiB,cpu:1MiB", *EXACT]
        plan = self.run_json("plan", case, "--device-map", "sequential", "--json",
                             *flags)
        self.assertEqual(sorted(plan["device_map"]),
                         sorted(p["module"] for p in plan["placement"]))
        self.assertIn("cpu", plan["device_map"].values())
        self.assertTrue(plan["fits"], plan["advice"])
        file = self.folder / "plan.json"
        file.write_text(json.dumps(plan))
        again = self.run_json("plan", case, "--device-map", file, "--json", *flags)
        self.assertEqual(again["device_map"], plan["device_map"])
        tokens = ",".join(map(str, expect["prompt"]))
        answer = self.run_json("generate", case, "--tokens", tokens,
                               "--max-new-tokens", len(expect["greedy"]),
                               "--device-map", file, "--json", *flags)
        self.assertEqual(answer["tokens"], expect["greedy"])
        memory = answer["memory"]
        self.assertGreaterEqual(memory["offload"]["host"], plan["host"])
        self.assertGreater(memory["offload"]["acquired"], 0)
        self.assertEqual(len(memory["devices"]), 2)
        # What was planned, and whole pages of the rows of these tokens.
        length = len(expect["prompt"]) + len(expect["greedy"])
        for device, planned in zip(memory["devices"], plan["devices"]):
            rows = length * planned["kv_bytes_per_token"]
            self.assertLessEqual(device["peak"], planned["running_peak"])
            self.assertGreaterEqual(device["peak"], planned["fixed"])
            self.assertLessEqual(device["peak"], planned["fixed"] + rows + 4096)
        for wrong in (["--max-memory", "gpu:1GiB"], ["--max-memory", "0:1GiB,"],
                      ["--offload-folder", self.folder / "none"]):
            result = run("plan", case, *wrong)
            self.assertEqual(result.returncode, 2, wrong)
        file.write_text('{"model": 0}')
        result = run("plan", case, "--device-map", file)
        self.assertEqual(result.returncode, 1)
        self.assertIn("lm_head", result.stderr)

    # KV bytes are layers x 2 x kv_heads x head_dim x tokens x bytes, of layers
    # with a window no more than its tokens.
    def test_models_that_are_not_decoded_are_planned_by_name(self):
        plan = self.run_json("plan", "gpt-oss-20b", "--device-memory", "80GiB",
                             "--json")
        self.assertFalse(plan["decodes"])
        self.assertIn("checkpoint", plan["why_not_decoded"])
        self.assertEqual(plan["kv"]["bytes_per_token"], 24 * 2 * 8 * 64 * 2)
        self.assertEqual([(kind["layers"], kind["window"])
                          for kind in plan["kv"]["kinds"]],
                         [(12, 128), (12, 0)])
        for batch in plan["batches"]:
            tokens = batch["tokens"]
            self.assertEqual(batch["kept"],
                             (tokens + min(tokens, 128)) * 12 * 2 * 8 * 64 * 2)
            self.assertGreaterEqual(batch["mapped"], batch["kept"])
        text = run("plan", "gpt-oss-20b", "--device-memory", "80GiB")
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertIn("12 layers x 2 x 8 heads x 64 x 2 bytes = 24576 bytes, "
                      "of the last 128 tokens", text.stdout)
        self.assertIn("tail waste", text.stdout)

    def test_a_configuration_alone_says_what_its_model_keeps(self):
        for config, token, reason in (
                ({"model_type": "deepseek_v3", "num_hidden_layers": 61,
                  "num_attention_heads": 128, "kv_lora_rank": 512,
                  "qk_rope_head_dim": 64}, 61 * (512 + 64) * 2, "deepseek_v3"),
                ({"model_type": "gemma3", "text_config": {
                    "model_type": "gemma3_text", "num_hidden_layers": 34,
                    "sliding_window": 1024}}, 34 * 2 * 4 * 256 * 2, "gemma3"),
                ({"model_type": "mistral", "hidden_size": 4096,
                  "num_hidden_layers": 32, "num_attention_heads": 32,
                  "num_key_value_heads": 8, "sliding_window": 4096},
                 32 * 2 * 8 * 128 * 2, "mistral")):
            (self.folder / "config.json").write_text(json.dumps(config))
            plan = self.run_json("plan", self.folder, "--device-memory",
                                 "8GiB", "--json")
            self.assertFalse(plan["decodes"])
            self.assertEqual(plan["kv"]["bytes_per_token"], token)
            self.assertIn(reason, plan["why_not_decoded"])
            self.assertIsNone(plan["weights"])
            text = run("plan", self.folder, "--device-memory", "8GiB")
            self.assertEqual(text.returncode, 0, text.stderr)
            self.assertIn(f"= {token} bytes" if reason != "gemma3" else
                          "1024 tokens", text.stdout)
        (self.folder / "config.json").write_text('{"model_type": "mamba2"}')
        result = run("plan", self.folder)
        self.assertEqual(result.returncode, 1)
        self.assertIn("mamba2", result.stderr)
        self.assertIn("deepseek_v3", result.stderr)  # among those that are known
        (self.folder / "config.json").write_text(json.dumps(
            {"model_type": "gemma2", "num_hidden_layers": -5}))
        result = run("plan", self.folder)
        self.assertEqual(result.returncode, 1)
        self.assertIn("num_hidden_layers", result.stderr)
        result = run("plan", "qwen3-8c")
        self.assertEqual(result.returncode, 1)
        self.assertIn("qwen3-8b", result.stderr)

    # A GGUF file says what a configuration says, under other names.
    def test_gguf_files_of_families_that_are_not_decoded_are_planned(self):
        file = self.folder / "gemma2.gguf"
        fields = {"general.architecture": "gemma2", "gemma2.block_count": 26,
                  "gemma2.context_length": 8192,
                  "gemma2.embedding_length": 2304,
                  "gemma2.attention.head_count": 8,
                  "gemma2.attention.head_count_kv": 4,
                  "gemma2.attention.key_length": 256,
                  "gemma2.attention.value_length": 256,
                  "gemma2.attention.sliding_window": 4096}
        file.write_bytes(gguf_of(fields))
        plan = self.run_json("plan", file, "--device-memory", "8GiB", "--json")
        self.assertFalse(plan["decodes"])
        self.assertIn("gemma2", plan["why_not_decoded"])
        self.assertEqual(plan["weights"], 64)
        self.assertEqual(plan["kv"]["bytes_per_token"], 26 * 2 * 4 * 256 * 2)
        self.assertEqual([(kind["layers"], kind["window"])
                          for kind in plan["kv"]["kinds"]],
                         [(13, 4096), (13, 0)])
        file.write_bytes(gguf_of({"general.architecture": "mamba"}))
        result = run("plan", file)
        self.assertEqual(result.returncode, 1)
        self.assertIn('"mamba" keep of a token is not known', result.stderr)
        self.assertIn("gpt-oss", result.stderr)

    def test_the_formula_of_a_model_that_runs_is_printed(self):
        case = golden_case("gptq")
        text = run("plan", case, "--device-memory", "64MiB", "--page-unit",
                   "64KiB", "--max-cache-len", "40", "--attention-sinks", "4")
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertRegex(text.stdout, r"layers x 2 x \d+ heads x \d+ x 2 bytes")

    # Neither that no place has room is a failure of the plan.
    def test_a_plan_without_a_place_does_not_fit(self):
        case = golden_case("plain")
        plan = self.run_json("plan", case, "--max-memory", "0:64KiB",
                             "--page-unit", "64KiB", "--json")
        self.assertFalse(plan["fits"])
        self.assertIn("bytes are missing", plan["advice"][0])
        text = run("plan", case, "--max-memory", "0:64KiB,cpu:1KiB",
                   "--page-unit", "64KiB")
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertIn("It does not fit.", text.stdout)

    # Rows in another order are not in the files: that is said by the plan.
    def test_what_the_disk_needs_a_folder_for_is_planned(self):
        case = GOLDEN / "gptq-w4-act-order"
        file = self.folder / "map.json"
        file.write_text('{"": "disk"}')
        result = run("plan", case, "--device-map", file, "--json")
        self.assertEqual(result.returncode, 1)
        self.assertIn("offload folder", result.stderr)
        self.assertIn("model.layers.0", result.stderr)
        plan = self.run_json("plan", case, "--device-map", file, "--json",
                             "--offload-folder", self.folder)
        self.assertTrue(plan["fits"])

    # A model that is larger than the memory of this machine is not to be kept
    # there.
    def test_advice_is_for_the_host_that_there_is(self):
        (self.folder / "config.json").write_text(json.dumps(
            {"model_type": "llama", "hidden_size": 8192,
             "intermediate_size": 28672, "num_hidden_layers": 80,
             "num_attention_heads": 64, "num_key_value_heads": 8,
             "vocab_size": 32000, "max_position_embeddings": 4096,
             "torch_dtype": "float16"}))
        plan = self.run_json("plan", self.folder, "--device-memory", "8GiB",
                             "--max-model-len", "64", "--json")
        self.assertFalse(plan["fits"])
        meminfo = pathlib.Path("/proc/meminfo").read_text()
        total = int(re.search(r"MemTotal:\s+(\d+) kB", meminfo)[1]) * 1024
        if plan["weights"] < 2 * total:
            self.skipTest("this machine holds a model of 70B parameters")
        elsewhere = [one for one in plan["alternatives"] if one["host"]]
        self.assertEqual(len(elsewhere), 1)
        self.assertLess(elsewhere[0]["host"], total)
        self.assertGreater(elsewhere[0]["disk"], 0)
        advice = [line for line in plan["advice"] if "on disk" in line]
        self.assertEqual(len(advice), 1, plan["advice"])
        # With what it says, the model fits.
        limits = re.search(r"--max-memory (\S+)[,: ]", advice[0] + " ")[1]
        again = self.run_json("plan", self.folder, "--device-memory", "8GiB",
                              "--max-model-len", "64", "--device-map", "auto",
                              "--max-memory", limits.rstrip(","), "--json")
        self.assertTrue(again["fits"], again["advice"])

    # Shorter sequences and weights on the host, where neither is enough alone.
    def test_two_changes_are_advised_together(self):
        case = GOLDEN / "plain-f32"
        flags = ["--page-unit", "4KiB", "--max-num-batched-tokens", "16",
                 "--gpu-memory-utilization", "1"]
        roomy = self.run_json("plan", case, "--device-memory", "64MiB",
                              "--json", *flags)
        # Two pages less than the weights and the workspace take.
        device = roomy["fixed"] - 2 * 4096
        plan = self.run_json("plan", case, "--device-memory", device, "--json",
                             *flags)
        self.assertEqual(plan["longest_sequence"], 0)
        advice = [line for line in plan["advice"]
                  if "--max-model-len" in line and "auto" in line]
        self.assertEqual(len(advice), 1, plan["advice"])
        tokens = re.search(r"--max-model-len (\d+)", advice[0])[1]
        again = self.run_json("plan", case, "--device-memory", device, "--json",
                              "--device-map", "auto", "--max-model-len",
                              tokens, *flags)
        self.assertTrue(again["fits"], again["advice"])

    # It makes no addresses: a device of any size is planned in a few GiB.
    def test_a_plan_needs_no_addresses(self):
        result = subprocess.run(
            ["bash", "-c", 'ulimit -v 2000000; exec "$@"', "bash", QUIRE,
             "plan", str(golden_case("gptq")), "--device-memory", "80GiB",
             "--json"], capture_output=True, text=True, timeout=60)
        if "AddressSanitizer failed to allocate" in result.stderr:
            self.skipTest("AddressSanitizer itself needs more addresses")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(json.loads(result.stdout)["fits"])


if __name__ == "__main__":
    unittest.main()
