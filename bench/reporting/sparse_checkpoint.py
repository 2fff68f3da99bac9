"""Checkpoints of any size that take no disk: headers, and files with holes.

A planner reads shapes and not weights. The tensors here have the names, shapes
and types of a real Llama checkpoint, plain or GPTQ at 8 bits; their bytes are
zeros that are stored nowhere.
"""

import dataclasses
import json
import math
import pathlib
import struct

_SIZES = {"F16": 2, "I32": 4}


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of a Llama."""
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    positions: int

    @property
    def kv_token(self):
        """Bytes of keys and values of one token, at 16 bits."""
        return (2 * self.layers * self.kv_heads
                * (self.hidden // self.heads) * 2)


# Llama 2 13B, as its config.json has it.
LLAMA_13B = Shape(5120, 13824, 40, 40, 40, 32000, 4096)


def _matrices(shape):
    """(name, inputs, outputs) of the linear layers of one block."""
    head = shape.hidden // shape.heads
    return (("self_attn.q_proj", shape.hidden, shape.hidden),
            ("self_attn.k_proj", shape.hidden, shape.kv_heads * head),
            ("self_attn.v_proj", shape.hidden, shape.kv_heads * head),
            ("self_attn.o_proj", shape.hidden, shape.hidden),
            ("mlp.gate_proj", shape.hidden, shape.intermediate),
            ("mlp.up_proj", shape.hidden, shape.intermediate),
            ("mlp.down_proj", shape.intermediate, shape.hidden))


def _linear(name, inputs, outputs, group):
    """Tensors of one linear layer; `group` 0: plain, else GPTQ at 8 bits."""
    if group == 0:
        return [(f"{name}.weight", "F16", [outputs, inputs])]
    groups = -(-inputs // group)
    return [(f"{name}.qweight", "I32", [inputs // 4, outputs]),
            (f"{name}.qzeros", "I32", [groups, outputs // 4]),
            (f"{name}.scales", "F16", [groups, outputs]),
            (f"{name}.g_idx", "I32", [inputs])]


def tensors(shape, group=0):
    """(name, type, shape) of all tensors."""
    result = [("model.embed_tokens.weight", "F16",
               [shape.vocabulary, shape.hidden])]
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            result.append((f"{prefix}.{norm}.weight", "F16", [shape.hidden]))
        for name, inputs, outputs in _matrices(shape):
            result += _linear(f"{prefix}.{name}", inputs, outputs, group)
    result.append(("model.norm.weight", "F16", [shape.hidden]))
    result.append(("lm_head.weight", "F16", [shape.vocabulary, shape.hidden]))
    return result


def tensor_sizes(shape, group=0):
    """(name, bytes) of all tensors."""
    return [(name, math.prod(extent, start=_SIZES[kind]))
            for name, kind, extent in tensors(shape, group)]


def layer_of(name):
    """The number in "model.layers.3.mlp..."; None for what is no layer's."""
    parts = name.split(".")
    return int(parts[2]) if parts[:2] == ["model", "layers"] else None


def write(folder, shape, group=0):
    """A folder that `quire plan` reads. `group` as for tensors()."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    header, offset = {}, 0
    for name, kind, extent in tensors(shape, group):
        size = math.prod(extent, start=_SIZES[kind])
        header[name] = {"dtype": kind, "shape": extent,
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_act": "silu", "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": shape.positions, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "vocab_size": shape.vocabulary,
        "torch_dtype": "float16"}
    if group:
        config["quantization_config"] = {
            "quant_method": "gptq", "bits": 8, "group_size": group,
            "desc_act": False, "sym": True, "checkpoint_format": "gptq"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return offset
