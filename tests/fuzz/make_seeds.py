#!/usr/bin/env python3
"""Writes the inputs that fuzzing begins with into corpus/, from tests/golden.

    make_seeds.py

Findings, which are kept beside them, have names that begin with "finding-"; this
leaves them alone.
"""

import json
import pathlib
import pickle
import random
import struct

FUZZ = pathlib.Path(__file__).resolve().parent
GOLDEN = FUZZ.parent / "golden"
SEPARATOR = b"%%\n"


def write(target, name, *parts):
    folder = FUZZ / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    data = SEPARATOR.join(part.encode() if isinstance(part, str) else part
                          for part in parts)
    (folder / name).write_bytes(data)


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def compact_file(path):
    return compact(json.loads(path.read_text())) + "\n" if path.exists() else ""


def header_of(path):
    with open(path, "rb") as file:
        return json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))


def tensor_list(path):
    """As TensorFile in fuzz_util.h takes it."""
    tensors = sorted((entry["data_offsets"][0], name, entry)
                     for name, entry in header_of(path).items()
                     if name != "__metadata__")
    return "".join(
        " ".join([name, entry["dtype"], *map(str, entry["shape"])]) + "\n"
        for _, name, entry in tensors)


def model_configs():
    for case in sorted(GOLDEN.iterdir()):
        weights = sorted(case.glob("*.safetensors"))
        if len(weights) != 1:
            continue
        write("model_config", case.name, compact_file(case / "config.json"),
              compact_file(case / "generation_config.json"),
              compact_file(case / "quantize_config.json"),
              tensor_list(weights[0]))
    # Formats that are refused by name.
    base = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1,
            "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 32}
    for quantization in (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            {"quant_method": "gptq", "checkpoint_format": "marlin", "bits": 4},
            {"quant_method": "gptq", "format": "gptq_p", "bits": 5},
            {"quant_method": "mixed_gptq", "rotated": True, "bits": 4},
            {"quant_method": "eetq"}, {"quant_method": "quark"}):
        name = "refused-" + "-".join(
            str(value) for value in quantization.values()).lower()
        write("model_config", name,
              compact({**base, "quantization_config": quantization}), "", "",
              "model.norm.weight F16 64\n")
    write("model_config", "generation-sampled", compact(base), compact({
        "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
        "min_p": 0.01, "repetition_penalty": 1.1, "max_new_tokens": 100,
        "max_length": 4096, "eos_token_id": [2, 7]}), "",
          "model.norm.weight F16 64\n")
    write("model_config", "generation-nulls", compact(base), compact({
        "do_sample": False, "temperature": None, "top_k": None, "top_p": None,
        "max_length": None, "eos_token_id": 2}), "",
          "model.norm.weight F16 64\n")


def adapters():
    for case in sorted(GOLDEN.glob("lora-*")):
        folder = case / "adapter"
        write("adapter", case.name, compact_file(folder / "adapter_config.json"),
              tensor_list(folder / "adapter_model.safetensors"))
    prefix = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    pair = f"{prefix}A.weight F32 2 8\n{prefix}B.weight F32 8 2\n"
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4,
              "target_modules": ["q_proj"]}
    write("adapter", "small", compact(config), pair)
    for name, change in {"rslora": {"use_rslora": True},
                         "all-linear": {"target_modules": "all-linear"},
                         "regex": {"target_modules": ".*q_proj"},
                         "layers": {"layers_to_transform": [0]},
                         "ia3": {"peft_type": "IA3"},
                         "dora": {"use_dora": True}}.items():
        write("adapter", "small-" + name, compact({**config, **change}), pair)


SPECIAL = {"single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}


def small_tokenizer(**parts):
    vocabulary = ["<unk>", "<s>", "a", "b", "c", "ab", "\u0120", "\u2581", "1",
                  "abc", "<0x0A>"]
    return {"version": "1.0",
            "added_tokens": [{"id": 0, "content": "<unk>", **SPECIAL},
                             {"id": 1, "content": "<s>", **SPECIAL},
                             {"id": 11, "content": "[x]", **SPECIAL,
                              "lstrip": True, "special": False}],
            "normalizer": None, "pre_tokenizer": None, "post_processor": None,
            "decoder": None,
            "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True,
                      "byte_fallback": True,
                      "vocab": {text: i for i, text in enumerate(vocabulary)},
                      "merges": [["a", "b"], ["ab", "c"]]},
            **parts}


