"""Small checkpoints, quantised or not, with reference logits."""

import json
import re
import zlib

import numpy as np
import safetensors.torch
import torch
import transformers

import gguf_file
import gptq
import lora

BASE = {
    "family": "llama", "vocab": 64, "hidden": 64, "intermediate": 64, "layers": 2, "heads": 4,
    "kv_heads": 2, "tied": False, "dtype": "float16", "eps": 1e-5,
    "rope_theta": 10000.0, "rope": None, "attention_bias": False,
    "config": 4, "eos": 2, "prompt": 16, "quantized": None, "shards": 1,
    "gguf": False, "lora": None, "lora_dtype": "float32",
}
GPTQ = {"bits": 4, "group_size": 32, "sym": True, "act_order": False,
        "v2": False, "g_idx": True, "planar": False, "lm_head": False,
        "dynamic": {}}
GREEDY_TOKENS = 12
# (top 1 - top 2) / (max - min): rounding in float32 moves far less.
MIN_MARGIN = 0.012


def plain(covers, **options):
  return {**BASE, "covers": covers, **options}


def quantized(covers, gptq_options, **options):
  return {**BASE, "covers": covers, "quantized": {**GPTQ, **gptq_options},
          **options}


CASES = {
    "plain-f32": plain(
        "F32, untied; an rms_norm_eps that must be read", dtype="float32",
        hidden=32, heads=2, kv_heads=1, intermediate=64, eps=0.05),
    "plain-f16-attention-bias": plain(
        "F16 with biases on q, k, v and o", hidden=48, heads=3, kv_heads=3,
        intermediate=48, attention_bias=True),
    "plain-bf16-tied": plain(
        "BF16, tied, transformers 5 config, several EOS, explicit head_dim",
        dtype="bfloat16", hidden=48, heads=3, kv_heads=1, head_dim=24,
        intermediate=64, tied=True, config=5, eos=[2, 60, 61]),
    "rope-llama3": plain(
        "rope_scaling llama3, where all three frequency bands occur",
        dtype="bfloat16", hidden=48, heads=3, kv_heads=1, intermediate=64,
        tied=True, rope_theta=500000.0,
        rope={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0,
              "original_max_position_embeddings": 64}),
    "rope-llama3-config5": plain(
        "the same scaling with another factor, in rope_parameters",
        dtype="bfloat16", hidden=48, heads=3, kv_heads=1, intermediate=64,
        tied=True, config=5, rope_theta=250000.0,
        rope={"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
              "high_freq_factor": 2.0,
              "original_max_position_embeddings": 32}),
    "rope-linear": plain(
        "rope_scaling linear, in the old spelling (`type`)", dtype="bfloat16",
        hidden=48, heads=3, kv_heads=1, intermediate=64, tied=True,
        rope={"type": "linear", "factor": 4.0}),
    "rope-yarn": plain(
        "rope_scaling yarn as Qwen2.5 gives it: the attention's scale follows "
        "from the factor", family="qwen2", dtype="bfloat16", hidden=48,
        heads=3, kv_heads=1, intermediate=64, tied=True,
        fields={"max_position_embeddings": 64},
        rope={"type": "yarn", "factor": 4.0,
              "original_max_position_embeddings": 64}),
    "rope-yarn-config5": plain(
        "yarn with mscale, bounds of its own that are not rounded, in "
        "rope_parameters", dtype="bfloat16", hidden=48, heads=3, kv_heads=1,
        intermediate=64, tied=True, config=5, rope_theta=250000.0,
        rope={"rope_type": "yarn", "factor": 16.0, "beta_fast": 8.0,
              "beta_slow": 0.5, "mscale": 0.7, "mscale_all_dim": 2.0,
              "truncate": False, "original_max_position_embeddings": 128}),
    "rope-dynamic": plain(
        "dynamic scaling, which changes nothing within "
        "max_position_embeddings", dtype="bfloat16", hidden=48, heads=3,
        kv_heads=1, intermediate=64, tied=True,
        fields={"max_position_embeddings": 28}, rope_is_inert=True,
        rope={"type": "dynamic", "factor": 8.0}),
    "gptq-w4-sym": quantized("4 bits, symmetric, v1 zeros", {}),
    "gptq-w4-asym": quantized("4 bits, asymmetric, v1 zeros", {"sym": False}),
    "gptq-w4-v2": quantized("4 bits, asymmetric, zeros stored as they are",
                            {"sym": False, "v2": True}),
    "gptq-w2-asym": quantized("2 bits, asymmetric, v1 zeros",
                              {"bits": 2, "sym": False}),
    "gptq-w3-sym": quantized("3 bits: codes straddle words", {"bits": 3}),
    "gptq-w3-asym-v2": quantized("3 bits, asymmetric, v2 zeros",
                                 {"bits": 3, "sym": False, "v2": True}),
    "gptq-lm-head": quantized(
        "a quantised output head, beside an embedding that is not",
        {"lm_head": True}),
    "gptq-dynamic": quantized(
        "dynamic: modules that are plain, that have other bits or groups, and "
        "a pattern that an earlier one hides",
        {"sym": False, "dynamic": {
            "-:.*\\.0\\.self_attn\\.k_proj": {},
            "+:.*\\.down_proj": {"bits": 8, "group_size": 64},
            ".*\\.1\\.mlp\\..*": {"bits": 2, "group_size": 16},
            "+:.*\\.0\\.self_attn\\.[qk]_proj": {"bits": 3}}}),
    "gptq-w8-sym": quantized("8 bits, symmetric, transformers 5 config",
                             {"bits": 8}, config=5, tied=True),
    "gptq-w3-planar": quantized(
        "planar layout, 3 bits: two planes, in act-order",
        {"bits": 3, "sym": False, "v2": True, "planar": True,
         "act_order": True}),
    "gptq-w5-planar": quantized(
        "planar layout, 5 bits, in act-order",
        {"bits": 5, "sym": False, "v2": True, "planar": True,
         "act_order": True}, hidden=32, heads=2, kv_heads=2),
    "gptq-w6-planar": quantized(
        "planar layout, 6 bits",
        {"bits": 6, "sym": False, "v2": True, "planar": True}, hidden=32,
        heads=2, kv_heads=2),
    "gptq-w7-planar": quantized(
        "planar layout, 7 bits: three planes",
        {"bits": 7, "v2": True, "planar": True}, hidden=32, heads=2,
        kv_heads=2),
    "gptq-w4-planar": quantized(
        "planar layout, 4 bits: one plane, which is the usual layout",
        {"v2": True, "planar": True}),
    "gptq-w4-act-order": quantized("desc_act with a permuted g_idx",
                                   {"act_order": True, "sym": False}),
    "gptq-w4-no-g-idx": quantized("no g_idx: row k is of group k / 32",
                                  {"g_idx": False}, tied=True),
    "gptq-w4-per-channel": quantized("group_size -1: one group",
                                     {"group_size": -1}, tied=True),
    "gptq-w4-short-group": quantized(
        "a last group of 32 rows where group_size is 64",
        {"group_size": 64, "sym": False}, intermediate=96, tied=True),
    "gptq-w4-sharded": quantized(
        "three shards with an index; modules are spread over files", {},
        shards=3),
    "qwen2-gptq": quantized(
        "Qwen2: biases on q, k and v, zeros on the others; a sliding_window "
        "that is not used", {}, family="qwen2", zero_biases=True,
        rope_theta=1e6, tied=True,
        fields={"sliding_window": 4, "use_sliding_window": False,
                "max_window_layers": 1}),
    "qwen2-gguf": plain(
        "Qwen2 under GGUF's names", family="qwen2", gguf=True, hidden=48,
        heads=3, kv_heads=1, rope_theta=1e6, tied=True),
    "qwen3-gptq": quantized(
        "Qwen3: q_norm and k_norm; heads x head_dim is not the hidden size",
        {}, family="qwen3", head_dim=24, rope_theta=1e6, config=5, tied=True),
    "qwen3-plain": plain(
        "Qwen3 in BF16", family="qwen3", dtype="bfloat16", hidden=32, heads=2,
        kv_heads=1, head_dim=24, rope_theta=1e6, tied=True),
    "qwen3-gguf": plain(
        "Qwen3 under GGUF's names", family="qwen3", gguf=True, hidden=48,
        heads=3, kv_heads=1, head_dim=24, rope_theta=1e6),
    "lora-patterns": quantized(
        "LoRA on a GPTQ model: rank_pattern and alpha_pattern, some of which "
        "overlap, use_rslora, lora_bias, an adapter in F16", {}, tied=True,
        lora_dtype="float16",
        lora={"r": 4, "lora_alpha": 6, "use_rslora": True, "lora_bias": True,
              "target_modules": "all-linear",
              "rank_pattern": {"layers.1.self_attn.q_proj": 6,
                               "q_proj": 2, r".*\.0\.mlp\..*": 3},
              "alpha_pattern": {"down_proj": 9, r"layers\.1\.mlp.*": 2}}),
    "lora-embedding": plain(
        "LoRA on the embedding and the output head, in one layer of two; "
        "copies of the weights beneath; an adapter in BF16", dtype="bfloat16",
        hidden=32, heads=2, kv_heads=1, lora_dtype="bfloat16",
        lora={"r": 4, "lora_alpha": 8, "layers_to_transform": [1],
              "layers_pattern": "layers",
              "target_modules": ["model.embed_tokens", "lm_head", "v_proj",
                                 "up_proj"]}),
    "lora-gguf": plain(
        "LoRA on a Llama under GGUF's names, where the rows of queries and "
        "keys stand in another order than the adapter's", gguf=True, hidden=32,
        heads=2, kv_heads=1, attention_bias=True,
        lora={"r": 2, "lora_alpha": 4, "target_modules": "all-linear",
              "bias": "lora_only"}),
    "lora-saved": plain(
        "modules_to_save, all biases, a pattern in target_modules",
        family="qwen2", hidden=32, heads=2, kv_heads=1,
        lora={"r": 3, "lora_alpha": 6, "bias": "all",
              "modules_to_save": ["lm_head", "norm"],
              "target_modules": r".*\.(q|o|gate|down)_proj"}),
}


