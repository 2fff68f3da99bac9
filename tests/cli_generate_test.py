#!/usr/bin/env python3
"""Tokens that the quire program adds to prompts.

    cli_generate_test.py QUIRE_PROGRAM
"""

import json
import unittest

from cli_testing import (EXACT, GOLDEN, VerbCase, golden_case, run)


class GenerateTest(VerbCase):
    def test_generate_continues_as_the_reference(self):
        case = golden_case("gptq")
        expect = json.loads((case / "expect.json").read_text())
        tokens = ",".join(map(str, expect["prompt"]))
        count = str(len(expect["greedy"]))
        answer = self.run_json("generate", case, "--tokens", tokens,
                               "--max-new-tokens", count, "--temperature", "0",
                               "--json", *EXACT)
        self.assertEqual(answer["tokens"], expect["greedy"])
        batch = self.run_json("generate", case, "--tokens", tokens, "--tokens",
                              tokens, "--max-new-tokens", count, "--json",
                              *EXACT)
        self.assertEqual([s["tokens"] for s in batch["sequences"]],
                         [expect["greedy"]] * 2)

    def test_every_kv_cache_continues_as_the_reference(self):
        case = golden_case("gptq")
        expect = json.loads((case / "expect.json").read_text())
        tokens = ",".join(map(str, expect["prompt"]))
        for flags in (["contiguous"], ["static"], ["paged"],
                      ["paged", "--block-size", "4"]):
            answer = self.run_json("generate", case, "--tokens", tokens,
                                   "--max-new-tokens", len(expect["greedy"]),
                                   "--json", "--kv-cache", *flags, *EXACT)
            self.assertEqual(answer["tokens"], expect["greedy"], flags)
            speed = self.run_json("bench", case, "--prompt-tokens", "20",
                                  "--new-tokens", "4", "--json", "--kv-cache",
                                  *flags, *EXACT)
            self.assertEqual(speed["kv_cache"], flags[0])
            self.assertGreater(speed["prompt_tokens_per_second"], 0)

    def test_options_of_the_cache_change_no_token(self):
        case = golden_case("gptq")
        expect = json.loads((case / "expect.json").read_text())
        arguments = ["generate", case, "--tokens",
                     ",".join(map(str, expect["prompt"])), "--max-new-tokens",
                     len(expect["greedy"]), "--json", *EXACT]
        for flags in (["--page-ahead", "8"], ["--victims", "page-aware"],
                      ["--halve-above", "0.2", "--grow-below", "0.1"],
                      ["--max-cache-len", "1000", "--attention-sinks", "4"],
                      ["--layers-per-row", "1"], ["--layers-per-row", "all"]):
            answer = self.run_json(*arguments, *flags)
            self.assertEqual(answer["tokens"], expect["greedy"], flags)
        flags = ["--layers-per-row", "auto", "--mean-tokens", "20",
                 "--waste-limit", "1000"]
        result = run(*arguments, *flags)
        answer = json.loads(result.stdout)
        self.assertEqual(answer["tokens"], expect["greedy"])
        self.assertIn("1 layers per row: ", answer["kv_layout"])
        self.assertIn("KV layout: 1 layers per row: ", result.stderr)
        few = self.run_json(*arguments, "--max-cache-len", "6")
        self.assertNotEqual(few["tokens"], expect["greedy"])
        speed = self.run_json("bench", case, "--prompt-tokens", "20",
                              "--new-tokens", "4", "--json", "--layers-per-row",
                              "auto", *EXACT)
        self.assertIn("22 tokens in the mean", speed["kv_layout"])
        # The prompt, and half of the new tokens.
        answer = self.run_json(*arguments, "--layers-per-row", "auto")
        mean = len(expect["prompt"]) + len(expect["greedy"]) // 2
        self.assertIn(f"{mean} tokens in the mean", answer["kv_layout"])

    def test_adapters_are_chosen_for_each_sequence(self):
        case = golden_case("lora-patterns")
        expect = json.loads((case / "expect.json").read_text())
        tokens = ",".join(map(str, expect["prompt"]))
        arguments = ["generate", case, "--max-new-tokens",
                     len(expect["greedy"]), "--json", *EXACT]
        adapter = ["--adapter", case / "adapter"]
        answer = self.run_json(*arguments, "--tokens", tokens, *adapter)
        self.assertEqual(answer["tokens"], expect["greedy"])
        base = self.run_json(*arguments, "--tokens", tokens)
        self.assertNotEqual(base["tokens"], expect["greedy"])
        both = self.run_json(*arguments, "--tokens", tokens, "--tokens", tokens,
                             *adapter, "--adapter", "none")
        self.assertEqual([s["tokens"] for s in both["sequences"]],
                         [expect["greedy"], base["tokens"]])
        result = run(*arguments, "--tokens", tokens, *adapter, *adapter)
        self.assertEqual(result.returncode, 2, result.stderr)
        plan = self.run_json("plan", case, *adapter, "--json",
                             "--device-memory", "64MiB")
        self.assertEqual(plan["adapters"][0]["name"], "adapter")
        self.assertGreater(plan["adapters"][0]["bytes"], 0)

    def test_the_adapter_that_belongs_to_a_model_is_applied(self):
        case = GOLDEN / "lora-patterns"
        expect = json.loads((case / "expect.json").read_text())
        prompt = ",".join(map(str, expect["prompt"]))
        greedy = ["--tokens", prompt, "--temperature", "0", "--max-new-tokens",
                  len(expect["greedy"]), "--ignore-eos", "--json", *EXACT]
        for place in ("lora_adapter", "."):
            model = self.folder / f"with-{place}"
            (model / place).mkdir(parents=True)
            for file in case.iterdir():
                if file.is_file():
                    (model / file.name).write_bytes(file.read_bytes())
            for file in (case / "adapter").iterdir():
                (model / place / file.name).write_bytes(file.read_bytes())
            answer = run("generate", model, *greedy)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertIn("belongs to the model", answer.stderr)
            self.assertEqual(json.loads(answer.stdout)["tokens"],
                             expect["greedy"], place)
            self.assertEqual(
                len(self.run_json("plan", model, "--json")["adapters"]), 1)
            base = self.run_json("generate", case, *greedy)["tokens"]
            self.assertNotEqual(base, expect["greedy"])
            self.assertEqual(
                self.run_json("generate", model, "--adapter", "none",
                              *greedy)["tokens"], base, place)
            written = [self.folder / f"{name}.npy" for name in ("own", "given")]
            for output, arguments in zip(
                    written, ([], ["--adapter", case / "adapter"])):
                result = run("logits", model, "--tokens", prompt, "--output",
                             output, *arguments, *EXACT)
                self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(*(output.read_bytes() for output in written))

    def test_an_adapter_that_is_none_is_refused_in_one_line(self):
        case = golden_case("lora-patterns")
        for folder, mention in ((case, "adapter_config.json"),
                                (self.folder / "nowhere", "nowhere")):
            for verb in (["logits", "--output", self.folder / "out.npy"],
                         ["generate"]):
                result = run(*verb, case, "--tokens", "1,2", "--adapter",
                             folder, *EXACT)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
                self.assertIn(mention, result.stderr)

    def test_the_model_says_how_to_sample_where_the_user_does_not(self):
        for file in golden_case("gptq").iterdir():
            (self.folder / file.name).write_bytes(file.read_bytes())
        (self.folder / "generation_config.json").write_text(json.dumps(
            {"do_sample": True, "temperature": 1.5, "max_new_tokens": 9,
             "max_length": 8, "eos_token_id": 2}))
        arguments = ["generate", self.folder, "--tokens", "1,2,3", "--json",
                     "--ignore-eos", *EXACT]
        seeds = [self.run_json(*arguments, "--seed", seed)["tokens"]
                 for seed in range(6)]
        self.assertEqual({len(tokens) for tokens in seeds}, {8 - 3})
        self.assertGreater(len({tuple(tokens) for tokens in seeds}), 1)
        greedy = [self.run_json(*arguments, "--seed", seed, "--temperature",
                                "0", "--max-new-tokens", "12")["tokens"]
                  for seed in range(2)]
        self.assertEqual(greedy[0], greedy[1])
        self.assertEqual(len(greedy[0]), 12)

    def test_a_seed_decides_the_sample(self):
        case = golden_case("gptq")
        arguments = ["generate", case, "--tokens", "1,2,3", "--max-new-tokens",
                     "12", "--temperature", "1", "--json", *EXACT]
        def tokens(seed):
            return self.run_json(*arguments, "--seed", seed)["tokens"]
        first = tokens("5")
        self.assertEqual(first, tokens("5"))
        self.assertNotEqual(first, tokens("6"))

    def test_continuations_are_prompts_with_seeds_of_their_own(self):
        case = golden_case("gptq")
        arguments = ["generate", case, "--max-new-tokens", "12",
                     "--temperature", "1", "--json", *EXACT]
        prompts = ["1,2,3", "7,8"]
        expected = [
            self.run_json(*arguments, "--tokens", prompt, "--seed",
                          5 + 3 * p + i)["tokens"]
            for p, prompt in enumerate(prompts) for i in range(3)]
        for cache in ("contiguous", "paged", "static"):
            answer = self.run_json(
                *arguments, "--tokens", prompts[0], "--tokens", prompts[1],
                "--n", "3", "--seed", "5", "--kv-cache", cache)
            self.assertEqual([s["tokens"] for s in answer["sequences"]],
                             expected, cache)
            self.assertEqual([(s["prompt"], s["continuation"])
                              for s in answer["sequences"]],
                             [(p, i) for p in range(2) for i in range(3)])
        one = self.run_json(*arguments, "--tokens", prompts[0], "--n", "3",
                            "--seed", "5")
        self.assertEqual([s["tokens"] for s in one["sequences"]], expected[:3])
        greedy = self.run_json("generate", case, "--tokens", "1,2,3", "--n",
                               "4", "--max-new-tokens", "9", "--json", *EXACT)
        tokens = [s["tokens"] for s in greedy["sequences"]]
        self.assertEqual(tokens, [tokens[0]] * 4)
        text = run("generate", case, "--tokens", "1,2,3", "--n", "2",
                   "--max-new-tokens", "3", *EXACT).stdout
        self.assertIn("[1] 1,2,3 (1 of 2)\n", text)
        self.assertIn("[2] 1,2,3 (2 of 2)\n", text)
        for count in ("0", "-1", "x", "5000"):
            wrong = run("generate", case, "--tokens", "1", "--n", count)
            self.assertEqual(wrong.returncode, 2, wrong.stderr)


if __name__ == "__main__":
    unittest.main()
