"""How fast the executor decodes and fills its cache, beside other ways to run the same model on one thread.

    python benchmarks/execute.py [--smollm2 DIR] [--gguf FILE --llama-python PYTHON] [--json]

SmolLM2-135M as an FP16 and a LUT4 bundle, the checkpoint in transformers (fp32, eager) and, when asked for, a GGUF file
in llama.cpp (a Python with ``pip install xllamacpp``). The processes run in turn, round by round. On one thread CPU
seconds are what an idle machine needs by the clock, so ratios are of medians of CPU seconds; medians by the clock stand
beside them. Without --smollm2: random weights in its shape.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import checkpoints
from machine import ROOT, record
from measure import measure

HERE = Path(__file__).resolve().parent
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
ROWS = 64


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Decoder:
    """A process of decoders.py."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.loaded = self._answer()
        self.seen: dict[str, list[dict[str, float]]] = {"decode": [], "prefill": []}

    def _answer(self) -> dict[str, float]:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(self.process.args)} ended with {self.process.wait()}")
        return json.loads(line)

    def run(self, what: str, count: int) -> None:
        self.process.stdin.write(f"{what} {count}\n")
        self.process.stdin.flush()
        self.seen[what].append(self._answer())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()

    def medians(self) -> dict[str, float]:
        """Milliseconds per token and per prefill, by CPU and by the clock."""
        return {
            f"{what}_{clock}_ms": 1e3 * statistics.median(answer[f"{clock}_s"] for answer in answers)
            for what, answers in self.seen.items()
            for clock in ("cpu", "wall")
        }


def bundle(args: argparse.Namespace, source: Path, bits: str) -> Path:
    """The bundle of this checkpoint, converted once."""
    out = args.work / f"execute-{source.name}-{bits}"
    if not (out / "manifest.json").exists():
        note(f"converting to {out}")
        lut = ["--lut-embeddings", "none", "--lut-ffn", bits, "--lut-lmhead", bits]
        subprocess.run([args.anemone, "convert", str(source), "-o", str(out), *lut, "--no-verify"], check=True)
    return out


def commands(args: argparse.Namespace) -> dict[str, list[str]]:
    source = args.smollm2 or checkpoints.write(checkpoints.SMOLLM2_135M, args.work / "smollm2-shape")
    script = str(HERE / "decoders.py")
    fp16 = args.bundle or bundle(args, source, "none")
    found = {
        "anemone, FP16": [args.python, script, "anemone", str(fp16)],
        "anemone, LUT4": [args.python, script, "anemone", str(bundle(args, source, "4"))],
        "transformers, fp32": [args.torch_python, script, "transformers", str(source)],
    }
    if args.llama_python:
        found["llama.cpp, GGUF"] = [args.llama_python, script, "llama", str(args.gguf)]
    return found


def compare(args: argparse.Namespace, found: dict[str, list[str]]) -> dict[str, dict[str, float]]:
    """Load each in turn, then let them run in turn."""
    decoders = {}
    for label, command in found.items():
        note(f"loading {label}")
        decoders[label] = Decoder(command)
    for index in range(args.rounds):
        note(f"round {index + 1} of {args.rounds}")
        for what, count in (("decode", args.tokens), ("prefill", ROWS)):
            for decoder in decoders.values():
                decoder.run(what, count)
    for decoder in decoders.values():
        decoder.close()
    return {label: {**decoder.loaded, **decoder.medians()} for label, decoder in decoders.items()}


def ratios(rows: dict[str, dict[str, float]]) -> dict[str, float]:
    """How many times as fast the FP16 bundle is as each other one, by CPU seconds."""
    ours = rows["anemone, FP16"]
    return {
        f"{what}, FP16 against {label}": row[f"{what}_cpu_ms"] / ours[f"{what}_cpu_ms"]
        for label, row in rows.items()
        if row is not ours
        for what in ("decode", "prefill")
    }


def memory(command: list[str], source: Path) -> dict[str, float]:
    """Peaks of a process that loads, fills its cache and decodes, against the fp32 weights."""
    usage, _ = measure(command)
    checkpoint = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    return {**usage.as_dict(), "limit_rss_mb": 1.3 * 2 * checkpoint / 1e6 + 250}


def show(rows: dict[str, dict[str, float]], speed: dict[str, float], peak: dict[str, float]) -> None:
    heads = [f"{head:>11}{'(clock)':>9}" for head in ("load s", "decode ms", f"{ROWS} rows ms")]
    print(f"{'':22}" + "".join(heads))
    for label, row in rows.items():
        loaded = f"{row['load_cpu_s']:11.2f}{row['load_wall_s']:9.2f}"
        times = (f"{row[f'{what}_cpu_ms']:11.1f}{row[f'{what}_wall_ms']:9.1f}" for what in ("decode", "prefill"))
        print(f"{label:22}" + loaded + "".join(times))
    for label, ratio in speed.items():
        print(f"{label:44}{ratio:6.2f} x")
    print(f"peak memory {peak['peak_rss_mb']:.0f} MB ({peak['peak_anon_mb']:.0f} MB of it not mapped files), ", end="")
    print(f"limit {peak['limit_rss_mb']:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", type=Path, help="a bf16 Hugging Face folder of SmolLM2-135M")
    parser.add_argument("--bundle", type=Path, help="its FP16 bundle, in place of converting")
    parser.add_argument("--gguf", type=Path, default=ROOT / "models/SmolLM2-135M-Instruct.gguf")
    parser.add_argument("--llama-python", help="a Python that has xllamacpp")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=16, help="tokens decoded per round, after a prompt of 64")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--work", type=Path, default=ROOT / "out/benchmarks")
    parser.add_argument("--anemone", default=str(ROOT / ".venv/bin/anemone"))
    parser.add_argument("--python", default=str(ROOT / ".venv/bin/python"))
    parser.add_argument("--torch-python", default=str(ROOT / ".venv-test/bin/python"))
    args = parser.parse_args()
    os.environ.update(ONE_THREAD)
    args.work.mkdir(parents=True, exist_ok=True)
    found = commands(args)
    rows = compare(args, found)
    source = Path(found["transformers, fp32"][-1])
    peak = memory(found["anemone, FP16"], source)
    where = record(product=Path(args.python), torch=Path(args.torch_python))
    if args.json:
        print(json.dumps({"machine": where, "rows": rows, "ratios": ratios(rows), "memory": peak}))
    else:
        show(rows, ratios(rows), peak)
        print("\n" + json.dumps(where))


if __name__ == "__main__":
    main()