def seed_of(name):
  return zlib.crc32(("quire golden " + name).encode())


def head_dim_of(case):
  return case.get("head_dim", case["hidden"] // case["heads"])


def linear_shapes(case):
  head_dim = head_dim_of(case)
  q, kv = case["heads"] * head_dim, case["kv_heads"] * head_dim
  hidden, inner = case["hidden"], case["intermediate"]
  return {
      "self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden),
      "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, q),
      "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
      "mlp.down_proj": (hidden, inner),
  }


def has_bias(case, module):
  if case["family"] == "qwen2":
    return module.endswith(("q_proj", "k_proj", "v_proj"))
  return case["attention_bias"] and module.startswith("self_attn")


def random_weights(case, rng):
  """float32 by name. Layers move the residual by about its own size, and input
  channels are of unequal size, so that whatever is left out shows."""
  def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)

  hidden, vocab = case["hidden"], case["vocab"]
  channel = np.exp(0.5 * rng.standard_normal(hidden)).astype(np.float32)
  weights = {"model.embed_tokens.weight": normal(vocab, hidden) * channel,
             "model.norm.weight": 1 + 0.3 * normal(hidden)}
  if not case["tied"]:
    weights["lm_head.weight"] = 2 * normal(vocab, hidden) / hidden**0.5
  for layer in range(case["layers"]):
    prefix = f"model.layers.{layer}."
    for norm in ("input_layernorm", "post_attention_layernorm"):
      weights[f"{prefix}{norm}.weight"] = 1 + 0.3 * normal(hidden)
    for module, (rows, columns) in linear_shapes(case).items():
      gain = 2.5 if module.endswith(("o_proj", "down_proj")) else 1.5
      weights[f"{prefix}{module}.weight"] = (gain * normal(rows, columns) /
                                             columns**0.5)
      if has_bias(case, module):
        weights[f"{prefix}{module}.bias"] = 0.3 * normal(rows)
    if case["family"] == "qwen3":
      for norm in ("q_norm", "k_norm"):
        weights[f"{prefix}self_attn.{norm}.weight"] = (
            1 + 0.3 * normal(head_dim_of(case)))
  return weights


