"""anemone generate"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from anemone.cli import options
from anemone.cli.output import print_json

Bundle = Annotated[Path, typer.Argument(metavar="OUT", help="Bundle folder.")]
Prompt = Annotated[str, typer.Option("--prompt", help="Text to continue, or with --chat to answer.")]
Chat = Annotated[bool, typer.Option("--chat", help="Wrap the prompt in the model's chat template.")]
System = Annotated[str | None, typer.Option("--system", help="System message, with --chat.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", help="Stop after so many tokens [default: context].")]
Temperature = Annotated[float, typer.Option("--temperature", help="0 takes the likeliest token.")]
TopK = Annotated[int, typer.Option("--top-k", help="Sample among the K likeliest tokens; 0 for all.")]
TopP = Annotated[float, typer.Option("--top-p", help="Sample among the likeliest tokens of this total probability.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Makes sampling repeatable.")]


def command(
    bundle: Bundle,
    prompt: Prompt,
    chat: Chat = False,
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    as_json: options.Json = False,
) -> None:
    """Generate text with a bundle, in the executor: any machine, no Core ML."""
    from anemone.runtime.generate import load

    def show(piece: str) -> None:
        typer.echo(piece, nl=False)
        sys.stdout.flush()

    result = load(bundle).generate(
        prompt, chat=chat, system=system, max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p,
        seed=seed, on_text=None if as_json else show,
    )  # fmt: skip
    if as_json:
        print_json(
            {
                "text": result.text,
                "token_ids": list(result.token_ids),
                "stop_reason": result.stop_reason,
                "prompt_tokens": result.prompt_tokens,
                "prefill_tokens_per_s": round(result.prefill_tokens_per_s, 2),
                "decode_tokens_per_s": round(result.decode_tokens_per_s, 2),
            }
        )
        return
    typer.echo()
    speed = f"{result.prefill_tokens_per_s:.1f} t/s prefill, {result.decode_tokens_per_s:.1f} t/s decode"
    typer.echo(
        f"{result.prompt_tokens} + {len(result.token_ids)} tokens, {speed}, ended by {result.stop_reason}", err=True
    )
