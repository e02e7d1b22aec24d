"""Faults that others met in converted programs, looked for in the written files."""

import numpy as np
import pytest
from bundles import Client, command, some_ids
from programs import computed, constant, constants, functions, operand, operations, shape_only_checkpoint, spec, types
from tiny import MODEL_TYPES, load_weights

from anemone.compress.spec import LutSpec

LUT = {"lut_ffn": LutSpec(4, 8), "lut_lmhead": LutSpec(6, 8)}
EVERY = [{}, {"kv_write": "mask"}, {"argmax": True}, LUT]


@pytest.fixture(scope="module", params=MODEL_TYPES)
def packages(request, workshop):
    """All packages of one family in every kind of conversion."""
    source = workshop.checkpoint(request.param)
    return [path for recipe in EVERY for path in workshop.bundle(source, chunks=2, **recipe).glob("*.mlpackage")]


def decoders(packages):
    for path in packages:
        if "_chunk_" in path.name:
            yield from ((path, name, function) for name, function in functions(path).items())


def from_inputs(function):
    """Names of the values that depend on an input that is not a state."""
    found = {value.name for value in function.inputs if value.type.WhichOneof("type") != "stateType"}
    for op in operations(function):
        if any(name in found for key in op.inputs for name in operand(op, key)):
            found |= {output.name for output in op.outputs}
    return found


def test_states_have_four_axes_and_linear_layers_are_convolutions(packages):
    for _, _, function in decoders(packages):
        shapes = types(function)
        for value in function.inputs:
            if value.type.WhichOneof("type") == "stateType":
                assert len(shapes[value.name][1]) == 4
        stored = {op.outputs[0].name for op in operations(function) if op.type.startswith(("const", "constexpr_"))}
        for op in computed(function):
            assert op.type != "linear"
            if op.type == "matmul":
                assert not {*operand(op, "x"), *operand(op, "y")} & stored


def test_no_more_rows_are_written_at_once_than_the_prefill_batch(packages):
    for _, name, function in decoders(packages):
        shapes = types(function)
        for op in computed(function):
            if op.type == "slice_update" and not constant(op, "begin", constants(function)):
                assert shapes[operand(op, "update")[0]][1][2] == (1 if name == "infer" else 8)


def test_the_cache_and_everything_written_to_it_is_fp16(packages):
    updates = 0
    for _, _, function in decoders(packages):
        shapes = types(function)
        assert not {dtype for dtype, _ in shapes.values()} & {"fp32", "fp64"}
        for op in computed(function):
            if op.type == "slice_update":
                updates += 1
                found = {shapes[operand(op, key)[0]][0] for key in ("x", "update")} | {shapes[op.outputs[0].name][0]}
                assert found == {"fp16"}
            if op.type == "write_state":
                assert shapes[operand(op, "data")[0]] == shapes[operand(op, "input")[0]]
    assert updates


def test_run_time_bounds_of_cache_writes_only_where_asked_for(workshop):
    source = workshop.checkpoint("llama")
    for how, expected in (("slice", True), ("mask", False)):
        (package,) = workshop.bundle(source, kv_write=how).glob("*_chunk_*")
        for function in functions(package).values():
            moving = from_inputs(function)
            writes = [op for op in computed(function) if op.type == "slice_update"]
            assert writes
            for op in writes:
                assert bool({*operand(op, "begin"), *operand(op, "end")} & moving) is expected


def test_the_cache_is_never_shifted_by_concatenation(packages):
    for _, _, function in decoders(packages):
        cached = set()
        for op in operations(function):
            inputs = {name for key in op.inputs for name in operand(op, key)}
            if op.type == "read_state" or (inputs & cached and op.type in ("slice_by_index", "squeeze", "reshape")):
                cached |= {output.name for output in op.outputs}
            if op.type == "concat":
                assert not inputs & cached


def test_every_size_is_known_before_running(packages):
    for path in packages:
        for function in functions(path).values():
            assert not {op.type for op in operations(function)} & {"range_1d", "shape", "non_zero", "slice_by_size"}
            assert "embeddings" in path.name or all(-1 not in shape for _, shape in types(function).values())


