"""An ML Program from a .mlpackage, executed with numpy."""

from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from anemone.errors import ExecuteError
from anemone.execute.compiler import Observer, Plan, compile_function
from anemone.execute.dtypes import Array
from anemone.execute.interface import convert_inputs, convert_output, read_signature
from anemone.execute.modes import numerics_mode
from anemone.execute.numerics import Numerics
from anemone.execute.reader import Function, Package, is_weight
from anemone.execute.signature import Signature, TensorSpec
from anemone.execute.state import State
from anemone.execute.stored import Stored
from anemone.execute.weights import Weights

_KEEP_BYTES = 1_500_000_000  # weights that take no more than this as fp32 are decoded once


class Program:
    """The functions of one .mlpackage, ready to run.

    path: the package folder. numerics: "float16" rounds every fp16 tensor as it is stored, with fp32 inside an op;
    "float32" rounds nothing (weights keep their stored fp16 values); "ane" imitates the Neural Engine of ``chip``, m1
    by default ("ane:m5" says both). function: the default of predict(), in place of the package's own. weights: "keep"
    decodes each weight once to fp32; "stream" decodes row blocks at each use, so that memory stays small; "auto" keeps
    them when they need no more than 1.5 GB.

    Matrix products run on as many threads as numpy's BLAS takes: set OMP_NUM_THREADS before numpy is imported. On a
    shared machine one thread is often the fastest. Raises ExecuteError when the package is damaged or is no ML Program;
    an op that is not known is an error when its function is first used.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        numerics: str = "float16",
        chip: str | None = None,
        function: str | None = None,
        weights: str = "auto",
    ) -> None:
        self.path = Path(path)
        self._numerics = numerics_mode(f"{numerics}:{chip}" if chip else numerics)
        if weights not in ("auto", "keep", "stream"):
            raise ExecuteError(f"weights {weights!r} is not known; choose one of auto, keep, stream")
        self._policy = weights
        self._package = Package(self.path)
        self._weights = Weights(self._package.release)
        self._functions: dict[str, Function] = {}
        self._plans: dict[tuple[str, bool], Plan] = {}
        names = self._package.function_names
        if not names:
            raise ExecuteError(f"{path} has no functions")
        self.functions: Mapping[str, Signature] = {name: read_signature(self._package, name) for name in names}
        described = self._package.description.defaultFunctionName
        self.default_function = self._known(function or described or ("main" if "main" in names else names[0]))
        self.metadata: Mapping[str, str] = dict(self._package.description.metadata.userDefined)

    def new_state(self, function: str | None = None) -> State:
        """A zero state with all the states of the program, or of one function.

        Any Program that declares the same states takes it, so the chunks of a model share one.
        """
        names = list(self.functions) if function is None else [self._known(function)]
        specs: dict[str, TensorSpec] = {}
        for name in names:
            specs.update(self.functions[name].states)
        return State(specs)

    def predict(
        self,
        inputs: Mapping[str, ArrayLike],
        state: State | None = None,
        function: str | None = None,
        observe: Observer | None = None,
    ) -> dict[str, Array]:
        """Run one function and return its outputs by name.

        Floating inputs may be of any floating dtype, integer inputs of any integer dtype whose values fit. Outputs
        have the declared dtype; with "float32" numerics, fp16 outputs come as unrounded fp32 (and may be fed as such to
        the next program). Images are PIL images, or uint8 arrays of their pixels; a classifier gives its label as a str
        or int and its probabilities as a dict. ``state`` is updated in place; it is needed when the function declares
        states. ``observe(op_name, op_kind, outputs)`` is called after every op, with fp16 tensors as fp32 arrays that
        are valid only during the call. Raises ExecuteError for wrong names, shapes or dtypes, a missing state, an
        unknown function or op.
        """
        plan, values, outputs = self.bind(inputs, state, function, fused=observe is None)
        described = self.functions[self._known(function or self.default_function)].outputs
        with np.errstate(all="ignore"):
            arrays = plan.execute(values, outputs, observe)
            return {
                output: convert_output(array, plan.dtypes[output], self._numerics, described.get(output))
                for output, array in zip(outputs, arrays, strict=True)
            }

    def bind(
        self,
        inputs: Mapping[str, ArrayLike],
        state: State | None = None,
        function: str | None = None,
        fused: bool = False,
    ) -> tuple[Plan, dict[str, object], Sequence[str]]:
        """A plan, the values it starts from and the names of its outputs.

        ``fused``: as predict() runs it without an observer, with one step for some chains of operations.
        """
        name = self._known(function or self.default_function)
        signature = self.functions[name]
        if self._numerics.enter is not None:
            arrays = {key: x for key, x in inputs.items() if isinstance(x, np.ndarray) and x.dtype.kind == "f"}
            inputs = {**inputs, **{key: self._numerics.enter(x) for key, x in arrays.items()}}
        values: dict[str, object] = dict(convert_inputs(inputs, signature.inputs, name, self._numerics))
        if signature.states:
            if state is None:
                raise ExecuteError(f"function {name!r} needs a state: pass state=program.new_state()")
            state.check(signature.states, name)
            values.update(dict.fromkeys(signature.states, state.arrays))
        return self._plan(name, fused), values, self.graph(name).body.outputs

    def with_numerics(self, numerics: str) -> "Program":
        """The same package in another mode; both share what they read and decode."""
        other = copy(self)
        other._numerics, other._plans = numerics_mode(numerics), {}
        return other

    @property
    def numerics(self) -> Numerics:
        """The mode in which the program runs."""
        return self._numerics

    def weight_names(self, function: str | None = None) -> tuple[str, ...]:
        """MIL value names of the stored weights, in program order: constexpr results and constants in weight files."""
        names = list(self.functions) if function is None else [self._known(function)]
        found = [key for name in names for key, value in self.graph(name).constants.items() if is_weight(value)]
        return tuple(dict.fromkeys(found))

    def weight(self, name: str, function: str | None = None) -> Array:
        """The decoded weight of this MIL value name, in its declared dtype (fp16 for fp16) and shape."""
        for candidate in list(self.functions) if function is None else [self._known(function)]:
            stored = self.graph(candidate).constants.get(name)
            if stored is not None:
                return stored.array()
        raise ExecuteError(f"{self.path} has no weight {name!r}")

    def _known(self, function: str) -> str:
        if function not in self.functions:
            raise ExecuteError(f"{self.path} has no function {function!r}; it has {', '.join(self.functions)}")
        return function

    def graph(self, name: str) -> Function:
        """One function as operations and constants."""
        if name not in self._functions:
            self._functions[name] = self._package.function(name)
        return self._functions[name]

    def _plan(self, name: str, fused: bool) -> Plan:
        if (name, fused) not in self._plans:
            function = self.graph(name)
            self._weights.keep = self._policy == "keep" or (self._policy == "auto" and self._fits())
            self._plans[name, fused] = compile_function(function, self._weights, self._numerics, fused)
        return self._plans[name, fused]

    def _fits(self) -> bool:
        """Whether the weights of the functions read so far may be kept as fp32."""
        weights: dict[object, Stored] = {}
        for function in self._functions.values():
            weights.update((value.key, value) for value in function.constants.values() if is_weight(value))
        return sum(4 * value.size for value in weights.values()) <= _KEEP_BYTES
