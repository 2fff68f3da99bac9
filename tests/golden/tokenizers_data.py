"""Small tokenizers, trained on the lines below, with cases."""

import json

import numpy as np
import tokenizers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models,
                        normalizers, pre_tokenizers, processors, trainers)

from checkpoints import seed_of

# Written for this purpose.
TEXT = [
    "A page of memory is free when nobody reads it any more.",
    "The allocator maps two megabytes at a time, and remembers every one.",
    "Streams run in order; events tell when the work before them is over.",
    "We don't know it yet, but they'll find out, and I'm sure you've seen it.",
    "In 1994 there were 7 of them, in 2024 there are 12,345.67 or so.",
    "Der Speicher wächst, die Schlüssel bleiben, und über Nacht ist Ruhe.",
    "Le café est fermé; l'été, la mémoire s'efface où elle peut.",
    "El niño mañana verá las páginas que el año pasado faltaban.",
    "Память освобождается, когда поток закончил работу.",
    "Η μνήμη επιστρέφει στην πηγή, όταν τελειώνει η δουλειά.",
    "内存页在不再使用时归还。每一页都有一个主人。",
    "メモリのページは、使い終わったら返します。",
    "메모리 페이지는 다 쓰면 돌려준다.",
    "स्मृति के पन्ने खाली होते ही लौट आते हैं।",
    "الذاكرة تعود إلى صاحبها عندما ينتهي العمل.",
    "for (int i = 0; i < n; ++i) { total += page[i].size; }\n",
    "def release(page):\n    if page.owner is None:\n        return\n",
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n",
    "the theory of the thing is that the others gather there",
]

CASE_TEXTS = [
    "", " ", "  ", "a", "\n", "\r\n", "\t", "Hello there, world!",
    " leading", "trailing ", "  two  spaces  between  ", "a\n\nb\n \nc\n",
    "tab\tand\t\ttabs", "I'm, you'll, WE'VE, they'D, it's, don't",
    "x'\u017f and y'S", "THE The the tHE", "camelCaseWords and SHOUTING_words",
    "0 12 345 6789 1234567 3.14 1,000,000", "\u0663\u0664 \u00bd \u2167 \u00b2",
    "caf\u00e9 and cafe\u0301", "e\u0323\u0301 and e\u0301\u0323",
    "\u1100\u1161\u11a8 \uac01", "\u212b \u2126 \u0958",
    "Gr\u00fc\u00dfe aus K\u00f6ln", "\u041f\u0440\u0438\u0432\u0435\u0442, "
    "\u043c\u0438\u0440", "\u5185\u5b58\u9875\u5f52\u8fd8\u3002",
    "\u30e1\u30e2\u30ea\u306e\u30da\u30fc\u30b8",
    "\uba54\ubaa8\ub9ac \ud398\uc774\uc9c0",
    "\u0938\u094d\u092e\u0943\u0924\u093f", "\u0627\u0644\u0630\u0627\u0643",
    "\U0001f600\U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u00a0\u2003\u3000wide",
    "zero\u200bwidth\u200djoin\ufeff", "\u180e \u0085 \u2028\u2029",
    "for (int i = 0; i < n; ++i) {\n\treturn;\n}\n",
    "def f(x):\n    return x ** 2  # squared\n", "a/b\\c|d~e`f^g",
    "!!!???...---", "\u201cquotes\u201d \u2018and\u2019 \u2014 dashes\u2026",
    "http://example.org/path?q=1&r=%20#frag", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    " " * 40 + "x", "\n" * 20, "\u2ebf0 \U0002ebf0 \U000105c0 \u1c89",
    "\x00\x01\x7f", "\U0010ffff\uffff", "mixed \u0434\u0430 \u662f ja\u00a0so",
    "the theory of the others",
]

SPLIT_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPLIT_QWEN2 = SPLIT_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SPLIT_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_level(special, pre_tokenizer, normalizer=None, vocab=420, bos=None,
               ignore_merges=False, legacy_merges=False):
  tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
  if normalizer:
    tokenizer.normalizer = normalizer
  tokenizer.pre_tokenizer = pre_tokenizer
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(
      vocab_size=vocab, special_tokens=special, show_progress=False,
      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
  tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
  if bos:
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False), bos_template(tokenizer, bos)])
  return tokenizer, legacy_merges


def bos_template(tokenizer, bos):
  return processors.TemplateProcessing(
      single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1",
      special_tokens=[(bos, tokenizer.token_to_id(bos))])


