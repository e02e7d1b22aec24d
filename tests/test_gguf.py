"""GGUF files against the library that writes them, and against the Hugging Face folders they come from."""

import json
import os
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_files import convert, metadata_of, write_gguf
from safetensors.numpy import load_file
from shared_files import shared
from tiny import make_tiny

from anemone.architectures import resolve
from anemone.checkpoint import open_checkpoint
from anemone.checkpoint.gguf_file import read_gguf
from anemone.errors import CheckpointError, UnsupportedModel

QUANTISED = [
    Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K,
    Kind.TQ1_0, Kind.TQ2_0, Kind.MXFP4, Kind.IQ2_XXS, Kind.IQ2_XS, Kind.IQ2_S, Kind.IQ3_XXS, Kind.IQ3_S, Kind.IQ1_S,
    Kind.IQ1_M, Kind.IQ4_NL, Kind.IQ4_XS,
]  # fmt: skip
SIZES = {
    "num_hidden_layers": 1,
    "max_position_embeddings": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
}


def bare(path: Path, architecture: str = "llama", tensors=None, **metadata) -> Path:
    """A GGUF with an embedding and the tensors and keys given, the keys without their architecture prefix."""
    keys = metadata_of(SIZES, architecture) | {f"{architecture}.{key}": value for key, value in metadata.items()}
    embedding = {"token_embd.weight": (np.zeros((32, 64), np.float32), Kind.F32)}
    return write_gguf(path, keys, embedding | (tensors or {}))


def random_blocks(kind: Kind, rows: int, columns: int) -> np.ndarray:
    """Bytes of a quantised (rows, columns) matrix whose scales are small normal numbers."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(kind).integers(0, 256, (rows, columns // block * block_bytes), np.uint8)
    return raw & 0x3B  # no fp16 pattern of these bits is inf, NaN or negative


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_quantised_tensors_equal_the_library_dequantisation(tmp_path, kind):
    raw = random_blocks(kind, 48, 512)
    path = bare(tmp_path / "m.gguf", tensors={"blk.0.ffn_up.weight": (raw, kind)})
    checkpoint = open_checkpoint(path)
    expected = gguf.dequantize(raw, kind)
    name = "model.layers.0.mlp.up_proj.weight"
    assert np.isfinite(expected).all()
    assert checkpoint.tensors[name].shape == (48, 512)
    assert checkpoint.tensors[name].dtype == "F32"
    np.testing.assert_array_equal(checkpoint.read(name), expected)
    np.testing.assert_array_equal(checkpoint.read(name, slice(5, 23)), expected[5:23])


@pytest.mark.parametrize(
    ("kind", "dtype"), [(Kind.F32, np.float32), (Kind.F16, np.float16), (Kind.BF16, ml_dtypes.bfloat16)]
)
def test_plain_tensors_are_views_of_the_file(tmp_path, kind, dtype):
    values = np.linspace(-3, 3, 48 * 64, dtype=np.float32).reshape(48, 64)
    stored = values.astype(dtype)
    raw = stored.view(np.uint8) if kind is Kind.BF16 else stored
    path = bare(tmp_path / "m.gguf", tensors={"blk.0.ffn_up.weight": (raw, kind)})
    tensor = open_checkpoint(path).read("model.layers.0.mlp.up_proj.weight", slice(3, 9))
    assert tensor.dtype == dtype
    assert not tensor.flags.owndata
    assert not tensor.flags.writeable
    np.testing.assert_array_equal(tensor, stored[3:9])


def test_integer_tensors_are_listed_but_not_read(tmp_path):
    path = bare(tmp_path / "m.gguf", tensors={"extra": (np.arange(4, dtype=np.int32), Kind.I32)})
    checkpoint = open_checkpoint(path)
    assert checkpoint.tensors["extra"].dtype == "I32"
    with pytest.raises(CheckpointError, match="extra is stored as I32"):
        checkpoint.read("extra")
    with pytest.raises(CheckpointError, match=r"no tensor model\.other"):
        checkpoint.read("model.other")


@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("llama", {"tied": False, "qkv_bias": True, "mlp_bias": True, "head_dim": 32}),
        ("llama", {}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 32, "tied": False}),
    ],
)
def test_a_converted_folder_reads_as_the_folder(tmp_path, model_type, options):
    folder = make_tiny(tmp_path / "hf", model_type, **options)
    path = convert(folder, tmp_path / "m.gguf", model_type)
    ours, truth = open_checkpoint(path), load_file(folder / "model.safetensors")
    assert ours.tensors.keys() == truth.keys()
    for name, tensor in truth.items():
        np.testing.assert_array_equal(ours.read(name), tensor, err_msg=name)
        np.testing.assert_array_equal(ours.read(name, slice(3, 17)), tensor[3:17], err_msg=name)
    original = open_checkpoint(folder)
    assert resolve(ours.config, ours.tensors).config == resolve(original.config, original.tensors).config


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_transformers_reads_the_same_from_a_quantised_file(tmp_path, model_type):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    folder = make_tiny(tmp_path / "hf", model_type, tied=False, rope={"rope_theta": 500000.0})
    vocabulary = byte_vocabulary(320)
    path = convert(folder, tmp_path / "m.gguf", model_type, Kind.Q8_0, **vocabulary)
    empty = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    ours = open_checkpoint(path)
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=empty)
    assert ours.tensors.keys() == theirs["tensors"].keys()
    for name, tensor in theirs["tensors"].items():
        np.testing.assert_array_equal(ours.read(name), tensor.numpy(), err_msg=name)
    keys = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers")
    for key in (*keys, "vocab_size", "max_position_embeddings", "tie_word_embeddings", "model_type"):
        assert ours.config[key] == theirs["config"][key], key


def byte_vocabulary(size: int) -> dict[str, object]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [chr(256 + number) for number in range(size)],
        "tokenizer.ggml.token_type": [1] * size,
        "tokenizer.ggml.merges": ["Ā ā"],
        "tokenizer.ggml.eos_token_id": 1,
    }


def test_gemma3_norms_and_layer_types(tmp_path):
    folder = shared("models/tiny-gemma3-stories")
    config = json.loads((folder / "config.json").read_text())
    local = [kind == "sliding_attention" for kind in config["layer_types"]]
    path = convert(folder, tmp_path / "m.gguf", "gemma3", **{"gemma3.attention.sliding_window_pattern": local})
    ours, truth = open_checkpoint(path), load_file(folder / "model.safetensors")
    assert ours.tensors.keys() == truth.keys()
    for name, tensor in truth.items():
        np.testing.assert_allclose(ours.read(name), tensor, atol=1e-6, err_msg=name)
    same = ("model_type", "layer_types", "sliding_window", "head_dim", "hidden_activation", "vocab_size")
    assert {key: ours.config[key] for key in same} == {key: config[key] for key in same}


def test_config_has_the_decimals_that_were_written(tmp_path):
    config = open_checkpoint(bare(tmp_path / "m.gguf", **{"rope.freq_base": 500000.0})).config
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_theta"] == 500000.0
    assert config["tie_word_embeddings"]
    assert config["vocab_size"] == 32
    assert config["head_dim"] == 16


def llama3_factors(head_dim: int, theta: float, **scaling: float) -> np.ndarray:
    """rope_freqs.weight for a llama3 scaling, by transformers' own frequencies."""
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "llama3", "rope_theta": theta, **scaling}
    config = transformers.LlamaConfig(head_dim=head_dim, max_position_embeddings=131072, rope_parameters=rope)
    inv_freq, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    return (plain / inv_freq.numpy()).astype(np.float32)


