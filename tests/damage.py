"""What a damaged model does to the reader, seen from a process of its own: ``python damage.py FOLDER KIND FIRST LAST``.

Writes one JSON line: how the mutations ended, the slowest, the memory used and the files that were opened outside the
package. A mutation ends well when it gives one clear error or results.
"""

import collections
import contextlib
import json
import re
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MOST_ELEMENTS = 1 << 20  # inputs and weights larger than this are not tried
SPACE = 6 << 30  # bytes of address space: a bomb hits this wall instead of the machine


class Watch:
    """Every file that the process opens below or outside a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.outside = str(folder.resolve()), []
        self.active = False
        sys.addaudithook(self.hook)

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.active and event == "open" and isinstance(args[0], str | bytes):
            path = Path(args[0].decode() if isinstance(args[0], bytes) else args[0]).resolve()
            ours = str(path).startswith(self.folder) or path.suffix in (".py", ".pyc", ".so")
            if not ours:
                self.outside.append(str(path))


def try_everything(path: Path) -> None:
    """Read and run all functions of a model, decode its weights, and show it as ``inspect`` does."""
    from anemone.execute import Program

    program = Program(path)
    rng = np.random.default_rng(0)
    state = None
    for name, signature in program.functions.items():
        specs = [*signature.inputs.values(), *signature.states.values()]
        if sum(float(np.prod(np.maximum(np.abs(spec.shape), 1.0))) for spec in specs) > MOST_ELEMENTS:
            continue
        inputs = {}
        for key, spec in signature.inputs.items():
            shape = tuple(abs(n) for n in spec.shape)
            inputs[key] = rng.integers(0, 2, shape) if "int" in spec.dtype else rng.standard_normal(shape)
        if state is None and signature.states:
            state = program.new_state()
        program.predict(inputs, state, name)
    for name in program.weight_names():
        program.weight(name)


def run(mutate: Callable[[int, Path], str], read: Callable[[Path], None], scratch: Path, first: int, last: int) -> Any:
    """Make each mutation in ``scratch``, read it, and report."""
    from anemone.errors import AnemoneError

    watch = Watch(scratch)
    ends: collections.Counter[str] = collections.Counter()
    bad, slowest, messages = [], (0.0, ""), {}
    for number in range(first, last):
        shutil.rmtree(scratch, ignore_errors=True)
        what = f"{number} {mutate(number, scratch)}"
        watch.active, start = True, time.process_time()
        error = None
        try:
            read(scratch)
        except BaseException as caught:
            error = caught
        watch.active, seconds = False, time.process_time() - start
        if error is None:
            ends["ran"] += 1
        elif isinstance(error, AnemoneError):
            ends["refused"] += 1
            messages.setdefault(str(error)[:60], what)
            if "\n" in str(error) or len(str(error)) > 3000 or not str(error).strip():
                bad.append(f"{what}: unclear: {error}")
        else:
            bad.append(f"{what}: {''.join(traceback.format_exception(error))[-1500:]}")
        slowest = max(slowest, (seconds, what))
    # Not ru_maxrss: a child inherits there the size of the process that forked it.
    status = Path("/proc/self/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024
    return {"ends": ends, "bad": bad, "slowest": slowest, "peak_mb": peak, "outside": watch.outside, "seen": messages}


def limited() -> None:
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))


def main() -> None:
    import warnings

    import damage_kinds

    warnings.simplefilter("ignore")
    folder, kind, first, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    mutate, read = damage_kinds.prepare(folder, kind)
    limited()
    suffix = ".mlmodelc" if kind.startswith("text") else ".mlpackage"
    scratch = folder / f"scratch {kind} {first}" / f"m{suffix}"
    print(json.dumps(run(mutate, read, scratch, first, last)))


if __name__ == "__main__":
    main()
