"""Options that several commands share."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from anemone.compress.spec import parse_lut
from anemone.errors import RecipeError, RequestError
from anemone.recipe import Recipe

if TYPE_CHECKING:
    from anemone.execute import Program

Source = Annotated[str, typer.Argument(metavar="SRC", help="Checkpoint: folder, .gguf file or hub id org/name.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Context = Annotated[int, typer.Option("--context", help="Tokens that the cache holds.")]
Batch = Annotated[int, typer.Option("--batch", help="Tokens of one prefill call.")]
LutEmbeddings = Annotated[
    str, typer.Option("--lut-embeddings", "--lut1", metavar="BITS[,GROUP]", help="Palettise the embeddings, or none.")
]
LutFfn = Annotated[
    str, typer.Option("--lut-ffn", "--lut2", metavar="BITS[,GROUP]", help="Palettise the decoder layers, or none.")
]
LutLmhead = Annotated[
    str, typer.Option("--lut-lmhead", "--lut3", metavar="BITS[,GROUP]", help="Palettise the LM head, or none.")
]
Chunk = Annotated[str, typer.Option("--chunk", metavar="N|auto", help="Number of decoder packages.")]
MaxChunkMb = Annotated[int, typer.Option("--max-chunk-mb", help="Largest package that --chunk auto allows, in MiB.")]
HeadSplit = Annotated[
    int | None, typer.Option("--head-split", help="Parts of the LM head [default: 8 for llama, 16 for others].")
]
Argmax = Annotated[bool, typer.Option("--argmax", help="The head returns its best token in place of logits.")]
NoScore = Annotated[bool, typer.Option("--no-score", help="Leave out the functions that return every row of a batch.")]
KvWrite = Annotated[
    str, typer.Option("--kv-write", metavar="slice|mask", help="How new keys and values enter the cache.")
]
Silu = Annotated[
    str, typer.Option("--silu", metavar="tanh|native", help="SiLU by tanh, or the hardware's own, which is biased.")
]
Prefix = Annotated[str | None, typer.Option("--prefix", help="Start of the package names [default: the family's].")]
Platform = Annotated[
    str, typer.Option("--platform", metavar="any|ios|macos", help="Refuse files above this platform's limit (1, 2 GB).")
]

Inputs = Annotated[
    list[str] | None,
    typer.Option("--inputs", "-i", metavar="[NAME=]FILE", help="Inputs: .npz, .npy, .json or an image; repeatable."),
]
Random = Annotated[int | None, typer.Option("--random", metavar="SEED", min=0, help="Random inputs in place of files.")]
Shape = Annotated[
    list[str] | None, typer.Option("--shape", metavar="NAME=1,64", help="Shape of a random input; repeatable.")
]
Function = Annotated[str | None, typer.Option("--function", help="Which function [default: the package's].")]
Numerics = Annotated[str, typer.Option("--numerics", metavar="MODE", help="float16, float32, ane or ane:CHIP.")]


def program_inputs(
    program: "Program", files: list[str] | None, seed: int | None, shapes: list[str] | None
) -> dict[str, Any]:
    """What --inputs or --random give for the default function. Raises RequestError."""
    from anemone.cli.arrays import parse_shapes, read_inputs
    from anemone.execute.samples import random_inputs

    function = program.default_function
    if files and seed is not None:
        raise RequestError("--inputs and --random exclude each other.")
    if shapes and seed is None:
        raise RequestError("--shape is for --random; files bring their own shapes.")
    if seed is not None:
        return random_inputs(program, seed, function, parse_shapes(shapes or []))
    if not files and program.functions[function].inputs:
        names = ", ".join(program.functions[function].inputs)
        raise RequestError(f"function {function!r} needs inputs ({names}): give --inputs FILE or --random SEED.")
    return read_inputs(files or [], program.functions[function])


def make_recipe(
    *, lut_embeddings: str, lut_ffn: str, lut_lmhead: str, chunk: str, no_score: bool, **values: Any
) -> Recipe:
    """The Recipe that the command line asks for."""
    if chunk != "auto" and not chunk.isdecimal():
        raise RecipeError(f"chunk is {chunk!r}, expected a whole number or auto")
    return Recipe(
        lut_embeddings=parse_lut(lut_embeddings),
        lut_ffn=parse_lut(lut_ffn),
        lut_lmhead=parse_lut(lut_lmhead),
        chunks=None if chunk == "auto" else int(chunk),
        score=not no_score,
        **values,
    )
