"""A loaded model that turns a prompt into text."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from anemone.errors import RequestError
from anemone.package.bundle import Bundle, read_bundle
from anemone.runtime.bundle_engine import BundleEngine
from anemone.runtime.engine import Engine
from anemone.runtime.sampling import Sampler
from anemone.runtime.session import Cancel, Generation, Session, StopReason
from anemone.runtime.stream import StreamDecoder
from anemone.runtime.text import Text

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Generated:
    """What a generation gave.

    token_ids: without the stop token. prompt_tokens: the whole prompt; prefill_tokens: the part that was not cached.
    The rates are tokens per second, 0 when there was nothing to measure (a single token needs no decoding step).
    """

    text: str
    token_ids: tuple[int, ...]
    stop_reason: StopReason | None
    prompt_tokens: int
    prefill_tokens: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


@dataclass(frozen=True)
class Model:
    """A bundle ready to run. Its session keeps the cache, so a prompt that begins like the last one starts sooner."""

    bundle: Bundle
    engine: Engine
    text: Text
    session: Session

    def generate(
        self,
        prompt: str,
        *,
        chat: bool = False,
        system: str | None = None,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        on_text: Callable[[str], None] | None = None,
        cancel: Cancel | None = None,
    ) -> Generated:
        """Continue ``prompt``, or with ``chat`` answer it as a user's message after the ``system`` message.

        ``on_text`` receives the text piece by piece. max_tokens None: until the model stops or the context ends.
        Raises RequestError for settings or a prompt that cannot work.
        """
        sampler = Sampler(temperature, top_k, top_p, seed)
        ids = self.prompt_ids(prompt, chat, system)
        run = self.session.generate(ids, max_tokens=max_tokens, sampler=sampler, cancel=cancel)
        stream = StreamDecoder(self.text)
        tokens: list[int] = []
        pieces: list[str] = []

        def emit(piece: str) -> None:
            pieces.append(piece)
            if piece and on_text is not None:
                on_text(piece)

        for token in run:
            tokens.append(token)
            emit(stream.feed(token))
        emit(stream.flush())
        return _generated("".join(pieces), tokens, run)

    def prompt_ids(self, prompt: str, chat: bool = False, system: str | None = None) -> list[int]:
        """The tokens of a raw prompt, or of a user's message as the chat template writes it.

        Without a template ``chat`` completes the raw text and logs so.
        """
        if system is not None and not (chat and self.text.has_template):
            why = "this bundle has no chat template" if chat else "a raw prompt has no messages: ask for chat"
            raise RequestError(f"A system message has no place here, because {why}.")
        if not chat:
            return self.text.encode(prompt)
        if not self.text.has_template:
            log.warning("no chat template, raw completion")
            return self.text.encode(prompt)
        messages = [{"role": "user", "content": prompt}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        return self.text.encode_chat(messages)


def load(path: str | Path, engine: str = "auto", numerics: str = "float16") -> Model:
    """Open the bundle at ``path``.

    engine: "executor" runs the packages with numpy anywhere; "auto" takes the best there is. numerics: of the executor,
    "float16" as on the device, or "float32".
    Raises PackageError for a bundle that is not whole, RequestError for an engine that does not exist.
    """
    if engine not in ("auto", "executor"):
        raise RequestError(f"engine is {engine!r}, but must be auto or executor.")
    from anemone.execute import Program

    bundle = read_bundle(Path(path))
    runner = BundleEngine(bundle, lambda package: Program(package, numerics=numerics))
    return Model(bundle, runner, Text(bundle.tokenizer_dir), Session(runner, bundle.stop_tokens))


def _generated(text: str, tokens: list[int], run: Generation) -> Generated:
    return Generated(
        text=text,
        token_ids=tuple(tokens),
        stop_reason=run.stop_reason,
        prompt_tokens=run.prompt_tokens,
        prefill_tokens=run.prefill_tokens,
        prefill_tokens_per_s=_rate(run.prefill_tokens, run.prefill_seconds),
        decode_tokens_per_s=_rate(run.decode_tokens, run.decode_seconds),
    )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
