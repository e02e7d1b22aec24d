"""Run ML Programs with numpy, anywhere. Shares no code with the parts that write packages."""

from anemone.execute.comparing import Comparison, compare
from anemone.execute.profiling import Profile, profile
from anemone.execute.program import Program
from anemone.execute.samples import random_inputs
from anemone.execute.signature import Signature, TensorSpec
from anemone.execute.state import State
from anemone.execute.tracing import Trace, trace

__all__ = [
    "Comparison",
    "Profile",
    "Program",
    "Signature",
    "State",
    "TensorSpec",
    "Trace",
    "compare",
    "profile",
    "random_inputs",
    "trace",
]