def module_options(options, module):
  """What GPTQModel's configuration says of a module; None: it stays plain."""
  if module == "lm_head":
    return options if options["lm_head"] else None
  if not module.endswith("_proj"):
    return None
  for pattern, changes in options["dynamic"].items():
    if re.match(pattern.removeprefix("-:").removeprefix("+:"), module):
      return None if pattern.startswith("-:") else {**options, **changes}
  return options


def stored_tensors(case, weights, rng):
  """What the files hold, and the float32 weights that these mean. The second
  takes how zeros are read, to tell what a wrong reading gives."""
  dtype = getattr(torch, case["dtype"])
  options = case["quantized"]
  stored, modules = {}, {}
  for name, weight in weights.items():
    module = name.removesuffix(".weight")
    own = module_options(options, module) if options else None
    if own:
      modules[module] = gptq.quantize_module(
          weight, own["bits"], own["group_size"], own["sym"],
          own["act_order"], own["g_idx"], not own["v2"], rng, own["planar"])
      for part, tensor in modules[module].items():
        if part != "rows":
          stored[f"{module}.{part}"] = torch.from_numpy(tensor)
      if case.get("zero_biases") and f"{module}.bias" not in weights:
        stored[f"{module}.bias"] = torch.zeros(weight.shape[0], dtype=dtype)
    else:
      stored[name] = torch.from_numpy(weight).to(dtype)

  def meaning(stored_minus_one, planar=options and options["planar"]):
    result = {name: tensor.float() for name, tensor in stored.items()
              if name in weights}
    for module, tensors in modules.items():
      own = module_options(options, module)
      result[f"{module}.weight"] = torch.from_numpy(
          gptq.dequantize(tensors, own["bits"], own["group_size"],
                          stored_minus_one, planar))
    return result

  return stored, meaning


