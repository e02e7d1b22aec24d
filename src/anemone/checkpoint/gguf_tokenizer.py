"""tokenizer.json and tokenizer_config.json, rebuilt from the vocabulary in GGUF metadata.

Two kinds are known: byte-level BPE with merges ("gpt2"), and SentencePiece BPE with scores ("llama"). The token types
are those of llama.cpp (enum llama_token_type), the pre-tokenizers those that ``tokenizer.ggml.pre`` names.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anemone.errors import CheckpointError, UnsupportedModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)

_SPACE = "▁"  # how SentencePiece writes a space

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2_SPLIT = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"


@dataclass(frozen=True)
class _Pre:
    """How text is cut before byte-level BPE. ``split`` None is GPT-2's own expression."""

    split: str | None = None
    single_digits: bool = False
    nfc: bool = False
    whole_words_first: bool = False  # a piece that is a token is taken as it is, whatever the merges
    adds_bos: bool = False  # unless the file says otherwise


_LLAMA3 = _Pre(_LLAMA3_SPLIT, whole_words_first=True, adds_bos=True)
_QWEN2 = _Pre(_QWEN2_SPLIT, nfc=True)
_PRE = {
    "gpt-2": _Pre(),
    "smollm": _Pre(single_digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


def rebuild_tokenizer(metadata: Mapping[str, Any], model_max_length: int) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json by name; empty when the file carries no vocabulary.

    UnsupportedModel names a tokenizer kind or pre-tokenizer that is not known, since a guess would give wrong ids.
    """
    kind = metadata.get("tokenizer.ggml.model", "none")
    if kind in ("none", "no_vocab"):
        return {}
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModel(f"The GGUF's tokenizer is of kind {kind}, but only gpt2 and llama can be rebuilt.")
    vocabulary = _Vocabulary.of(metadata, marks_spaces=kind == "llama" and not _prefixes_space(metadata))
    tokenizer = _byte_level(vocabulary, metadata) if kind == "gpt2" else _sentencepiece(vocabulary, metadata)
    tokenizer.add_tokens(vocabulary.added())
    bos_by_default = kind == "llama" or _pre(metadata).adds_bos
    _add_ends(tokenizer, vocabulary, metadata, bos_by_default)
    config = _tokenizer_config(vocabulary, metadata, model_max_length)
    return {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=2).encode(),
    }


@dataclass(frozen=True)
class _Vocabulary:
    """Tokens and their types by id."""

    tokens: list[str]
    types: list[int]

    @staticmethod
    def of(metadata: Mapping[str, Any], marks_spaces: bool) -> "_Vocabulary":
        """``marks_spaces``: the model sees every space as a mark, and so do its user-defined tokens."""
        tokens = _required(metadata, "tokens")
        types = metadata.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
        if len(types) != len(tokens):
            raise CheckpointError(f"The GGUF has {len(tokens)} tokens, but {len(types)} token types.")
        if marks_spaces:  # llama.cpp's converter wrote these as the text they stand for
            tokens = [
                token.replace(" ", _SPACE) if kind == _USER_DEFINED else token
                for token, kind in zip(tokens, types, strict=True)
            ]
        return _Vocabulary(tokens, types)

    def ids(self) -> dict[str, int]:
        """Text -> id, without the padding that some converters append as unused tokens."""
        ids: dict[str, int] = {}
        for number, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if kind == _UNUSED:
                continue
            if token in ids:
                raise CheckpointError(f"The GGUF's vocabulary has {token!r} twice, as ids {ids[token]} and {number}.")
            ids[token] = number
        return ids

    def added(self) -> list[Any]:
        """The tokens that are found in text before anything is split, in id order."""
        from tokenizers import AddedToken

        special = (_UNKNOWN, _CONTROL)
        return [
            AddedToken(token, special=kind in special, normalized=False)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind in (*special, _USER_DEFINED)
        ]

    def text(self, metadata: Mapping[str, Any], name: str) -> str | None:
        """The token behind tokenizer.ggml.NAME_token_id."""
        number = metadata.get(f"tokenizer.ggml.{name}_token_id")
        return self.tokens[number] if number is not None and 0 <= number < len(self.tokens) else None


def _byte_level(vocabulary: _Vocabulary, metadata: Mapping[str, Any]) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, normalizers

    pre = _pre(metadata)
    merges = [_pair(merge) for merge in _required(metadata, "merges")]
    model = models.BPE(vocab=vocabulary.ids(), merges=merges, ignore_merges=pre.whole_words_first)
    tokenizer = Tokenizer(model)
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pre(metadata: Mapping[str, Any]) -> _Pre:
    name = metadata.get("tokenizer.ggml.pre")
    if name not in _PRE:
        raise UnsupportedModel(
            f"The GGUF's pre-tokenizer (tokenizer.ggml.pre) is {name}; these are known: {', '.join(_PRE)}."
        )
    return _PRE[name]


def _pre_tokenizer(pre: _Pre) -> "PreTokenizer":
    from tokenizers import Regex, pre_tokenizers

    steps: list[PreTokenizer] = []
    if pre.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pre.split is not None:
        steps.append(pre_tokenizers.Split(Regex(pre.split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.split is None))
    return pre_tokenizers.Sequence(steps)


def _pair(merge: str) -> tuple[str, str]:
    # Either half may begin with a space in theory, never in byte-level text, where a space is written otherwise.
    left, _, right = merge.partition(" ")
    return left, right


def _sentencepiece(vocabulary: _Vocabulary, metadata: Mapping[str, Any]) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, normalizers

    ids = vocabulary.ids()
    unknown = next((t for t, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind == _UNKNOWN), None)
    model = models.BPE(
        vocab=ids,
        merges=_merges_from_scores(ids, vocabulary.types, _required(metadata, "scores")),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=_BYTE in vocabulary.types,
    )
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", _SPACE)
    prefixed = _prefixes_space(metadata)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefixed else spaces
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefixed:
        steps.append(decoders.Strip(" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _prefixes_space(metadata: Mapping[str, Any]) -> bool:
    return bool(metadata.get("tokenizer.ggml.add_space_prefix", True))


def _merges_from_scores(ids: dict[str, int], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third: user-defined pieces first, then best score first.

    SentencePiece joins the neighbours whose union scores best; a list of merges says the same when each piece stands
    in it with all its splits. Among equals the longer left half goes first, as where transformers makes this list.
    """
    ranked = []
    for piece, number in ids.items():
        rank = (types[number] != _USER_DEFINED, -scores[number])
        for cut in range(len(piece) - 1, 0, -1):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                ranked.append((*rank, -len(left), -len(right), number, left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _add_ends(
    tokenizer: "Tokenizer", vocabulary: _Vocabulary, metadata: Mapping[str, Any], bos_by_default: bool
) -> None:
    """Make encoding add bos and eos, where the file wants them."""
    from tokenizers import processors

    bos = vocabulary.text(metadata, "bos") if metadata.get("tokenizer.ggml.add_bos_token", bos_by_default) else None
    eos = vocabulary.text(metadata, "eos") if metadata.get("tokenizer.ggml.add_eos_token", False) else None
    if bos is None and eos is None:
        return
    template = " ".join(part for part in (bos, "$A", eos) if part is not None)
    specials = [(text, vocabulary.tokens.index(text)) for text in (bos, eos) if text is not None]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=specials)


def _tokenizer_config(vocabulary: _Vocabulary, metadata: Mapping[str, Any], model_max_length: int) -> dict[str, Any]:
    specials = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    config: dict[str, Any] = {
        f"{ours}_token": text
        for ours, theirs in specials.items()
        if (text := vocabulary.text(metadata, theirs)) is not None
    }
    config |= {
        "clean_up_tokenization_spaces": False,
        "model_max_length": model_max_length,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    template = metadata.get("tokenizer.chat_template")
    names = metadata.get("tokenizer.chat_templates", [])
    if names:
        named = {"default": template} | {name: metadata.get(f"tokenizer.chat_template.{name}") for name in names}
        config["chat_template"] = [{"name": name, "template": text} for name, text in named.items() if text is not None]
    elif template is not None:
        config["chat_template"] = template
    return config


def _required(metadata: Mapping[str, Any], name: str) -> list[Any]:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, list):
        raise CheckpointError(f"The GGUF's metadata lacks tokenizer.ggml.{name}, so its tokenizer cannot be rebuilt.")
    return values
