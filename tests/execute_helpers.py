"""Packages for the executor's tests, made by coremltools: from single operations, and from torch modules."""

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anemone.execute import Program


def coremltools() -> Any:
    """The package, imported without the lines that it prints on Linux."""
    logging.getLogger("coremltools").setLevel(logging.CRITICAL)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        import coremltools as ct
    return ct


@dataclass(frozen=True)
class Case:
    """One operation: its dynamic operands, its constant ones, and what should come out.

    ``expect`` computes the results from all operands; None asks coremltools' own value inference.
    """

    kind: str
    inputs: Mapping[str, Any]
    params: Mapping[str, Any] = field(default_factory=dict)
    expect: Callable[..., Any] | None = None

    @property
    def truth(self) -> str:
        """Where the expected results come from, for the table of operations."""
        return "coremltools" if self.expect is None else getattr(self.expect, "truth", "numpy")

    def typed(self, dtype: type) -> "Case":
        """With every floating operand in this type."""
        return Case(
            self.kind,
            {k: _typed(v, dtype) for k, v in self.inputs.items()},
            {k: _typed(v, dtype) for k, v in self.params.items()},
            self.expect,
        )


def _typed(value: Any, dtype: type) -> Any:
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], np.ndarray):
        return tuple(_typed(v, dtype) for v in value)
    if isinstance(value, (np.ndarray, np.floating)) and value.dtype.kind == "f":
        return value.astype(dtype)
    return dtype(value) if isinstance(value, float) else value


def _flat(inputs: Mapping[str, Any]) -> list[Any]:
    return [v for value in inputs.values() for v in (value if isinstance(value, tuple) else (value,))]


def _target(opset: str) -> Any:
    return getattr(coremltools().target, opset)


def _mil_type(dtype: np.dtype) -> Any:
    from coremltools.converters.mil.mil import types

    return types.numpy_type_to_builtin_type(dtype)


def _applied(case: Case, opset: str) -> list[Any]:
    """The operation on constants, in a function that is thrown away."""
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil import Function

    with Function({}, _target(opset)), np.errstate(all="ignore"):
        inputs = {
            k: tuple(mb.const(val=x) for x in v) if isinstance(v, tuple) else mb.const(val=v)
            for k, v in copy.deepcopy(dict(case.inputs)).items()  # some inferences write to their operands
        }
        result = getattr(mb, case.kind)(**inputs, **case.params)
    return list(result) if isinstance(result, (list, tuple)) else [result]


def exists(case: Case, opset: str) -> bool:
    """Whether this op set has the operation with these types and parameters."""
    try:
        _applied(case, opset)
    except Exception:
        return False
    return True


def inferred(case: Case, opset: str = "iOS18") -> list[np.ndarray]:
    """What coremltools computes for the case when all operands are constant."""
    values = [var.val for var in _applied(case, opset)]
    assert all(v is not None for v in values), f"coremltools infers nothing for {case.kind}"
    return [np.asarray(v) for v in values]


def expected(case: Case, opset: str = "iOS18") -> list[np.ndarray]:
    """The truth of a case."""
    if case.expect is None:
        return inferred(case, opset)
    results = case.expect(*_flat(case.inputs), **case.params)
    return [np.asarray(r) for r in (results if isinstance(results, (list, tuple)) else [results])]


def _passed(array: np.ndarray) -> np.dtype:
    """The type in which an operand enters the program: functions take only fp16, fp32 and int32."""
    return array.dtype if array.dtype in (np.float16, np.float32) else np.dtype(np.int32)


def _entering(mb: Any, var: Any, value: np.ndarray) -> Any:
    if value.dtype != _passed(value):
        var = mb.cast(x=var, dtype=str(value.dtype))
    return var if value.shape else mb.squeeze(x=var)


def _leaving(mb: Any, var: Any, name: str) -> Any:
    from coremltools.converters.mil.mil import types

    if var.dtype in (types.fp16, types.fp32, types.int32):
        return mb.identity(x=var, name=name)
    return mb.cast(x=var, dtype="int32", name=name)


def write_cases(path: Path, cases: Sequence[Case], opset: str = "iOS18") -> Path:
    """A package whose one function applies each case to inputs ``c<case>_<operand>`` and returns ``y<case>_<n>``."""
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil import Function
    from coremltools.converters.mil.mil import Program as MilProgram

    placeholders = {}
    for number, case in enumerate(cases):
        for index, value in enumerate(_flat(case.inputs)):
            array = np.asarray(value)
            name = f"c{number}_{index}"
            placeholders[name] = mb.placeholder(shape=array.shape or (1,), dtype=_mil_type(_passed(array)))
            placeholders[name].name = name
            placeholders[name].outputs[0].name = name
    program = MilProgram()
    with Function(placeholders, _target(opset)) as function:
        outputs = []
        for number, case in enumerate(cases):
            given = [function.inputs[f"c{number}_{i}"] for i in range(len(_flat(case.inputs)))]
            given = [_entering(mb, g, np.asarray(v)) for g, v in zip(given, _flat(case.inputs), strict=True)]
            operands = {}
            for key, value in case.inputs.items():
                count = len(value) if isinstance(value, tuple) else 1
                taken, given = given[:count], given[count:]
                operands[key] = tuple(taken) if isinstance(value, tuple) else taken[0]
            results = getattr(mb, case.kind)(**operands, **case.params)
            for index, result in enumerate(results if isinstance(results, (list, tuple)) else [results]):
                outputs.append(_leaving(mb, result, f"y{number}_{index}"))
        function.set_outputs(outputs)
    program.add_function("main", function)
    return save(program, path, opset)


