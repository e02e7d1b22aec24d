"""What a session asks of whatever runs a model: token ids in, logits or candidates out.

An engine knows nothing of text, sampling or history. It computes positions that its caller numbers and remembers
nothing itself: keys and values live in a state that the caller holds. Writing a position again simply replaces it, and
a token sees only itself and the positions before it, so going back needs no call: continue from the earlier position.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

State: TypeAlias = Any  # the engine's own; opaque to everybody else
Logits: TypeAlias = NDArray[np.float32]  # (V,)


@dataclass(frozen=True)
class Candidates:
    """What a head with an argmax inside gives in place of logits: some token ids and their logits.

    ids: (N,) token ids; values: (N,) float32. The most likely token is always among them.
    """

    ids: NDArray[np.int64]
    values: NDArray[np.float32]


Output: TypeAlias = "Logits | Candidates"


class Engine(Protocol):
    """One loaded model.

    context: positions that a state holds. batch: most tokens of one ``prefill`` or ``score`` call. vocab: V.
    has_score: whether ``score`` works. argmax: whether ``step`` gives Candidates instead of logits.
    """

    @property
    def context(self) -> int: ...

    @property
    def batch(self) -> int: ...

    @property
    def vocab(self) -> int: ...

    @property
    def has_score(self) -> bool: ...

    @property
    def argmax(self) -> bool: ...

    def new_state(self) -> State:
        """An empty state."""
        ...

    def prefill(self, state: State, ids: Sequence[int], position: int) -> None:
        """Put 1..batch tokens at ``position`` and after; nothing comes back. Fast while position + batch <= context."""
        ...

    def step(self, state: State, token: int, position: int) -> Output:
        """Put one token at ``position``; the logits (V,) or candidates for the token after it."""
        ...

    def score(self, state: State, ids: Sequence[int], position: int, first: int = 0) -> NDArray[np.float32]:
        """As ``prefill``, and the logits (n - first, V) after each of the n tokens from index ``first`` on."""
        ...
