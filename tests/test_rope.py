"""Rotary frequencies against transformers' own functions, and the kinds and keys that are refused."""

from typing import Any

import numpy as np
import pytest

from anemone.architectures import Rope, resolve
from anemone.errors import CheckpointError, UnsupportedModel

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 131072,
}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}

ACCEPTED: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 1e6},
    "linear": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "llama3 factor 8": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5, **LLAMA3},
    "llama3 factor 32": {"rope_type": "llama3", "factor": 32.0, "rope_theta": 5e5, **LLAMA3},
    "yarn": {"rope_theta": 1e6, **YARN},
    "yarn, own attention factor": {"rope_theta": 1e6, "attention_factor": 0.8, **YARN},
    "yarn, mscale": {"rope_theta": 1e6, "mscale": 0.7, "mscale_all_dim": 1.0, **YARN},
    "yarn, betas": {"rope_theta": 150000.0, "beta_fast": 20.0, "beta_slow": 2.0, **YARN},
    "yarn, not truncated": {"rope_theta": 150000.0, "truncate": False, **YARN},
    "yarn, steep": {"rope_theta": 1e4, **YARN, "beta_fast": 2.0, "beta_slow": 1.9},
}


def scaled(parameters: dict[str, Any], **other: Any) -> Rope:
    return resolve({**LLAMA, **other, "rope_parameters": parameters}).config.rope


def theirs(parameters: dict[str, Any], **other: Any) -> tuple[np.ndarray, float]:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(**{k: v for k, v in {**LLAMA, **other}.items() if k != "model_type"})
    config.rope_parameters = dict(parameters)
    find = ROPE_INIT_FUNCTIONS.get(parameters["rope_type"], LlamaRotaryEmbedding.compute_default_rope_parameters)
    inv_freq, factor = find(config)
    return inv_freq.double().numpy(), factor


@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("name", ACCEPTED)
def test_frequencies_equal_those_of_transformers(name: str, head_dim: int) -> None:
    rope = scaled(ACCEPTED[name], head_dim=head_dim)
    inv_freq, factor = theirs(ACCEPTED[name], head_dim=head_dim)
    rounding = 0 if head_dim in (64, 128) else 1e-6  # transformers' float32 exponents are exact for powers of two only
    np.testing.assert_allclose(rope.inv_freq, inv_freq, rtol=1e-6 + rounding)
    assert rope.attention_factor == pytest.approx(factor, rel=1e-6)
    assert rope.kind == ACCEPTED[name]["rope_type"]


def test_yarn_without_an_original_length_starts_from_the_config_s_maximum() -> None:
    parameters = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
    inv_freq, factor = theirs(parameters, max_position_embeddings=4096)
    rope = scaled(parameters, max_position_embeddings=4096)
    np.testing.assert_allclose(rope.inv_freq, inv_freq, rtol=1e-6)
    assert rope.attention_factor == pytest.approx(factor)


@pytest.mark.parametrize("kind", ["llama3", "yarn", "linear"])
def test_old_and_new_spelling_of_the_keys_give_the_same_rope(kind: str) -> None:
    new = next(parameters for parameters in ACCEPTED.values() if parameters["rope_type"] == kind)
    inner = {key: value for key, value in new.items() if key not in ("rope_theta", "rope_type")}
    for spelling in ("type", "rope_type"):
        old = {"rope_theta": new["rope_theta"], "rope_scaling": {spelling: kind, **inner}}
        assert resolve({**LLAMA, **old}).config.rope == scaled(new)


def test_scaling_is_never_folded_into_theta() -> None:
    """theta x factor is a known wrong shortcut: it moves the fast channels too, which llama3 scaling leaves alone."""
    plain = scaled(ACCEPTED["default"] | {"rope_theta": 5e5})
    llama3 = scaled(ACCEPTED["llama3 factor 32"])
    assert llama3.theta == 5e5
    assert llama3.inv_freq[:10] == plain.inv_freq[:10]
    assert llama3.inv_freq[-1] == pytest.approx(plain.inv_freq[-1] / 32)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "mrope", "proportional", "ntk-by-magic"])
def test_other_kinds_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"'{kind}'"):
        scaled({"rope_type": kind, "factor": 2.0, "rope_theta": 1e4})


def test_a_rope_key_that_is_not_understood_is_refused_with_its_value() -> None:
    with pytest.raises(UnsupportedModel, match=r"llama_4_scaling_beta is 0\.1"):
        scaled({"rope_theta": 1e6, "llama_4_scaling_beta": 0.1, **YARN})
    with pytest.raises(UnsupportedModel, match="factor is 2"):
        scaled({"rope_type": "default", "factor": 2.0})


def test_rotating_part_of_each_head_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"partial_rotary_factor is 0\.75"):
        resolve({**LLAMA, "rope_theta": 1e4, "partial_rotary_factor": 0.75})
    with pytest.raises(UnsupportedModel, match=r"partial_rotary_factor is 0\.5"):
        scaled({"rope_type": "default", "partial_rotary_factor": 0.5})


def test_rope_parameters_per_layer_type_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"per layer type.*full_attention"):
        scaled({"full_attention": {"rope_type": "linear", "factor": 8.0}})


@pytest.mark.parametrize("missing", ["factor", "low_freq_factor", "original_max_position_embeddings"])
def test_a_missing_rope_number_is_named(missing: str) -> None:
    parameters = {key: value for key, value in ACCEPTED["llama3 factor 8"].items() if key != missing}
    with pytest.raises(CheckpointError, match=missing):
        scaled(parameters)


@pytest.mark.parametrize(("key", "value"), [("factor", 0), ("factor", "8"), ("high_freq_factor", 0.5)])
def test_a_wrong_rope_number_is_named(key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=key):
        scaled(ACCEPTED["llama3 factor 8"] | {key: value})


def test_theta_under_rope_parameters_is_read_and_a_missing_one_is_said() -> None:
    """Falling back to 10000 without a word is how other tools break configs of the newer layout."""
    new = resolve({**LLAMA, "rope_parameters": {"rope_theta": 5e6, "rope_type": "default"}})
    assert (new.config.rope.theta, any("rope_theta" in note for note in new.notes)) == (5e6, False)
    for silent in (LLAMA, {**LLAMA, "rope_parameters": {"rope_type": "default"}}, {**LLAMA, "rope_scaling": None}):
        model = resolve(silent)
        assert model.config.rope.theta == 10000.0
        assert any("rope_theta" in note and "10000" in note for note in model.notes)


def test_two_thetas_or_two_scalings_that_differ_are_settled_as_in_transformers_and_said() -> None:
    from transformers import LlamaConfig

    keys = {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e6, "rope_type": "default"}}
    model = resolve({**LLAMA, **keys})
    assert model.config.rope.theta == LlamaConfig(**keys).rope_parameters["rope_theta"] == 5e6
    assert any("rope_theta is 10000" in note for note in model.notes)

    linear = {"rope_type": "linear", "factor": 2.0}
    keys = {"rope_theta": 1e4, "rope_scaling": linear, "rope_parameters": {"rope_type": "default"}}
    model = resolve({**LLAMA, **keys})
    assert model.config.rope.kind == LlamaConfig(**keys).rope_parameters["rope_type"] == "linear"
    assert any("differ" in note for note in model.notes)


def test_angles_stay_exact_at_far_positions() -> None:
    """A table built in half precision collapses beyond position 256; these are float64 products."""
    rope = scaled(ACCEPTED["default"])
    positions = np.array([4095, 131071])
    assert rope.angles(positions).dtype == np.float64
    np.testing.assert_array_equal(rope.angles(positions)[:, 0], [4095.0, 131071.0])
