"""Palettising one matrix here and in coremltools: seconds, and the squared error over the exact optimum.

    .venv-test/bin/python benchmarks/kmeans.py [--rows 1024 --columns 3072 --bits 4 --group 8 --runs 3] [--json]

Heavy-tailed fp16 weights. Each route has a process of its own and one thread. "call" is the median over the runs of the
call alone, imports done; "process" is the whole process, start-up and all runs. coremltools' route is its public
palettize_weights on a model of one convolution. The exact optimum of each group is ckwrap's, with means in float64; the
errors are those of the decoded fp16 values.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import record
from measure import measure
from numpy.typing import NDArray

Weight = NDArray[np.float16]

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
ROUTES = {"anemone": "anemone", "coremltools": "coremltools.optimize"}


def anemone(weight: Weight, bits: int, group: int) -> Callable[[], Callable[[], Weight]]:
    from anemone.compress.palettize import palettize

    return lambda: palettize(weight, bits, group).dequantise


def coremltools(weight: Weight, bits: int, group: int) -> Callable[[], Callable[[], Weight]]:
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
    config = cto.OptimizationConfig(cto.OpPalettizerConfig(mode="kmeans", nbits=bits, weight_threshold=0, **kind))

    def palettize() -> Callable[[], Weight]:
        done = cto.palettize_weights(model, config)
        (found,) = done._mil_program.functions["main"].find_ops(op_type="constexpr_lut_to_dense")
        return lambda: found.materialized_val_inference().reshape(rows, columns)

    return palettize


def exact_errors(weight: Weight, bits: int, group: int) -> NDArray[np.float64]:
    """The least squared error of each group, by ckwrap."""
    import ckwrap

    def of_group(values: NDArray[np.float64]) -> float:
        labels = ckwrap.ckmeans(values, 1 << bits).labels
        means = np.bincount(labels, values) / np.bincount(labels)
        return float(np.mean((values - means[labels]) ** 2))

    return np.array([of_group(part.ravel()) for part in np.split(weight.astype(np.float64), len(weight) // group)])


def draw(args: argparse.Namespace) -> Weight:
    rng = np.random.default_rng(0)
    return (rng.standard_t(4, (args.rows, args.columns)) * 0.02).astype(np.float16)


def run_route(args: argparse.Namespace) -> None:
    """In the process of one route: print the medians of wall and CPU seconds, save the decoded weights."""
    palettize = globals()[args.route](draw(args), args.bits, args.group)
    wall, cpu = [], []
    for _ in range(args.runs):
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        decode = palettize()
        wall.append(time.perf_counter() - wall_start)
        cpu.append(time.process_time() - cpu_start)
    np.save(args.out, decode())
    print(json.dumps({"seconds": statistics.median(wall), "cpu_seconds": statistics.median(cpu)}))


def compare(args: argparse.Namespace) -> dict[str, Any]:
    weight = draw(args)
    exact = exact_errors(weight, args.bits, args.group or args.rows)
    results: dict[str, Any] = {}
    os.environ |= THREADS
    with tempfile.TemporaryDirectory() as folder:
        for route, label in ROUTES.items():
            out = str(Path(folder) / f"{route}.npy")
            usage, output = measure([sys.executable, __file__, *sys.argv[1:], "--route", route, "--out", out])
            squares = (np.load(out).astype(np.float64) - weight.astype(np.float64)) ** 2
            results[label] = {
                **json.loads(output.splitlines()[-1]),
                "process_seconds": usage.wall_s,
                "peak_rss_mb": usage.peak_rss_mb,
                "error_over_exact": float(squares.mean() / exact.mean()),
                "worst_group": float((squares.reshape(len(exact), -1).mean(axis=1) / exact).max()),
            }
    ours, theirs = (results[label] for label in ROUTES.values())
    return {
        "matrix": [args.rows, args.columns],
        "bits": args.bits,
        "group": args.group,
        "runs": args.runs,
        "routes": results,
        "times_faster": theirs["seconds"] / ours["seconds"],
        "times_less_cpu": theirs["cpu_seconds"] / ours["cpu_seconds"],
    }


def show(result: dict[str, Any]) -> None:
    rows, columns = result["matrix"]
    print(f"{rows} x {columns}, {result['bits']} bits, groups of {result['group'] or rows} rows")
    print(f"{'':22}{'call s':>8}{'CPU s':>8}{'process s':>11}{'RSS MB':>8}{'error / exact':>15}{'worst group':>13}")
    for label, r in result["routes"].items():
        times = f"{r['seconds']:8.2f}{r['cpu_seconds']:8.2f}{r['process_seconds']:11.2f}{r['peak_rss_mb']:8.0f}"
        print(f"{label:22}{times}{r['error_over_exact']:15.5f}{r['worst_group']:13.5f}")
    print(f"{result['times_faster']:.0f} times faster, {result['times_less_cpu']:.0f} times less CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"rows": 1024, "columns": 3072, "bits": 4, "group": 8, "runs": 3}.items():
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
