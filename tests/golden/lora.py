"""LoRA adapters as PEFT saves them, with random weights."""

import warnings

import peft
import safetensors.torch
import torch


def attach(model, options, dtype, rng):
  """PEFT's model around `model`. Everything that training would have moved is
  moved, and rounded to `dtype`."""
  config = peft.LoraConfig(task_type="CAUSAL_LM", inference_mode=True,
                           lora_dropout=0.0, **options)
  wrapped = peft.get_peft_model(model, config).eval()
  scale = options["lora_alpha"] / options["r"]
  for name, parameter in sorted(wrapped.named_parameters()):
    noise = torch.from_numpy(
        rng.standard_normal(tuple(parameter.shape)).astype("float32"))
    if ".lora_embedding_A." in name:
      value = noise
    elif ".lora_A." in name:
      value = noise / parameter.shape[1]**0.5
    elif ".lora_B." in name and name.endswith(".bias"):
      value = 0.3 * noise / scale
    elif ".lora_B." in name or ".lora_embedding_B." in name:
      value = noise / (scale * parameter.shape[1]**0.5)
    elif ".modules_to_save." in name:
      value = parameter.data + 0.5 * parameter.data.std() * noise
    elif name.endswith(".bias") and options.get("bias", "none") != "none":
      value = parameter.data + 0.3 * noise
    else:
      continue
    parameter.data = value.to(dtype).float()
  return wrapped


def save(wrapped, dtype, folder):
  folder.mkdir(exist_ok=True)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    tensors = peft.get_peft_model_state_dict(wrapped)
  safetensors.torch.save_file(
      {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()},
      folder / "adapter_model.safetensors", {"format": "pt"})
  config = wrapped.peft_config["default"]
  config.base_model_name_or_path = "base"
  # Sets are written in the order of their hashes, which changes.
  for field in ("target_modules", "exclude_modules"):
    value = getattr(config, field)
    if isinstance(value, set):
      setattr(config, field, sorted(value))
  config.save_pretrained(folder)


def unscaled(wrapped):
  """The same with every product taken as it is."""
  for module in wrapped.modules():
    if isinstance(getattr(module, "scaling", None), dict):
      module.scaling = {name: 1.0 for name in module.scaling}
  return wrapped
