"""The written files, read with Apple's own tools: they load, decode to what was meant, and stay as pinned."""

import struct
from collections import Counter
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from bundles import weight_file
from programs import computed, functions, listing, shape_only_checkpoint
from tiny import MODEL_TYPES, load_weights

pytest.importorskip("coremltools")

from mil_truth import WEIGHTS, load

from anemone.checkpoint import open_checkpoint
from anemone.compress.palettize import palettize_blocks
from anemone.compress.spec import LutSpec
from anemone.conversion.plan import make_plan
from anemone.recipe import Recipe

GOLDEN = Path(__file__).with_name("golden")
LUT = {"lut_embeddings": LutSpec(8, 0), "lut_ffn": LutSpec(4, 8), "lut_lmhead": LutSpec(6, 4)}
UPSTREAM = {
    "conv": 28, "matmul": 8, "softmax": 4, "layer_norm": 17, "transpose": 24, "reshape": 26, "slice_by_index": 41,
    "concat": 41, "read_state": 9, "slice_update": 8, "write_state": 8, "tile": 8,
}  # fmt: skip
"""Operations of ANEMLL 0.3.5's infer function for four Qwen3 layers (context 512, batch 64)."""


@pytest.mark.parametrize("recipe", [{}, LUT, {"argmax": True, "kv_write": "mask"}], ids=["fp16", "lut", "mask"])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_coremltools_loads_every_package(workshop, model_type, recipe):
    import coremltools as ct
    from coremltools.converters.mil.mil.passes.pass_pipeline import PassPipelineManager

    for package in workshop.bundle(workshop.checkpoint(model_type), **recipe).glob("*.mlpackage"):
        assert ct.utils.load_spec(str(package)).specificationVersion == 9
        assert ct.models.MLModel(str(package), skip_model_load=True).user_defined_metadata["com.anemll.context_length"]
        program = load(package)
        assert set(program.functions) == set(functions(package))
        PassPipelineManager.apply_pipeline(program, ct.PassPipeline.DEFAULT)


def decoded(package: Path) -> dict[str, np.ndarray]:
    """Every stored weight by the name of its value, decoded by coremltools."""
    found = {}
    for function in load(package).functions.values():
        for op in function.operations:
            if op.op_type.startswith("constexpr_"):
                found[op.outputs[0].name.removesuffix("_palettized")] = op.materialized_val_inference()
            elif op.op_type == "const" and isinstance(op.val.val, np.ndarray):
                found[op.outputs[0].name] = op.val.val
    return found


def all_decoded(folder: Path) -> dict[str, np.ndarray]:
    return {name: value for package in folder.glob("*.mlpackage") for name, value in decoded(package).items()}


def stored_name(tensor: str) -> str:
    return tensor.replace(".", "_")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_dense_weights_decode_to_the_checkpoint_in_fp16(workshop, model_type):
    source = workshop.checkpoint(model_type, dtype="bfloat16", tied=False, layers=3)
    weights = load_weights(source)
    found = all_decoded(workshop.bundle(source, chunks=2, head_split=3))
    rng = np.random.default_rng(0)
    names = rng.choice(sorted(set(weights) - {"lm_head.weight"}), 10, replace=False)
    for name in [*names, "model.embed_tokens.weight", "model.norm.weight"]:
        assert weights[name].dtype == ml_dtypes.bfloat16
        value = found[stored_name(name)]
        assert value.dtype == np.float16
        assert np.array_equal(value.reshape(weights[name].shape), weights[name].astype(np.float16)), name
    head = np.concatenate([found[f"lm_head_{i}_weight"][:, :, 0, 0] for i in (1, 2, 3)])
    assert np.array_equal(head, weights["lm_head.weight"].astype(np.float16))


