"""How many bytes an operation reads: its constants as they are stored, its other operands as they are declared."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from anemone.execute.dtypes import Array, packed_bits, stored_type
from anemone.execute.reader import Op, is_weight
from anemone.execute.stored import Plain, Stored

_VIEWS = {"identity", "reshape", "expand_dims", "squeeze", "read_state", "write_state"}
_PICKS = {"gather", "gather_along_axis", "gather_nd"}


def stored_bytes(stored: Stored) -> int:
    """Bytes of a constant as stored: of a compressed one, its indices, tables and scales."""
    if isinstance(stored, Plain):
        return stored.data.nbytes
    return sum(stored_bytes(part) for part in vars(stored).values() if isinstance(part, Stored))


def weight_bytes(op: Op, results: Mapping[str, Array]) -> int:
    """Bytes read from weight files. Of a table, only the picked part."""
    operands = [operand for group in op.inputs.values() for operand in group]
    weights = {operand.key: operand for operand in operands if isinstance(operand, Stored) and is_weight(operand)}
    total = sum(stored_bytes(weight) for weight in weights.values())
    if op.kind in _PICKS and weights:
        size = max(weight.size for weight in weights.values())
        picked = max((np.size(result) for result in results.values()), default=0)
        return min(total, -(-total * picked // max(size, 1)))
    return total


def bytes_read(op: Op, operands: Mapping[str, Any], dtypes: Mapping[str, str], results: Mapping[str, Array]) -> int:
    """All bytes that an operation reads. ``operands``: the values of its operands by name; views read nothing."""
    if op.kind in _VIEWS:
        return 0
    values = sum(np.size(value) * _bits(dtypes[name]) // 8 for name, value in operands.items())
    return values + weight_bytes(op, results)


def _bits(dtype: str) -> int:
    kind = stored_type(dtype)
    return packed_bits(dtype) or (8 * kind.itemsize if kind is not None else 0)
