"""A loaded model from prompt to text, over packages computed in numpy."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from runtime_fakes import Package, bundle
from shared_files import shared

from anemone.errors import RequestError
from anemone.runtime.bundle_engine import BundleEngine
from anemone.runtime.generate import Model, load
from anemone.runtime.session import Session
from anemone.runtime.text import Text

TEMPLATE = "{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def model(folder: Path, template: str | None = TEMPLATE, **changes: object) -> Model:
    facts = bundle(vocab=512, head_sizes=(256, 128, 128), context=256, batch=16, **changes)
    (folder / "tokenizer.json").write_bytes(shared("models/stories260K/tokenizer.json").read_bytes())
    config = {"bos_token": "<s>"} | ({"chat_template": template} if template else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    engine = BundleEngine(facts, lambda path: Package(path, facts))
    return Model(facts, engine, Text(folder), Session(engine, ()))  # type: ignore[arg-type]


def test_text_streams_and_adds_up(tmp_path: Path) -> None:
    loaded = model(tmp_path)
    pieces: list[str] = []
    result = loaded.generate("Once upon a time", max_tokens=30, temperature=1.0, seed=3, on_text=pieces.append)
    assert "".join(pieces) == result.text == loaded.text.decode(list(result.token_ids))
    assert all(pieces)
    assert len(result.token_ids) == 30
    assert result.stop_reason == "length"
    assert result.prompt_tokens == result.prefill_tokens == len(loaded.text.encode("Once upon a time"))
    assert result.prefill_tokens_per_s > 0
    assert result.decode_tokens_per_s > 0
    again = loaded.generate("Once upon a time", max_tokens=30, temperature=1.0, seed=3)
    assert again.token_ids == result.token_ids
    assert again.prefill_tokens == 1


def test_chat_uses_the_template(tmp_path: Path) -> None:
    loaded = model(tmp_path)
    ids = loaded.prompt_ids("Hi", chat=True, system="Be brief")
    assert ids == loaded.text.encode("<s>system: Be brief\n<s>user: Hi\n", add_special_tokens=False)
    assert loaded.prompt_ids("Hi") == loaded.text.encode("Hi")
    assert loaded.generate("Hi", chat=True, max_tokens=2).prompt_tokens == len(loaded.prompt_ids("Hi", chat=True))


def test_without_template_chat_completes_the_raw_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loaded = model(tmp_path, template=None)
    with caplog.at_level(logging.WARNING):
        assert loaded.prompt_ids("Hi", chat=True) == loaded.text.encode("Hi")
    assert "no chat template, raw completion" in caplog.text
    with pytest.raises(RequestError, match="no chat template"):
        loaded.generate("Hi", chat=True, system="Be brief")


def test_a_system_message_needs_chat(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="ask for chat"):
        model(tmp_path).generate("Hi", system="Be brief")


def test_settings_are_checked_before_anything_runs(tmp_path: Path) -> None:
    loaded = model(tmp_path, argmax=True)
    with pytest.raises(RequestError, match="convert again without --argmax"):
        loaded.generate("Hi", temperature=0.5)
    assert len(loaded.generate("Hi", max_tokens=3).token_ids) == 3
    with pytest.raises(RequestError, match="context of 256"):
        loaded.generate("word " * 300)


def test_load_opens_packages_and_stops_at_the_bundles_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = model(tmp_path)
    expected = loaded.generate("Hi", max_tokens=5).token_ids
    facts = SimpleNamespace(**vars(loaded.bundle), stop_tokens=(expected[4],), tokenizer_dir=tmp_path)
    opened: list[str] = []

    def program(path: Path, numerics: str) -> Package:
        opened.append(numerics)
        return Package(path, loaded.bundle)  # type: ignore[arg-type]

    monkeypatch.setattr("anemone.runtime.generate.read_bundle", lambda path: facts)
    monkeypatch.setattr("anemone.execute.Program", program)
    result = load(tmp_path, numerics="float32").generate("Hi", max_tokens=20)
    assert opened == ["float32"] * 4
    assert result.token_ids == expected[: expected.index(expected[4])]
    assert result.stop_reason == "stop"


def test_an_engine_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="engine is 'coreml', but must be auto or executor"):
        load(tmp_path, engine="coreml")


def test_importing_the_runtime_is_light() -> None:
    code = (
        "import sys, anemone.runtime.generate, anemone.runtime.bundle_engine\n"
        "heavy = {'jinja2', 'tokenizers', 'coremltools', 'yaml', 'torch', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