def split(pattern):
  return pre_tokenizers.Sequence([
      pre_tokenizers.Split(Regex(pattern), "isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2():
  return byte_level(["<|endoftext|>"],
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                    legacy_merges=True)


def digits():
  return byte_level(
      ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
      pre_tokenizers.Sequence([
          pre_tokenizers.Digits(individual_digits=True),
          pre_tokenizers.ByteLevel(add_prefix_space=False)]),
      legacy_merges=True)


def llama3():
  tokenizer, legacy = byte_level(
      ["<|begin|>", "<|end|>"], split(SPLIT_LLAMA3), bos="<|begin|>",
      ignore_merges=True)
  # A word that merges cannot make: found whole, or not at all.
  data = json.loads(tokenizer.to_str())
  data["model"]["vocab"]["\u0120Speicher\u0120"] = 420
  data["model"]["vocab"]["others"] = 421
  return Tokenizer.from_str(json.dumps(data)), legacy


def qwen2():
  return byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
                    split(SPLIT_QWEN2), normalizer=normalizers.NFC(),
                    legacy_merges=True)


def o200k():
  return byte_level(["<|start|>", "<|end|>"], split(SPLIT_O200K))


def added():
  tokenizer, legacy = byte_level(
      ["<|endoftext|>"], pre_tokenizers.ByteLevel(add_prefix_space=False),
      normalizer=normalizers.NFC())
  tokenizer.add_special_tokens([
      AddedToken("<left>", lstrip=True, normalized=False),
      AddedToken("<right>", rstrip=True, normalized=False)])
  tokenizer.add_tokens([
      AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
      AddedToken("page", single_word=True, normalized=False),
      AddedToken("ma\u00f1ana", normalized=True),
      AddedToken("   ", normalized=False),
      AddedToken("      ", normalized=False)])
  return tokenizer, legacy


def sentencepiece(prepend):
  special = ["<unk>", "<s>", "</s>"]
  octets = [f"<0x{b:02X}>" for b in range(256)]
  tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True,
                                   byte_fallback=True))
  tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
      prepend_scheme="first" if prepend else "never", split=True)
  tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(
      vocab_size=600, special_tokens=special + octets, show_progress=False))
  # Bytes were special for their place in the vocabulary only.
  data = json.loads(tokenizer.to_str())
  data["added_tokens"] = data["added_tokens"][:len(special)]
  tokenizer = Tokenizer.from_str(json.dumps(data))
  tokenizer.post_processor = bos_template(tokenizer, "<s>")
  back = [decoders.Replace("\u2581", " "), decoders.ByteFallback(),
          decoders.Fuse()]
  if prepend:
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        prepend_scheme="first", split=False)
    back.append(decoders.Strip(" ", 1, 0))
  else:
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
  tokenizer.decoder = decoders.Sequence(back)
  return tokenizer, False


TOKENIZERS = {
    "gpt2": gpt2, "digits": digits, "llama3": llama3, "qwen2": qwen2,
    "o200k": o200k, "added": added,
    "spm-prepend": lambda: sentencepiece(True),
    "spm-plain": lambda: sentencepiece(False),
}


def added_token_texts(tokenizer):
  texts = []
  for token in tokenizer.get_added_tokens_decoder().values():
    content = token.content
    texts += [content, f"x{content}y", f" {content}  {content} ",
              f"a {content}\n b", content[:-1], content + content]
  return texts


def make_cases(tokenizer, name):
  cases = []
  for text in CASE_TEXTS + TEXT + added_token_texts(tokenizer):
    ids = tokenizer.encode(text).ids
    cases.append({"text": text, "ids": ids})
  # Characters cut in their bytes, and ids in orders that no encoder writes.
  rng = np.random.default_rng(seed_of(name))
  vocabulary = sorted(tokenizer.get_vocab().values())
  tail = tokenizer.encode("\U0001f600\u5185\u00e9", add_special_tokens=False).ids
  for cut in range(1, len(tail)):
    cases.append({"text": None, "ids": tail[cut:]})
    cases.append({"text": None, "ids": tail[:cut] + tail[:1]})
  for length in (1, 2, 3, 5, 8, 13, 21):
    for _ in range(3):
      cases.append({"text": None,
                    "ids": rng.choice(vocabulary, length).tolist()})
  for case in cases:
    case["decoded"] = tokenizer.decode(case["ids"], skip_special_tokens=False)
  return cases


def write(name, folder):
  assert tokenizers.__version__ == "0.23.3", tokenizers.__version__
  tokenizer, legacy_merges = TOKENIZERS[name]()
  folder.mkdir(parents=True, exist_ok=True)
  cases = make_cases(tokenizer, name)
  data = json.loads(tokenizer.to_str())
  if legacy_merges:
    data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]
  (folder / "tokenizer.json").write_text(
      json.dumps(data, ensure_ascii=False, indent=None,
                 separators=(",", ":")) + "\n")
  specials = [t.content for t in tokenizer.get_added_tokens_decoder().values()
              if t.special]
  (folder / "tokenizer_config.json").write_text(json.dumps({
      "tokenizer_class": "PreTrainedTokenizerFast",
      "eos_token": specials[-1], "clean_up_tokenization_spaces": False,
  }, indent=1) + "\n")
  lines = ",\n".join(json.dumps(c, ensure_ascii=True) for c in cases)
  (folder / "cases.json").write_text(f"[\n{lines}\n]\n")
  print(f"{name}: {tokenizer.get_vocab_size()} tokens, {len(cases)} cases")
