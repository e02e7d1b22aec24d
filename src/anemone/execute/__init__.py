"""Run ML Programs with numpy, anywhere. Shares no code with the parts that write packages."""

from anemone.execute.program import Program
from anemone.execute.signature import Signature, TensorSpec
from anemone.execute.state import State

__all__ = ["Program", "Signature", "State", "TensorSpec"]
