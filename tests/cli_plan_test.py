#!/usr/bin/env python3
"""What the quire program says would fit, before a weight is read.

    cli_plan_test.py QUIRE_PROGRAM
"""

import json
import unittest

from cli_testing import (EXACT, VerbCase, golden_case, run)


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
        self.assertIn("1000000 tokens", result.stderr)

    def test_a_plan_is_a_device_map(self):
        case = golden_case("gptq")
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


if __name__ == "__main__":
    unittest.main()
