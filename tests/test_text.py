"""Tokens, chat templates and streaming against transformers and whole decoding, on real tokenizers."""

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from shared_files import shared

from anemone.errors import PackageError, RequestError
from anemone.runtime.stream import REPLACEMENT, StreamDecoder
from anemone.runtime.text import Text

CHAT = ("qwen3", "llama-3.1", "smollm2-135m-instruct", "gemma-3-it")
FOLDERS = (*(f"models/tokenizers/{name}" for name in CHAT), "models/stories260K")

TEXTS = (
    "Once upon a time, there was a cat .",
    " a leading space,  two spaces\n\n\tand tabs  ",
    "x\U0001f600\u6f22",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308 e\u0301 \u00e9",
    "\u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8 \ud55c\uad6d\uc5b4 \u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001d54f\U0001d550 <|im_end|> <0x0A> it's",
)

CONVERSATIONS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "Hi there"}],
    [{"role": "system", "content": "Be <b>brief</b> & kind."}, {"role": "user", "content": "  h\u00e9llo \U0001f600 "}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\ntwo "},
        {"role": "user", "content": "three\n"},
    ],
    [{"role": "user", "content": "one", "name": None}, {"role": "assistant", "content": "two"}],
)

TOOLS_TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather in Z\u00fcrich?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Z\u00fcrich <1>"}}}],
    },
    {"role": "tool", "content": '{"sky": "grey"}'},
]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "required": ["city"]}}}]


@cache
def ours(folder: str) -> Text:
    return Text(shared(folder))


@cache
def theirs(folder: str) -> Any:
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(shared(folder))


@pytest.mark.parametrize("folder", FOLDERS)
def test_tokens_and_text_equal_transformers(folder: str) -> None:
    for text in TEXTS:
        for special in (True, False):
            ids = ours(folder).encode(text, add_special_tokens=special)
            assert ids == theirs(folder)(text, add_special_tokens=special)["input_ids"]
            assert ours(folder).decode(ids) == theirs(folder).decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", CHAT)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_conversations_equal_transformers(
    name: str, conversation: list[dict[str, Any]], add_generation_prompt: bool
) -> None:
    text, expected = ours(f"models/tokenizers/{name}"), theirs(f"models/tokenizers/{name}")
    options = {"add_generation_prompt": add_generation_prompt}
    assert text.render(conversation, **options) == expected.apply_chat_template(conversation, tokenize=False, **options)
    ids = expected.apply_chat_template(conversation, return_dict=False, **options)
    assert text.encode_chat(conversation, **options) == ids


def test_tools_and_template_variables_equal_transformers() -> None:
    text, expected = ours("models/tokenizers/qwen3"), theirs("models/tokenizers/qwen3")
    for options in ({"tools": TOOLS}, {"enable_thinking": False}, {"enable_thinking": True, "tools": TOOLS}):
        wanted = expected.apply_chat_template(TOOLS_TALK, tokenize=False, add_generation_prompt=True, **options)
        assert text.render(TOOLS_TALK, **options) == wanted


def test_a_template_may_refuse_a_conversation() -> None:
    twice = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    with pytest.raises(RequestError, match="roles must alternate"):
        ours("models/tokenizers/gemma-3-it").render(twice)
    with pytest.raises(RequestError, match="no messages"):
        ours("models/tokenizers/gemma-3-it").render([])


