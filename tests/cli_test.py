#!/usr/bin/env python3
"""The quire program as a user meets it: exit status, streams, JSON.

    cli_test.py QUIRE_PROGRAM
"""

import json
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

QUIRE = sys.argv.pop(1)
GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
EXACT = ["--kv-dtype", "f32", "--activations", "f32", "--device-memory", "1GiB"]


def run(*arguments, **keywords):
    result = subprocess.run([QUIRE, *map(str, arguments)], capture_output=True,
                            text=True, timeout=120, **keywords)
    # However a verb ends, nobody holds device memory then.
    assert "still holds" not in result.stderr, result.stderr
    return result


def golden_case(prefix):
    return sorted(p for p in GOLDEN.iterdir()
                  if p.name.startswith(prefix) and (p / "expect.json").exists()
                  )[0]


def write_safetensors(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + length]), raw[8 + length:]


class UsageTest(unittest.TestCase):
    def test_help_and_version_succeed(self):
        for arguments in (["--help"], ["--version"], ["generate", "--help"]):
            result = run(*arguments)
            self.assertEqual(result.returncode, 0, arguments)
            self.assertIn("quire", result.stdout + result.stderr)

    def test_every_verb_has_help(self):
        for verb in ("inspect", "load", "quantize", "logits", "generate",
                     "tokenize", "detokenize", "bench", "perplexity", "memory",
                     "plan"):
            self.assertEqual(run(verb, "--help").returncode, 0, verb)

    def test_wrong_usage_is_status_2_with_a_message(self):
        case = golden_case("plain")
        for arguments in ([], ["fly"], ["inspect"], ["generate", case],
                          ["generate", case, "--tokens", "1,x"],
                          ["generate", case, "--tokens", "1,,2"],
                          ["generate", case, "--tokens", "-1"],
                          ["generate", case, "--tokens", "1", "--nonsense"],
                          ["generate", case, "--tokens", "1", "--device-memory",
                           "much"],
                          ["generate", case, "--tokens", "1",
                           "--gpu-memory-utilization", "1.5"],
                          ["generate", case, "--tokens", "1", "--kv-dtype",
                           "f7"],
                          ["generate", case, "--tokens", "1", "--kv-cache",
                           "pages"],
                          ["generate", case, "--tokens", "1", "--block-size",
                           "12"],
                          ["generate", case, "--tokens", "1", "--seed", "-1"],
                          ["generate", case, "--tokens", "1",
                           "--max-new-tokens", "-1"],
                          ["generate", case, "--tokens", "1", "--temperature",
                           "nan"],
                          ["generate", case, "--tokens", "1", "--page-unit",
                           "3MiB"],
                          ["generate", case, "--tokens", "1", "--kv-dtype",
                           "0"],
                          ["quantize", case, "out", "--group-size", "0"],
                          ["logits", case, "--tokens", "1"],
                          ["quantize", case, "out", "--bits", "5"]):
            result = run(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertTrue(result.stderr, arguments)
            self.assertEqual(result.stdout, "", arguments)


    def test_numbers_are_what_they_say(self):
        case = golden_case("plain")
        for option, values in {
                "--seed": ("18446744073709551616", "010", "0x10", "1e3", "+1"),
                "--max-new-tokens": ("99999999999999999999", "nan", "inf"),
                "--threads": ("4294967298", "inf"),
                "--gpu-memory-utilization": ("nan", "inf", "1e-400", "half"),
                "--temperature": ("inf", "-inf", "1e400"),
                "--top-p": ("nan",), "--min-p": ("nan",),
                "--repetition-penalty": ("inf",)}.items():
            for value in values:
                result = run("generate", case, "--tokens", "1",
                             f"{option}={value}")
                self.assertEqual(result.returncode, 2, (option, value))
                self.assertIn(option, result.stderr)
                self.assertEqual(result.stdout, "")
        result = run("generate", case, "--tokens", "1", "--max-new-tokens", "1",
                     "--seed", str(2**64 - 1), *EXACT)
        self.assertEqual(result.returncode, 0, result.stderr)
        for value in ("nan", "inf"):
            self.assertEqual(
                run("kv", "watch", "--interval", value).returncode, 2)
            self.assertEqual(run("quantize", case, "out", "--damp-percent",
                                 value).returncode, 2)

    def test_verbs_offer_the_drivers_that_they_take(self):
        case = golden_case("plain")
        for verb, more in (("generate", ["--tokens", "1"]),
                           ("logits", ["--tokens", "1", "--output", "out"]),
                           ("bench", []), ("quantize", ["out"]),
                           ("perplexity", ["--text-file", "none"])):
            self.assertNotIn("cuda", run(verb, "--help").stdout, verb)
            self.assertEqual(run(verb, case, *more, "--driver", "cuda"
                                 ).returncode, 2, verb)
        for verb in ("load", "plan"):
            self.assertIn("cuda", run(verb, "--help").stdout, verb)


class ErrorTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.scratch.name)

    def tearDown(self):
        self.scratch.cleanup()

    def write_config(self):
        (self.folder / "config.json").write_text('{"model_type": "llama"}')

    def check_fails(self, mention, *arguments):
        result = run(*arguments)
        self.assertEqual(result.returncode, 1, (arguments, result.stderr))
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for word in mention:
            self.assertIn(word, result.stderr)
        return result

    def test_missing_model(self):
        self.check_fails(["nowhere"], "inspect", self.folder / "nowhere")
        self.check_fails(["nowhere"], "generate", self.folder / "nowhere",
                         "--tokens", "1")

    def test_defects_are_in_the_json_and_on_one_line(self):
        self.write_config()
        write_safetensors(self.folder / "model.safetensors",
                          {"a": {"dtype": "F32", "shape": [4],
                                 "data_offsets": [0, 16]}}, b"short")
        result = self.check_fails(["model.safetensors"], "inspect", self.folder,
                                  "--json")
        defects = json.loads(result.stdout)["defects"]
        self.assertEqual(len(defects), 1)
        self.assertIn("model.safetensors", defects[0])

    def test_names_from_files_cannot_forge_lines(self):
        self.write_config()
        write_safetensors(self.folder / "model.safetensors",
                          {"a\n\x1b[31mquire: all is well": {
                              "dtype": "F99", "shape": [1],
                              "data_offsets": [0, 4]}}, b"1234")
        result = self.check_fails(["F99"], "inspect", self.folder)
        self.assertNotIn("\x1b", result.stderr)

    def test_token_outside_the_vocabulary(self):
        self.check_fails(["999999"], "generate", golden_case("plain"),
                         "--tokens", "999999", *EXACT)

    def test_device_too_small_says_why(self):
        result = self.check_fails(["capacity"], "generate",
                                  golden_case("plain"), "--tokens", "1,2",
                                  "--device-memory", "12MiB",
                                  "--gpu-memory-utilization", "1",
                                  "--max-num-batched-tokens", "65536")
        self.assertEqual(result.stdout, "")

    def test_a_device_without_a_page_says_so(self):
        self.check_fails(["device memory of 1.00 MiB", "page of 2.00 MiB"],
                         "plan", golden_case("plain"), "--device-memory",
                         "1MiB")

    # Opening a pipe waits for somebody who writes to it.
    def test_a_pipe_is_no_file(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        case = golden_case("plain")
        for arguments in (["inspect", pipe], ["load", pipe],
                          ["memory", pipe],
                          ["tokenize", GOLDEN / "tokenizers" / "gpt2",
                           "--text-file", pipe],
                          ["plan", case, "--device-map", pipe]):
            self.check_fails([str(pipe), "is not a regular file"], *arguments)
        for name in ("config.json", "tokenizer.json",
                     "generation_config.json", "quantize_config.json"):
            model = self.folder / ("with-" + name)
            shutil.copytree(case, model)
            (model / name).unlink(missing_ok=True)
            os.mkfifo(model / name)
            self.check_fails([str(model / name), "is not a regular file"],
                             "inspect", model)
        model = self.folder / "without-weights"
        shutil.copytree(case, model)
        (model / "model.safetensors").unlink()
        os.mkfifo(model / "model.safetensors")
        self.check_fails([str(model), "no model.safetensors"], "load", model)
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            lora = golden_case("lora")
            adapter = self.folder / ("with-" + name)
            shutil.copytree(lora / "adapter", adapter)
            (adapter / name).unlink()
            os.mkfifo(adapter / name)
            self.check_fails([str(adapter / name), "is not a regular file"],
                             "logits", lora, "--tokens", "1", "--adapter",
                             adapter, "--output", self.folder / "out.npy")

    def test_a_tokenizer_that_is_none_is_a_defect(self):
        model = self.folder / "model"
        shutil.copytree(golden_case("plain"), model)
        tokenizer = model / "tokenizer.json"
        for contents, mention in ((b"\x7fELF\0\0", "no valid JSON"),
                                  (b"{}\0\0", "NUL"), (b"[]", "model"),
                                  (b"[" * 100000, "nested deeper")):
            tokenizer.write_bytes(contents)
            self.check_fails([str(tokenizer), mention], "inspect", model)
        # A kind that is not read is no defect: the model runs on tokens.
        tokenizer.write_text(json.dumps({"model": {"type": "Unigram"}}))
        result = run("inspect", model, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Unigram", str(json.loads(result.stdout)["warnings"]))
        good = GOLDEN / "tokenizers" / "gpt2" / "tokenizer.json"
        shutil.copyfile(good, tokenizer)
        result = run("inspect", model, "--json")
        self.assertEqual(
            json.loads(result.stdout)["tokenizer"]["vocab_size"],
            len(json.loads(good.read_text())["model"]["vocab"]))

    def test_output_that_cannot_be_written(self):
        self.check_fails(["/nowhere/out.npy"], "logits", golden_case("plain"),
                         "--tokens", "1,2", "--output", "/nowhere/out.npy",
                         *EXACT)

    def test_a_missing_head_is_not_replaced_by_the_embedding(self):
        case = golden_case("plain-f32")
        header, data = read_safetensors(case / "model.safetensors")
        begin, end = header["lm_head.weight"]["data_offsets"]
        del header["lm_head.weight"]
        header.pop("__metadata__", None)
        kept = {}
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            if first >= end:
                entry["data_offsets"] = [first - end + begin,
                                         last - end + begin]
            kept[name] = entry
        write_safetensors(self.folder / "model.safetensors", kept,
                          data[:begin] + data[end:])
        config = json.loads((case / "config.json").read_text())
        config["tie_word_embeddings"] = False
        (self.folder / "config.json").write_text(json.dumps(config))
        self.check_fails(["lm_head.weight"], "generate", self.folder,
                         "--tokens", "1,2", *EXACT)
        self.check_fails(["lm_head.weight"], "inspect", self.folder)

    def test_weights_that_are_not_finite_are_not_quantized(self):
        case = golden_case("plain-f32")
        header, data = read_safetensors(case / "model.safetensors")
        name = "model.layers.0.mlp.up_proj"
        begin = header[name + ".weight"]["data_offsets"][0]
        write_safetensors(self.folder / "model.safetensors", header,
                          data[:begin] + struct.pack("<f", float("nan")) +
                          data[begin + 4:])
        tokens = sorted((GOLDEN / "tokenizers").iterdir())[0]
        for file in (case / "config.json", tokens / "tokenizer.json"):
            (self.folder / file.name).write_bytes(file.read_bytes())
        out = self.folder / "out"
        self.check_fails([name, "not finite"], "quantize", self.folder, out,
                         "--method", "rtn", "--device-memory", "1GiB")
        self.assertFalse(out.exists())

    def test_what_cannot_be_written_whole_is_not_there(self):
        output = self.folder / "out.npy"
        result = subprocess.run(
            ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", QUIRE, "logits",
             str(golden_case("plain-f32")), "--tokens",
             ",".join(str(i) for i in range(40)), "--output", str(output),
             *EXACT],
            capture_output=True, text=True, timeout=60)
        self.assertNotEqual(result.returncode, 0)
        self.assertGreaterEqual(result.returncode, 0, "ended by a signal")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_full_disk_behind_stdout_is_an_error(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        with open("/dev/full", "w") as full:
            result = subprocess.run(
                [QUIRE, "inspect", str(golden_case("plain")), "--json"],
                stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn("standard output", result.stderr)


class VerbTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.scratch.name)

    def tearDown(self):
        self.scratch.cleanup()

    def run_json(self, *arguments):
        result = run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

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

    def test_load_verifies_against_a_manifest(self):
        import zlib
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