def save(program: Any, path: Path, opset: str = "iOS18") -> Path:
    """Write a MIL program as it is, without passes."""
    ct = coremltools()
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        model = ct.convert(
            program,
            convert_to="mlprogram",
            pass_pipeline=ct.PassPipeline.EMPTY,
            minimum_deployment_target=_target(opset),
            skip_model_load=True,
        )
        model.save(str(path))
    return path


def case_inputs(cases: Sequence[Case]) -> dict[str, np.ndarray]:
    """The inputs of a package from ``write_cases``."""
    return {
        f"c{number}_{index}": np.asarray(value, _passed(np.asarray(value))).reshape(np.shape(value) or (1,))
        for number, case in enumerate(cases)
        for index, value in enumerate(_flat(case.inputs))
    }


def convert_torch(module: Any, examples: Sequence[Any], path: Path, precision: str = "FLOAT32", **options: Any) -> Path:
    """A torch module traced and converted by Apple's frontend with its default passes."""
    import torch

    ct = coremltools()
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(module.eval(), tuple(examples), check_trace=False)
        options.setdefault("minimum_deployment_target", ct.target.iOS18)
        kind = np.float16 if precision == "FLOAT16" else np.float32
        if "inputs" not in options:
            options["inputs"] = [
                ct.TensorType(f"x{i}" if i else "x", e.shape, dtype=kind if e.is_floating_point() else np.int32)
                for i, e in enumerate(examples)
            ]
        model = ct.convert(traced, compute_precision=getattr(ct.precision, precision), skip_model_load=True, **options)
        model.save(str(path))
    return path


def only(results: Mapping[str, np.ndarray]) -> np.ndarray:
    """The one result of a prediction."""
    (result,) = results.values()
    return result


class Numbers:
    """Reproducible operands."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def real(self, *shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
        """Values that fp16 holds exactly, so that both precisions see the same operands."""
        return self.rng.uniform(low, high, shape).astype(np.float16).astype(np.float32)

    def whole(self, *shape: int, low: int = -4, high: int = 5) -> np.ndarray:
        return self.rng.integers(low, high, shape).astype(np.int32)

    def truth(self, *shape: int) -> np.ndarray:
        return self.rng.random(shape) < 0.5


def of_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """A torch function as the truth of a case: arrays in, arrays out, all floating ones as fp32."""
    import torch

    def run(*values: Any, **params: Any) -> Any:
        arrays = [np.asarray(v) for v in values]
        tensors = [torch.from_numpy(a.astype(np.float32) if a.dtype.kind == "f" else a) for a in arrays]
        result = function(*tensors, **params)
        return [r.numpy() for r in result] if isinstance(result, (tuple, list)) else result.numpy()

    return by("torch", run)


def by(truth: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, named after what its results come from."""
    function.truth = truth
    return function


def published(*results: Any) -> Callable[..., Any]:
    """Results that coremltools' own tests expect from Core ML, as the truth of a case."""
    return by("published", lambda *_, **__: [np.array(result) for result in results])


def check(cases: Sequence[Case], folder: Path, tolerance: float, opset: str = "iOS18") -> None:
    """Execute all cases in one package and compare each output with the truth."""
    results = Program(write_cases(folder / "cases.mlpackage", cases, opset)).predict(case_inputs(cases))
    for number, case in enumerate(cases):
        for index, value in enumerate(expected(case, opset)):
            got = results[f"y{number}_{index}"]
            where = f"{case.kind} {dict(case.params)} output {index}"
            assert got.shape == (value.shape or got.shape), where
            assert (got.dtype.kind == "f") == (value.dtype.kind == "f"), where
            np.testing.assert_allclose(
                got.astype(np.float64).reshape(value.shape), value.astype(np.float64),
                rtol=tolerance, atol=tolerance, err_msg=where,
            )  # fmt: skip


def check_precisions(cases: Sequence[Case], folder: Path, opset: str) -> None:
    """Compare fp32 programs, and for the newest op set fp16 programs too."""
    existing = [case for case in cases if exists(case, opset)]
    assert 2 * len(existing) > len(cases)
    check(existing, folder, 2e-5, opset)
    if opset == "iOS18":
        check([case.typed(np.float16) for case in cases], folder, 4e-3, opset)
