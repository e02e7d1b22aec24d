"""anemone plan"""

from typing import TYPE_CHECKING

import typer

from anemone.cli import options
from anemone.cli.output import print_facts, print_json, print_table, size

if TYPE_CHECKING:
    from anemone.conversion.plan import Plan


def command(
    source: options.Source,
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
    as_json: options.Json = False,
) -> None:
    """Show what a conversion would write: parts, chunks, bytes, memory. Reads headers only."""
    from anemone.checkpoint import open_checkpoint
    from anemone.conversion.plan import make_plan

    recipe = options.make_recipe(
        lut_embeddings=lut_embeddings, lut_ffn=lut_ffn, lut_lmhead=lut_lmhead, chunk=chunk, no_score=no_score,
        context=context, batch=batch, max_chunk_mb=max_chunk_mb, head_split=head_split, argmax=argmax,
        kv_write=kv_write, silu=silu, prefix=prefix, platform=platform,
    )  # fmt: skip
    checkpoint = open_checkpoint(source)
    plan = make_plan(checkpoint, recipe)
    if as_json:
        print_json({"source": checkpoint.name, **plan.as_dict()})
    else:
        print_plan(checkpoint.name, plan)


def print_plan(name: str, plan: "Plan") -> None:
    config = plan.config
    typer.echo(
        f"{name}: {plan.config.model_type}, {config.layers} layers, {config.hidden} wide, "
        f"{config.heads}/{config.kv_heads} heads of {config.head_dim}, {config.vocab} tokens"
    )
    print_table(
        [
            (
                part.name,
                size(part.weight_bytes),
                f"{part.bits_per_weight:.2f} bits",
                ", ".join(f.name for f in part.program.functions),
            )
            for part in plan.parts
        ]
    )
    print_facts(
        [
            ("chunks", f"{len(plan.chunks)} ({plan.chunk_reason})"),
            ("total", f"{size(plan.total_bytes)}, {plan.bits_per_weight:.2f} bits per weight"),
            ("context", f"{plan.recipe.context} tokens, cache {size(plan.kv_bytes)}"),
            ("when running", f"{size(plan.resident_bytes)} of weights, cache and activations"),
            ("rope", f"{config.rope.kind}, theta {config.rope.theta:g}"),
            ("converting needs", f"about {plan.peak_memory_mb} MB of memory"),
        ]
    )
    for note in plan.notes:
        typer.echo(f"  note: {note}")