def test_only_the_embeddings_take_more_than_one_shape(packages):
    for path in packages:
        message = spec(path)
        described = [*message.description.input]
        described += [feature for function in message.description.functions for feature in function.input]
        kinds = {feature.type.multiArrayType.WhichOneof("ShapeFlexibility") for feature in described}
        assert kinds <= ({None, "enumeratedShapes"} if "embeddings" in path.name else {None})
        if "embeddings" in path.name:
            (ids,) = described
            shapes = [tuple(item.shape) for item in ids.type.multiArrayType.enumeratedShapes.shapes]
            assert shapes == [(1, 1), (1, 8)]
            assert tuple(ids.type.multiArrayType.shape) == (1, 1)


def test_a_range_of_contexts_is_refused(workshop):
    done = command("plan", workshop.checkpoint("llama"), "--context", "64..512")
    assert done.returncode == 2


def test_programs_ask_for_the_system_that_has_states(packages):
    for path in packages:
        message = spec(path)
        assert message.specificationVersion == 9
        for function in message.mlProgram.functions.values():
            assert function.opset == "CoreML8"
            assert list(function.block_specializations) == ["CoreML8"]
        assert "18" in message.description.metadata.userDefined["com.anemone.minimum_os"]
        assert "15" in message.description.metadata.userDefined["com.anemone.minimum_os"]


def test_states_described_declared_and_used_are_the_same(packages):
    for path, name, function in decoders(packages):
        (described,) = (f for f in spec(path).description.functions if f.name == name)
        declared = {value.name for value in function.inputs if value.type.WhichOneof("type") == "stateType"}
        used = {operand(op, "input")[0] for op in operations(function) if op.type in ("read_state", "write_state")}
        assert {feature.name for feature in described.state} == declared == used == {"model_model_kv_cache_0"}
        assert len(described.input) == 4


def test_packages_hold_the_functions_that_their_metadata_names(packages):
    for path in packages:
        message = spec(path)
        named = message.description.metadata.userDefined["com.anemll.functions"].split(",")
        assert set(named) == set(functions(path))
        if message.description.functions:
            assert named == [function.name for function in message.description.functions]
            assert message.description.defaultFunctionName == named[0]


def test_attention_is_written_out_and_embeddings_stay_fp16_by_default(workshop, packages):
    for path in packages:
        for function in functions(path).values():
            assert "scaled_dot_product_attention" not in {op.type for op in operations(function)}
    from anemone.recipe import Recipe

    assert Recipe().lut_embeddings is None


def test_the_only_decoding_of_weights_is_by_tables(packages):
    kinds = {op.type for path in packages for f in functions(path).values() for op in operations(f)}
    assert {kind for kind in kinds if kind.startswith("constexpr_")} == {"constexpr_lut_to_dense"}
    assert command("convert", "x", "-o", "y", "--block-size", "32").returncode == 2


def test_norms_biases_tables_and_masks_are_never_palettised(workshop):
    for model_type, options in (("qwen2", {}), ("qwen3", {}), ("llama", {"qkv_bias": True, "mlp_bias": True})):
        source = workshop.checkpoint(model_type, **options)
        folder = workshop.bundle(source, lut_embeddings=LutSpec(4, 8), lut_ffn=LutSpec(2, 8), lut_lmhead=LutSpec(4, 8))
        found = set()
        for path in folder.glob("*.mlpackage"):
            for function in functions(path).values():
                found |= {op.outputs[0].name for op in operations(function) if op.type == "constexpr_lut_to_dense"}
        matrices = {name.replace(".", "_") for name, tensor in load_weights(source).items() if tensor.ndim == 2}
        expected = matrices | {f"lm_head_{i}_weight" for i in range(1, 9 if model_type == "llama" else 17)}
        assert {name.removesuffix("_palettized") for name in found} == expected


