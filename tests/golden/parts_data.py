"""Parts of tokenizers on their own: what each makes of a text."""

import json

import numpy as np
from tokenizers import Tokenizer

from checkpoints import seed_of
from tokenizers_data import CASE_TEXTS, SPLIT_LLAMA3, SPLIT_O200K

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False,
              "trim_offsets": True, "use_regex": False}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
  return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior,
          "invert": invert}


def metaspace(scheme, splits):
  return {"type": "Metaspace", "replacement": "\u2581",
          "prepend_scheme": scheme, "split": splits}


def pre_tokenizers():
  parts = [
      {**BYTE_LEVEL, "add_prefix_space": True, "use_regex": True},
      {"type": "Digits", "individual_digits": True},
      {"type": "Digits", "individual_digits": False},
      {"type": "Whitespace"}, {"type": "WhitespaceSplit"},
      {"type": "CharDelimiterSplit", "delimiter": "e"},
      {"type": "BertPreTokenizer"}, {"type": "FixedLength", "length": 1},
      {"type": "FixedLength", "length": 3},
      split(SPLIT_LLAMA3), split(SPLIT_O200K),
      # BLOOM: a class inside a class.
      split(" ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"),
      # DeepSeek.
      split("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
            "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
            "[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"),
      # Possessive and lazy repeats, look-around, anchors of lines.
      split("'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}|"
            " ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"),
      split("(?<=\\s)\\p{L}+(?!\\S)|(?<!a)b|(?>x+)y?|\\p{^L}{2,3}?|\\P{N}{,2}"),
      split("^.|.$"), split("\\s*"), split("a*?|(?=e)"),
      split("\\p{Han}+", "Contiguous"), split("\\w+"), split("\\W"),
      split("[\\h\\u00e9\\x{430}-\\x{44f}]+"), split("\\D+\\S\\d*"),
      {"type": "Sequence", "pretokenizers": [
          {"type": "Punctuation", "behavior": "Contiguous"},
          {**BYTE_LEVEL, "use_regex": True},
          {"type": "Digits", "individual_digits": False},
          split("[0-9][0-9][0-9]")]},
  ]
  for behavior in ("Removed", "Isolated", "MergedWithPrevious",
                   "MergedWithNext", "Contiguous"):
    for invert in (False, True):
      parts.append(split("\\p{L}|\\s", behavior, invert))
      parts.append(split("e", behavior, invert, "String"))
    parts.append({"type": "Punctuation", "behavior": behavior})
  for scheme in ("always", "first", "never"):
    for splits in (True, False):
      parts.append(metaspace(scheme, splits))
  return parts


