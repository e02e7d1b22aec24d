"""The numpy forward pass against transformers: all architectures, variants and rope kinds, and real small models."""

import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from shared_files import shared
from tiny import MODEL_TYPES, make_tiny, truth_generate, truth_logits

from anemone.architectures import DecoderConfig, Rope, resolve
from anemone.checkpoint import open_checkpoint
from anemone.reference import KVCache, Reference, ops

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
    "rope_theta": 500000.0,
}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_theta": 1e6},
    "llama3": LLAMA3,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256},
}


def reference(path: Path) -> Reference:
    checkpoint = open_checkpoint(str(path))
    return Reference(resolve(checkpoint.config, checkpoint.tensors).config, checkpoint.read)


def ids(count: int, vocab: int = 320) -> NDArray[np.int64]:
    return np.random.default_rng(7).integers(0, vocab, count)


def assert_same(found: NDArray[np.float32], truth: NDArray[np.float32]) -> None:
    """Equal to 1e-4 of the truth's size, over all and in each row."""
    assert found.dtype == np.float32
    assert found.shape == truth.shape
    error, size = np.linalg.norm(found - truth, axis=1), np.linalg.norm(truth, axis=1)
    assert (error / size).max() <= 1e-4


@pytest.mark.parametrize("layout", ["v4", "v5"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_logits_equal_those_of_transformers(tmp_path: Path, model_type: str, tied: bool, layout: str) -> None:
    path = make_tiny(tmp_path / "m", model_type, tied=tied, layout=layout, dtype="bfloat16" if tied else "float32")
    assert_same(reference(path).forward(ids(50)), truth_logits(path, ids(50)))


@pytest.mark.parametrize(
    ("model_type", "variant"),
    [
        ("llama", {"qkv_bias": True}),
        ("llama", {"mlp_bias": True}),
        ("llama", {"qkv_bias": True, "mlp_bias": True, "tied": False}),
        ("qwen3", {"qkv_bias": True}),
        ("llama", {"kv_heads": 4}),
        ("llama", {"kv_heads": 1, "head_dim": 32}),
        ("qwen2", {"head_dim": 40}),
        ("qwen3", {"head_dim": 8}),
        ("mistral", {"head_dim": 32, "kv_heads": 1}),
        ("mistral", {"sliding_window": 50}),
        ("qwen2", {"sliding_window": 50}),
    ],
)
def test_variants_equal_transformers(tmp_path: Path, model_type: str, variant: dict[str, Any]) -> None:
    """Biases on and off, head_dim that is not hidden / heads, one to all KV heads, a window as long as the text."""
    path = make_tiny(tmp_path / "m", model_type, **variant)
    assert_same(reference(path).forward(ids(50)), truth_logits(path, ids(50)))


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"])
def test_activations_equal_those_of_transformers(tmp_path: Path, activation: str) -> None:
    path = make_tiny(tmp_path / "m", "llama")
    config = path / "config.json"
    config.write_text(config.read_text().replace('"silu"', f'"{activation}"'))
    assert_same(reference(path).forward(ids(30)), truth_logits(path, ids(30)))


@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_every_rope_kind_equals_transformers_at_far_positions(tmp_path: Path, model_type: str, kind: str) -> None:
    path = make_tiny(tmp_path / "m", model_type, rope=ROPES[kind], max_positions=2048)
    assert_same(reference(path).forward(ids(1200)), truth_logits(path, ids(1200)))


def test_greedy_text_is_that_of_transformers_beyond_position_1000(tmp_path: Path) -> None:
    """Llama-3.2 scaling, where wrong frequencies show only after a while."""
    path = make_tiny(tmp_path / "m", "llama", rope=LLAMA3, max_positions=131072)
    prompt = [int(token) for token in ids(1000)]
    assert reference(path).generate(prompt, 60) == truth_generate(path, prompt, 60)


def test_a_cache_gives_the_rows_of_the_whole_text(tmp_path: Path) -> None:
    model = reference(make_tiny(tmp_path / "m", "qwen3"))
    whole = model.forward(ids(40))
    cache = KVCache(model.config, 40)
    parts = [model.forward(ids(40)[first:last], cache) for first, last in ((0, 17), (17, 18), (18, 40))]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=2e-5)
    with pytest.raises(IndexError, match="position 40 in a cache of 40"):
        model.forward([1], cache)


def test_layers_one_by_one_give_the_forward_pass(tmp_path: Path) -> None:
    model = reference(make_tiny(tmp_path / "m", "qwen2", layers=3))
    x = model.embed(ids(20))
    for i in range(model.config.layers):
        x = model.layer(i, x)
    np.testing.assert_array_equal(model.logits(model.final(x)), model.forward(ids(20)))


def test_small_blocks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = reference(make_tiny(tmp_path / "m", "llama", tied=False))
    whole = model.forward(ids(60))
    monkeypatch.setattr(ops, "BLOCK_BYTES", 3000)
    np.testing.assert_allclose(model.forward(ids(60)), whole, atol=2e-5)


def test_each_tensor_is_asked_for_by_its_name_and_not_kept(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(make_tiny(tmp_path / "m", "qwen3", tied=False)))
    asked: list[str] = []

    def weight(name: str) -> NDArray[Any]:
        asked.append(name)
        return checkpoint.read(name)

    model = Reference(resolve(checkpoint.config, checkpoint.tensors).config, weight)
    model.forward([1, 2])
    assert sorted(asked) == sorted(checkpoint.tensors)
    model.forward([1, 2])
    assert len(asked) == 2 * len(checkpoint.tensors)


def test_memory_is_bounded_by_blocks_not_by_the_matrix_or_the_square_of_the_text() -> None:
    """A bf16 matrix of 200 MB in float32, and scores that would take 512 MB at once."""
    weight = np.ones((50000, 1024), ml_dtypes.bfloat16)
    query = np.ones((8, 4096, 8), np.float32)
    tracemalloc.start()
    ops.linear(np.ones((1, 1024), np.float32), weight)
    linear_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    ops.attention(query, query[:1], query[:1], start=0)
    attention_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert linear_peak <= ops.BLOCK_BYTES + (1 << 20)
    assert attention_peak <= 2 * ops.BLOCK_BYTES


def test_rms_norm_keeps_zero_rows_and_large_values() -> None:
    weight = np.full(4096, 2, np.float32)
    large = np.full((1, 4096), 300, np.float32)
    np.testing.assert_allclose(ops.rms_norm(large, weight, 1e-6), np.full((1, 4096), 2), rtol=1e-5)
    assert not ops.rms_norm(np.zeros((2, 4096), np.float32), weight, 1e-6).any()


def test_silu_of_very_negative_values_is_zero_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    np.testing.assert_array_equal(ops.silu(np.array([-1e4, 0, 1e4], np.float32)), [0, 0, 1e4])
    assert not recwarn.list


def test_rotation_at_position_zero_changes_nothing_and_turns_pairs_half_a_head_apart() -> None:
    rope = Rope("default", 1e4, (1.0, 0.5))
    x = np.array([[[1, 0, 0, 0], [1, 0, 0, 0]]], np.float32)  # (1 head, 2 positions, 4)
    rotated = ops.rotate(x, *ops.rope_tables(rope, 0, 2))
    np.testing.assert_array_equal(rotated[0, 0], x[0, 0])
    np.testing.assert_allclose(rotated[0, 1], [np.cos(1), 0, np.sin(1), 0], rtol=1e-6)


def test_stories_model_tells_the_same_story_as_transformers() -> None:
    path = shared("models/stories260K")
    model = reference(path)
    assert model.generate([1], 200) == truth_generate(path, [1], 200)
    assert_same(model.forward(ids(200, 512)), truth_logits(path, ids(200, 512)))


def test_tiny_qwen3_model_equals_transformers() -> None:
    path = shared("models/tiny-qwen3-stories")
    model = reference(path)
    assert isinstance(model.config, DecoderConfig)
    assert model.config.head_dim * model.config.heads != model.config.hidden
    assert_same(model.forward(ids(200, 512)), truth_logits(path, ids(200, 512)))
    assert model.generate([1], 200) == truth_generate(path, [1], 200)
