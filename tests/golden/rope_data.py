"""Rotary frequencies and magnitudes, as transformers computes them."""

import json

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

# Fields of config.json beside the shape: (head size, fields).
CASES = [
    (128, {"rope_theta": 1e6, "max_position_embeddings": 32768,
           "rope_scaling": {"type": "yarn", "factor": 4.0,
                            "original_max_position_embeddings": 32768}}),
    (128, {"max_position_embeddings": 131072, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 32.0,
        "original_max_position_embeddings": 4096}}),
    (64, {"max_position_embeddings": 131072, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0,
        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096}}),
    (64, {"max_position_embeddings": 163840, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 40, "beta_fast": 32,
        "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096}}),
    (64, {"max_position_embeddings": 163840, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 40, "mscale": 0.707,
        "mscale_all_dim": 1.3, "original_max_position_embeddings": 4096}}),
    # Only one of the two counts for nothing; 0 is none.
    (64, {"max_position_embeddings": 8192, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "mscale": 0.5,
        "mscale_all_dim": 0, "beta_fast": 0,
        "original_max_position_embeddings": 1024}}),
    (96, {"max_position_embeddings": 8192, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0,
        "attention_factor": 0.75, "beta_fast": 4, "beta_slow": 4,
        "original_max_position_embeddings": 1024}}),
    # The length trained with, where it is not said; and a factor of the lengths.
    (32, {"max_position_embeddings": 2048, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}),
    (32, {"max_position_embeddings": 2048, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": None,
        "original_max_position_embeddings": 256}}),
    (32, {"max_position_embeddings": 2048,
          "original_max_position_embeddings": 512, "rope_parameters": {
              "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}),
    # A magnitude of 1: the context is not lengthened.
    (32, {"max_position_embeddings": 2048, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 0.5}}),
    (64, {"rope_theta": 1e4, "max_position_embeddings": 4096,
          "rope_scaling": {"type": "dynamic", "factor": 8.0}}),
    (64, {"rope_theta": 1e4, "max_position_embeddings": 4096,
          "rope_scaling": {"type": "linear", "factor": 8.0}}),
    (128, {"max_position_embeddings": 131072, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}}),
]


def write(folder):
  entries = []
  for head_dim, fields in CASES:
    shape = {"model_type": "llama", "hidden_size": 2 * head_dim,
             "num_attention_heads": 2, "head_dim": head_dim, "vocab_size": 8,
             "intermediate_size": 64, "num_hidden_layers": 1}
    # The parsing fills in what is absent, in place.
    config = LlamaConfig.from_dict(json.loads(json.dumps({**shape, **fields})))
    compute = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]]
    frequencies, magnitude = compute(config)
    entries.append({"config": {**shape, **fields}, "magnitude": magnitude,
                    "frequencies": frequencies.tolist()})
  lines = ",\n".join(json.dumps(e, separators=(",", ":")) for e in entries)
  (folder / "rope.json").write_text(f"[\n{lines}\n]\n")
  print(f"rope: {len(entries)} configurations")
