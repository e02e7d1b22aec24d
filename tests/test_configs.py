"""Every collected config.json either plans, with the numbers it stands for, or is refused for the stated reason."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from shared_files import ROOT, shared

from anemone.architectures import resolve
from anemone.errors import UnsupportedModel

# hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, rope kind, theta, tied
PLANS: dict[str, tuple[object, ...]] = {
    "deepseek-r1-distill-qwen-1.5b": (1536, 28, 12, 2, 128, 8960, 151936, "default", 1e4, False),
    "llama-3.1-8b-instruct": (4096, 32, 32, 8, 128, 14336, 128256, "llama3", 5e5, False),
    "llama-3.2-1b-instruct": (2048, 16, 32, 8, 64, 8192, 128256, "llama3", 5e5, True),
    "llama-3.2-3b-instruct": (3072, 28, 24, 8, 128, 8192, 128256, "llama3", 5e5, True),
    "mistral-7b-instruct-v0.3": (4096, 32, 32, 8, 128, 14336, 32768, "default", 1e6, False),
    "mistral-7b-v0.1": (4096, 32, 32, 8, 128, 14336, 32000, "default", 1e4, False),
    "qwen2-0.5b": (896, 24, 14, 2, 64, 4864, 151936, "default", 1e6, True),
    "qwen2-1.5b": (1536, 28, 12, 2, 128, 8960, 151936, "default", 1e6, True),
    "qwen2.5-3b-instruct": (2048, 36, 16, 2, 128, 11008, 151936, "default", 1e6, True),
    "qwen2.5-7b-instruct": (3584, 28, 28, 4, 128, 18944, 152064, "default", 1e6, False),
    "qwen3-0.6b": (1024, 28, 16, 8, 128, 3072, 151936, "default", 1e6, True),
    "qwen3-0.6b-think-sft-4.54": (1024, 28, 16, 8, 128, 3072, 151936, "default", 1e6, True),
    "qwen3-1.7b": (2048, 28, 16, 8, 128, 6144, 151936, "default", 1e6, True),
    "qwen3-8b": (4096, 36, 32, 8, 128, 12288, 151936, "default", 1e6, False),
    "qwen3-8b-no-head-dim": (4096, 36, 32, 8, 128, 12288, 151936, "default", 1e6, False),
    "smollm-1.7b-instruct": (2048, 24, 32, 32, 64, 8192, 49152, "default", 1e4, True),
    "smollm2-135m-4.48": (576, 30, 9, 3, 64, 1536, 49152, "default", 1e5, True),
    "smollm2-135m-instruct": (576, 30, 9, 3, 64, 1536, 49152, "default", 1e5, True),
    "smollm2-360m-instruct": (960, 32, 15, 5, 64, 2560, 49152, "default", 1e5, True),
    "tinyllama-1.1b-chat-v1.0": (2048, 22, 32, 4, 64, 5632, 32000, "default", 1e4, False),
}

REFUSED: dict[str, str] = {
    "exaone-4.0-1.2b": '"exaone4" is not supported: .*norms after attention',
    "exaone-4.0-1.2b-w4a16-compressed-tensors": '"exaone4".*quantised \\(compressed-tensors pack-quantized\\)',
    "exaone-4.0-1.2b-w8a8-compressed-tensors": '"exaone4".*quantised \\(compressed-tensors int-quantized\\)',
    "exaone-4.0-32b": '"exaone4" is not supported: .*layers without rotary positions',
    "gemma-2-2b": '"gemma2" is not supported: .*soft-caps',
    "gemma-3-1b-it": '"gemma3_text" is not supported: .*local and global layers',
    "gemma-3-270m": '"gemma3_text" is not supported: .*local and global layers',
    "gemma-3-4b-translategemma-text-v5mixed": '"gemma3" is not supported: .*images.*two rotary bases',
    "gemma-3n-e4b-text": '"gemma3n" is not supported: .*AltUp.*PLE.*share a KV cache',
    "gemma-4-26b-a4b": '"gemma4" is not supported: .*k_eq_v.*KV sharing',
    "gpt-oss-20b": '"gpt_oss" is not supported: .*mixtures of experts.*sinks.*mxfp4',
    "gpt2": '"gpt2" is not supported: .*learned absolute positions',
    "granite-3.1-2b-base": '"granite" is not supported: it multiplies embeddings',
    "granite-3.3-8b-instruct": '"granite" is not supported: it multiplies embeddings',
    "internlm2.5-7b": '"internlm2" is not supported: .*fused',
    "lfm2-1.2b-text-v5": '"lfm2" is not supported: .*convolutions \\(layer_types conv\\)',
    "llama-3.1-70b-fp8-modelopt": "quantised \\(modelopt FP8\\)",
    "llama-4-scout": '"llama4" is not supported: .*mixtures of experts.*chunked',
    "ministral-3-3b-2512": '"ministral3" is not supported: .*llama_4_scaling_beta',
    "mixtral-8x7b": '"mixtral" is not supported: .*mixtures of experts',
    "olmo-2-1124-13b": '"olmo2" is not supported: .*norms after attention',
    "olmo-2-1124-7b": '"olmo2" is not supported: .*norms after attention',
    "phi-3.5-mini-instruct": '"phi3" is not supported: .*fused.*longrope',
    "phi-4-14b": '"phi3" is not supported: .*fused',
    "phi-4-mini-instruct": '"phi3" is not supported: .*fused.*longrope',
    "qwen3-30b-a3b": '"qwen3_moe" is not supported: .*mixtures of experts',
    "qwen3-32b-fp8": "quantised \\(fp8 e4m3\\)",
    "qwen3-32b-fp8-static-pertensor": "quantised \\(modelopt FP8\\)",
    "qwen3-vl-2b-instruct": '"qwen3_vl" is not supported: .*images',
    "qwen3-vl-4b-instruct": '"qwen3_vl" is not supported: .*images',
    "qwen3.5-27b": '"qwen3_5" is not supported: .*linear attention',
    "smollm3-3b": '"smollm3" is not supported: .*no_rope_layers',
    "smollm3-3b-v5": '"smollm3" is not supported: .*no_rope_layers',
}

# This checkpoint's config alone is that of an ordinary Llama; the file beside it tells the truth.
BESIDE = {"llama-3.1-70b-fp8-modelopt": {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}}


def config(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shared(f"cases/configs/{name}.json").read_text())
    return found | ({"hf_quant_config": BESIDE[name]} if name in BESIDE else {})


def collected() -> Iterator[str]:
    return (path.stem for path in (ROOT / "cases/configs").glob("*.json"))


def test_every_collected_config_is_in_exactly_one_table() -> None:
    shared("cases/configs")
    assert not PLANS.keys() & REFUSED.keys()
    assert set(collected()) == PLANS.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", sorted(PLANS))
def test_config_plans_with_its_numbers(name: str) -> None:
    c = resolve(config(name)).config
    found = (c.hidden, c.layers, c.heads, c.kv_heads, c.head_dim, c.intermediate, c.vocab)
    assert (*found, c.rope.kind, c.rope.theta, c.tied) == PLANS[name]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_config_is_refused_in_one_line_for_the_stated_reason(name: str) -> None:
    with pytest.raises(UnsupportedModel, match=REFUSED[name]) as refusal:
        resolve(config(name))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", sorted(PLANS))
def test_both_config_layouts_describe_the_same_decoder(name: str) -> None:
    old = config(name)
    new = {key: value for key, value in old.items() if key not in ("rope_theta", "rope_scaling", "torch_dtype")}
    scaling = old.get("rope_scaling") or {"rope_type": "default"}
    new |= {"rope_parameters": scaling | {"rope_theta": old["rope_theta"]}, "dtype": "bfloat16"}
    assert resolve(new) == resolve(old)


def test_windows_and_variants_of_real_configs() -> None:
    assert resolve(config("mistral-7b-v0.1")).config.sliding_window == 4096
    assert resolve(config("mistral-7b-instruct-v0.3")).config.sliding_window is None
    assert resolve(config("qwen2.5-7b-instruct")).config.sliding_window is None  # stated, but switched off
    qwen2, qwen3 = resolve(config("qwen2-0.5b")).config, resolve(config("qwen3-0.6b")).config
    assert (qwen2.qkv_bias, qwen2.o_bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.o_bias, qwen3.qk_norm) == (False, False, True)


def test_head_dim_left_out_of_a_qwen3_config_is_the_class_default_not_a_quotient() -> None:
    model = resolve(config("qwen3-0.6b") | {"head_dim": 64})
    assert model.config.head_dim == 64
    without = {key: value for key, value in config("qwen3-0.6b").items() if key != "head_dim"}
    assert resolve(without).config.head_dim == 128 != without["hidden_size"] // without["num_attention_heads"]
    assert any("head_dim" in note and "128" in note for note in resolve(without).notes)
