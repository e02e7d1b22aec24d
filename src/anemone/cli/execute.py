"""anemone execute"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anemone.cli import options
from anemone.cli.output import print_facts, print_json, print_table, size

if TYPE_CHECKING:
    from anemone.execute.profiling import Profile
    from anemone.execute.tracing import Trace

Package = Annotated[Path, typer.Argument(metavar="PKG", help="A .mlpackage or .mlmodelc.")]
Outputs = Annotated[
    Path | None, typer.Option("--outputs", "-o", metavar="FILE", help="Write the outputs: .npz, .npy or .json.")
]
Traced = Annotated[bool, typer.Option("--trace", help="Compare each operation with float32.")]
Profiled = Annotated[bool, typer.Option("--profile", help="Time by kind of operation.")]


def command(
    package: Package,
    inputs: options.Inputs = None,
    random: options.Random = None,
    shape: options.Shape = None,
    outputs: Outputs = None,
    function: options.Function = None,
    numerics: options.Numerics = "float16",
    trace: Traced = False,
    profile: Profiled = False,
    as_json: options.Json = False,
) -> None:
    """Run one function of an ML Program on any machine, with a fresh state."""
    from time import perf_counter

    from anemone.cli.arrays import statistics, write_outputs
    from anemone.execute import Program
    from anemone.execute.profiling import profile as run_profile
    from anemone.execute.tracing import trace as run_trace

    program = Program(package, numerics=numerics, function=function)
    given = options.program_inputs(program, inputs, random, shape)
    begun = perf_counter()
    traced = run_trace(program, given, program.new_state()) if trace else None
    found = traced.outputs if traced else program.predict(given, program.new_state())
    seconds = perf_counter() - begun
    profiled = run_profile(program, given, program.new_state()) if profile else None
    if outputs:
        write_outputs(outputs, found)
    facts = {name: statistics(value) for name, value in found.items()}
    if as_json:
        result: dict[str, Any] = {"package": str(package), "function": program.default_function, "numerics": numerics}
        result |= {"seconds": round(seconds, 4), "outputs": facts}
        result |= {"trace": traced.as_dict()} if traced else {}
        print_json(result | ({"profile": profiled.as_dict()} if profiled else {}))
        return
    if traced:
        print_trace(traced)
    if profiled:
        print_profile(profiled)
    print_table([(name, *_words(fact)) for name, fact in facts.items()])


def _words(fact: dict[str, Any]) -> tuple[str, ...]:
    numbers = [f"{key} {fact[key]:.4g}" for key in ("min", "max", "mean") if fact.get(key) is not None]
    odd = [f"{fact['nonfinite']} NaN or infinite"] if fact.get("nonfinite") else []
    return fact["dtype"], str(fact["shape"]), ", ".join(numbers + odd)


def print_trace(trace: "Trace") -> None:
    rows: list[tuple[str, ...]] = [("op", "kind", "max |x|", "subnormal", "inf", "NaN", "SNR dB", "own dB", "read")]
    for op in trace.ops:
        shares = (f"{share:.1%}" if share else "-" for share in (op.subnormal, op.inf, op.nan))
        ratios = ("-" if ratio is None else f"{ratio:.1f}" for ratio in (op.snr_db, op.own_snr_db))
        largest = "-" if op.max_abs is None else f"{op.max_abs:.4g}"
        rows.append((op.name, op.kind, largest, *shares, *ratios, size(op.bytes_read)))
    print_table(rows)
    alike: dict[tuple[str, str, str], list[str]] = {}
    for flag in trace.flags:
        alike.setdefault((flag.severity, flag.kind, flag.message), []).append(flag.op)
    for (severity, kind, message), ops in alike.items():
        more = f" and {len(ops) - 1} more" if len(ops) > 1 else ""
        typer.echo(f"  {severity}: {kind} {ops[0]}{more}: {message}")
    broken = trace.first_break
    typer.echo(f"first to break: {broken.kind} {broken.op}: {broken.message}" if broken else "nothing breaks here")


def print_profile(profile: "Profile") -> None:
    rows = [("kind", "calls", "ms", "share", "weights")]
    for kind in profile.kinds:
        share = kind.seconds / profile.seconds
        rows.append((kind.kind, str(kind.calls), f"{kind.seconds * 1e3:.2f}", f"{share:.1%}", size(kind.weight_bytes)))
    print_table(rows)
    print_facts([("total", f"{profile.seconds * 1e3:.1f} ms, {size(profile.weight_bytes)} of weights read")])
