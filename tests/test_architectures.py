"""From config and tensors to a decoder: what is read, what is reported, what is refused and with which words."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from configs_and_tensors import SIZES, config, refusal, tensors
from tiny import CLASSES, MODEL_TYPES, make_tiny

from anemone.architectures import registry, resolve, supported
from anemone.architectures.unsupported import MISSING
from anemone.checkpoint import open_checkpoint
from anemone.errors import UnsupportedModel


class TestRouting:
    def test_the_file_of_that_name_is_the_architecture(self) -> None:
        assert set(supported()) == set(MODEL_TYPES)
        for name in supported():
            source = Path(sys.modules[f"anemone.architectures.{name}"].__file__ or "")
            assert source.stem == name
            assert len(source.read_text().splitlines()) <= 120

    def test_a_new_file_is_enough_for_a_new_model_type(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import anemone.architectures

        (tmp_path / "newcomer.py").write_text(
            "from dataclasses import replace\nfrom anemone.architectures import qwen3\n"
            "ARCHITECTURE = replace(qwen3.ARCHITECTURE, classes=('NewcomerForCausalLM',))\n"
        )
        monkeypatch.setattr(anemone.architectures, "__path__", [*anemone.architectures.__path__, str(tmp_path)])
        model = resolve(config("newcomer", architectures=["NewcomerForCausalLM"]))
        assert (model.name, model.config.qk_norm, model.notes) == ("newcomer", True, ())
        assert "newcomer" in supported()

    def test_helper_modules_are_not_architectures(self) -> None:
        for name in ("rope", "spec", "base", "os", "../llama", "llama.py"):
            assert f'"{name}" is not supported' in refusal(config(name))

    @pytest.mark.parametrize("folder", ["gemma-3-270m-it", "whisper-large", "x y"])
    def test_folder_names_do_not_matter(self, tmp_path: Path, folder: str) -> None:
        checkpoint = open_checkpoint(str(make_tiny(tmp_path / folder, "qwen3")))
        assert resolve(checkpoint.config, checkpoint.tensors).name == "qwen3"

    def test_a_fine_tune_s_own_class_name_routes_by_model_type_and_is_reported(self) -> None:
        keys = {"architectures": ["MergedSlerpForCausalLM"]}
        model = resolve(config("qwen3", **keys), tensors("qwen3"))
        assert model.name == "qwen3"
        assert any("MergedSlerpForCausalLM" in note and '"qwen3"' in note for note in model.notes)

    def test_the_class_of_another_family_is_reported(self) -> None:
        model = resolve(config("llama", architectures=["MistralForCausalLM"]), tensors())
        assert any("MistralForCausalLM" in note and '"mistral"' in note and '"llama"' in note for note in model.notes)

    def test_the_usual_class_needs_no_note(self) -> None:
        for name in MODEL_TYPES:
            extra = {"sliding_window": None} if name == "mistral" else {}
            assert resolve(config(name, architectures=[CLASSES[name]], **extra), tensors(name)).notes == ()

    def test_tensors_that_are_another_family_s_are_refused(self) -> None:
        assert "self_attn.q_norm.weight" in refusal(config("llama"), tensors("qwen3"))
        assert "lacks model.layers.0.self_attn.q_norm.weight" in refusal(config("qwen3"), tensors("llama"))

    @pytest.mark.parametrize(
        ("model_type", "mechanism"),
        [
            ("whisper", "speech"),
            ("speecht5", "speech"),
            ("csm", "speech"),
            ("gemma3_text", "local and global layers"),
            ("gemma3n", "AltUp.*PLE.*share a KV cache"),
            ("gemma4", "k_eq_v"),
            ("hunyuan_v1_dense", "normalises q and k after the rotation"),
            ("lfm2", "convolutions"),
            ("qwen3_next", "linear attention"),
            ("bert", "encoder"),
            ("xlm-roberta", "encoder"),
            ("olmo2", "norms after attention"),
            ("granite", "multiplies embeddings"),
        ],
    )
    def test_a_known_family_is_refused_naming_what_is_missing(self, model_type: str, mechanism: str) -> None:
        with pytest.raises(UnsupportedModel, match=f'"{model_type}" is not supported: .*{mechanism}'):
            resolve({"model_type": model_type})

    def test_an_unknown_family_is_refused_with_the_list_of_supported_ones(self) -> None:
        message = refusal(config("brand_new"))
        assert '"brand_new" is not supported' in message
        assert "llama, mistral, qwen2, qwen3" in message

    def test_multimodal_configs_are_refused_as_such(self) -> None:
        assert "multimodal" in refusal({"model_type": "new_vl", "text_config": {"model_type": "qwen3"}})
        assert "multimodal (vision_config)" in refusal(config("llama", vision_config={"depth": 2}))

    def test_a_config_without_model_type_is_refused(self) -> None:
        assert "no model_type" in refusal({"hidden_size": 64})

    def test_resolving_needs_neither_the_graph_nor_any_writer(self) -> None:
        """The model's definition knows no target, so that another back end can stand beside Core ML."""
        code = (
            "import sys, anemone.architectures, anemone.reference\n"
            "bad = {m for m in sys.modules if m.startswith(('coremltools', 'torch', 'transformers', 'tokenizers',"
            "'anemone.graph', 'anemone.package', 'anemone.execute', 'anemone.runtime', 'anemone.checkpoint'))}\n"
            "assert not bad, bad"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


class TestKeys:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("attn_logit_softcapping", 50.0),
            ("final_logit_softcapping", 30.0),
            ("logits_scaling", 16.0),
            ("embedding_multiplier", 12.0),
            ("attention_multiplier", 0.0078125),
            ("residual_multiplier", 0.22),
            ("query_pre_attn_scalar", 168),
            ("no_rope_layers", [1, 1, 1, 0]),
            ("use_qk_norm", True),
            ("num_local_experts", 8),
            ("num_kv_shared_layers", 15),
            ("sliding_window", 4096),
            ("rope_interleaved", True),
            ("is_causal", False),
            ("attention_scale_of_my_own", 2),
        ],
    )
    def test_a_key_that_may_change_the_mathematics_is_refused_with_its_value(self, key: str, value: object) -> None:
        message = refusal(config(**{key: value}))
        assert key in message
        assert str(value) in message

    @pytest.mark.parametrize(
        "keys",
        [
            {"attn_logit_softcapping": None, "final_logit_softcapping": None, "use_qk_norm": False, "pruned_heads": {}},
            {"torch_dtype": "bfloat16", "use_cache": True, "initializer_range": 0.02, "attention_dropout": 0.1},
            {"pretraining_tp": 2, "bos_token_id": 1, "eos_token_id": [1, 2], "pad_token_id": 0, "auto_map": {"a": "b"}},
            {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"kv_cache_dtype": {}}},
            {"layer_types": ["full_attention", "full_attention"], "unsloth_version": "2025.1", "temperature": 0.7},
        ],
    )
    def test_bookkeeping_and_switched_off_keys_are_no_obstacle(self, keys: dict[str, Any]) -> None:
        assert resolve(config(**keys)).config == resolve(config()).config

    @pytest.mark.parametrize("kind", ["conv", "linear_attention", "chunked_attention", "mamba"])
    def test_layers_that_are_not_attention_are_refused_by_name(self, kind: str) -> None:
        assert kind in refusal(config("qwen3", layer_types=["full_attention", kind]))

    def test_layer_types_must_cover_the_layers(self) -> None:
        assert "each of the 2 layers" in refusal(config("qwen3", layer_types=["full_attention"]))

    @pytest.mark.parametrize(
        ("model_type", "keys", "window"),
        [
            ("mistral", {"sliding_window": 100}, 100),
            ("mistral", {"sliding_window": None}, None),
            ("mistral", {}, 4096),
            ("qwen2", {"sliding_window": 100, "use_sliding_window": False, "max_window_layers": 0}, None),
            ("qwen2", {"sliding_window": 100, "use_sliding_window": True, "max_window_layers": 1}, 100),
            ("qwen2", {"sliding_window": 100, "use_sliding_window": True, "max_window_layers": 2}, None),
            ("qwen3", {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 0}, None),
            (
                "qwen3",
                {
                    "sliding_window": 100,
                    "use_sliding_window": True,
                    "layer_types": ["full_attention", "sliding_attention"],
                },
                100,
            ),
        ],
    )
    def test_sliding_windows(self, model_type: str, keys: dict[str, Any], window: int | None) -> None:
        assert resolve(config(model_type, **keys)).config.sliding_window == window

    @pytest.mark.parametrize(
        ("model_type", "keys"),
        [("llama", {}), ("qwen3", {"use_sliding_window": False}), ("mistral", {"sliding_window": None})],
    )
    def test_sliding_layers_without_a_window_contradict_themselves(self, model_type: str, keys: dict[str, Any]) -> None:
        sliding = ["sliding_attention", "full_attention"]
        assert "give them no window" in refusal(config(model_type, layer_types=sliding, **keys))

    @pytest.mark.parametrize(
        ("key", "value", "words"),
        [
            ("hidden_size", "64", "hidden_size is '64'"),
            ("num_hidden_layers", 0, "num_hidden_layers is 0"),
            ("num_key_value_heads", 3, "4, not a multiple of num_key_value_heads, 3"),
            ("head_dim", 15, "head_dim is 15"),
            ("hidden_act", "quick_gelu", "hidden_act is 'quick_gelu'"),
            ("rms_norm_eps", None, "rms_norm_eps is None"),
            ("attention_bias", 1, "attention_bias is 1"),
        ],
    )
    def test_a_wrong_value_is_named(self, key: str, value: object, words: str) -> None:
        assert words in refusal(config(**{key: value}))

    @pytest.mark.parametrize("key", ["hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"])
    def test_a_missing_size_is_named(self, key: str) -> None:
        assert f"no {key}" in refusal({k: v for k, v in config().items() if k != key})

    @pytest.mark.parametrize("model_type", MODEL_TYPES)
    def test_defaults_are_those_of_transformers(self, model_type: str) -> None:
        from transformers import CONFIG_MAPPING

        sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        bare = {"model_type": model_type, **{key: SIZES[key] for key in sizes}, "num_attention_heads": 32}
        ours, theirs = resolve(bare).config, CONFIG_MAPPING[model_type](**bare)
        assert ours.kv_heads == theirs.num_key_value_heads
        assert ours.head_dim == getattr(theirs, "head_dim", 64 // 32)
        assert ours.max_positions == theirs.max_position_embeddings
        assert ours.norm_eps == theirs.rms_norm_eps
        assert ours.tied == theirs.tie_word_embeddings
        assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
        assert ours.activation == theirs.hidden_act
        assert ours.sliding_window == getattr(theirs, "sliding_window", None)

    @pytest.mark.parametrize("name", ["Qwen3ForCausalLM", "Qwen3Model"])
    def test_an_embedding_model_with_a_decoder_s_names_converts_as_that_decoder(self, name: str) -> None:
        model = resolve(config("qwen3", architectures=[name], max_window_layers=28), tensors("qwen3"))
        assert (model.config.tied, model.notes) == (True, ())

    def test_an_embedding_model_without_the_model_prefix_is_refused_as_one(self) -> None:
        bare = {name.removeprefix("model."): info for name, info in tensors("qwen3").items()}
        assert "embedding models" in refusal(config("qwen3", architectures=["Qwen3ForCausalLM"]), bare)


def test_supported_families_have_no_line_among_the_missing() -> None:
    assert not set(supported()) & set(MISSING)
    assert all(registry.architecture_of({"model_type": name}) for name in supported())