def folder_with(tmp_path: Path, **config: Any) -> Path:
    (tmp_path / "tokenizer.json").write_bytes(shared("models/stories260K/tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


SPECIAL_FORMS = """
{%- for message in messages %}
    {% if loop.index0 == 3 %}{% break %}{% endif %}
    {% if message.role == 'system' %}{% continue %}{% endif %}
    {% set seen = 'outer' %}
    {% generation %}{% set seen = 'inner' %}{{ message.content }} {{ loop.index }}{% endgeneration %}
{{ seen }}
{% endfor %}
{{ bos_token }}{{ missing }}{{ {'a': '<&>\u00e9', 'b': [1, none]} | tojson(indent=2) }}{{ strftime_now('%Y') }}
{%- set ns = namespace(count=1) %}{% set ns.count = ns.count + 1 %}{{ ns.count }}{{ tools is none }}{{ documents }}
"""


def test_what_templates_rely_on_equals_transformers(tmp_path: Path) -> None:
    path = folder_with(
        tmp_path,
        tokenizer_class="PreTrainedTokenizerFast",
        bos_token={"__type": "AddedToken", "content": "<s>", "lstrip": False, "normalized": False},
        chat_template=SPECIAL_FORMS,
    )
    conversation = [{"role": role, "content": role[0]} for role in ("system", "user", "assistant", "user", "assistant")]
    expected = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(path)
    assert Text(path).render(conversation) == expected.apply_chat_template(
        conversation, tokenize=False, add_generation_prompt=True
    )


def test_templates_are_found_where_they_may_be(tmp_path: Path) -> None:
    hello = [{"role": "user", "content": "x"}]
    assert not Text(folder_with(tmp_path)).has_template
    with pytest.raises(RequestError, match="no chat template"):
        Text(tmp_path).render(hello)
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    text = Text(folder_with(tmp_path, chat_template=named))
    assert text.render(hello) == "plain"
    assert text.render(hello, tools=TOOLS) == "tools"
    with pytest.raises(RequestError, match=r"\['rag'\]"):
        Text(folder_with(tmp_path, chat_template=[{"name": "rag", "template": ""}])).render(hello)
    (tmp_path / "chat_template.jinja").write_text("file")
    assert Text(folder_with(tmp_path, chat_template="config")).render(hello) == "file"


@pytest.mark.parametrize(
    "template", ["{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{% for %}", "{{ 1 + messages }}"]
)
def test_a_template_cannot_reach_out_or_crash(tmp_path: Path, template: str) -> None:
    with pytest.raises(RequestError, match="chat template does not accept"):
        Text(folder_with(tmp_path, chat_template=template)).render([{"role": "user", "content": "x"}])


def test_files_that_cannot_serve_are_named(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"no tokenizer\.json"):
        Text(tmp_path)
    folder = folder_with(tmp_path)
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(PackageError, match=r"tokenizer_config\.json is not valid JSON"):
        Text(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(PackageError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        Text(folder)


def test_limits_of_a_training_run_are_ignored(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    limited = tokenizers.Tokenizer.from_file(str(shared("models/stories260K/tokenizer.json")))
    limited.enable_truncation(4)
    limited.enable_padding(length=64)
    limited.save(str(folder_with(tmp_path) / "tokenizer.json"))
    assert Text(tmp_path).encode(TEXTS[0]) == ours("models/stories260K").encode(TEXTS[0])


def stream(text: Text, ids: list[int]) -> list[str]:
    decoder = StreamDecoder(text)
    return [*(decoder.feed(token) for token in ids), decoder.flush()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_streams_show_only_whole_characters(folder: str) -> None:
    text = ours(folder)
    for sample in TEXTS:
        for special in (True, False):
            ids = text.encode(sample, add_special_tokens=special)
            pieces = stream(text, ids)
            assert "".join(pieces) == text.decode(ids)
            assert not any(REPLACEMENT in piece for piece in pieces)


@pytest.mark.parametrize("folder", FOLDERS)
def test_streams_of_any_tokens_equal_whole_decoding(folder: str) -> None:
    text = ours(folder)
    draw = random.Random(2)
    samples = [text.encode(sample, add_special_tokens=False) for sample in TEXTS]
    vocab = 1 + max(max(ids) for ids in samples)
    raw = [token for token in range(min(vocab, 600)) if text.is_byte(token)] or samples[2]
    for _ in range(1500):
        ids = [draw.randrange(vocab + 3) for _ in range(draw.randint(1, 20))]
        ids += draw.choice(samples)[draw.randrange(4) :]
        for _ in range(draw.randrange(8)):
            ids.insert(draw.randrange(len(ids)), draw.choice(raw))
        assert "".join(stream(text, ids)) == text.decode(ids)


@pytest.mark.parametrize("folder", FOLDERS)
def test_streams_come_without_delay(folder: str) -> None:
    text = ours(folder)
    ids = text.encode(TEXTS[0], add_special_tokens=False)
    shown = ""
    decoder = StreamDecoder(text)
    for count, token in enumerate(ids, 1):
        shown += decoder.feed(token)
        assert shown == text.decode(ids[:count])


def test_a_text_that_ends_inside_a_character_ends_as_whole_decoding_does() -> None:
    text = ours("models/tokenizers/smollm2-135m-instruct")
    ids = text.encode("a \U0001f9ff")[:-1]
    pieces = stream(text, ids)
    assert pieces[-1] == REPLACEMENT
    assert "".join(pieces) == text.decode(ids)
