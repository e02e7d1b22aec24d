"""anemone convert"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anemone.cli import options
from anemone.cli.output import print_facts, print_json, print_table, size
from anemone.cli.progress import make_progress
from anemone.cli.report import print_report

if TYPE_CHECKING:
    from anemone.conversion.convert import Conversion

Output = Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="Folder of the bundle.")]
NoVerify = Annotated[bool, typer.Option("--no-verify", help="Skip the comparison with the checkpoint.")]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Threads that palettise.")]
Restart = Annotated[int | None, typer.Option("--restart", metavar="STEP", help="Do steps STEP (1-8) and later again.")]
Only = Annotated[int | None, typer.Option("--only", metavar="STEP", help="Do only one step (1-8).")]


def command(
    source: options.Source,
    output: Output,
    context: options.Context = 512,
    batch: options.Batch = 64,
    lut_embeddings: options.LutEmbeddings = "none",
    lut_ffn: options.LutFfn = "4",
    lut_lmhead: options.LutLmhead = "6",
    chunk: options.Chunk = "auto",
    max_chunk_mb: options.MaxChunkMb = 950,
    head_split: options.HeadSplit = None,
    argmax: options.Argmax = False,
    no_score: options.NoScore = False,
    kv_write: options.KvWrite = "slice",
    silu: options.Silu = "tanh",
    prefix: options.Prefix = None,
    platform: options.Platform = "any",
    no_verify: NoVerify = False,
    workers: Workers = 1,
    restart: Restart = None,
    only: Only = None,
    as_json: options.Json = False,
) -> None:
    """Turn a checkpoint into a verified bundle of Core ML packages.

    Steps, for --restart and --only: 1 embeddings, 2 LM head, 3-5 decoder packages, 6 compile (macOS), 7 tokenizer and
    metadata, 8 verify. Finished parts are kept when a conversion is run again.
    """
    from anemone.conversion.convert import Conversion, convert
    from anemone.conversion.steps import Steps
    from anemone.errors import GateFailed, PackageError

    recipe = options.make_recipe(
        lut_embeddings=lut_embeddings, lut_ffn=lut_ffn, lut_lmhead=lut_lmhead, chunk=chunk, no_score=no_score,
        context=context, batch=batch, max_chunk_mb=max_chunk_mb, head_split=head_split, argmax=argmax,
        kv_write=kv_write, silu=silu, prefix=prefix, platform=platform,
    )  # fmt: skip
    try:
        conversion = convert(
            source, output, recipe, verification=not no_verify, steps=Steps(restart, only), workers=workers,
            progress=make_progress(),
        )  # fmt: skip
    except GateFailed as failed:
        if isinstance(failed.result, Conversion):
            show(failed.result, as_json)
        raise
    except OSError as error:
        raise PackageError(f"{error.filename or output} cannot be written or read: {error.strerror}") from None
    show(conversion, as_json)


def show(conversion: "Conversion", as_json: bool) -> None:
    if as_json:
        print_json(conversion.as_dict())
    else:
        print_conversion(conversion)


def print_conversion(conversion: "Conversion") -> None:
    typer.echo(f"{conversion.bundle}")
    print_table([(build.path.name, size(build.bytes), build.summary) for build in conversion.parts])
    plan, written = conversion.plan, sum(build.bytes for build in conversion.parts)
    print_facts(
        [
            ("total", f"{size(written)}, {plan.bits_per_weight:.2f} bits per weight"),
            ("when running", f"{size(plan.resident_bytes)} of weights, cache and activations"),
            ("took", f"{conversion.seconds:.1f} s, {conversion.peak_rss_mb:.0f} MB at most"),
        ]
    )
    if loss := conversion.loss.subnormal + conversion.loss.zeroed:
        typer.echo(f"  {loss} of {conversion.loss.values} weights are too small for all of fp16's digits")
    if conversion.report:
        print_report(conversion.report)
    else:
        typer.echo("not verified (as asked)")
