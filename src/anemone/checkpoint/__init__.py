"""Reading checkpoints: Hugging Face folders, GGUF files and hub ids, all through one class."""

from anemone.checkpoint.base import Checkpoint, TensorInfo, TokenizerFiles
from anemone.checkpoint.open import open_checkpoint

__all__ = ["Checkpoint", "TensorInfo", "TokenizerFiles", "open_checkpoint"]
