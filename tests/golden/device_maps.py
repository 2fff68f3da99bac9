#!/usr/bin/env python3
"""Writes device_maps.json: where accelerate puts the parts of models.

    pip install -r requirements.txt accelerate==1.15.0
    python3 device_maps.py

Modules without data are built from the golden checkpoints in this folder, from
published sizes and from random ones; `get_balanced_memory` and
`infer_auto_device_map` place them, with layers that are not to be split. A case
is {"name", "policy", "limits", "blocks", "places"}. A second run changes no
byte.
"""

import json
import pathlib
import random

import accelerate.utils.modeling as modeling
import torch

FOLDER = pathlib.Path(__file__).resolve().parent
TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
         "I32": torch.int32}


class Module(torch.nn.Module):
  pass


class DecoderLayer(Module):
  """What is not split."""


def build(tensors, tied):
  """A module tree of `tensors`, {name: (dtype, shape)}, in this order."""
  root = Module()
  for name, (dtype, shape) in tensors.items():
    module = root
    parts = name.split(".")
    for i, part in enumerate(parts[:-1]):
      if not hasattr(module, part):
        layer = parts[:i] == ["model", "layers"]
        module.add_module(part, DecoderLayer() if layer else Module())
      module = getattr(module, part)
    value = torch.empty(shape, dtype=dtype, device="meta")
    module.register_parameter(
        parts[-1], torch.nn.Parameter(value, requires_grad=False))
  if tied:
    root.add_module("lm_head", Module())
    root.lm_head.register_parameter("weight", root.model.embed_tokens.weight)
  return root


def order(name):
  parts = name.split(".")
  rank = {"embed_tokens": 0, "layers": 1, "norm": 2}.get(parts[1], 3)
  return rank, int(parts[2]) if rank == 1 else 0


def of_checkpoint(folder):
  tensors = {}
  for path in sorted(folder.glob("*.safetensors")):
    with open(path, "rb") as file:
      header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    for name, info in header.items():
      tensors[name] = (TYPES[info["dtype"]], info["shape"])
  config = json.loads((folder / "config.json").read_text())
  tied = bool(config.get("tie_word_embeddings"))
  return dict(sorted(tensors.items(), key=lambda t: order(t[0]))), tied


def of_sizes(embedding, layers, norm, head):
  tensors = {"model.embed_tokens.weight": (torch.float16, [embedding])}
  for i, parts in enumerate(layers):
    for j, size in enumerate(parts):
      tensors[f"model.layers.{i}.m{j}.weight"] = (torch.float16, [size])
  tensors["model.norm.weight"] = (torch.float16, [norm])
  if head is not None:
    tensors["lm_head.weight"] = (torch.float16, [head])
  return tensors, head is None


def blocks_of(model, tied):
  sizes = modeling.compute_module_sizes(model)
  names = ["model.embed_tokens"]
  names += [f"model.layers.{i}" for i, _ in enumerate(model.model.layers.children())]
  names += ["model.norm", "lm_head"]
  blocks = []
  for name in names:
    module = model.get_submodule(name)
    block = {"name": name, "size": int(sizes[name]),
             "layer": isinstance(module, DecoderLayer),
             "modules": sum(1 for m in module.modules() if not list(m.children()))}
    if name == "lm_head" and tied:
      block["tied_to"] = 0
    blocks.append(block)
  return blocks


def place(model, blocks, policy, limits):
  limits = dict(limits)
  names = ["DecoderLayer"]
  if policy != "sequential":
    limits = modeling.get_balanced_memory(
        model, limits, names, low_zero=policy == "balanced_low_0")
  device_map = modeling.infer_auto_device_map(model, limits, names)

  def of(block):
    found = [k for k in device_map
             if k == "" or block == k or block.startswith(k + ".")]
    assert len(found) == 1, (block, device_map)
    return str(device_map[found[0]])

  return [of(block["name"]) for block in blocks]


def main():
  rng = random.Random(1)
  models = [(folder.name, of_checkpoint(folder))
            for folder in sorted(FOLDER.iterdir())
            if (folder / "expect.json").exists()]
  # Qwen3-8B, Llama 3.2 1B (tied) in 16 bits; a layer as two modules.
  models.append(("qwen3-8b", of_sizes(
      151936 * 4096, [[41943040, 150994944]] * 36, 4096, 151936 * 4096)))
  models.append(("llama-3.2-1b", of_sizes(
      128256 * 2048, [[10485760, 50331648]] * 16, 2048, None)))
  for i in range(60):
    layers = [[rng.randint(1, 4000) for _ in range(rng.randint(1, 5))]
              for _ in range(rng.randint(1, 12))]
    head = None if i % 3 == 0 else rng.randint(1, 30000)
    models.append((f"random-{i}", of_sizes(
        rng.randint(1, 30000), layers, rng.randint(1, 100), head)))
  cases = []
  for name, (tensors, tied) in models:
    model = build(tensors, tied)
    blocks = blocks_of(model, tied)
    total = sum(block["size"] for block in blocks)
    for _ in range(6):
      devices = rng.randint(1, 4)
      limits = {d: int(total * rng.uniform(0.05, 1.3) / devices * 2)
                for d in range(devices)}
      if rng.random() < 0.7:
        limits["cpu"] = int(total * rng.uniform(0, 1.2))
      policy = rng.choice(["auto", "balanced_low_0", "sequential"])
      cases.append({"name": name, "policy": policy,
                    "limits": {str(k): v for k, v in limits.items()},
                    "blocks": blocks,
                    "places": place(model, blocks, policy, limits)})
  # Blocks once for each model, since its cases share them.
  text = ["{\"models\": {"]
  unique = {case["name"]: case["blocks"] for case in cases}
  text.append(",\n".join(f"{json.dumps(name)}: {json.dumps(blocks)}"
                         for name, blocks in unique.items()))
  text.append("}, \"cases\": [")
  text.append(",\n".join(
      json.dumps({k: v for k, v in case.items() if k != "blocks"})
      for case in cases))
  text.append("]}\n")
  (FOLDER / "device_maps.json").write_text("\n".join(text))


if __name__ == "__main__":
  main()
