"""A checkpoint under GGUF's names, as llama.cpp's converter writes it."""

import re

import gguf
import torch

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm",
    "lm_head": "output", "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def name_of(name):
  module, part = name.rsplit(".", 1)
  layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", module)
  if layer:
    return f"blk.{layer[1]}.{NAMES[layer[2]]}.{part}"
  return f"{NAMES[module]}.{part}"


def interleave_halves(rows, head_dim):
  """The two halves of every head row by row, as llama.cpp rotates them."""
  shape = (rows.shape[0] // head_dim, 2, head_dim // 2, *rows.shape[1:])
  return rows.reshape(shape).swapaxes(1, 2).reshape(rows.shape).copy()


def write(architecture, config, head_dim, tensors, path, type_of=None):
  """`type_of` says what the bytes of a module are blocks of."""
  writer = gguf.GGUFWriter(path, architecture)
  writer.add_context_length(config["max_position_embeddings"])
  writer.add_embedding_length(config["hidden_size"])
  writer.add_block_count(config["num_hidden_layers"])
  writer.add_feed_forward_length(config["intermediate_size"])
  writer.add_head_count(config["num_attention_heads"])
  writer.add_head_count_kv(config["num_key_value_heads"])
  if head_dim * config["num_attention_heads"] != config["hidden_size"]:
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
  writer.add_rope_freq_base(config["rope_theta"])
  writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
  writer.add_eos_token_id(config["eos_token_id"])
  for name, tensor in tensors.items():
    # Vectors are always F32 there.
    values = (tensor if tensor.dim() > 1 else tensor.float()).numpy()
    if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
      values = interleave_halves(values, head_dim)
    is_blocks = tensor.dtype == torch.uint8
    blocks = type_of(name.removesuffix(".weight")) if is_blocks else None
    writer.add_tensor(name_of(name), values, raw_dtype=blocks)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
