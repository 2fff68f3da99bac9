"""Small checkpoints of the formats other than GPTQ, with reference logits.

Weights are rounded to nearest. What they mean is computed by each format's own
tool from the tensors that are stored, with scales widened to float32:
compressed_tensors' compressors, bitsandbytes' functional module. AWQ and FP8
have no tool that runs on the CPU without their model classes, so they are
decoded by their definition here.
"""

import gguf
import numpy as np
import torch
import transformers
from bitsandbytes import functional as bnb
from compressed_tensors import compressors
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization import QuantizationScheme

import checkpoints
import gguf_file
import gptq

SMALL = {**checkpoints.BASE, "hidden": 32, "heads": 2, "kv_heads": 1,
         "intermediate": 48, "dtype": "bfloat16"}




# ---- AWQ ---------------------------------------------------------------------

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # AutoAWQ's awq/utils/packing_utils.py


def pack_awq(codes):
  """[n, m] to int32 [n, m / 8]: nibble i of a word is column AWQ_ORDER[i]."""
  n, m = codes.shape
  words = np.zeros((n, m // 8), np.int64)
  for nibble, column in enumerate(AWQ_ORDER):
    words |= codes[:, column::8] << (4 * nibble)
  return words.astype(np.uint32).view(np.int32)


def unpack_awq(words):
  words = words.view(np.uint32).astype(np.int64)
  codes = np.empty((words.shape[0], words.shape[1] * 8), np.int64)
  for nibble, column in enumerate(AWQ_ORDER):
    codes[:, column::8] = words >> (4 * nibble) & 15
  return codes


class Awq:
  def __init__(self, group_size, config):
    self.group_size, self.config = group_size, config

  def quantize(self, module, weight, rng):
    codes, zeros, scales, _ = gptq.quantize(weight, 4, self.group_size, False,
                                            False, rng)
    return {"qweight": torch.from_numpy(pack_awq(codes)),
            "qzeros": torch.from_numpy(pack_awq(zeros)),
            "scales": torch.from_numpy(scales)}

  def meaning(self, module, tensors):
    codes = unpack_awq(tensors["qweight"].numpy())
    zeros = unpack_awq(tensors["qzeros"].numpy())
    scales = tensors["scales"].numpy().astype(np.float32)
    group = np.arange(codes.shape[0]) // (codes.shape[0] // len(scales))
    w = scales[group] * (codes - zeros[group]).astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(w.T))


# ---- FP8 ---------------------------------------------------------------------

FP8_MAX = 448.0
FP4_MAX = 6.0


class Fp8:
  """`block`: (rows, columns) that share a scale; None for all of them."""

  def __init__(self, config, block, scale_name, scale_dtype, scale_shape=None,
               extra=()):
    self.config, self.block, self.scale_name = config, block, scale_name
    self.scale_dtype, self.scale_shape = scale_dtype, scale_shape
    self.extra = extra

  def blocks_of(self, shape):
    rows, columns = [b or s for b, s in zip(self.block, shape)]
    for i in range(0, shape[0], rows):
      for j in range(0, shape[1], columns):
        yield (i // rows, j // columns,
               (slice(i, i + rows), slice(j, j + columns)))

  def quantize(self, module, weight, rng):
    weight = torch.from_numpy(weight)
    grid = [-(-s // (b or s)) for b, s in zip(self.block, weight.shape)]
    scales = torch.empty(grid, dtype=getattr(torch, self.scale_dtype))
    codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    for i, j, part in self.blocks_of(weight.shape):
      scales[i, j] = weight[part].abs().max() / FP8_MAX
      codes[part] = (weight[part] / scales[i, j].float()).clamp(
          -FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    tensors = {"weight": codes, self.scale_name: scales}
    if self.scale_shape is not None:
      tensors[self.scale_name] = scales.reshape(self.scale_shape)
    for name in self.extra:
      tensors[name] = torch.tensor(0.25)
    return tensors

  def meaning(self, module, tensors):
    weight = tensors["weight"].float()
    grid = [-(-s // (b or s)) for b, s in zip(self.block, weight.shape)]
    scales = tensors[self.scale_name].float().reshape(grid)
    for i, j, part in self.blocks_of(weight.shape):
      weight[part] *= scales[i, j]
    return weight


# ---- compressed-tensors ------------------------------------------------------


class CompressedTensors:
  """`groups`: (targets, arguments of the weights, compressor) in the order in
  which they are tried; `ignore` names modules that stay plain."""

  def __init__(self, format_name, groups, ignore=("lm_head",),
               scale_dtype="bfloat16", actorder=False, activations=None):
    self.groups, self.ignore, self.actorder = groups, ignore, actorder
    self.scale_dtype = getattr(torch, scale_dtype)
    config_groups = {}
    for i, (targets, weights, _) in enumerate(groups):
      config_groups[f"group_{i}"] = {
          "targets": targets, "weights": weights,
          "input_activations": activations, "output_activations": None}
    self.config = {"quant_method": "compressed-tensors", "format": format_name,
                   "quantization_status": "compressed",
                   "config_groups": config_groups, "ignore": list(ignore),
                   "kv_cache_scheme": None}

  def group_of(self, module):
    for targets, weights, compressor in self.groups:
      if targets == ["Linear"] or any(t.split("*")[-1] in module
                                      for t in targets):
        return weights, compressor

  def scheme_of(self, weights):
    known = {k: v for k, v in weights.items() if k != "actorder"}
    return QuantizationScheme(targets=["Linear"],
                              weights=QuantizationArgs(**known))

  def quantize(self, module, weight, rng):
    if module in self.ignore:
      return None
    weights, compressor = self.group_of(module)
    weight = torch.from_numpy(weight)
    order = (torch.from_numpy(rng.permutation(weight.shape[1]))
             if self.actorder else torch.arange(weight.shape[1]))
    scales, zeros = self.grid(weight[:, order], weights)
    state = {"weight": weight[:, order], "weight_scale": scales}
    if zeros is not None:
      state["weight_zero_point"] = zeros
    # Codes in the order of groups, as the compressor wants them.
    tensors = compressor.compress(state, self.scheme_of(weights))
    if self.actorder:
      # What actorder "group" left: columns where they were, and their groups.
      back = torch.argsort(order)
      size = weights["group_size"]
      unpacked = compressors.unpack_from_int32(
          tensors["weight_packed"], weights["num_bits"], weight.shape)
      tensors["weight_packed"] = compressors.pack_to_int32(
          unpacked[:, back].contiguous(), weights["num_bits"])
      tensors["weight_g_idx"] = (back // size).to(torch.int32)
    return {name: tensor.contiguous() for name, tensor in tensors.items()}

  def grid(self, weight, weights):
    rows, columns = weight.shape
    strategy = weights["strategy"]
    block = {"tensor": (rows, columns), "channel": (1, columns),
             "group": (1, weights.get("group_size")),
             "block": weights.get("block_structure")}[strategy]
    shape = (-(-rows // block[0]), -(-columns // block[1]))
    scales = torch.empty(shape, dtype=self.scale_dtype)
    zeros = torch.zeros(shape, dtype=torch.int8)
    is_float = weights["type"] == "float"
    half = 2**(weights["num_bits"] - 1)
    for i in range(shape[0]):
      for j in range(shape[1]):
        part = weight[i * block[0]:(i + 1) * block[0],
                      j * block[1]:(j + 1) * block[1]]
        if is_float and weights["num_bits"] == 4:
          scales[i, j] = 2.0**torch.ceil(torch.log2(part.abs().max() / FP4_MAX))
        elif is_float:
          scales[i, j] = part.abs().max() / FP8_MAX
        elif weights["symmetric"]:
          scales[i, j] = part.abs().max() / (half - 0.5)
        else:
          low, high = part.min().clamp(max=0), part.max().clamp(min=0)
          scales[i, j] = (high - low) / (2 * half - 1)
          zeros[i, j] = (-half - low / scales[i, j].float()).round().clamp(
              -half, half - 1).to(torch.int8)
    if strategy == "tensor":
      scales, zeros = scales.reshape(1), zeros.reshape(1)
    return scales, None if weights["symmetric"] else zeros

  def meaning(self, module, tensors):
    weights, compressor = self.group_of(module)
    state = dict(tensors)
    if state["weight_scale"].dtype != torch.uint8:
      state["weight_scale"] = state["weight_scale"].float()
    index = state.pop("weight_g_idx", None)
    if index is None:
      return compressor.decompress(state, self.scheme_of(weights))["weight"]
    # The tool reads no g_idx any more: give it the columns in their groups'
    # order, and put the result back.
    order = torch.argsort(index.long(), stable=True)
    bits, shape = weights["num_bits"], state["weight_shape"]
    unpacked = compressors.unpack_from_int32(state["weight_packed"], bits,
                                             torch.Size(shape.tolist()))
    state["weight_packed"] = compressors.pack_to_int32(
        unpacked[:, order].contiguous(), bits)
    decoded = compressor.decompress(state, self.scheme_of(weights))["weight"]
    return decoded[:, torch.argsort(order)]


# ---- OneComp -----------------------------------------------------------------


class OneComp:
  """mixed_gptq as OneComp 1.4 saves it: bits from its tables, names wrapped."""

  SUFFIX_BITS = {"self_attn.v_proj": 8, "mlp.down_proj": 3}

  def __init__(self, layers):
    self.config = {
        "quant_method": "mixed_gptq", "bits": 4, "group_size": 16,
        "groupsize": 16, "actorder": True, "desc_act": True, "sym": False,
        "checkpoint_format": "gptq", "mlp_wbits": 2, "rotated": False,
        "fp32_had": False,
        "quantization_bits": [
            {suffix: {"bits": bits, "method": "gptq",
                      "params": {"group_size": 16}}
             for suffix, bits in self.SUFFIX_BITS.items()}
            for _ in range(layers)],
    }

  def bits_of(self, module):
    for suffix, bits in self.SUFFIX_BITS.items():
      if module.endswith(suffix):
        return bits
    return 2 if "mlp" in module else 4

  def quantize(self, module, weight, rng):
    tensors = gptq.quantize_module(weight, self.bits_of(module), 16, False,
                                   True, True, True, rng)
    del tensors["rows"]
    tensors["perm"] = np.argsort(tensors["g_idx"], kind="stable")
    return {name: torch.from_numpy(t) for name, t in tensors.items()}

  def meaning(self, module, tensors):
    arrays = {name: t.numpy() for name, t in tensors.items()}
    arrays["rows"] = len(arrays["g_idx"])
    return torch.from_numpy(
        gptq.dequantize(arrays, self.bits_of(module), 16, True))


# ---- GGUF --------------------------------------------------------------------


class GgufBlocks:
  """Linears as GGUF's blocks, whose meaning the gguf package says. `types` are
  names by module, in each layer; a plain name is for all of them."""

  config = None
  # Where the float16 of a block stand that everything is multiplied by; the
  # package cannot make these types, so their blocks are random.
  FACTORS = {"Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2),
             "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,)}

  def __init__(self, types):
    self.types = types

  def type_of(self, module):
    if isinstance(self.types, str):
      return self.types
    _, _, layer, _, name = module.split(".")
    return self.types[int(layer)][name]

  def quantize(self, module, weight, rng):
    name = self.type_of(module)
    kind = gguf.GGMLQuantizationType[name]
    if name not in self.FACTORS:
      return {"weight": torch.from_numpy(
          gguf.quants.quantize(weight.astype(np.float32), kind))}
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (weight.size // elements, size), np.uint8)

    def with_factor(factor):
      half = np.float16(factor).reshape(1).view(np.uint8)
      for at in self.FACTORS[name]:
        blocks[:, at:at + 2] = half
      return gguf.quants.dequantize(blocks, kind)

    with_factor(weight.std() / with_factor(1).std())
    return {"weight": torch.from_numpy(blocks.reshape(weight.shape[0], -1))}

  def meaning(self, module, tensors):
    kind = gguf.GGMLQuantizationType[self.type_of(module)]
    return torch.from_numpy(
        gguf.quants.dequantize(tensors["weight"].numpy(), kind))

  def raw_dtype(self, module):
    return gguf.GGMLQuantizationType[self.type_of(module)]


# ---- Quantised at load -------------------------------------------------------


class AtLoad:
  """The file is plain; the program is told to quantise with this name."""

  config = None

  def __init__(self, name):
    self.name = name

  def meaning_of(self, stored):
    weight = stored.float()
    if self.name == "nf4":
      codes, state = bnb.quantize_4bit(weight, blocksize=64, quant_type="nf4")
      return bnb.dequantize_4bit(codes, state)
    codes, row_max, _ = bnb.int8_vectorwise_quant(weight.half())
    return codes.float() * (row_max.float() / 127)[:, None]


def int_weights(bits, strategy, **options):
  return {"num_bits": bits, "type": "int", "symmetric": True,
          "strategy": strategy, **options}


FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}
PACK = compressors.PackedQuantizationCompressor
INT = compressors.IntQuantizationCompressor
FLOAT = compressors.FloatQuantizationCompressor
MXFP4 = compressors.MXFP4PackedCompressor

CASES = {
    "awq-w4-g16": (
        "AWQ GEMM, group 16",
        Awq(16, {"quant_method": "awq", "bits": 4, "group_size": 16,
                 "zero_point": True, "version": "gemm",
                 "modules_to_not_convert": None}), {"dtype": "float16"}),
    "awq-w4-per-channel": (
        "AWQ GEMM, one group, in the spelling of the first AWQ files",
        Awq(-1, {"zero_point": True, "q_group_size": -1, "w_bit": 4,
                 "version": "GEMM"}), {"dtype": "float16"}),
    "fp8-block": (
        "F8_E4M3 in blocks of 16 x 24 with bf16 scales; edge blocks are cut",
        Fp8({"quant_method": "fp8", "fmt": "e4m3",
             "activation_scheme": "dynamic", "weight_block_size": [16, 24]},
            (16, 24), "weight_scale_inv", "bfloat16"), {}),
    "fp8-tensor-static": (
        "F8_E4M3 with one scale a weight; static scales of activations",
        Fp8({"quant_method": "fp8", "activation_scheme": "static"},
            (None, None), "weight_scale", "float32", (), ("input_scale",)),
        {}),
    "fp8-row": (
        "FBGEMM's F8_E4M3 with a scale a row",
        Fp8({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0,
             "modules_to_not_convert": ["lm_head"]},
            (1, None), "weight_scale", "float32"), {}),
    "ct-w4-group-asym": (
        "compressed-tensors pack-quantized 4 bits, group 16, packed zero "
        "points; one module ignored",
        CompressedTensors("pack-quantized", [
            (["Linear"], int_weights(4, "group", group_size=16,
                                     symmetric=False), PACK)],
            ignore=("lm_head", "model.layers.0.self_attn.v_proj")), {}),
    "ct-w4-channel": (
        "compressed-tensors pack-quantized 4 bits, a scale a row; rows end "
        "inside a word",
        CompressedTensors("pack-quantized", [
            (["Linear"], int_weights(4, "channel"), PACK)],
            scale_dtype="float16"), {"intermediate": 42}),
    "ct-w4-actorder": (
        "compressed-tensors pack-quantized 4 bits with weight_g_idx",
        CompressedTensors("pack-quantized", [
            (["Linear"], int_weights(4, "group", group_size=16,
                                     actorder="group"), PACK)],
            actorder=True), {}),
    "ct-w8-packed-asym": (
        "compressed-tensors pack-quantized 8 bits, group 16, packed zero "
        "points", CompressedTensors("pack-quantized", [
            (["Linear"], int_weights(8, "group", group_size=16,
                                     symmetric=False), PACK)]), {}),
    "ct-int8-asym": (
        "compressed-tensors int-quantized, a scale and a zero point a row; "
        "dynamic activations",
        CompressedTensors("int-quantized", [
            (["Linear"], int_weights(8, "channel", symmetric=False), INT)],
            activations={"num_bits": 8, "type": "int", "dynamic": True,
                         "strategy": "token", "symmetric": True}), {}),
    "ct-mixed": (
        "compressed-tensors: MLPs pack-quantized by a pattern, the others "
        "float-quantized in blocks",
        CompressedTensors("mixed-precision", [
            (["re:.*mlp"], int_weights(4, "group", group_size=16), PACK),
            (["Linear"], {**FLOAT8, "strategy": "block",
                          "block_structure": [16, 16]}, FLOAT)]), {}),
    "ct-fp8-tensor": (
        "compressed-tensors float-quantized, one scale a weight",
        CompressedTensors("float-quantized", [
            (["Linear"], {**FLOAT8, "strategy": "tensor"}, FLOAT)],
            scale_dtype="float32"), {}),
    "ct-mxfp4": (
        "compressed-tensors mxfp4-pack-quantized: E2M1 in groups of 32, powers "
        "of two as scales; dynamic activations",
        CompressedTensors("mxfp4-pack-quantized", [
            (["Linear"], {"num_bits": 4, "type": "float", "symmetric": True,
                          "strategy": "group", "group_size": 32,
                          "scale_dtype": "torch.uint8"}, MXFP4)],
            activations={"num_bits": 4, "type": "float", "dynamic": True,
                         "strategy": "group", "group_size": 32,
                         "symmetric": True}), {"intermediate": 64}),
    "llama-mxfp4-gguf": (
        "GGUF's MXFP4 in all linears of the layers, F16 elsewhere",
        GgufBlocks("MXFP4"),
        {"dtype": "float16", "intermediate": 96, "gguf": True}),
    "llama-blocks-gguf": (
        "every other type of GGUF's blocks that can be computed with",
        GgufBlocks([
            {"q_proj": "Q2_K", "k_proj": "Q3_K", "v_proj": "Q4_K",
             "o_proj": "Q5_0", "gate_proj": "Q5_K", "up_proj": "IQ4_XS",
             "down_proj": "Q6_K"},
            {"q_proj": "Q4_K", "k_proj": "Q8_0", "v_proj": "IQ4_NL",
             "o_proj": "Q5_1", "gate_proj": "Q4_0", "up_proj": "Q4_1",
             "down_proj": "Q3_K"}]),
        {"dtype": "float16", "hidden": 256, "head_dim": 32,
         "intermediate": 256, "gguf": True}),
    "onecomp-mixed-wrapped": (
        "OneComp mixed_gptq: 2, 3, 4 and 8 bits from its tables, act-order, "
        "perm, names under model.language_model",
        OneComp(2), {"config": 5, "wrapped": True}),
    "load-nf4": (
        "bf16, quantised to NF4 by the loader: blocks of 64",
        AtLoad("nf4"), {"hidden": 64, "intermediate": 64, "tied": True}),
    "load-int8": (
        "f16, quantised to int8 by the loader: a scale a row",
        AtLoad("int8"), {"dtype": "float16", "tied": True}),
}


def stored_and_meaning(case, codec, weights, rng):
  dtype = getattr(torch, case["dtype"])
  stored, meaning = {}, {}
  for name, weight in weights.items():
    module = name.removesuffix(".weight")
    plain = torch.from_numpy(weight).to(dtype)
    linear = module.endswith("_proj")
    if isinstance(codec, AtLoad):
      stored[name] = plain
      meaning[name] = codec.meaning_of(plain) if linear else plain.float()
      continue
    tensors = codec.quantize(module, weight, rng) if linear else None
    if tensors is None:
      stored[name], meaning[name] = plain, plain.float()
      continue
    stored |= {f"{module}.{part}": t for part, t in tensors.items()}
    meaning[name] = codec.meaning(module, tensors)
  return stored, meaning


def write(name, folder):
  covers, codec, options = CASES[name]
  case = {**SMALL, **options}
  rng = np.random.default_rng(checkpoints.seed_of(name))
  torch.set_num_threads(1)
  folder.mkdir(parents=True, exist_ok=True)
  weights = checkpoints.random_weights(case, rng)
  stored, meaning = stored_and_meaning(case, codec, weights, rng)
  config = checkpoints.config_json(case)
  model = checkpoints.reference_model(config, meaning)
  prompt, tokens, margin = checkpoints.find_prompt(model, case, rng)
  logits = checkpoints.logits_of(model, prompt)
  # What the rounding is worth: nothing that is left out of it may be lost in
  # the tolerance.
  exact = checkpoints.logits_of(
      checkpoints.reference_model(
          config, {n: torch.from_numpy(w) for n, w in weights.items()}), prompt)
  rounding = checkpoints.relative_error(exact, logits)
  assert rounding > 0.005, rounding

  np.save(folder / "logits.npy", logits)
  if case.get("wrapped"):
    stored = {n.replace("model.", "model.language_model.", 1): t
              for n, t in stored.items()}
  if case["gguf"]:
    gguf_file.write(case["family"], config, checkpoints.head_dim_of(case),
                    stored, folder / "model.gguf", codec.raw_dtype)
  else:
    checkpoints.write_tensors(case, stored, folder)
    write_configs(case, codec, config, folder)
  at_load = ({"quantization": codec.name} if isinstance(codec, AtLoad) else {})
  more = {"model": "model.gguf"} if case["gguf"] else {}
  checkpoints.write_json(folder / "expect.json", {
      **at_load, **more, "prompt": prompt, "greedy": tokens,
      "logits": "logits.npy", "rtol": 2e-3, "covers": covers,
      "source": f"transformers {transformers.__version__}, "
                f"torch {torch.__version__.split('+')[0]}, float32 eager",
      "min_greedy_margin": round(margin, 4),
      "error_if": {"weights read unquantised": round(rounding, 4)},
  })
  print(f"{name}: margin {margin:.4f}, rounding {rounding:.4f}")


def write_configs(case, codec, config, folder):
  if codec.config and "quant_method" in codec.config:
    config["quantization_config"] = codec.config
  elif codec.config:
    checkpoints.write_json(folder / "quant_config.json", codec.config)
  checkpoints.write_json(folder / "config.json", config)
  checkpoints.write_json(folder / "generation_config.json",
                         {"bos_token_id": 1, "eos_token_id": case["eos"]})


def write_mxfp4(folder):
  """Experts as gpt-oss stores them, and their weights by transformers."""
  from transformers.integrations.mxfp4 import convert_moe_packed_tensors
  rng = np.random.default_rng(checkpoints.seed_of("mxfp4"))
  folder.mkdir(parents=True, exist_ok=True)
  experts, outputs, inputs = 3, 10, 96
  blocks = torch.from_numpy(rng.integers(
      0, 256, (experts, outputs, inputs // 32, 16), dtype=np.uint8))
  scales = torch.from_numpy(rng.integers(
      118, 130, (experts, outputs, inputs // 32), dtype=np.uint8))
  # It returns [experts, inputs, outputs].
  weights = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
  checkpoints.safetensors.torch.save_file(
      {"experts.up_proj_blocks": blocks, "experts.up_proj_scales": scales,
       "reference": weights.transpose(1, 2).contiguous()},
      folder / "model.safetensors", {"format": "pt"})
  checkpoints.write_json(folder / "config.json", {
      "model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}})
  print(f"mxfp4: {tuple(weights.shape)}")
