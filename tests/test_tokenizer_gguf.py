"""Tokenizers rebuilt from GGUF metadata give the ids of the tokenizers they came from."""

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import metadata_of, write_gguf
from shared_files import shared
from test_gguf import SIZES
from tokenizers import Tokenizer

from anemone.checkpoint import open_checkpoint
from anemone.checkpoint.gguf_tokenizer import rebuild_tokenizer
from anemone.errors import CheckpointError, UnsupportedModel

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
NASTY = [
    "",
    " ",
    "   leading and trailing   ",
    "a  b   c    d\t\te\n\n\nf\r\n g \n h",
    "Hello <|im_start|>user\nhi<|im_end|> there<|endoftext|>",
    "<s>x</s> <unk> <|begin_of_text|><|eot_id|> <think>y</think> <tool_call>",
    "🙂🙃👩‍👩‍👧‍👦🇫🇷 ❤️ é e\u0301 ½ ﬁ \uff21",
    "日本語のテキスト、中文文本。한국어 العربية עברית ไทย",
    "1234567890 3.14159 1,000,000 ٣٤٥ ²³ Ⅷ",
    "I'm you're we'll THEY'VE it's 'tis don'T",
    "def f(x):\n    return {'a': [x**2, \"b\"]}  # done\n",
    "\x00\x01\x7f \u200b\u00a0\u3000\ufeff�",
    "▁ literal ▁▁ marks",
]


def metadata_from(tokenizer: dict[str, Any], pre: str, **extra: Any) -> dict[str, Any]:
    """The metadata llama.cpp's converter writes for a byte-level BPE tokenizer.json."""
    texts = {number: text for text, number in tokenizer["model"]["vocab"].items()}
    kinds = dict.fromkeys(texts, NORMAL)
    for token in tokenizer["added_tokens"]:
        texts[token["id"]] = token["content"]
        kinds[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    size = max(texts) + 3  # two rows of padding, as in checkpoints with a rounded-up vocabulary
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [texts.get(number, f"[PAD{number}]") for number in range(size)],
        "tokenizer.ggml.token_type": [kinds.get(number, UNUSED) for number in range(size)],
        "tokenizer.ggml.merges": merges,
    } | extra


