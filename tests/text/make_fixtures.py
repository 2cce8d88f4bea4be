#!/usr/bin/env python3
"""Writes fixtures/: small tokenizers of every kind, as NAME.json, and what Hugging Face's tokenizers make of texts with them, as
NAME.expected.json, for tests/layers/tokenizer_test.cpp.

Usage: make_fixtures.py PACKAGES

PACKAGES is a folder with npm's `tokenizers` (compare_tokenizers.py installs it). The two unigram models are trained by Debian's
sentencepiece (python3-sentencepiece and python3-protobuf: run it with /usr/bin/python3), whose table of characters they hold.
"""

import collections
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

from compare_tokenizers import BLANKS, EMOJI, HERE, MARKS, WORDS, Pair, pack, unpack

FIXTURES = HERE / "fixtures"
TEXT = ("the cat sat on the mat and the other cats sat there too. Ten thousand naïve weavers weave the thread, don't they? "
        "über Ångström: 12 345 apples; Привет мир, привет! 中文字符 中文 hello hello world's unhappiness unhappy happiness\n") * 3
SPECIAL = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
PLAIN = {**SPECIAL, "normalized": True, "special": False}


def byte_characters():
    """The alphabet of byte-level tokenizers, by byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def train(words, count, alphabet, join=lambda a, b: a + b):
    """Byte pair encoding by the book: words are lists of symbols. Returns the vocabulary and the merges."""
    counts = collections.Counter(tuple(word) for word in words)
    vocabulary, merges = list(dict.fromkeys(alphabet)), []
    for _ in range(count):
        pairs = collections.Counter()
        for word, times in counts.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += times
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        if join(*best) not in vocabulary:
            vocabulary.append(join(*best))
        merged = collections.Counter()
        for word, times in counts.items():
            symbols, i = [], 0
            while i < len(word):
                if word[i:i + 2] == best:
                    symbols.append(join(*best))
                    i += 2
                else:
                    symbols.append(word[i])
                    i += 1
            merged[tuple(symbols)] += times
        counts = merged
    return vocabulary, merges


def added(first, *tokens):
    return [{"id": first + i, "content": content, **kind} for i, (content, kind) in enumerate(tokens)]


def tokenizer(model, tokens=(), **parts):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(tokens), "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None, **parts, "model": model}


def bpe(vocabulary, merges, **options):
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
            "byte_fallback": False, "ignore_merges": False, **options, "vocab": {token: i for i, token in enumerate(vocabulary)},
            "merges": [list(pair) for pair in merges]}


def template(before, behind=()):
    single = [{"SpecialToken": {"id": name, "type_id": 0}} for name, _ in before] + [{"Sequence": {"id": "A", "type_id": 0}}] + \
             [{"SpecialToken": {"id": name, "type_id": 0}} for name, _ in behind]
    tokens = {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in [*before, *behind]}
    return {"type": "TemplateProcessing", "single": single, "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": tokens}


def sequence(field, *parts):
    return {"type": "Sequence", field: list(parts)}


def split(expression, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": behavior, "invert": invert}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
WORDS_OF_QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_level():
    alphabet = byte_characters()
    words = [[alphabet[byte] for byte in (" " + word).encode()] for word in TEXT.split()]
    vocabulary, merges = train(words, 150, alphabet.values())
    yield "byte_level", tokenizer(
        bpe(vocabulary, merges),
        added(len(vocabulary), ("<|end|>", SPECIAL), ("<s>", SPECIAL), ("MASK", {**PLAIN, "lstrip": True}), ("<right>", {**PLAIN, "rstrip": True}),
              ("alone", {**PLAIN, "single_word": True}), ("A\u030ar", PLAIN), ("two words", {**PLAIN, "lstrip": True, "rstrip": True})),
        normalizer={"type": "NFC"}, pre_tokenizer=sequence("pretokenizers", split(WORDS_OF_QWEN), BYTE_LEVEL),
        post_processor=sequence("processors", BYTE_LEVEL, template([("<s>", len(vocabulary) + 1)], [("<|end|>", len(vocabulary))])),
        decoder=BYTE_LEVEL)
    gpt = bpe(vocabulary, merges, ignore_merges=True)
    gpt["merges"] = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    gpt["vocab"].update({"Ġzebra": len(vocabulary), "<s>": len(vocabulary) + 1, "</s>": len(vocabulary) + 2})
    level = {**BYTE_LEVEL, "add_prefix_space": True, "use_regex": True}
    yield "byte_level_words", tokenizer(
        gpt, added(len(vocabulary) + 1, ("<s>", SPECIAL), ("</s>", SPECIAL)), pre_tokenizer=level, decoder=level,
        post_processor={"type": "RobertaProcessing", "sep": ["</s>", len(vocabulary) + 2], "cls": ["<s>", len(vocabulary) + 1], "trim_offsets": True,
                        "add_prefix_space": True})
    ends = [[*word[:-1], word[-1] + "</w>"] for word in words]
    both = [*alphabet.values(), *(each + "</w>" for each in alphabet.values())]
    vocabulary, merges = train(ends, 120, both)
    yield "byte_level_suffix", tokenizer(
        bpe(vocabulary, merges, end_of_word_suffix="</w>", unk_token="<unk>"), added(len(vocabulary), ("<end>", SPECIAL)),
        normalizer=sequence("normalizers", {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}, {"type": "Lowercase"}),
        pre_tokenizer=sequence("pretokenizers", split(r"<end>|'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", "Removed", True), BYTE_LEVEL),
        decoder={"type": "BPEDecoder", "suffix": "</w>"})


def byte_fallback():
    text = TEXT.replace(" ", "▁").replace("字", "")  # which only its bytes stand for
    alphabet = sorted(set(text))
    vocabulary, merges = train([list("▁" + word) for word in text.strip("▁").split("▁")], 120, alphabet)
    vocabulary = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *vocabulary]
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    options = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    yield "byte_fallback", tokenizer(
        bpe(vocabulary, merges, **options), added(0, ("<unk>", SPECIAL), ("<s>", SPECIAL)) + added(len(vocabulary), ("▁▁", {**PLAIN, "normalized": False}),
                                                                                                   ("\n\n", {**PLAIN, "normalized": False})),
        normalizer=space, pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        post_processor=template([("<s>", 1)]), decoder=sequence("decoders", back, {"type": "ByteFallback"}, {"type": "Fuse"}))
    yield "byte_fallback_prefix", tokenizer(
        bpe(vocabulary, merges, **options), added(0, ("<unk>", SPECIAL), ("<s>", SPECIAL)),
        normalizer=sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, space), post_processor=template([("<s>", 1)]),
        decoder=sequence("decoders", back, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}))
    # Unknown characters without bytes for all of them, not fused; prefixes of what goes on.
    alphabet = sorted({each for word in TEXT.split() for each in (word[0], *("##" + letter for letter in word[1:]))})
    words = [[word[0], *("##" + letter for letter in word[1:])] for word in TEXT.split()]
    vocabulary, merges = train(words, 100, alphabet, lambda a, b: a + b[2:])
    yield "unknown", tokenizer(bpe(["<unk>", *vocabulary, "<0xE4>"], merges, unk_token="<unk>", continuing_subword_prefix="##", byte_fallback=True),
                               added(0, ("<unk>", SPECIAL)), pre_tokenizer={"type": "Whitespace"})


def unigram():
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    for name, options, parts in (
            ("unigram", {}, {
                "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
                "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}}),
            ("unigram_bytes", {"byte_fallback": True}, {
                "normalizer": sequence("normalizers", {"type": "Nmt"}, {"type": "NFKC"}, {"type": "Strip", "strip_left": True, "strip_right": True},
                                       {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}),
                "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
                "decoder": sequence("decoders", {"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"})})):
        with tempfile.TemporaryDirectory() as scratch:
            pathlib.Path(scratch, "text").write_text(TEXT)
            pathlib.Path(scratch, "rules").write_text("\n".join(
                "\t".join(" ".join(f"{ord(each):X}" for each in side) for side in rule)
                for rule in (("ﬁ", "fi"), ("½", "1⁄2"), ("Å", "Å"), ("Å", "Å"), ("é", "é"), ("\u00a0", " "), ("\t", " "), ("…", "..."), ("\u200b", ""))))
            sentencepiece.SentencePieceTrainer.Train(
                input=f"{scratch}/text", model_prefix=f"{scratch}/model", vocab_size=450 if options else 200, hard_vocab_limit=False, minloglevel=2,
                normalization_rule_tsv=f"{scratch}/rules", **options)
            model = sentencepiece_model_pb2.ModelProto()
            model.ParseFromString(pathlib.Path(scratch, "model.model").read_bytes())
        import base64
        table = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
        parts.setdefault("normalizer", {"type": "Precompiled", "precompiled_charsmap": table})
        yield name, tokenizer(
            {"type": "Unigram", "unk_id": 0, "vocab": [[piece.piece, piece.score] for piece in model.pieces], "byte_fallback": bool(options)},
            added(0, ("<unk>", SPECIAL), ("<s>", SPECIAL), ("</s>", SPECIAL)), post_processor=template([], [("</s>", 2)]), **parts)


def word_piece():
    text = TEXT.lower()
    pieces = sorted({word[i:j] if i == 0 else "##" + word[i:j] for word in text.replace("ü", "u").replace("å", "a").split() for i in range(len(word))
                     for j in (i + 1, i + 2, len(word)) if j <= len(word)})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 20,
             "vocab": {token: i for i, token in enumerate(vocabulary)}}
    tokens = added(0, *((token, SPECIAL) for token in vocabulary[:5]))
    yield "word_piece", tokenizer(
        model, tokens, normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        pre_tokenizer={"type": "BertPreTokenizer"}, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        post_processor={"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]})
    yield "word_piece_parts", tokenizer(
        model, tokens, normalizer=sequence("normalizers", {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}),
        pre_tokenizer=sequence("pretokenizers", {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Contiguous"},
                               {"type": "Digits", "individual_digits": True}, split("a", "MergedWithNext"), split("[aeiou]t", "MergedWithPrevious")),
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": False})
    yield "word_piece_lengths", tokenizer(
        model, tokens, normalizer=sequence("normalizers", {"type": "NFD"}, {"type": "Strip", "strip_left": False, "strip_right": True}),
        pre_tokenizer=sequence("pretokenizers", {"type": "CharDelimiterSplit", "delimiter": " "}, {"type": "Digits", "individual_digits": False},
                               split("t", "Contiguous", True), {"type": "FixedLength", "length": 3}),
        decoder={"type": "CTC", "pad_token": "[PAD]", "word_delimiter_token": "e", "cleanup": True})


def texts():
    """What every fixture must cut as the library does."""
    plain = ["", " ", "  ", "a", TEXT[:200], " leading", "trailing ", "  both  ", "the  cat\n\nsat\ton\r\nthe mat", "unhappiness" * 40, "a" * 700, " " * 200,
             "\n" * 100, "zebra zebra", "<s>the cat</s>", "x<|end|>y", "MASK", " MASK ", "a MASK b", "<right>  b", "alone", "alone2", "é alone é", "2alone",
             "Å Å Å", "\u00c5r A\u030ar \u212br", "  two words  ", "<unk><0xE4>[MASK] [CLS]", "▁▁ ▁", "\n\n\n", "ﬁ ½ … \u200b x\u00a0y", "𝒳 字 中字文", "don't DON'T they'LL 'ſ",
             "'s's", "ab" * 100, "12345 6789", "Hello, hello! hello ?", "the\u0301 ca\u0302\u0323t", "İstanbul ẞ ΑΣ", "\ufffd", "\x01\x7f\x80", "한국어 각"]
    return plain + [" ".join(WORDS)] + ["".join(EMOJI)] + ["e" + "".join(MARKS) + "x"] + ["a".join(BLANKS)]


def main():
    packages = pathlib.Path(sys.argv[1]).resolve()
    FIXTURES.mkdir(exist_ok=True)
    for make in (byte_level, byte_fallback, unigram, word_piece):
        for name, data in make():
            with tempfile.TemporaryDirectory() as scratch:
                folder = pathlib.Path(scratch)
                (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False))
                cases = []
                for mode in ("encode", "special"):
                    (folder / "strings").write_bytes(pack([text.encode() for text in texts()]))
                    subprocess.run(["node", HERE / "oracle.mjs", folder / "tokenizer.json", mode, folder / "strings", folder / "results"], check=True,
                                   env={**os.environ, "NODE_HOME": str(packages)})
                    answers = unpack((folder / "results").read_bytes(), (4, 1))
                    for i, text in enumerate(texts()):
                        ids = list(struct.unpack(f"<{len(answers[2 * i]) // 4}I", answers[2 * i]))
                        cases.append({"text": text, "special": mode == "special", "ids": ids, "decoded": answers[2 * i + 1].decode()})
            (FIXTURES / f"{name}.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
            (FIXTURES / f"{name}.expected.json").write_text(json.dumps(cases, ensure_ascii=False, separators=(",", ":")).replace('{"text"', '\n{"text"') + "\n")
            print(name, len(data["model"]["vocab"]), "tokens,", len(cases), "cases")


if __name__ == "__main__":
    main()
