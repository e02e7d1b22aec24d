"""Configs whose values are of the wrong kind, or beyond sense: one sentence each, never a crash or a full memory."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tiny import make_tiny

from anemone.checkpoint import open_checkpoint
from anemone.checkpoint.gguf_config import synthesise_config
from anemone.conversion.plan import make_plan
from anemone.errors import AnemoneError, CheckpointError

YARN = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 2.0}

WRONG: dict[str, tuple[str, Any]] = {
    "an infinite size": ("vocab_size", math.inf),
    "a size that is no number": ("vocab_size", math.nan),
    "a size with a fraction": ("hidden_size", 64.5),
    "more layers than memory has names for": ("num_hidden_layers", 10**9),
    "an activation in a list": ("hidden_act", ["silu"]),
    "a class that is no name": ("architectures", [["LlamaForCausalLM"]]),
    "classes that are no list": ("architectures", "LlamaForCausalLM"),
    "a text for a number of turns": ("rope_parameters", YARN | {"beta_fast": "32"}),
    "a negative number of turns": ("rope_parameters", YARN | {"beta_slow": -1}),
    "a base without powers": ("rope_parameters", YARN | {"rope_theta": 1}),
    "a text for a scale": ("rope_parameters", YARN | {"mscale": "1", "mscale_all_dim": 1}),
    "a rope kind in a list": ("rope_parameters", {"rope_theta": 1e4, "rope_type": ["yarn"]}),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("checkpoint"), "llama", layout="v5")


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_value_of_the_wrong_kind_is_one_sentence(checkpoint: Path, name: str) -> None:
    key, value = WRONG[name]
    opened = open_checkpoint(checkpoint)
    opened.config[key] = value
    with pytest.raises(AnemoneError) as caught:
        make_plan(opened)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300
    assert any(word in message for word in (key, *(value if isinstance(value, dict) else ()), "yarn"))


def test_a_config_nested_without_end_is_damaged(tmp_path: Path) -> None:
    make_tiny(tmp_path, "llama")
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(tmp_path)


def test_yarn_takes_zero_for_its_defaults_as_transformers_does(checkpoint: Path) -> None:
    opened = open_checkpoint(checkpoint)
    opened.config["rope_parameters"] = YARN
    plain = make_plan(opened).config.rope
    opened.config["rope_parameters"] = json.loads(json.dumps(YARN | {"beta_fast": 0, "beta_slow": None}))
    assert make_plan(opened).config.rope == plain


@pytest.mark.parametrize("value", [0, -4, "4", 4.0, math.nan])
def test_a_gguf_without_a_whole_number_of_heads_is_damaged(value: Any) -> None:
    metadata = {"general.architecture": "llama", "llama.attention.head_count": value, "llama.embedding_length": 64}
    with pytest.raises(CheckpointError, match=r"llama\.attention\.head_count is"):
        synthesise_config(metadata, {}, None)


def test_a_folder_whose_name_is_no_text_has_a_name_that_can_be_written(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "plain", "llama").rename(tmp_path / "caf\udce9")
    assert open_checkpoint(folder).name == "caf?"