@pytest.mark.parametrize(
    ("head_dim", "factor", "high", "original"),
    [(128, 8.0, 4.0, 8192), (64, 32.0, 4.0, 8192), (128, 16.0, 8.0, 4096), (16, 8.0, 4.0, 8192)],
)
def test_llama3_scaling_is_recovered_from_its_divisors(tmp_path, head_dim, factor, high, original):
    expected = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    scaling = {key: value for key, value in expected.items() if key != "rope_type"}
    factors = llama3_factors(head_dim, 500000.0, **scaling)
    keys = {"rope.freq_base": 500000.0, "attention.key_length": head_dim, "attention.value_length": head_dim}
    path = bare(tmp_path / "m.gguf", tensors={"rope_freqs.weight": (factors, Kind.F32)}, **keys)
    checkpoint = open_checkpoint(path)
    assert checkpoint.config["rope_scaling"] == expected
    assert "rope_freqs.weight" not in checkpoint.tensors


def test_other_rope_divisors_are_refused(tmp_path):
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    path = bare(tmp_path / "m.gguf", tensors={"rope_freqs.weight": (factors, Kind.F32)})
    with pytest.raises(UnsupportedModel, match=r"rope_freqs.weight is no llama3 rope scaling"):
        open_checkpoint(path)
    ones = bare(tmp_path / "n.gguf", tensors={"rope_freqs.weight": (np.ones(8, np.float32), Kind.F32)})
    assert open_checkpoint(ones).config["rope_scaling"] is None


def test_rope_scaling_keys(tmp_path):
    linear = bare(tmp_path / "linear.gguf", **{"rope.scaling.type": "linear", "rope.scaling.factor": 8.0})
    assert open_checkpoint(linear).config["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    yarn = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32768,
        "rope.scaling.yarn_beta_fast": 32.0,
    }
    assert open_checkpoint(bare(tmp_path / "yarn.gguf", "qwen3", **yarn)).config["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
        "beta_fast": 32.0,
    }
    with pytest.raises(UnsupportedModel, match="rope scaling is longrope"):
        open_checkpoint(bare(tmp_path / "long.gguf", **{"rope.scaling.type": "longrope"}))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"expert_count": 8}, r"llama.expert_count = 8, which is not understood"),
        ({"logit_scale": 0.5}, r"llama.logit_scale = 0.5"),
        ({"rope.dimension_count": 8}, r"llama.rope.dimension_count is 8, but only the head size 16"),
        ({"attention.head_count_kv": [2, 4]}, r"llama.attention.head_count_kv differs from layer to layer"),
    ],
)
def test_keys_that_are_not_understood_are_refused(tmp_path, metadata, message):
    with pytest.raises(UnsupportedModel, match=message):
        open_checkpoint(bare(tmp_path / "m.gguf", **metadata))


