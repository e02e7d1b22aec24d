"""What a conversion costs, each route in its own environment and process, start-up included.

    python benchmarks/convert.py [--routes] [--copy] [--large] [--kmeans] [--json]     # no choice: all four

--routes  FP16 conversion of a 4-layer model in Qwen3-0.6B's shape against the torch-trace route
--copy    FP16 conversion of SmolLM2-135M against copying its weights through numpy
--large   memory of converting (LUT4) and verifying one layer in Llama-8B's shape
--kmeans  palettising one matrix against coremltools.optimize (benchmarks/kmeans.py)
"""

import argparse
import json
import os
import shutil
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import checkpoints
from machine import ROOT, record
from measure import Usage, measure

HERE = Path(__file__).resolve().parent
FP16 = ["--lut-embeddings", "none", "--lut-ffn", "none", "--lut-lmhead", "none", "--no-verify"]


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def repeat(command: list[str], out: Path, runs: int = 1) -> Usage:
    """Usage of the run of median wall time, with the highest memory of all runs; ``out`` is removed before each."""
    seen = []
    for _ in range(runs):
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        os.sync()  # nobody pays for writing back what another run left behind
        note("  " + " ".join(command))
        seen.append(measure(command)[0])
    middle = statistics.median_low(u.wall_s for u in seen)
    return replace(
        next(u for u in seen if u.wall_s == middle),
        peak_rss_mb=max(u.peak_rss_mb for u in seen),
        peak_anon_mb=max(u.peak_anon_mb for u in seen),
    )


def routes(args: argparse.Namespace) -> dict:
    source = checkpoints.write(checkpoints.QWEN3_4_LAYERS, args.work / "qwen3-4-layers")
    out = args.work / "routes"
    ours = repeat([args.anemone, "convert", str(source), "-o", str(out), *FP16, "--chunk", "1"], out, args.runs)
    rows = {f"anemone, three packages ({args.runs} runs)": ours}
    script = [args.torch_python, str(HERE / "torch_route.py")]
    for layout, label in {"parts": "torch, the same three packages", "monolith": "torch, one package"}.items():
        rows[label] = repeat([*script, layout, str(source), str(out)], out)
    ratios = {
        label: {
            "times_faster": usage.wall_s / ours.wall_s,
            "times_less_cpu": (usage.user_s + usage.system_s) / (ours.user_s + ours.system_s),
            "times_less_rss": usage.peak_rss_mb / ours.peak_rss_mb,
        }
        for label, usage in rows.items()
        if usage is not ours
    }
    return {"title": "FP16, 4 layers of Qwen3-0.6B's shape, infer + prefill", "rows": rows, "ratios": ratios}


def copy(args: argparse.Namespace) -> dict:
    source = args.smollm2 or checkpoints.write(checkpoints.SMOLLM2_135M, args.work / "smollm2-shape")
    out = args.work / "copy"
    plain = [args.python, str(HERE / "copy_weights.py"), str(source / "model.safetensors"), str(out / "weights.bin")]
    copied = repeat(plain, out, args.runs)
    converted = repeat([args.anemone, "convert", str(source), "-o", str(out), *FP16], out, args.runs)
    limit = 4 * copied.wall_s + 3
    return {
        "title": f"FP16, {'SmolLM2-135M' if args.smollm2 else 'random weights in the shape of SmolLM2-135M'}",
        "rows": {"copy through numpy": copied, "anemone convert": converted},
        "ratios": {"limit: 4 x copy + 3 s": {"limit_s": limit, "converted_s": converted.wall_s}},
    }


def large(args: argparse.Namespace) -> dict:
    config = checkpoints.LLAMA_8B_1_LAYER | {"vocab_size": args.vocab}
    source = checkpoints.write(config, args.work / f"llama-8b-1-layer-{args.vocab}")
    out = args.work / "large"
    lut = ["--lut-embeddings", "none", "--lut-ffn", "4", "--lut-lmhead", "none"]
    convert = repeat([args.anemone, "convert", str(source), "-o", str(out), *lut, "--no-verify"], out)
    note("  verify")
    verify, report = measure([args.anemone, "verify", str(out), "--source", str(source), "--json"])
    return {
        "title": f"LUT4, one layer of Llama-8B's shape, vocabulary {args.vocab}",
        "rows": {"anemone convert": convert, "anemone verify": verify},
        "ratios": {"limit: 800 MB anonymous": {"peak_anon_mb": max(convert.peak_anon_mb, verify.peak_anon_mb)}},
        "verify": next(json.loads(line) for line in report.splitlines() if line.startswith("{")),
    }


def kmeans(args: argparse.Namespace) -> dict:
    note("  benchmarks/kmeans.py")
    _, text = measure([args.torch_python, str(HERE / "kmeans.py")])
    return {"title": "k-means, LUT4 in groups of 8 rows, one 1024 x 3072 matrix", "text": text}


def show(result: dict) -> None:
    print(f"\n{result['title']}")
    if "text" in result:
        print(result["text"].rstrip())
        return
    print(f"{'':42}{'wall s':>9}{'user s':>9}{'system s':>9}{'RSS MB':>9}{'anon MB':>9}")
    for label, usage in result["rows"].items():
        print(f"{label:42}" + "".join(f"{value:9.1f}" for value in usage.as_dict().values()))
    for label, values in result["ratios"].items():
        print(f"{label:42}  " + "  ".join(f"{name} {value:.1f}" for name, value in values.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"routes": routes, "copy": copy, "large": large, "kmeans": kmeans}
    for name in parts:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--runs", type=int, default=3, help="runs of the short commands; the median counts")
    parser.add_argument("--smollm2", type=Path, help="a bf16 Hugging Face directory of SmolLM2-135M")
    parser.add_argument("--vocab", type=int, default=checkpoints.LLAMA_8B_1_LAYER["vocab_size"])
    parser.add_argument("--work", type=Path, default=ROOT / "out/benchmarks", help="checkpoints stay there (4 GB)")
    parser.add_argument("--anemone", default=str(ROOT / ".venv/bin/anemone"))
    parser.add_argument("--python", default=str(ROOT / ".venv/bin/python"))
    parser.add_argument("--torch-python", default=str(ROOT / ".venv-test/bin/python"))
    args = parser.parse_args()
    chosen = [name for name in parts if getattr(args, name)] or list(parts)
    results = {}
    where = record(product=Path(args.python), torch_route=Path(args.torch_python))
    for name in chosen:
        note(name)
        results[name] = parts[name](args)
        if not args.json:
            show(results[name])
    if args.json:
        print(json.dumps({"machine": where, "results": results}, default=Usage.as_dict))
    else:
        print("\n" + json.dumps(where))


if __name__ == "__main__":
    main()
