"""How a run of tokens is cut into the calls of an engine."""

from collections.abc import Iterator


def spans(start: int, stop: int, batch: int, context: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges of at most ``batch`` positions that together bring positions start..stop-1 into the cache.

    An engine pads a short batch and writes the padding's rows behind the tokens, so it needs ``batch`` free positions.
    Where the context ends sooner, the last range starts early instead and computes a few known positions again, with
    equal results. The caller must therefore know the tokens before ``start`` as well.
    """
    while start < stop:
        end = min(start + batch, stop)
        begin = start
        if 1 < end - start < batch and start + batch > context:
            begin = max(0, end - batch)
        yield begin, end
        start = end