def test_unknown_architecture_is_named(tmp_path):
    with pytest.raises(UnsupportedModel, match="architecture is phi3"):
        open_checkpoint(bare(tmp_path / "m.gguf", "phi3"))


def test_unknown_tensors_keep_their_names_and_are_refused_with_them(tmp_path):
    folder = make_tiny(tmp_path / "hf", "llama")
    path = convert(folder, tmp_path / "m.gguf", "llama")
    extra = {"blk.0.attn_sinks.weight": (np.zeros(4, np.float32), Kind.F32)}
    stored = {tensor.name: (np.asarray(tensor.data), tensor.tensor_type) for tensor in gguf.GGUFReader(path).tensors}
    config = json.loads((folder / "config.json").read_text())
    more = open_checkpoint(write_gguf(tmp_path / "n.gguf", metadata_of(config, "llama"), stored | extra))
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_sinks\.weight"):
        resolve(more.config, more.tensors)


def test_headers_equal_the_library_reader(tmp_path):
    folder = make_tiny(tmp_path / "hf", "llama")
    more = {"a.text": "é🙂", "a.floats": [0.5, 1.5], "a.words": ["x", "", "日本"], "a.flag": True, "a.number": 7}
    path = convert(folder, tmp_path / "m.gguf", "llama", Kind.Q8_0, **more, **byte_vocabulary(320))
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == fields
    assert {(t.name, t.kind, t.start, t.nbytes, t.shape) for t in ours.tensors.values()} == {
        (t.name, t.tensor_type, t.data_offset, t.n_bytes, tuple(reversed(t.shape.tolist()))) for t in theirs.tensors
    }


def test_cut_and_damaged_files(tmp_path):
    whole = bare(tmp_path / "m.gguf").read_bytes()
    cases = {
        b"": "does not begin with the letters GGUF",
        b"PK\x03\x04": "does not begin with the letters GGUF",
        whole[:100]: "cut short or damaged in its header",
        whole[:-100]: "is cut short: token_embd.weight ends at byte",
        b"GGUF\x00\x00\x00\x03" + whole[8:]: "has GGUF version 50331648",
        whole.replace(b"block_count", b"block_c\xffunt"): "not UTF-8",
    }
    for number, (content, message) in enumerate(cases.items()):
        path = tmp_path / f"bad{number}.gguf"
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(path)


def test_missing_keys_and_tensors(tmp_path):
    keys = metadata_of(SIZES, "llama")
    with pytest.raises(CheckpointError, match=r"no token_embd.weight"):
        open_checkpoint(write_gguf(tmp_path / "a.gguf", keys, {"x": (np.zeros(4, np.float32), Kind.F32)}))
    del keys["llama.block_count"]
    embedding = {"token_embd.weight": (np.zeros((32, 64), np.float32), Kind.F32)}
    with pytest.raises(CheckpointError, match=r"lacks llama.block_count"):
        open_checkpoint(write_gguf(tmp_path / "b.gguf", keys, embedding))


def test_split_files(tmp_path):
    keys = metadata_of(SIZES, "llama") | {"split.count": 2}
    embedding = {"token_embd.weight": (np.ones((32, 64), np.float32), Kind.F32)}
    norm = {"output_norm.weight": (np.full(64, 2, np.float32), Kind.F32)}
    first = write_gguf(tmp_path / "m-00001-of-00002.gguf", keys, embedding)
    with pytest.raises(CheckpointError, match=r"m-00002-of-00002.gguf is missing"):
        open_checkpoint(first)
    second = write_gguf(tmp_path / "m-00002-of-00002.gguf", {"general.architecture": "llama", "split.count": 2}, norm)
    for source in (first, second, tmp_path):
        checkpoint = open_checkpoint(source)
        assert set(checkpoint.tensors) == {"model.embed_tokens.weight", "model.norm.weight"}
        np.testing.assert_array_equal(checkpoint.read("model.norm.weight"), np.full(64, 2))
    renamed = first.rename(tmp_path / "renamed.gguf")
    with pytest.raises(CheckpointError, match="one of 2 parts"):
        open_checkpoint(renamed)


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["ANEMONE_SMOLLM2", "ANEMONE_GEMMA3"])
def test_real_file_equals_its_folder(variable):
    if variable not in os.environ:
        pytest.skip(f"{variable} names no folder")
    folder = open_checkpoint(Path(os.environ[variable]))
    file = open_checkpoint(folder.path / "source.gguf")
    assert file.tensors.keys() == folder.tensors.keys()
    for name in folder.tensors:
        np.testing.assert_array_equal(file.read(name).astype(ml_dtypes.bfloat16), folder.read(name), err_msg=name)
    bookkeeping = {"torch_dtype", "transformers_version", "pad_token_id", "_sliding_window_pattern"}
    for key in folder.config.keys() - bookkeeping:
        assert file.config[key] == folder.config[key], key