def normalizers():
  return [
      {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"},
      {"type": "ByteLevel"}, {"type": "Prepend", "prepend": "\u2581"},
      {"type": "Strip", "strip_left": True, "strip_right": True},
      {"type": "Strip", "strip_left": False, "strip_right": True},
      {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
      {"type": "Replace", "pattern": {"Regex": "\\s{2,}"}, "content": "_"},
      {"type": "Lowercase"}, {"type": "StripAccents"}, {"type": "Nmt"},
      {"type": "Sequence", "normalizers": [
          {"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]},
      bert(True, True, None, True), bert(True, True, None, False),
      bert(False, True, True, False), bert(True, False, False, True),
      {"type": "Sequence", "normalizers": [
          {"type": "NFKC"},
          {"type": "Replace", "pattern": {"String": "the"}, "content": ""},
          {"type": "Prepend", "prepend": "> "}]},
  ]


def bert(clean, chinese, strip, lowercase):
  return {"type": "BertNormalizer", "clean_text": clean,
          "handle_chinese_chars": chinese, "strip_accents": strip,
          "lowercase": lowercase}


def decoders():
  replace = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
  fuse, fallback = {"type": "Fuse"}, {"type": "ByteFallback"}

  def strip(start, stop):
    return {"type": "Strip", "content": " ", "start": start, "stop": stop}

  def sequence(*parts):
    return {"type": "Sequence", "decoders": list(parts)}

  return [
      None, BYTE_LEVEL, fallback, fuse, replace, strip(1, 0),
      metaspace("always", True), metaspace("never", True),
      sequence(replace, fallback, fuse, strip(1, 0)),
      sequence(replace, fallback, fuse), sequence(fallback, BYTE_LEVEL),
      sequence(fuse, replace, strip(2, 0)),
      sequence(fuse, {"type": "Replace", "pattern": {"Regex": "e+"},
                      "content": "E"}),
      sequence(fallback, fuse, metaspace("first", True)),
      sequence(fuse, BYTE_LEVEL), sequence(fuse, fallback),
  ]


DECODER_TOKENS = [
    "a", "the", "\u2581the", "\u2581", "\u2581\u2581", " ", "  x", "ee",
    "\u0120the", "\u010a", "\u00c3", "\u00a9", "\u00e2", "\u0124", "\u00ac",
    "\u00f0", "\u0141", "\u013a", "\u0122", "\u00e9", "\u5185", "<0x0A>",
    "<0xC3>", "<0xA9>", "<0xE2>", "<0x82>", "<0xAC>", "<0xF0>", "<0x9F>",
    "<0x98>", "<0x80>", "<0x4g>", "<0xa9>", "<s>", "",
]


def whole(part, kind):
  data = {"version": "1.0", "truncation": None, "padding": None,
          "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
          "post_processor": None, "decoder": None,
          "model": {"type": "BPE", "dropout": None, "unk_token": None,
                    "continuing_subword_prefix": None,
                    "end_of_word_suffix": None, "fuse_unk": False,
                    "byte_fallback": False, "ignore_merges": False,
                    "vocab": {}, "merges": []}}
  data[kind] = part
  return data


def random_texts(rng, count):
  """Code points of every kind, marks and white space more often."""
  pools = [(0x20, 0x7F), (0x300, 0x370), (0xA0, 0x800), (0x800, 0xD800),
           (0xE000, 0x10000), (0x10000, 0x20000), (0x1100, 0x1200)]
  spaces = [0x20, 0x20, 0x0A, 0x0D, 0x09, 0xA0, 0x180E, 0x2003, 0x3000, 0x85]
  texts = []
  for _ in range(count):
    text = ""
    for _ in range(rng.integers(1, 12)):
      if rng.random() < 0.25:
        text += chr(rng.choice(spaces))
      else:
        text += chr(rng.integers(*pools[rng.integers(len(pools))]))
    texts.append(text)
  return texts


# Letters of every case, marks of every kind, controls.
REWRITTEN_TEXTS = [
    "\u0130STANBUL \u01c5 \u01c4 \u1e9e \u03a3\u03a3 \u00c9COLE \u0410\u0411\u0412",
    "\u10a0\u13a0\uab70\u2c2f\u1c90 \U00010400\U00010427 \ua7cb \u2160\u24b6",
    "A\u030a \u00c5 n\u0303\u00f1 \u0915\u093f\u0902 \u20dd \u0e48\u0e01\u0e31 "
    "\u1dc0\u0488",
    "a\x00b\x08c\x0bd\x0ce\x1ff\x7f\u0080\u008f\u009f\u00ad\u200b\u200e\u2028",
    "\u2060\ue000\ufeff\ufffd\U000f0000 \u3000\u1680\u2581",
    "x\u4e00\u9fff\u3400\uf900\U00020000\U0002b740\U0002f800\u3042\uac00y",
]


def write(kind, folder):
  rng = np.random.default_rng(seed_of(kind))
  texts = CASE_TEXTS + random_texts(rng, 24)
  entries = []
  if kind == "pre_tokenizers":
    for part in pre_tokenizers():
      model = Tokenizer.from_str(json.dumps(whole(part, "pre_tokenizer")))
      entries.append({"part": part, "cases": [
          [text, [p for p, _ in model.pre_tokenizer.pre_tokenize_str(text)]]
          for text in texts[::3]]})
  elif kind == "normalizers":
    for part in normalizers():
      model = Tokenizer.from_str(json.dumps(whole(part, "normalizer")))
      entries.append({"part": part, "cases": [
          [text, model.normalizer.normalize_str(text)]
          for text in texts + REWRITTEN_TEXTS]})
  else:
    for part in decoders():
      model = Tokenizer.from_str(json.dumps(whole(part, "decoder")))
      cases = []
      for _ in range(40):
        tokens = rng.choice(DECODER_TOKENS, rng.integers(0, 9)).tolist()
        text = model.decoder.decode(tokens) if part else " ".join(tokens)
        cases.append([tokens, text])
      entries.append({"part": part, "cases": cases})
  folder.mkdir(parents=True, exist_ok=True)
  lines = ",\n".join(json.dumps(e, separators=(",", ":")) for e in entries)
  (folder / f"{kind}.json").write_text(f"[\n{lines}\n]\n")
  print(f"{kind}: {len(entries)} parts")


KINDS = ("pre_tokenizers", "normalizers", "decoders")