def config_json(case):
  config = {
      "architectures": [reference_class(case).__name__],
      "model_type": case["family"],
      "attention_bias": case["attention_bias"], "attention_dropout": 0.0,
      "bos_token_id": 1, "eos_token_id": case["eos"], "hidden_act": "silu",
      "hidden_size": case["hidden"],
      "intermediate_size": case["intermediate"],
      "max_position_embeddings": 2048, "mlp_bias": False,
      "num_attention_heads": case["heads"],
      "num_hidden_layers": case["layers"],
      "num_key_value_heads": case["kv_heads"], "rms_norm_eps": case["eps"],
      "tie_word_embeddings": case["tied"], "use_cache": True,
      "vocab_size": case["vocab"],
  }
  if "head_dim" in case:
    config["head_dim"] = case["head_dim"]
  config |= case.get("fields", {})
  if case["config"] == 4:
    config |= {"rope_theta": case["rope_theta"], "rope_scaling": case["rope"],
               "torch_dtype": case["dtype"], "transformers_version": "4.51.3"}
  else:
    rope = case["rope"] or {"rope_type": "default"}
    config |= {"rope_parameters": {**rope, "rope_theta": case["rope_theta"]},
               "dtype": case["dtype"], "transformers_version": "5.24.0"}
  return config


def quantize_config(options):
  config = {"bits": options["bits"], "group_size": options["group_size"],
            "desc_act": options["act_order"], "sym": options["sym"],
            "lm_head": options["lm_head"], "quant_method": "gptq",
            "checkpoint_format": "gptq_p" if options["planar"]
                                 else "gptq_v2" if options["v2"] else "gptq",
            "true_sequential": True}
  return {**config, "dynamic": options["dynamic"]} if options["dynamic"] \
      else config


def reference_class(case):
  return {"llama": transformers.LlamaForCausalLM,
          "qwen2": transformers.Qwen2ForCausalLM,
          "qwen3": transformers.Qwen3ForCausalLM}[case["family"]]


def reference_model(config, weights):
  """transformers' own class in float32, every tensor taken, none missing."""
  model_class = getattr(transformers, config["architectures"][0])
  parsed = model_class.config_class.from_dict(config)
  parsed._attn_implementation = "eager"
  model = model_class(parsed).float().eval()
  missing, unexpected = model.load_state_dict(weights, strict=False)
  tied = ["lm_head.weight"] if parsed.tie_word_embeddings else []
  assert not unexpected and sorted(missing) == tied, (missing, unexpected)
  model.tie_weights()
  return model


def logits_of(model, tokens):
  with torch.no_grad():
    return model(torch.tensor([tokens])).logits[0].numpy()


def relative_error(a, b):
  return float(np.abs(a - b).max() / np.abs(b).max())


def greedy(model, prompt, eos):
  """Tokens and the smallest margin, recomputing the whole sequence at each
  step; None where the margin or an EOS spoils it."""
  tokens, smallest = list(prompt), 1.0
  for _ in range(GREEDY_TOKENS):
    row = logits_of(model, tokens)[-1]
    second, first = np.sort(row)[-2:]
    margin = (first - second) / (row.max() - row.min())
    if margin < MIN_MARGIN or int(row.argmax()) in eos:
      return None
    smallest = min(smallest, float(margin))
    tokens.append(int(row.argmax()))
  return tokens[len(prompt):], smallest


def find_prompt(model, case, rng):
  eos = case["eos"] if isinstance(case["eos"], list) else [case["eos"]]
  best = None
  for _ in range(400):
    prompt = [1] + rng.integers(3, case["vocab"], case["prompt"] - 1).tolist()
    result = greedy(model, prompt, eos)
    # Of those with clear margins, one that does not repeat a token for ever.
    if result and (best is None or len(set(result[0])) > len(set(best[1][0]))):
      best = (prompt, result)
      if len(set(result[0])) >= GREEDY_TOKENS // 2:
        break
  assert best, "no prompt with clear margins"
  return best[0], *best[1]