def scored_metadata(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """The same for a SentencePiece vocabulary: scores fall with the rank of a piece's first merge, no merges kept."""
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(tokenizer["model"]["merges"]):
        ranks.setdefault(left + right, rank)
    special = {token["content"] for token in tokenizer["added_tokens"]}

    def kind(text: str) -> int:
        if text == tokenizer["model"]["unk_token"]:
            return UNKNOWN
        if text in special:
            return CONTROL
        return BYTE if text.startswith("<0x") else NORMAL

    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [text for text, _ in vocabulary],
        "tokenizer.ggml.token_type": [kind(text) for text, _ in vocabulary],
        "tokenizer.ggml.scores": [-float(ranks.get(text, 1000)) for text, _ in vocabulary],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def rebuilt(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(rebuild_tokenizer(metadata, 512)["tokenizer.json"].decode())


def mixtures(count: int) -> list[str]:
    """Random concatenations of awkward pieces."""
    pieces = [
        " ",
        "  ",
        "\n",
        "\t",
        "a",
        "The",
        "ing",
        "12",
        "é",
        "日本",
        "🙂",
        "'s",
        ".",
        "...",
        "-",
        "▁",
        "\r\n",
        "  x",
    ]
    choose = random.Random(0)
    return ["".join(choose.choices(pieces, k=choose.randint(1, 12))) for _ in range(count)]


def assert_same_ids(ours: Tokenizer, theirs: Any, texts: list[str]) -> None:
    for text in texts:
        expected = theirs.encode(text)
        assert ours.encode(text).ids == (expected if isinstance(expected, list) else expected.ids), repr(text[:80])


def wikitext(characters: int | None = None) -> str:
    return shared("data/wikitext2-test.txt").read_text()[:characters]


@pytest.mark.parametrize(
    ("name", "pre", "bos"),
    [("smollm2-135m-instruct", "smollm", None), ("llama-3.1", "llama-bpe", 128000), ("qwen3", "qwen2", None)],
)
def test_byte_level_ids(name, pre, bos):
    transformers = pytest.importorskip("transformers")
    folder = shared(f"models/tokenizers/{name}")
    extra = {} if bos is None else {"tokenizer.ggml.bos_token_id": bos}
    metadata = metadata_from(json.loads((folder / "tokenizer.json").read_text()), pre, **extra)
    # The class that takes tokenizer.json as it is: GPT2Tokenizer of transformers 5 drops SmolLM2's splitting of digits.
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    ours = rebuilt(metadata)
    assert_same_ids(ours, theirs, [*NASTY, *mixtures(300), wikitext(100_000)])
    for text in NASTY:
        ids = theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_sentencepiece_ids_through_a_file(tmp_path):
    folder = shared("models/stories260K")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    keys = metadata_of(SIZES, "llama") | scored_metadata(tokenizer)
    embedding = {"token_embd.weight": (np.zeros((512, 64), np.float32), None)}
    files = open_checkpoint(write_gguf(tmp_path / "m.gguf", keys, embedding)).tokenizer_files()
    ours, theirs = (
        Tokenizer.from_str(files["tokenizer.json"].decode()),
        Tokenizer.from_file(str(folder / "tokenizer.json")),
    )
    texts = [*NASTY, *mixtures(300), wikitext(100_000)]
    assert_same_ids(ours, theirs, texts)
    for text in texts:
        ids = theirs.encode(text).ids
        assert ours.decode(ids) == theirs.decode(ids)
    config = json.loads(files["tokenizer_config.json"])
    assert (config["bos_token"], config["eos_token"], config["unk_token"]) == ("<s>", "</s>", "<unk>")
    assert config["model_max_length"] == 128
    assert json.loads(files["generation_config.json"]) == {"bos_token_id": 1, "eos_token_id": 2}


def test_user_defined_pieces_come_before_better_scores():
    """As in Gemma, whose runs of spaces are pieces of their own, kept as text with spaces and the worst score."""
    tokens = ["<unk>", "▁", "a", "▁a", "  ", "   "]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [UNKNOWN, NORMAL, NORMAL, NORMAL, USER_DEFINED, USER_DEFINED],
        "tokenizer.ggml.scores": [0.0, -5.0, -6.0, -1.0, -1000.0, -1000.0],
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
    }
    ours = rebuilt(metadata)
    assert [ours.encode(text).ids for text in ("   a", "  a", " a", "a")] == [[5, 2], [4, 2], [3], [2]]
    assert ours.decode([5, 2]) == "   a"


def small(**extra: Any) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["<b>", "<e>", "h", "i", "hi"],
        "tokenizer.ggml.token_type": [CONTROL, CONTROL, NORMAL, NORMAL, NORMAL],
        "tokenizer.ggml.merges": ["h i"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    } | {f"tokenizer.{key}": value for key, value in extra.items()}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, [4]),
        ({"ggml.add_bos_token": True}, [0, 4]),
        ({"ggml.add_bos_token": True, "ggml.add_eos_token": True}, [0, 4, 1]),
        ({"ggml.pre": "llama-bpe"}, [0, 4]),
        ({"ggml.pre": "llama-bpe", "ggml.add_bos_token": False}, [4]),
    ],
)
def test_bos_and_eos_are_added_as_the_file_says(flags, expected):
    assert rebuilt(small(**flags)).encode("hi").ids == expected


def test_chat_templates_are_kept():
    one = json.loads(rebuild_tokenizer(small(chat_template="C"), 512)["tokenizer_config.json"])
    assert one["chat_template"] == "C"
    named = small(chat_template="C", chat_templates=["tool_use"], **{"chat_template.tool_use": "T"})
    config = json.loads(rebuild_tokenizer(named, 512)["tokenizer_config.json"])
    assert config["chat_template"] == [{"name": "default", "template": "C"}, {"name": "tool_use", "template": "T"}]


def test_what_cannot_be_rebuilt_is_named():
    with pytest.raises(UnsupportedModel, match=r"tokenizer.ggml.pre\) is chameleon; these are known: gpt-2, smollm"):
        rebuild_tokenizer(small(**{"ggml.pre": "chameleon"}), 512)
    with pytest.raises(UnsupportedModel, match="kind t5"):
        rebuild_tokenizer(small(**{"ggml.model": "t5"}), 512)
    with pytest.raises(CheckpointError, match="'h' twice, as ids 2 and 3"):
        rebuild_tokenizer(small(**{"ggml.tokens": ["<b>", "<e>", "h", "h", "hi"]}), 512)
    with pytest.raises(CheckpointError, match="5 tokens, but 1 token types"):
        rebuild_tokenizer(small(**{"ggml.token_type": [1]}), 512)
    without = small()
    del without["tokenizer.ggml.merges"]
    with pytest.raises(CheckpointError, match=r"lacks tokenizer.ggml.merges"):
        rebuild_tokenizer(without, 512)
    assert rebuild_tokenizer({}, 512) == {}


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["ANEMONE_SMOLLM2", "ANEMONE_GEMMA3"])
def test_real_file_gives_the_ids_of_its_tokenizer(variable):
    transformers = pytest.importorskip("transformers")
    if variable not in os.environ:
        pytest.skip(f"{variable} names no folder")
    folder = Path(os.environ[variable])
    ours = Tokenizer.from_str(open_checkpoint(folder / "source.gguf").tokenizer_files()["tokenizer.json"].decode())
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    assert_same_ids(ours, theirs, [*NASTY, *mixtures(2000), wikitext()])
