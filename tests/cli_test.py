#!/usr/bin/env python3
"""The quire program as a user meets it: exit status, streams, JSON.

    cli_test.py QUIRE_PROGRAM
"""

import json
import os
import shutil
import struct
import subprocess
import unittest

from cli_testing import (EXACT, GOLDEN, QUIRE, VerbCase, golden_case,
                         read_safetensors, run, write_safetensors)


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
                          ["plan", case, "--layers-per-row", "some"],
                          ["plan", case, "--layers-per-row", "-1"],
                          ["plan", case, "--attention-sinks", "4"],
                          ["generate", case, "--tokens", "1",
                           "--max-cache-len", "4", "--attention-sinks", "4"],
                          ["generate", case, "--tokens", "1", "--victims",
                           "oldest"],
                          ["generate", case, "--tokens", "1", "--halve-above",
                           "0.5", "--grow-below", "0.6"],
                          ["bench", case, "--waste-limit", "-1"],
                          ["generate", case, "--tokens", "1", "--kv-dtype",
                           "0"],
                          ["quantize", case, "out", "--group-size", "0"],
                          ["logits", case, "--tokens", "1"],
                          ["quantize", case, "out", "--bits", "5"]):
            result = run(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertEqual(result.stderr.count("\n"), 1, arguments)
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

    # A message is for people: no bounds that only a machine has.
    def test_numbers_below_0_are_refused_in_few_words(self):
        case = golden_case("plain")
        for option in ("--max-new-tokens", "--seed", "--max-model-len",
                       "--mean-tokens", "--max-cache-len",
                       "--attention-sinks"):
            result = run("generate", case, "--tokens", "1", f"{option}=-1")
            self.assertEqual(result.returncode, 2, option)
            self.assertIn(f"{option}: '-1' is below 0", result.stderr)
        result = run("kv", "watch", "--count=-1")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--count: '-1' is below 0", result.stderr)

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


    # The word, the nearest one that there is, and all of them.
    def test_a_word_that_is_no_verb_is_named(self):
        for arguments, messages in (
                (["nonsense"], ["'nonsense' is no verb", "generate"]),
                (["generat", "--json"], ["did you mean 'generate'?"]),
                (["kv", "lst"], ["'lst' is no verb; did you mean 'list'?",
                                 "list, limit, watch"]),
                (["kv"], ["a verb is missing", "list, limit, watch"]),
                (["plan", "x", "--max-num-seq", "3"],
                 ["no option --max-num-seq; did you mean '--max-num-seqs'?"]),
                (["inspect", "a", "b"], ["b"])):
            result = run(*arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            for message in messages:
                self.assertIn(message, result.stderr)
        self.assertNotIn("mean", run("nonsense").stderr)

    def test_options_that_contradict_each_other(self):
        case = golden_case("plain")
        for options, message in (
                (["--kv-cache", "paged", "--page-ahead", "4"],
                 "--page-ahead 4 takes --kv-cache contiguous"),
                (["--kv-cache", "static", "--swap-space", "1GiB"],
                 "--swap-space 1.00 GiB takes --kv-cache contiguous"),
                (["--kv-cache", "paged", "--ledger", "x"],
                 "--ledger x takes --kv-cache contiguous"),
                (["--ledger", "x", "--max-memory", "0:1GiB"],
                 "--ledger x claims all weights for one device"),
                (["--ledger-min", "1GiB"], "--ledger-min 1.00 GiB"),
                (["--device-memory", "1MiB"],
                 "--device-memory 1.00 MiB holds no page of 2.00 MiB"),
                (["--max-memory", "0:0"],
                 "--max-memory 0:0 B holds no page of 2.00 MiB"),
                (["--max-memory", "99:8GiB"],
                 "--max-memory 99:8.00 GiB: devices are 0 to 63"),
                (["--device-map", "AUTO"],
                 "'AUTO' is no file, and none of auto, balanced"),
                (["--tensor-parallel-size", "2"], "--tensor-parallel-size"),
                (["--dtype", "float16"], "--dtype"),
                (["--max-memory", "0:1KiB,cpu:1GiB"],
                 "--max-memory 0:1.00 KiB holds no page of 2.00 MiB")):
            result = run("generate", case, "--tokens", "1", *options)
            self.assertEqual((result.returncode, result.stdout), (2, ""),
                             options)
            self.assertIn(message, result.stderr)

    def test_devices_that_no_limit_names_are_told_of_once(self):
        result = run("plan", golden_case("plain"), "--max-memory", "9:8MiB",
                     "--device-memory", "8MiB")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertIn("devices 0 to 8 stay empty", result.stderr)

    def test_options_without_an_effect_are_wrong_usage(self):
        case = golden_case("plain")
        for verb, options, without in (
                ("generate", ["--block-size", "32"], "--kv-cache paged"),
                ("bench", ["--mean-tokens", "9"], "--layers-per-row auto"),
                ("logits", ["--waste-limit", "0.1"], "--layers-per-row auto"),
                ("generate", ["--pinned-memory", "1GiB"], "--device-map"),
                ("generate", ["--offload-folder", "/"], "--device-map"),
                ("generate", ["--top-k", "5"], "--temperature above 0"),
                ("load", ["--driver", "cuda", "--backing", "none"],
                 "--driver host"),
                ("plan", ["--driver", "cuda", "--device-memory", "1GiB"],
                 "--driver host")):
            needed = {"generate": ["--tokens", "1"], "quantize": ["out"],
                      "logits": ["--tokens", "1", "--output", "out"]}
            result = run(verb, case, *needed.get(verb, []), *options)
            self.assertEqual((result.returncode, result.stdout), (2, ""),
                             (verb, options))
            self.assertIn(" has no effect without " + without, result.stderr)
            self.assertIn(options[-1], result.stderr)
        for options, message in (
                (["--calibration-file", "f", "--seed", "3"],
                 "--seed 3 has no effect with --calibration-file"),
                (["--weight-cache", "1GiB", "--device-map", "auto"],
                 "--weight-cache 1GiB has no effect with --device-map")):
            result = run("quantize", case, "out", *options)
            self.assertEqual(result.returncode, 2)
            self.assertIn(message, result.stderr)
        # A plan shows the layouts whatever is chosen.
        result = run("plan", case, "--mean-tokens", "9", "--device-memory",
                     "64MiB")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("9 tokens in the mean", result.stdout)

    def test_sizes_have_64_bits(self):
        case = golden_case("plain")
        for size in ("16EiB", "1ZiB", "-1GiB"):
            result = run("generate", case, "--tokens", "1",
                         f"--swap-space={size}")
            self.assertEqual(result.returncode, 2, size)
            self.assertIn(f"'{size}' is no size such as 8GiB, below 16EiB",
                          result.stderr)
        result = run("plan", case, "--ledger", "x", "--ledger-min", "1EiB",
                     "--device-memory", "64MiB")
        self.assertEqual(result.returncode, 0, result.stderr)


class ErrorTest(VerbCase):
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

    # As one byte, as one character, and as a mark that turns the line around.
    def test_messages_carry_no_control_characters(self):
        for name in ("\x1b[31m", "\u009b31m", "\u202e"):
            result = self.check_fails([], "inspect", self.folder / f"no{name}")
            self.assertNotIn(name[0], result.stderr)

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

    # That the model cannot be run is the first thing to know.
    def test_an_unsupported_family_is_told_before_a_missing_tokenizer(self):
        shutil.copytree(golden_case("plain"), self.folder / "model")
        config = self.folder / "model" / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()),
                                      "model_type": "mamba2"}))
        for arguments in (["generate", "--prompt", "a"],
                          ["quantize", self.folder / "out"],
                          ["perplexity", "--text-file", "/dev/null"]):
            verb, *more = arguments
            self.check_fails(["mamba2", "supported: llama"], verb,
                             self.folder / "model", *more)

    def test_a_model_without_a_tokenizer_takes_token_ids(self):
        self.check_fails(["tokenizer.json", "--tokens takes token ids"],
                         "generate", golden_case("plain"), "--prompt", "a")

    # Of the step that failed, and then all that the plan would have said.
    def test_a_shortage_tells_all_that_is_missing(self):
        case = golden_case("plain")
        device = ["--device-memory", "128KiB", "--page-unit", "64KiB"]
        plan = run("plan", case, *device, "--json")
        advice = json.loads(plan.stdout)["advice"]
        self.assertIn("are missing on device 0", advice[0])
        for verb in (["generate", "--tokens", "1,2"],
                     ["logits", "--tokens", "1,2", "--output",
                      self.folder / "out.npy"],
                     ["bench", "--sequences", "2"]):
            self.check_fails(["out of device memory", *advice], verb[0], case,
                             *verb[1:], *device)
        self.check_fails(["no place for its", "are missing in all"],
                         "generate", case, "--tokens", "1", "--max-memory",
                         "0:64KiB", "--page-unit", "64KiB")

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

    # Descriptors that are closed are the next to be given out: nothing that is
    # printed may go where the weights are.
    def test_closed_standard_streams_take_nothing_and_change_nothing(self):
        case = GOLDEN / "fp8-tensor-static"  # one that is warned about
        verb = ["generate", case, "--tokens", "1,2,3"]
        expected = run(*verb)
        self.assertEqual(expected.returncode, 0, expected.stderr)
        self.assertIn("warning", expected.stderr)

        def outcome(closed):
            def close():
                for descriptor in closed:
                    os.close(descriptor)
            return subprocess.run([QUIRE, *map(str, verb)], text=True,
                                  capture_output=True, timeout=120,
                                  preexec_fn=close)
        for closed in ([2], [0, 2]):
            result = outcome(closed)
            self.assertEqual((result.returncode, result.stdout),
                             (0, expected.stdout), closed)
        for closed in ([1], [0, 1]):
            result = outcome(closed)
            self.assertEqual(result.returncode, 1, closed)
            self.assertIn("standard output: cannot write", result.stderr)
        self.assertEqual(outcome([0, 1, 2]).returncode, 1)

    def test_full_disk_behind_stdout_is_an_error(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        for arguments in (["inspect", str(golden_case("plain")), "--json"],
                          ["--help"], ["plan", "--help"], ["--version"]):
            with open("/dev/full", "w") as full:
                result = subprocess.run(
                    [QUIRE, *arguments], stdout=full, stderr=subprocess.PIPE,
                    text=True, timeout=60)
            self.assertEqual(result.returncode, 1, arguments)
            self.assertIn("standard output", result.stderr)


if __name__ == "__main__":
    unittest.main()
