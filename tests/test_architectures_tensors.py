"""A checkpoint's tensors against its config: names, shapes, layers, heads, and quantised storage."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from configs_and_tensors import config, refusal, tensors
from tiny import MODEL_TYPES, load_weights, make_tiny, random_weights, truth_logits, truth_model, write_weights

from anemone.architectures import Model, resolve, tensor_shapes
from anemone.checkpoint import Checkpoint, TensorInfo, open_checkpoint
from anemone.errors import CheckpointError, UnsupportedModel
from anemone.reference import Reference


def with_tensor(name: str, shape: tuple[int, ...], dtype: str = "BF16") -> dict[str, TensorInfo]:
    return tensors() | {name: TensorInfo(name, shape, dtype)}


def resolved(checkpoint: Checkpoint) -> Model:
    return resolve(checkpoint.config, checkpoint.tensors)


class TestTensors:
    @pytest.mark.parametrize("model_type", MODEL_TYPES)
    @pytest.mark.parametrize("tied", [True, False])
    def test_names_and_shapes_are_those_of_transformers(self, tmp_path: Path, model_type: str, tied: bool) -> None:
        path = make_tiny(tmp_path / "m", model_type, tied=tied, head_dim=24)
        config = resolved(open_checkpoint(str(path))).config
        theirs = {name: tuple(p.shape) for name, p in truth_model(path).named_parameters()}
        assert tensor_shapes(config) == theirs

    def test_an_unknown_tensor_is_refused_by_name(self) -> None:
        name = "model.layers.1.self_attn.query_layernorm.weight"
        assert name in refusal(config(), with_tensor(name, (16,)))

    def test_a_dropped_tensor_is_refused_by_name(self) -> None:
        name = "model.layers.1.mlp.up_proj.weight"
        assert f"lacks {name}" in refusal(config(), {n: t for n, t in tensors().items() if n != name})

    def test_recomputed_tensors_are_ignored_and_listed(self) -> None:
        extra = ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.1.self_attn.masked_bias"]
        model = resolve(config(), tensors() | {name: TensorInfo(name, (8,), "U8") for name in extra})
        assert list(model.ignored) == extra
        assert all(any(name in note for note in model.notes) for name in extra)

    @pytest.mark.parametrize("stated", [1, 3])
    def test_another_number_of_layers_is_refused_with_both_numbers(self, stated: int) -> None:
        message = refusal(config(num_hidden_layers=stated), tensors())
        assert "2 layers" in message
        assert f"num_hidden_layers is {stated}" in message

    @pytest.mark.parametrize(
        ("key", "value", "shown"),
        [
            ("intermediate_size", 192, ("mlp.gate_proj.weight", "128 x 64", "192 x 64")),
            ("vocab_size", 300, ("embed_tokens.weight", "320 x 64", "300 x 64")),
            ("head_dim", 32, ("self_attn.q_proj.weight", "64 x 64", "128 x 64")),
            ("num_key_value_heads", 1, ("self_attn.k_proj.weight", "32 x 64", "16 x 64")),
        ],
    )
    def test_a_shape_that_contradicts_the_config_is_refused_with_both_shapes(
        self, key: str, value: int, shown: tuple[str, ...]
    ) -> None:
        message = refusal(config(**{key: value}), tensors())
        assert all(words in message for words in shown), message

    def test_an_untied_head_must_be_there(self) -> None:
        assert "lacks lm_head.weight" in refusal(config(tie_word_embeddings=False), tensors())

    @pytest.mark.parametrize("same", [True, False])
    def test_a_head_beside_tied_embeddings_is_used_as_transformers_does_and_said(
        self, tmp_path: Path, same: bool
    ) -> None:
        path = make_tiny(tmp_path / "m", "llama", tied=True)
        weights = load_weights(path)
        other = random_weights({"lm_head.weight": (320, 64)}, seed=1)
        head = weights["model.embed_tokens.weight"] if same else other["lm_head.weight"]
        write_weights(path, weights | {"lm_head.weight": head})
        checkpoint = open_checkpoint(str(path))
        model = resolved(checkpoint)
        assert any("tie_word_embeddings is true" in note and "lm_head.weight" in note for note in model.notes)
        ids = np.arange(20)
        np.testing.assert_allclose(
            Reference(model.config, checkpoint.read).forward(ids), truth_logits(path, ids), atol=1e-4
        )


FP8_BLOCK = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}


class TestQuantised:
    @pytest.mark.parametrize(
        ("keys", "words"),
        [
            ({"quantization_config": FP8_BLOCK}, ("fp8 e4m3", "dequantize=True")),
            ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, ("gptq", "unquantised original")),
            ({"quantization_config": {"quant_method": "awq", "bits": 4}}, ("awq", "unquantised original")),
            ({"quantization_config": {"quant_method": "mxfp4"}}, ("mxfp4", "Mxfp4Config")),
            (
                {"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}},
                ("compressed-tensors float-quantized", "CompressedTensorsConfig"),
            ),
            (
                {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
                ("bitsandbytes", "dequantize()"),
            ),
            ({"quantization_config": {"load_in_8bit": True}}, ("bitsandbytes",)),
            (
                {"quantization": {"group_size": 64, "bits": 4}, "quantization_config": {"group_size": 64, "bits": 4}},
                ("MLX", "mlx_lm.convert", "--dequantize"),
            ),
            ({"quantization": {"group_size": 64, "bits": 4}}, ("MLX", "mlx_lm.convert")),
            ({"hf_quant_config": MODELOPT}, ("modelopt FP8", "unquantised original")),
        ],
    )
    def test_a_declared_format_is_named_with_what_to_do(self, keys: dict[str, Any], words: tuple[str, ...]) -> None:
        message = refusal(config(**keys), tensors())
        assert all(word in message for word in ("quantised", *words)), message

    @pytest.mark.parametrize(
        ("name", "dtype", "words"),
        [
            ("model.layers.0.mlp.up_proj.weight", "F8_E4M3", ("fp8", "up_proj.weight is F8_E4M3")),
            ("model.layers.0.mlp.up_proj.weight", "U8", ("up_proj.weight", "U8", "unquantised original")),
            ("model.layers.0.mlp.up_proj.weight", "I32", ("up_proj.weight", "I32", "unquantised original")),
            ("model.layers.0.mlp.up_proj.weight_scale_inv", "F32", ("fp8",)),
            ("model.layers.0.mlp.up_proj.weight_packed", "I32", ("compressed-tensors",)),
            ("model.layers.0.mlp.up_proj.qweight", "I32", ("GPTQ or AWQ",)),
            ("model.layers.0.mlp.up_proj.scales", "F16", ("MLX", "--dequantize")),
            ("model.layers.0.mlp.up_proj.weight.absmax", "F32", ("bitsandbytes",)),
        ],
    )
    def test_quantised_tensors_are_found_without_any_declaration(
        self, name: str, dtype: str, words: tuple[str, ...]
    ) -> None:
        message = refusal(config(), with_tensor(name, (128, 64), dtype))
        assert all(word in message for word in words), message

    def test_an_unsupported_family_is_told_both_reasons(self) -> None:
        message = refusal({"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}})
        assert '"gpt_oss"' in message
        assert "mxfp4" in message


def test_errors_are_of_the_kind_that_fits() -> None:
    with pytest.raises(CheckpointError):
        resolve(config(), with_tensor("model.layers.0.other.weight", (1,)))
    with pytest.raises(UnsupportedModel):
        resolve(config(new_scaling=2.0))
