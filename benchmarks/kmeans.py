"""Palettising one matrix here and in coremltools: seconds, and the squared error over the exact optimum.

    .venv-test/bin/python benchmarks/kmeans.py [--rows 1024 --columns 3072 --bits 4 --group 8] [--json]

Heavy-tailed fp16 weights. Each route runs in a process of its own on one thread; the clock runs around the call alone,
after imports, and once more around the whole process. coremltools' route is its public palettize_weights on a model of
one convolution. The exact optimum of every group is ckwrap's, means in float64; the errors are those of the decoded fp16.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import record
from measure import measure
from numpy.typing import NDArray

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
ROUTES = {"anemone": "anemone", "coremltools": "coremltools.optimize"}


def anemone(weight: NDArray[np.float16], bits: int, group: int) -> tuple[float, NDArray[np.float16]]:
    from anemone.compress.palettize import palettize

    start = time.perf_counter()
    lut = palettize(weight, bits, group)
    return time.perf_counter() - start, lut.dequantise()


def coremltools(weight: NDArray[np.float16], bits: int, group: int) -> tuple[float, NDArray[np.float16]]:
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil import types
    from coremltools.optimize import coreml as cto

    rows, columns = weight.shape

    @mb.program(input_specs=[mb.TensorSpec((1, columns, 1, 1), types.fp16)], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        return mb.conv(x=x, weight=weight.reshape(rows, columns, 1, 1), name="y")

    model = ct.convert(program, minimum_deployment_target=ct.target.iOS18, skip_model_load=True)
    kind = {"granularity": "per_grouped_channel", "group_size": group} if group else {"granularity": "per_tensor"}
    config = cto.OpPalettizerConfig(mode="kmeans", nbits=bits, weight_threshold=0, **kind)
    start = time.perf_counter()
    model = cto.palettize_weights(model, cto.OptimizationConfig(global_config=config))
    seconds = time.perf_counter() - start
    program = model._mil_program
    (found,) = program.functions["main"].find_ops(op_type="constexpr_lut_to_dense")
    return seconds, found.outputs[0].op.materialized_val_inference().reshape(rows, columns)


def exact_errors(weight: NDArray[np.float16], bits: int, group: int) -> NDArray[np.float64]:
    """The least squared error of each group, by ckwrap."""
    import ckwrap

    def of_group(values: NDArray[np.float64]) -> float:
        labels = ckwrap.ckmeans(values, 1 << bits).labels
        means = np.bincount(labels, values) / np.bincount(labels)
        return float(np.mean((values - means[labels]) ** 2))

    return np.array([of_group(part.ravel()) for part in np.split(weight.astype(np.float64), len(weight) // group)])


def draw(args: argparse.Namespace) -> NDArray[np.float16]:
    rng = np.random.default_rng(0)
    return (rng.standard_t(4, (args.rows, args.columns)) * 0.02).astype(np.float16)


def run_route(args: argparse.Namespace) -> None:
    """In the process of one route: print the seconds, leave the decoded weights in the file given."""
    seconds, decoded = globals()[args.route](draw(args), args.bits, args.group)
    np.save(args.out, decoded)
    print(json.dumps(seconds))


def compare(args: argparse.Namespace) -> dict[str, Any]:
    weight = draw(args).astype(np.float64)
    group = args.group or args.rows
    exact = exact_errors(weight.astype(np.float16), args.bits, group)
    results: dict[str, Any] = {}
    os.environ |= THREADS
    with tempfile.TemporaryDirectory() as folder:
        for route, label in ROUTES.items():
            out = str(Path(folder) / f"{route}.npy")
            usage, output = measure([sys.executable, __file__, *sys.argv[1:], "--route", route, "--out", out])
            squares = (np.load(out).astype(np.float64) - weight) ** 2
            ratios = squares.reshape(len(exact), -1).mean(axis=1) / exact
            results[label] = {
                "seconds": json.loads(output.splitlines()[-1]),
                "seconds_with_start_up": usage.wall_s,
                "cpu_seconds_with_start_up": usage.user_s + usage.system_s,
                "peak_rss_mb": usage.peak_rss_mb,
                "error_over_exact": float(squares.mean() / exact.mean()),
                "worst_group": float(ratios.max()),
            }
    ours, theirs = (results[label] for label in ROUTES.values())
    return {
        "matrix": [args.rows, args.columns],
        "bits": args.bits,
        "group": args.group,
        "routes": results,
        "times_faster": theirs["seconds"] / ours["seconds"],
        "times_faster_with_start_up": theirs["seconds_with_start_up"] / ours["seconds_with_start_up"],
    }


def show(result: dict[str, Any]) -> None:
    rows, columns = result["matrix"]
    print(f"{rows} x {columns}, {result['bits']} bits, groups of {result['group'] or rows} rows")
    print(f"{'':22}{'call s':>9}{'process s':>11}{'RSS MB':>8}{'error / exact':>15}{'worst group':>13}")
    for label, r in result["routes"].items():
        times = f"{r['seconds']:9.2f}{r['seconds_with_start_up']:11.2f}{r['peak_rss_mb']:8.0f}"
        print(f"{label:22}{times}{r['error_over_exact']:15.5f}{r['worst_group']:13.5f}")
    print(f"{result['times_faster']:.0f} times faster ({result['times_faster_with_start_up']:.0f} with start-up)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"rows": 1024, "columns": 3072, "bits": 4, "group": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--route", choices=ROUTES, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.route:
        run_route(args)
        return
    result = compare(args)
    if args.json:
        print(json.dumps({"machine": record(python=Path(sys.executable)), **result}))
    else:
        show(result)


if __name__ == "__main__":
    main()