def palettised(matrix: np.ndarray, spec: LutSpec) -> np.ndarray:
    """What compression gives for a matrix, decoded."""
    blocks = palettize_blocks(lambda rows: matrix[rows], *matrix.shape, spec.bits, spec.group)
    return np.concatenate([block.dequantise() for block in blocks])


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_palettised_weights_decode_to_what_compression_gave(workshop, model_type):
    source = workshop.checkpoint(model_type, dtype="bfloat16", layers=3)
    weights = {name: tensor.astype(np.float16) for name, tensor in load_weights(source).items()}
    found = all_decoded(workshop.bundle(source, chunks=2, head_split=4, **LUT))
    matrices = [name for name in weights if weights[name].ndim == 2 and "layers" in name]
    for name in np.random.default_rng(0).choice(matrices, 10, replace=False):
        value = found[stored_name(name)][:, :, 0, 0]
        assert np.array_equal(value, palettised(weights[name], LUT["lut_ffn"])), name
        assert all(len(np.unique(value[start : start + 8])) <= 16 for start in range(0, len(value), 8))
    table = weights["model.embed_tokens.weight"]
    embeddings = found["model_embed_tokens_weight"]
    assert np.array_equal(embeddings, palettised(table, LUT["lut_embeddings"]))
    assert len(np.unique(embeddings)) <= 256
    assert np.array_equal(found["lm_head_2_weight"][:, :, 0, 0], palettised(table[80:160], LUT["lut_lmhead"]))
    for name in set(weights) - set(matrices) - {"model.embed_tokens.weight"}:  # norms and biases
        assert np.array_equal(found[stored_name(name)].reshape(weights[name].shape), weights[name]), name


def test_the_weight_file_starts_as_the_format_says(workshop):
    source = workshop.checkpoint("llama")
    (package,) = workshop.bundle(source).glob("*_embeddings.mlpackage")
    content = weight_file(package).read_bytes()
    table = load_weights(source)["model.embed_tokens.weight"].astype(np.float16).tobytes()
    assert content[:64] == struct.pack("<II", 1, 2).ljust(64, b"\0")  # count of tensors, version of the format
    record = struct.pack("<IIQQQ", 0xDEADBEEF, 1, len(table), 128, 0)  # fp16, bytes, offset of the data, unused bits
    assert content[64:128] == record.ljust(64, b"\0")
    assert content[128:] == table.ljust(-(-len(table) // 64) * 64, b"\0")


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_operations_of_one_layer(workshop, model_type):
    """The list is checked in: read the difference before you replace the file."""
    folder = workshop.bundle(workshop.checkpoint(model_type, layers=1), context=32, batch=4)
    (package,) = folder.glob("*_chunk_01of01.mlpackage")
    expected = (GOLDEN / f"{model_type}_layer.txt").read_text()
    assert listing(package) == expected


def test_fewer_operations_than_upstream(tmp_path):
    source = shape_only_checkpoint(tmp_path, "qwen3", hidden=1024, intermediate=3072, heads=16, kv_heads=8, layers=4)
    plan = make_plan(open_checkpoint(str(source)), Recipe(chunks=1))
    (infer,) = (f for f in plan.chunks[0].program.functions if f.name == "infer")
    ours = Counter(op.kind for op in infer.ops)
    assert not {"tile", "cast", "greater_equal", "select", "transpose"} & set(ours)
    assert all(ours[kind] <= count for kind, count in UPSTREAM.items())
    counted = sum(ours[kind] for kind in [*UPSTREAM, "split"])  # split does some of what slices do there
    assert counted <= 0.8 * sum(UPSTREAM.values())
    page = (Path(__file__).parents[1] / "docs/ane-forms.md").read_text()
    rows = {tuple(cell.strip() for cell in line.split("|")[1:4]) for line in page.splitlines() if line.startswith("|")}
    expected = {(kind, str(UPSTREAM.get(kind, "not counted")), str(ours[kind])) for kind in {*ours, *UPSTREAM}}
    assert expected <= rows


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_no_index_guards_casts_or_tiles(workshop, model_type):
    for package in workshop.bundle(workshop.checkpoint(model_type)).glob("*.mlpackage"):
        for function in functions(package).values():
            kinds = {op.type for op in computed(function)}
            assert not kinds & {"tile", "cast", "select", "greater_equal", "less", "range_1d", "shape", "gather_nd"}
            assert (package / WEIGHTS).is_dir()
