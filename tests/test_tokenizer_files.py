"""Which tokenizer files a model has, its chat templates and its stop tokens."""

import json
from pathlib import Path

import pytest
from shared_files import shared

from anemone.checkpoint.tokenizer import chat_template, chat_templates, find_tokenizer_files, stop_tokens
from anemone.errors import CheckpointError

VOCABULARY = {"<s>": 0, "</s>": 1, "<|im_end|>": 2, "<|eot_id|>": 3, "<end_of_turn>": 4, "a": 5}


def folder(path: Path, config: dict | None = None, **files: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    added = [{"id": number, "content": text} for text, number in VOCABULARY.items()]
    (path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {}}, "added_tokens": added}))
    (path / "tokenizer_config.json").write_text(json.dumps(config or {}))
    for name, text in files.items():
        file = path / name.replace("__", "/").replace("_jinja", ".jinja")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return path


NAMED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]


@pytest.mark.parametrize(
    ("config", "files", "expected"),
    [
        ({"chat_template": "C"}, {}, {"default": "C"}),
        ({}, {"chat_template_jinja": "J"}, {"default": "J"}),
        ({"chat_template": NAMED}, {}, {"default": "D", "tool_use": "T"}),
        ({}, {}, {}),
        ({"chat_template": "C"}, {"chat_template_jinja": "J"}, {"default": "J"}),
        ({"chat_template": NAMED}, {"chat_template_jinja": "J", "additional_chat_templates__rag_jinja": "R"},
         {"default": "J", "rag": "R"}),
        ({"chat_template": "C"}, {"additional_chat_templates__tools_jinja": "T"}, {"tools": "T"}),
    ],
    ids=["config", "file", "named", "none", "file wins", "files win", "only a named file"],
)  # fmt: skip
def test_chat_templates_are_those_of_transformers(tmp_path, config, files, expected):
    transformers = pytest.importorskip("transformers")
    source = folder(tmp_path, config, **files)
    (source / "tokenizer.json").write_text(minimal_tokenizer())
    assert chat_templates(find_tokenizer_files(source)) == expected
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(source).chat_template
    assert theirs == (expected if set(expected) - {"default"} else expected.get("default"))


def minimal_tokenizer() -> str:
    from tokenizers import Tokenizer, models

    return Tokenizer(models.BPE(vocab={"a": 0}, merges=[])).to_str()


def test_the_default_template_is_for_chat(tmp_path):
    files = find_tokenizer_files(folder(tmp_path / "a", {"chat_template": NAMED}))
    assert chat_template(files) == "D"
    assert chat_template(find_tokenizer_files(folder(tmp_path / "b"))) is None
    with pytest.raises(CheckpointError, match="templates are called tool_use, but none default"):
        chat_template(find_tokenizer_files(folder(tmp_path / "c", {"chat_template": NAMED[1:]})))
    with pytest.raises(CheckpointError, match="neither a text nor a list"):
        chat_template(find_tokenizer_files(folder(tmp_path / "d", {"chat_template": [1]})))


def test_files_that_are_carried(tmp_path):
    names = ["tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json"]
    names += ["generation_config.json", "preprocessor_config.json", "chat_template.jinja"]
    source = folder(tmp_path, additional_chat_templates__tools_jinja="T")
    for name in [*names, "model.safetensors", "README.md"]:
        (source / name).write_text("{}")
    expected = {"tokenizer.json", "tokenizer_config.json", "additional_chat_templates/tools.jinja", *names}
    found = find_tokenizer_files(source)
    assert set(found) == expected
    assert all(path == source / name for name, path in found.items())


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer", "expected"),
    [
        ({"eos_token_id": [1, 106]}, {}, {}, (1, 106)),
        ({"eos_token_id": 1}, {"eos_token_id": [1, 106]}, {}, (1, 106)),
        ({"eos_token_id": [128001, 128008, 128009]}, {"eos_token_id": 128001}, {}, (128001, 128008, 128009)),
        ({"eos_token_id": 151643}, {"eos_token_id": 151646}, {"eos_token": "</s>"}, (1, 151643, 151646)),
        ({"text_config": {"eos_token_id": 106}}, {}, {}, (106,)),
        ({"eos_token_id": None}, {}, {"eos_token": {"content": "</s>"}}, (1,)),
        ({"eos_token_id": 1}, {}, {"chat_template": "x <|im_end|>"}, (1, 2)),
        ({"eos_token_id": 1}, {}, {"chat_template": [{"name": "tool_use", "template": "<|eot_id|>"}]}, (1, 3)),
        ({}, {}, {"chat_template": "<end_of_turn>"}, (4,)),
        ({}, {}, {"eos_token": "not a token"}, ()),
        ({}, {}, {}, ()),
    ],
)
def test_stop_tokens_are_the_union(tmp_path, config, generation, tokenizer, expected):
    assert stop_tokens(config, generation, find_tokenizer_files(folder(tmp_path, tokenizer))) == expected


def test_stop_tokens_from_older_layouts_and_bytes(tmp_path):
    files = find_tokenizer_files(folder(tmp_path, special_tokens_map=""))
    files["special_tokens_map.json"] = b'{"eos_token": "</s>"}'
    assert stop_tokens({}, {}, files) == (1,)
    assert stop_tokens({}, {}, {}) == ()
    with pytest.raises(CheckpointError, match="eos_token_id is </s>, but a token id"):
        stop_tokens({"eos_token_id": "</s>"}, {}, {})
    with pytest.raises(CheckpointError, match=r"tokenizer_config.json is not valid JSON"):
        stop_tokens({}, {}, {"tokenizer_config.json": b"{"})


@pytest.mark.parametrize(
    ("config", "tokenizer", "expected"),
    [
        ("gemma-3-1b-it", "gemma-3-it", (1, 106)),
        ("gemma-3-270m", "gemma-3-270m", (1,)),
        ("llama-3.1-8b-instruct", "llama-3.1", (128001, 128008, 128009)),
        ("qwen3-0.6b", "qwen3", (151645,)),
        ("smollm2-135m-instruct", "smollm2-135m-instruct", (2,)),
    ],
)
def test_stop_tokens_of_real_models(config, tokenizer, expected):
    values = json.loads(shared(f"cases/configs/{config}.json").read_text())
    assert stop_tokens(values, {}, find_tokenizer_files(shared(f"models/tokenizers/{tokenizer}"))) == expected
