"""Verification of a finished bundle on a text: what every conversion ends with, and what `anemone verify` runs."""

import logging
import math
from pathlib import Path

from anemone.checkpoint import Checkpoint, open_checkpoint
from anemone.errors import RequestError
from anemone.evaluate.parity import verify_bundle
from anemone.evaluate.report import Report
from anemone.package.bundle import read_bundle
from anemone.progress import Progress
from anemone.runtime.text import Text

log = logging.getLogger(__name__)

PASSAGE = Path(__file__).with_name("passage.txt")
"""The opening of Alice's Adventures in Wonderland (Lewis Carroll, 1865; public domain)."""

TOKENS = 512


def verify(
    bundle_path: str | Path,
    source: str | Path | Checkpoint,
    *,
    text: str | None = None,
    tokens: int = TOKENS,
    max_kl: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compare the bundle with its checkpoint (opened, or a path or hub id) on the first tokens of a text.

    text: a built-in passage by default. tokens: how many of its tokens to use. max_kl: largest mean KL (nats per
    token) from the checkpoint; without it palettisation's cost is only reported.
    Raises RequestError for a text without tokens, PackageError for a bundle of another checkpoint.
    """
    bundle = read_bundle(bundle_path)
    if tokens < 1:
        raise RequestError(f"tokens is {tokens}, the least is 1.")
    if max_kl is not None and not 0 <= max_kl < math.inf:
        raise RequestError(f"max-kl is {max_kl}, but must be a number of at least 0.")
    passage = PASSAGE.read_text("utf-8") if text is None else text
    ids = Text(bundle.tokenizer_dir).encode(passage)[:tokens]
    if not ids or not passage.strip():
        raise RequestError("The text gives no tokens to verify with; give a longer one.")
    if len(ids) < tokens:
        log.warning("the text has only %d of the %d tokens that were asked for", len(ids), tokens)
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    return verify_bundle(bundle, checkpoint, ids, max_kl=max_kl, progress=progress)