def write_tensors(case, stored, folder):
  metadata = {"format": "pt"}
  if case["shards"] == 1:
    safetensors.torch.save_file(stored, folder / "model.safetensors", metadata)
    return
  count = case["shards"]
  files = [f"model-{i + 1:05d}-of-{count:05d}.safetensors"
           for i in range(count)]
  # Round robin by name: the tensors of a module lie in different files.
  weight_map = {name: files[i % count] for i, name in enumerate(sorted(stored))}
  for file in files:
    part = {n: t for n, t in stored.items() if weight_map[n] == file}
    safetensors.torch.save_file(part, folder / file, metadata)
  total = sum(t.numel() * t.element_size() for t in stored.values())
  write_json(folder / "model.safetensors.index.json",
             {"metadata": {"total_size": total}, "weight_map": weight_map})


def write_json(path, value):
  path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write(name, folder):
  case = CASES[name]
  rng = np.random.default_rng(seed_of(name))
  torch.set_num_threads(1)
  folder.mkdir(parents=True, exist_ok=True)
  stored, meaning = stored_tensors(case, random_weights(case, rng), rng)
  options = case["quantized"]
  config = config_json(case)
  v1 = options is not None and not options["v2"]
  model = reference_model(config, meaning(v1))
  dtype = getattr(torch, case["lora_dtype"])
  if case["lora"]:
    model = lora.attach(model, case["lora"], dtype, rng)
  prompt, tokens, margin = find_prompt(model, case, rng)
  logits = logits_of(model, prompt)

  error_if = {}
  if options:
    wrong = logits_of(reference_model(config, meaning(not v1)), prompt)
    error_if["zero points read as " + ("v2" if v1 else "v1")] = round(
        relative_error(wrong, logits), 4)
    if options["planar"] and len(gptq.PLANES[options["bits"]]) > 1:
      wrong = logits_of(reference_model(config, meaning(v1, False)), prompt)
      error_if["planes read as one string of bits"] = round(
          relative_error(wrong, logits), 4)
  if case["rope"] and not case.get("rope_is_inert"):
    without = {k: v for k, v in config.items()
               if k not in ("rope_scaling", "rope_parameters")}
    without["rope_theta"] = case["rope_theta"]
    wrong = logits_of(reference_model(without, meaning(v1)), prompt)
    error_if["RoPE scaling ignored"] = round(relative_error(wrong, logits), 4)
  if case["lora"]:
    wrong = logits_of(reference_model(config, meaning(v1)), prompt)
    error_if["adapter not applied"] = round(relative_error(wrong, logits), 4)
  skipped = []
  for layer in range(0 if case["lora"] else case["layers"]):
    weights = meaning(v1)
    for module in ("self_attn.o_proj", "mlp.down_proj"):
      for part in ("weight", "bias"):
        key = f"model.layers.{layer}.{module}.{part}"
        if key in weights:
          weights[key] = torch.zeros_like(weights[key])
    wrong = logits_of(reference_model(config, weights), prompt)
    skipped.append(round(relative_error(wrong, logits), 4))
  assert all(e > 0.02 for e in skipped + list(error_if.values())), error_if

  np.save(folder / "logits.npy", logits)
  if case["gguf"]:
    gguf_file.write(case["family"], config, head_dim_of(case), stored,
                    folder / "model.gguf")
  else:
    write_tensors(case, stored, folder)
    if options:
      write_json(folder / "quantize_config.json", quantize_config(options))
      config["quantization_config"] = quantize_config(options)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json",
               {"bos_token_id": 1, "eos_token_id": case["eos"]})
  if case["lora"]:
    lora.save(model, dtype, folder / "adapter")
    wrong = logits_of(lora.unscaled(model), prompt)
    error_if["adapter not scaled"] = round(relative_error(wrong, logits), 4)
  more = {"model": "model.gguf"} if case["gguf"] else {}
  if case["lora"]:
    more["adapter"] = "adapter"
  write_json(folder / "expect.json", {
      **more, "prompt": prompt, "greedy": tokens, "logits": "logits.npy",
      "rtol": 2e-3, "covers": case["covers"],
      "source": f"transformers {transformers.__version__}, "
                f"torch {torch.__version__.split('+')[0]}, float32 eager",
      "min_greedy_margin": round(margin, 4), "error_if": error_if,
      "error_if_layer_skipped": skipped,
  })
  print(f"{name}: margin {margin:.4f}, {error_if}, skipped {skipped}")