def test_tables_are_as_long_as_the_context_and_no_axis_is_too_long(workshop):
    source = workshop.checkpoint("llama", max_positions=131072)
    folder = workshop.bundle(source, context=1024, batch=64)
    for path in folder.glob("*.mlpackage"):
        for function in functions(path).values():
            for name, (_, shape) in types(function).items():
                assert max(shape, default=0) <= 16384, name
                if name in ("rope_cos", "rope_sin"):
                    assert shape[2] == 1024


def test_tables_are_exact_at_far_positions(workshop):
    from mil_truth import load

    source = workshop.checkpoint("llama", max_positions=8192, head_dim=32)
    (package,) = workshop.bundle(source, context=4096, batch=64).glob("*_chunk_*")
    stored = [op for op in load(package).functions["infer"].operations if op.op_type == "const"]
    consts = {op.outputs[0].name: op.val.val for op in stored}
    angles = np.outer(np.arange(4096), 10000.0 ** (-np.arange(0, 32, 2) / 32))
    for name, expected in (("rope_cos", np.cos(angles)), ("rope_sin", np.sin(angles))):
        table = consts[name][0, 0].astype(np.float64)
        assert np.abs(np.abs(table) - np.abs(np.concatenate([expected, expected], axis=1))).max() <= 5e-4
        assert np.abs(table[:, 16:] - expected).max() <= 5e-4


def test_each_step_reads_exactly_the_context(workshop):
    source = workshop.checkpoint("llama", max_positions=2048)
    for context in (64, 512, 1024):
        (package,) = workshop.bundle(source, context=context).glob("*_chunk_*")
        function = functions(package)["infer"]
        shapes = types(function)
        keys = [shapes[operand(op, "y")[0]][1] for op in computed(function) if op.type == "matmul"]
        assert [shape[2] for shape in keys] == [context] * 4
        described = next(f for f in spec(package).description.functions if f.name == "infer")
        assert list(described.state[0].type.stateType.arrayType.shape)[2] == context


def test_contexts_differ_in_shapes_only(workshop):
    source = workshop.checkpoint("qwen3", max_positions=4096)
    seen = set()
    for context in (512, 1024, 2048, 4096):
        (package,) = workshop.bundle(source, context=context, batch=64).glob("*_chunk_*")
        ops = []
        for name, function in functions(package).items():
            ranks = {value: (dtype, len(shape)) for value, (dtype, shape) in types(function).items()}
            for op in computed(function):
                ops.append((name, op.type, *sorted(op.inputs), *(ranks[output.name] for output in op.outputs)))
        seen.add(tuple(ops))
    assert len(seen) == 1


def test_token_ids_keep_their_32_bits(workshop):
    source = workshop.checkpoint("llama", vocab=262144, hidden=32, heads=2, kv_heads=1, intermediate=32, layers=1)
    folder = workshop.bundle(source)
    client = Client(folder)
    (function,) = functions(folder / client.parameters["embeddings"]).values()
    assert [op.type for op in computed(function)] == ["gather"]
    assert types(function)["input_ids"][0] == "int32"
    ids = [0, 32768, 65535, 65536, 131071, 262143, 1, 2]
    rows = client.embeddings.predict({"input_ids": np.array([ids], np.int32)})["hidden_states"][0]
    table = load_weights(source)["model.embed_tokens.weight"].astype(np.float16)
    assert np.array_equal(rows, table[ids])
    assert Client(folder).decode(some_ids(2)).shape == (2, 262144)


def test_a_cache_of_any_model_is_one_state(tmp_path):
    sizes = {"hidden": 2560, "intermediate": 9728, "layers": 36, "heads": 32, "kv_heads": 8}
    from anemone.checkpoint import open_checkpoint
    from anemone.conversion.plan import make_plan
    from anemone.recipe import Recipe

    source = shape_only_checkpoint(tmp_path, "qwen3", **sizes)
    plan = make_plan(open_checkpoint(str(source)), Recipe())
    states = {state for chunk in plan.chunks for function in chunk.program.functions for state in function.states}
    assert [(state.name, state.shape) for state in states] == [("model_model_kv_cache_0", (72, 8, 512, 128))]
