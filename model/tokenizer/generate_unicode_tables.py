#!/usr/bin/env python3
"""Writes unicode_tables.cc: where `tokenizers` and the system's Unicode differ.

`tokenizers` carries the Unicode data of five libraries of different age:
Oniguruma (Split, Replace, ByteLevel), Rust's std (Digits, Lowercase), `regex`
(Whitespace, single_word), `unicode_categories` (Punctuation, BertNormalizer)
and `unicode-normalization-alignments` (NFC and its kin, StripAccents). PCRE2 and utf8proc have
whatever the distribution ships. Every table here is found by asking
`tokenizers` about every code point, and holds only what differs.

    pip install tokenizers==0.23.3 regex
    python3 generate_unicode_tables.py > unicode_tables.cc && \
        clang-format -i unicode_tables.cc

Run it with Python 3.11, whose `unicodedata` has Unicode 14, the oldest version
that any supported PCRE2 or utf8proc has; `regex` stands for the newest.
"""

import sys
import unicodedata

import regex
import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk "
              "So Zs Zl Zp Cc Cf Co Cn").split()
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
ASCII_PUNCTUATION = set(b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def oniguruma_set(pattern):
  split = pre_tokenizers.Split(Regex(pattern), "removed")
  return {c for c in CODE_POINTS if not split.pre_tokenize_str(chr(c))}


def ranges(code_points):
  result = []
  for c in sorted(code_points):
    if result and result[-1][1] == c - 1:
      result[-1][1] = c
    else:
      result.append([c, c])
  return result


def utf8_length(c):
  return len(chr(c).encode())


def substitutions(wanted, han):
  """(first, last, substitute): same length in UTF-8, the wanted category in
  every Unicode version, and in the script Han exactly where `han` says so."""
  newest = {}
  for name in CATEGORIES:
    matcher = regex.compile(r"\p{gc=%s}" % name)
    newest.update((c, name) for c in CODE_POINTS if matcher.match(chr(c)))
  oldest = {c: unicodedata.category(chr(c)) for c in CODE_POINTS}
  is_han = regex.compile(r"\p{sc=Han}")
  newest_han = {c for c in CODE_POINTS if is_han.match(chr(c))}

  def stable(c):
    return (oldest[c] == wanted[c] == newest[c] and
            (c in han) == (c in newest_han))

  chosen = {}
  for c in CODE_POINTS:
    # Noncharacters are the code points that stay unassigned; there are none
    # in two bytes, where the first unassigned one must do.
    is_nonchar = c & 0xFFFE == 0xFFFE or 0xFDD0 <= c <= 0xFDEF
    if wanted[c] == "Cn" and not is_nonchar and utf8_length(c) > 2:
      continue
    if stable(c):
      chosen.setdefault((utf8_length(c), wanted[c], c in han), c)

  result = []
  for c in CODE_POINTS:
    if stable(c):
      continue
    to = chosen[(utf8_length(c), wanted[c], c in han)]
    if result and result[-1][1] == c - 1 and result[-1][2] == to:
      result[-1][1] = c
    else:
      result.append([c, c, to])
  return result


def inert_in_normalization():
  """What the normalizers of `tokenizers` leave alone and Unicode 14 does not:
  decompositions, combining classes and compositions they do not know."""
  forms = ("NFC", "NFD", "NFKC", "NFKD")
  theirs = {name: getattr(normalizers, name)() for name in forms}

  def differs(name, text):
    return (theirs[name].normalize_str(text) !=
            unicodedata.normalize(name, text))

  result = set()
  for c in CODE_POINTS:
    s = chr(c)
    contexts = ("a" + s + "\u0323", "a\u0301" + s, "a\u0345" + s + "b",
                "a\u0334" + s + "\u0301\u0334")
    if (any(differs(name, s) for name in forms) or
        any(differs("NFD", text) for text in contexts)):
      result.add(c)
  return result


def removed_by(normalizer):
  return {c for c in CODE_POINTS if not normalizer.normalize_str(chr(c))}


def lowercase():
  """(first, last, step, delta) of all that changes: lower case is delta away.
  One code point becomes two, and is left to the code."""
  lower = normalizers.Lowercase()
  result = []
  for c in CODE_POINTS:
    to = lower.normalize_str(chr(c))
    if to == chr(c):
      continue
    if len(to) != 1:
      assert (c, to) == (0x130, "i\u0307")
      continue
    delta = ord(to) - c
    last = result[-1] if result else None
    step = c - last[1] if last else 0
    if last and last[3] == delta and (step == last[2] or
                                      last[0] == last[1] and step <= 2):
      last[1:3] = c, step
    else:
      result.append([c, c, 1, delta])
  return result


def emit_difference(comment, names, theirs, category):
  """Two tables: what of the category they do not know, and they alone."""
  emit(f"{comment} that they do not know.", names[0], "CodePointRange",
       ranges(category - theirs))
  emit(f"{comment} to them alone.", names[1], "CodePointRange",
       ranges(theirs - category))


def emit_normalizers(wanted):
  def of(*names):
    return {c for c in CODE_POINTS if wanted[c] in names}

  emit_difference("Marks of StripAccents:", ("kUnknownMarks", "kFurtherMarks"),
                  removed_by(normalizers.StripAccents()), of("Mn", "Mc", "Me"))
  emit_difference(
      "Nonspacing marks of BertNormalizer:",
      ("kUnknownNonspacingMarks", "kFurtherNonspacingMarks"),
      removed_by(normalizers.BertNormalizer(
          clean_text=False, handle_chinese_chars=False, strip_accents=True,
          lowercase=False)), of("Mn"))
  emit_difference(
      "Controls of BertNormalizer, which keeps tabs and ends of lines:",
      ("kUnknownControls", "kFurtherControls"),
      removed_by(normalizers.BertNormalizer(
          clean_text=True, handle_chinese_chars=False, strip_accents=False,
          lowercase=False)), of("Cc", "Cf", "Co") - {0x09, 0x0A, 0x0D})
  emit("Upper case, and how far away lower case is.", "kUpperCase",
       "CaseRange", lowercase())


def emit(comment, name, kind, rows):
  print(f"// {comment}")
  print(f"constexpr {kind} {name}Table[] = {{")
  for row in rows:
    print("{" + ", ".join(str(c) if c < 0 else f"0x{c:04X}" for c in row) +
          "},")
  print(f"}};\nconst std::span<const {kind}> {name}({name}Table);\n")


def main():
  if tokenizers.__version__ != "0.23.3" or unicodedata.unidata_version[:2] != "14":
    sys.exit("needs tokenizers 0.23.3 and Python 3.11 (Unicode 14)")
  wanted = {}
  for name in CATEGORIES:
    wanted.update((c, name) for c in oniguruma_set(r"\p{%s}" % name))
  number = {c for c in CODE_POINTS if wanted[c][0] == "N"}
  punctuation = {c for c in CODE_POINTS if wanted[c][0] == "P"}

  digits = pre_tokenizers.Digits(True)
  their_numbers = {c for c in CODE_POINTS
                   if len(digits.pre_tokenize_str(chr(c) * 2)) == 2}
  assert not number - their_numbers
  splitter = pre_tokenizers.Punctuation("removed")
  their_punctuation = {c for c in CODE_POINTS
                       if not splitter.pre_tokenize_str(chr(c))}

  print("// Generated by generate_unicode_tables.py from tokenizers 0.23.3.\n")
  print('#include "model/tokenizer/unicode_tables.h"\n')
  print("namespace quire {\n")
  emit("Code points whose category depends on the version of Unicode.",
       "kCategorySubstitutions", "CodePointSubstitution",
       substitutions(wanted, oniguruma_set(r"\p{Han}")))
  emit("Numbers to Rust's std that are none to Oniguruma.", "kLaterNumbers",
       "CodePointRange", ranges(their_numbers - number))
  emit("Punctuation that `unicode_categories` does not know.",
       "kUnknownPunctuation", "CodePointRange",
       ranges(punctuation - their_punctuation))
  emit("Punctuation to `unicode_categories` alone.", "kFormerPunctuation",
       "CodePointRange",
       ranges(their_punctuation - punctuation - ASCII_PUNCTUATION))
  emit("Unknown to the normalizers of `tokenizers`.",
       "kUnknownToNormalization", "CodePointRange",
       ranges(inert_in_normalization()))
  emit_normalizers(wanted)
  print("}  // namespace quire")


if __name__ == "__main__":
  main()