def tokenizers():
    text = "abc ab\n12 [x] caf\u00e9 <s>\U0001f600"
    for part, file in (("normalizer", "normalizers"),
                       ("pre_tokenizer", "pre_tokenizers"),
                       ("decoder", "decoders")):
        cases = json.loads(
            (GOLDEN / "tokenizer_parts" / f"{file}.json").read_text())
        for number, case in enumerate(cases):
            write("tokenizer", f"{part}-{number}",
                  compact(small_tokenizer(**{part: case["part"]})), "{}", text)
    for folder in sorted((GOLDEN / "tokenizers").iterdir()):
        description = json.loads((folder / "tokenizer.json").read_text())
        model = description["model"]
        model["vocab"] = dict(list(model["vocab"].items())[:300])
        model["merges"] = [
            merge for merge in model["merges"]
            if all(each in model["vocab"]
                   for each in (merge.split(" ") if isinstance(merge, str)
                                else merge))
            and (merge.replace(" ", "") if isinstance(merge, str)
                 else "".join(merge)) in model["vocab"]]
        write("tokenizer", folder.name, compact(description),
              compact_file(folder / "tokenizer_config.json"), text)
    for kind in ("gpt2", "llama"):
        write("tokenizer", f"gguf-{kind}", compact({
            "tokenizer.ggml.model": kind,
            "tokenizer.ggml.pre": "qwen2" if kind == "gpt2" else "default",
            "tokenizer.ggml.tokens": ["<s>", "a", "b", "ab", "<0x0A>"],
            "tokenizer.ggml.scores": [0, -1, -2, -3, 0],
            "tokenizer.ggml.token_type": [3, 1, 1, 1, 6],
            "tokenizer.ggml.merges": ["a b"],
            "tokenizer.ggml.bos_token_id": 0}), "{}", "ab ba")


def traces():
    write("allocation_trace", "quire-csv",
          "t_us,op,id,bytes,stream,thread,alignment,owner,phase\n"
          "0,p,0,4096,0,1,0,w,\n1,m,1,0,0,1,0,,step\n2,a,1,2097152,7,1,512,kv,\n"
          "3,r,1,0,9,1,0,,\n4,s,0,8388608,0,1,0,,\n5,x,0,99999999,0,2,0,,\n"
          "6,f,1,2097152,7,2,0,,\n7,d,0,8388608,0,1,0,,\n8,f,0,0,0,1,0,,\n")
    write("allocation_trace", "rmm-csv",
          "Thread,Time,Action,Pointer,Size,Stream\n"
          "11,23:59:59.998533,allocate,0x7f0010000000,256,0\n"
          "12,23:59:59.999000,allocate,0x7f0010000100,1048576,0x2\n"
          "11,00:00:00.000100,free,0x7f0010000000,256,0\n"
          "11,00:00:00.000101,allocate failure,(nil),99999999999,0\n"
          "12,00:00:00.000200,free,0x7f0020000000,64,0\n")

    def action(kind, address, size, **more):
        return {"action": kind, "addr": address, "size": size, "stream": 0,
                "frames": [], "time_us": 1000 + address, **more}

    snapshot = {
        "segments": [{"device": 0, "address": 1 << 20, "total_size": 2 << 20,
                      "allocated_size": 512, "active_size": 512, "stream": 0,
                      "segment_type": "small", "frames": [],
                      "blocks": [{"address": 1 << 20, "size": 512,
                                  "requested_size": 500, "frames": [],
                                  "state": "active_allocated"},
                                 {"address": (1 << 20) + 512,
                                  "size": (2 << 20) - 512, "frames": [],
                                  "state": "inactive"}]}],
        "device_traces": [[
            action("segment_alloc", 1 << 20, 2 << 20),
            action("alloc", 1 << 20, 512),
            action("alloc", (1 << 20) + 512, 1024),
            action("free_requested", (1 << 20) + 512, 1024),
            action("free_completed", (1 << 20) + 512, 1024),
            action("oom", 0, 1 << 40, device_free=5)]],
        "external_annotations": [],
        "allocator_settings": {"expandable_segments": False}}
    for protocol in (2, 4):
        write("allocation_trace", f"pytorch-protocol-{protocol}",
              pickle.dumps(snapshot, protocol))


