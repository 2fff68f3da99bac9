"""GPTQ's format, written naively: bit strings, no shifts and masks.

Rounding to nearest per group; no GPTQ solver, since only the format matters.
"""

import numpy as np


def pack(codes, bits):
  """Packs `codes` [n, m] along axis 0 into int32 [ceil(n * bits / 32), m].

  A column is one string of bits, code i at bit i * bits, lowest bit first, cut
  into words.
  """
  n, m = codes.shape
  string = (codes[:, None, :] >> np.arange(bits)[None, :, None]) & 1
  string = string.reshape(n * bits, m).astype(np.uint8)
  padding = -string.shape[0] % 32
  string = np.concatenate([string, np.zeros((padding, m), np.uint8)])
  octets = np.packbits(string, axis=0, bitorder="little")
  words = octets.T.copy().view("<i4")
  return words.T.copy()


def unpack(words, bits, n):
  """The opposite: codes [n, m]."""
  octets = words.T.copy().view(np.uint8).T
  string = np.unpackbits(octets, axis=0, bitorder="little")[:n * bits]
  string = string.reshape(n, bits, words.shape[1]).astype(np.int64)
  return (string << np.arange(bits)[None, :, None]).sum(axis=1)


# GPTQModel's planar layout, gptq_p (its docs/gptq_planar.md): 32 codes are cut
# into planes, these widths from the lowest bit up, and each plane is packed by
# itself.
PLANES = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1),
          8: (8,)}


def pack_planar(codes, bits):
  """The same sizes as of pack; n is a multiple of 32."""
  words = []
  for block in codes.reshape(-1, 32, codes.shape[1]):
    for width in PLANES[bits]:
      words.append(pack(block & (2**width - 1), width))
      block = block >> width
  return np.concatenate(words)


def unpack_planar(words, bits, n):
  blocks = []
  for block in words.reshape(n // 32, bits, words.shape[1]):
    codes, offset = 0, 0
    for width in PLANES[bits]:
      plane = np.ascontiguousarray(block[offset:offset + width])
      codes = codes + (unpack(plane, width, 32) << offset)
      offset += width
    blocks.append(codes)
  return np.concatenate(blocks)


def quantize(weight, bits, group_size, symmetric, act_order, rng):
  """`weight` [out, in] to codes [in, out], zeros [groups, out], scales in
  float16 [groups, out] and the group of every row."""
  w = weight.T.astype(np.float64)
  rows, columns = w.shape
  size = rows if group_size == -1 else group_size
  order = rng.permutation(rows) if act_order else np.arange(rows)
  group_of_row = np.empty(rows, np.int32)
  group_of_row[order] = np.arange(rows) // size
  top = 2**bits - 1
  groups = -(-rows // size)
  codes = np.empty((rows, columns), np.int64)
  zeros = np.empty((groups, columns), np.int64)
  scales = np.empty((groups, columns), np.float16)
  for g in range(groups):
    part = w[group_of_row == g]
    if symmetric:
      scale = np.abs(part).max(axis=0) * 2 / top
      zero = np.full(columns, 2**(bits - 1))
    else:
      low = np.minimum(part.min(axis=0), 0)
      scale = (np.maximum(part.max(axis=0), 0) - low) / top
      # v1 stores zero - 1, and old writers do not mask the -1 of a zero.
      zero = np.clip(np.round(-low / scale), 1, top).astype(np.int64)
    scales[g] = scale.astype(np.float16)
    zeros[g] = zero
    codes[group_of_row == g] = np.clip(
        np.round(part / scales[g].astype(np.float64)) + zero, 0, top)
  return codes, zeros, scales, group_of_row


def dequantize(tensors, bits, group_size, stored_minus_one, planar=False):
  """[out, in] in float32, from the tensors of one module and nothing else."""
  scales = tensors["scales"].astype(np.float32)
  groups, columns = scales.shape
  rows = tensors["rows"]
  unpack_codes = unpack_planar if planar else unpack
  codes = unpack_codes(tensors["qweight"], bits, rows)
  zeros = unpack_codes(np.ascontiguousarray(tensors["qzeros"].T), bits,
                       columns).T
  if stored_minus_one:
    zeros = (zeros + 1) % 2**bits
  group_of_row = tensors.get("g_idx")
  if group_of_row is None:
    group_of_row = np.arange(rows) // (rows if group_size == -1 else group_size)
  assert group_of_row.max() < groups
  w = scales[group_of_row] * (codes - zeros[group_of_row]).astype(np.float32)
  return np.ascontiguousarray(w.T)


def quantize_module(weight, bits, group_size, symmetric, act_order, with_g_idx,
                    stored_minus_one, rng, planar=False):
  """The tensors of one module. "rows" is no tensor: the count that the shape
  of qweight may leave open."""
  codes, zeros, scales, group_of_row = quantize(weight, bits, group_size,
                                                symmetric, act_order, rng)
  stored = zeros - 1 if stored_minus_one else zeros
  pack_codes = pack_planar if planar else pack
  tensors = {
      "qweight": pack_codes(codes, bits),
      "qzeros": pack_codes(stored.T, bits).T.copy(),
      "scales": scales,
      "rows": codes.shape[0],
  }
  if with_g_idx:
    tensors["g_idx"] = group_of_row
  return tensors
