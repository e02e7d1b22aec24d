"""Hugging Face folders and hub ids as checkpoints; the files are written by safetensors itself."""

import json
import shutil
import struct
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from anemone.checkpoint import open_checkpoint
from anemone.errors import CheckpointError


def folder_with(path: Path, tensors: dict[str, np.ndarray] | None = None, **config) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({"model_type": "llama"} | config))
    save_file(tensors or {"a.weight": np.arange(12, dtype=np.float32).reshape(4, 3)}, path / "model.safetensors")
    return path


def sharded(path: Path, shards: list[dict[str, np.ndarray]]) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    names = {}
    for number, tensors in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(tensors, path / file)
        names |= dict.fromkeys(tensors, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return path


def with_header(path: Path, header: object, data: bytes = b"") -> Path:
    folder_with(path)
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_tensors_are_read_only_views_of_the_mapped_file(tmp_path, dtype):
    values = np.linspace(-2, 2, 60, dtype=np.float32).reshape(10, 6).astype(dtype)
    checkpoint = open_checkpoint(folder_with(tmp_path, {"odd": np.zeros(1, np.uint8)[:0].astype(dtype), "w": values}))
    part = checkpoint.read("w", slice(4, 7))
    assert part.dtype == dtype
    np.testing.assert_array_equal(part, values[4:7])
    np.testing.assert_array_equal(checkpoint.read("w"), values)
    assert not part.flags.writeable
    assert not part.flags.owndata
    assert np.shares_memory(part, checkpoint.read("w"))
    assert checkpoint.read("odd").shape == (0,)


def test_bfloat16_equals_torch(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    folder_with(tmp_path)
    tensor = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    save_torch({"w": tensor, "scalar": torch.tensor(3.0)}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    np.testing.assert_array_equal(checkpoint.read("w").astype(np.float32), tensor.float().numpy())
    assert checkpoint.read("scalar") == 3.0
    assert checkpoint.tensors["scalar"].shape == ()


def test_other_dtypes_are_listed_but_not_read(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    folder_with(tmp_path)
    tensors = {
        "fp8": torch.zeros(4, 4, dtype=torch.float8_e4m3fn),
        "packed": torch.zeros(4, 2, dtype=torch.uint8),
        "ints": torch.zeros(3, dtype=torch.int32),
    }
    save_torch(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert {name: info.dtype for name, info in checkpoint.tensors.items()} == {
        "fp8": "F8_E4M3",
        "packed": "U8",
        "ints": "I32",
    }
    for name, dtype in (("fp8", "F8_E4M3"), ("packed", "U8"), ("ints", "I32")):
        with pytest.raises(CheckpointError, match=f"{name} is stored as {dtype}"):
            checkpoint.read(name)


def test_shards(tmp_path):
    parts = [{"a": np.ones((2, 3), np.float32)}, {"b": np.full(4, 2, np.float16), "c": np.zeros((1, 1), np.float32)}]
    checkpoint = open_checkpoint(sharded(tmp_path / "m", parts))
    assert set(checkpoint.tensors) == {"a", "b", "c"}
    np.testing.assert_array_equal(checkpoint.read("b"), np.full(4, 2))
    with pytest.raises(CheckpointError, match="no tensor d"):
        checkpoint.read("d")


def test_shards_that_contradict_their_index(tmp_path):
    one, two = {"a": np.ones(2, np.float32)}, {"b": np.ones(2, np.float32)}
    missing = sharded(tmp_path / "missing", [one, two])
    (missing / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002.safetensors is missing, although"):
        open_checkpoint(missing)

    absent = sharded(tmp_path / "absent", [one, two])
    save_file({"z": two["b"]}, absent / "model-00002-of-00002.safetensors")
    with pytest.raises(CheckpointError, match=r"Tensor b is not in model-00002-of-00002.safetensors"):
        open_checkpoint(absent)

    twice = sharded(tmp_path / "twice", [one, two])
    save_file(one | two, twice / "model-00002-of-00002.safetensors")
    with pytest.raises(CheckpointError, match="Tensor a is in both"):
        open_checkpoint(twice)

    no_map = sharded(tmp_path / "no_map", [one])
    (no_map / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has no weight_map"):
        open_checkpoint(no_map)

    no_index = sharded(tmp_path / "no_index", [one, two])
    (no_index / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"2 .safetensors files but neither"):
        open_checkpoint(no_index)


def test_damaged_safetensors(tmp_path):
    entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    cases = {
        "cut": ({"w": entry}, bytes(15), "is cut short: w ends at byte"),
        "size": ({"w": entry | {"shape": [2, 3]}}, bytes(16), "gives 16 bytes to w, a F32 of shape"),
        "entry": ({"w": {"dtype": "F32"}}, b"", "header entry of w in .* is malformed"),
        "json": (b"{nonsense", b"", "is not valid JSON"),
        "list": ([1], b"", "is not a JSON object"),
        "twice": (b'{"w": {}, "w": {}}', b"", "lists w twice"),
    }
    for name, (header, data, message) in cases.items():
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(with_header(tmp_path / name, header, data))

    pointer = folder_with(tmp_path / "lfs")
    (pointer / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(CheckpointError, match="Git LFS pointer"):
        open_checkpoint(pointer)
    (pointer / "model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(CheckpointError, match=r"\(40 bytes\) is not a safetensors file"):
        open_checkpoint(pointer)


def test_folders_without_weights(tmp_path):
    folder = folder_with(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no .safetensors file\.$"):
        open_checkpoint(folder)
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin is a PyTorch pickle"):
        open_checkpoint(folder)


def test_config_is_raw_in_either_layout(tmp_path):
    v5 = {"dtype": "bfloat16", "rope_parameters": {"rope_theta": 5e6, "rope_type": "default"}}
    folder = folder_with(tmp_path / "some-name", **v5)
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config == {"model_type": "llama"} | v5
    assert checkpoint.generation_config == {"eos_token_id": [1, 2]}
    assert checkpoint.name == "some-name"
    (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    beside = open_checkpoint(folder).config["hf_quant_config"]
    assert beside == {"quantization": {"quant_algo": "FP8"}}
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config.json is not valid JSON"):
        open_checkpoint(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="holds a JSON list"):
        open_checkpoint(folder)


def test_source_hash_follows_content_not_names(tmp_path):
    parts = [{"a": np.ones((2, 3), np.float32)}, {"b": np.zeros(4, np.float32)}]
    original = sharded(tmp_path / "one", parts)
    copy = Path(shutil.copytree(original, tmp_path / "deep" / "other"))
    (copy / "tokenizer.json").write_text("{}")
    expected = open_checkpoint(original).source_hash()
    assert open_checkpoint(copy).source_hash() == expected

    shard = copy / "model-00002-of-00002.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert open_checkpoint(copy).source_hash() != expected
    (original / "config.json").write_text('{"rms_norm_eps": 1e-6}')
    assert open_checkpoint(original).source_hash() == expected, "the config is hashed as the decoder it resolves to"


def test_paths_that_hold_no_checkpoint(tmp_path):
    (tmp_path / "notes.txt").touch()
    (tmp_path / "two").mkdir()
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / "two" / name).touch()
    (tmp_path / "empty").mkdir()
    cases = {
        tmp_path / "absent": "does not exist; give a folder with config.json",
        str(tmp_path / "absent" / "model.gguf"): "does not exist",
        "./org/name": "does not exist",
        "models/file.gguf": "does not exist",
        "name-alone": "does not exist",
        tmp_path / "notes.txt": "is not a checkpoint; give a folder",
        tmp_path / "two": r"holds 2 GGUF models \(a.gguf, b.gguf\)",
        tmp_path / "empty": r"has neither config.json nor a .gguf file",
    }
    for source, message in cases.items():
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(source)


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """An empty hub cache, and no network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def test_hub_id_from_the_local_cache(hub_cache):
    repo = hub_cache / "models--org--tiny-model"
    folder_with(repo / "snapshots" / "0123abc")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0123abc")
    checkpoint = open_checkpoint("org/tiny-model")
    assert checkpoint.name == "tiny-model"
    assert set(checkpoint.tensors) == {"a.weight"}


def test_hub_offline_is_one_sentence(hub_cache):
    with pytest.raises(CheckpointError, match=r"^There is no folder org/absent, the hub cannot be reached, [^.]*\.$"):
        open_checkpoint("org/absent")


def test_hub_refusals_are_one_sentence(monkeypatch):
    import huggingface_hub
    from huggingface_hub import errors

    response = SimpleNamespace(headers={}, request=None, status_code=401)
    cases = {
        errors.GatedRepoError("401", response=response): "org/m is gated: accept its licence",
        errors.RepositoryNotFoundError("404", response=response): "neither a folder org/m nor a public model",
        errors.HfHubHTTPError(
            "503 Service Unavailable\nmore", response=response
        ): "downloaded: 503 Service Unavail[a-z]*$",
        OSError(28, "No space left on device"): "could not be downloaded: .*No space left",
    }
    for error, message in cases.items():

        def fail(*args, error=error, **options):
            raise error

        monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint("org/m")


def test_hub_fetches_only_what_is_used(monkeypatch, tmp_path):
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    folder = folder_with(tmp_path)
    asked = {}

    def fetch(repo, *, allow_patterns):
        asked[repo] = allow_patterns
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    open_checkpoint("mistralai/Mistral-7B-v0.3")
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"org/only-gguf on the hub has no config.json"):
        open_checkpoint("org/only-gguf")
    wanted = [
        "config.json", "generation_config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
        "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "additional_chat_templates/tools.jinja",
    ]  # fmt: skip
    others = ["consolidated.safetensors", "original/model.safetensors", "pytorch_model.bin", "README.md", "m.gguf"]
    patterns = asked["mistralai/Mistral-7B-v0.3"]
    assert list(filter_repo_objects([*wanted, *others], allow_patterns=patterns)) == wanted