def device_maps():
    parts = ["model.embed_tokens", "model.layers.0", "model.layers.1",
             "model.layers.10", "model.norm", "lm_head"]
    write("device_map", "parts", compact(dict.fromkeys(parts, 0)),
          "0:8MiB,1:20MiB,cpu:1GiB,disk:1TiB")
    write("device_map", "prefixes", compact({"model": 1, "lm_head": 1}),
          "0:30MiB")
    write("device_map", "tiers", compact({
        "model.embed_tokens": "cpu", "model.layers": 2, "model.norm": "disk",
        "lm_head": "cpu"}), "0:8MiB,1:8MiB,2:64MiB")
    write("device_map", "plan", compact(
        {"fits": True, "device_map": {"": 0}, "advice": []}), "cpu:1GiB")


def indexes():
    write("shard_index", "two-shards", compact({
        "metadata": {"total_size": 12},
        "weight_map": {"a.weight": "model-00001-of-00002.safetensors",
                       "b.weight": "model-00002-of-00002.safetensors"}}))
    write("shard_index", "escaped", '{"weight_map":{"\\u0061":"m.safetensors"}}')
    write("safetensors_header", "two-tensors", compact({
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [], "data_offsets": [0, 0]},
        "b": {"dtype": "BF16", "shape": [0, 3], "data_offsets": [0, 0]}}))
    header = compact({"a": {"dtype": "U8", "shape": [2, 2],
                            "data_offsets": [0, 4]}}).encode()
    write("safetensors_header", "whole-file",
          struct.pack("<Q", len(header)) + header + b"data")


def gguf_text(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def ggufs():
    pairs = [gguf_text("general.architecture") + struct.pack("<I", 8) +
             gguf_text("llama"),
             gguf_text("llama.block_count") + struct.pack("<II", 4, 1),
             gguf_text("general.alignment") + struct.pack("<II", 4, 32),
             gguf_text("tokenizer.ggml.tokens") +
             struct.pack("<IIQ", 9, 8, 2) + gguf_text("a") + gguf_text("b"),
             gguf_text("x.flag") + struct.pack("<IB", 7, 1),
             gguf_text("x.real") + struct.pack("<If", 6, 0.5)]
    tensors = [gguf_text("a.weight") + struct.pack("<IQQIQ", 2, 32, 1, 8, 0),
               gguf_text("b.weight") + struct.pack("<IQIQ", 1, 4, 0, 64)]
    for version in (2, 3):
        head = (b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs))
                + b"".join(pairs) + b"".join(tensors))
        head += b"\0" * (-len(head) % 32)
        write("gguf", f"version-{version}", head + b"\0" * (64 + 32))


def allocator_operations():
    """Bytes of which many are one operation: AllocatorOperations::Step."""
    operations = (
        "streams", "record", "pin", "unpin", "trim", "refuse", "limits", "pool",
        "mesh", "relocate", "thread", "hooks", "live", "end-lags", "sleep", "wake",
        "graphs", "captures", "another-allocator", "lag")
    for number, name in enumerate(operations):
        source = random.Random(name)
        write("allocator", name, bytes(
            176 + number + 20 * source.randrange(4)
            if source.random() < 0.15 else source.randrange(256)
            for _ in range(900)))


def main():
    model_configs()
    adapters()
    tokenizers()
    traces()
    device_maps()
    indexes()
    ggufs()
    allocator_operations()


if __name__ == "__main__":
    main()
