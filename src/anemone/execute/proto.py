"""Core ML's message classes, loaded from coremltools' files without importing that package (which takes a second)."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from anemone.errors import ExecuteError

_PRIVATE_NAME = "_anemone_execute_messages"


def _messages(module: str) -> Any:
    if _PRIVATE_NAME not in sys.modules:
        found = importlib.util.find_spec("coremltools")
        if found is None or not found.submodule_search_locations:
            raise ExecuteError("executing needs coremltools' message definitions: pip install coremltools")
        package = ModuleType(_PRIVATE_NAME)
        package.__path__ = [found.submodule_search_locations[0] + "/proto"]
        sys.modules[_PRIVATE_NAME] = package
    return importlib.import_module(f"{_PRIVATE_NAME}.{module}")


def parse_model(data: bytes, file: Path) -> Any:
    """The Model message in the content of ``file``. Raises ExecuteError when it is none."""
    model_pb2 = _messages("Model_pb2")
    from google.protobuf.message import DecodeError

    model = model_pb2.Model()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ExecuteError(f"{file} is damaged: it is no Core ML model ({error})") from error
    return model


def new_model() -> Any:
    """An empty Model message."""
    return _messages("Model_pb2").Model()


def dtype_names() -> dict[int, str]:
    """MIL's data type numbers to names in our spelling: fp16, fp32, int32, uint4, ..."""
    table = _messages("MIL_pb2").DataType.DESCRIPTOR.values_by_number
    return {number: value.name.lower().replace("float", "fp") for number, value in table.items()}
