"""The message classes of Core ML model files, taken from coremltools without executing that package.

``import coremltools`` takes a second or more and pulls in whatever framework it finds; its protobuf modules alone
load in some 50 ms.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

from anemone.errors import AnemoneError

_ALIAS = "anemone.package._coreml_proto"


def _load(name: str) -> Any:
    if _ALIAS not in sys.modules:
        spec = importlib.util.find_spec("coremltools")
        if spec is None or not spec.submodule_search_locations:
            raise AnemoneError(
                "coremltools is not installed, and its message definitions are needed: pip install coremltools==9.0"
            )
        package = ModuleType(_ALIAS)
        package.__path__ = [f"{spec.submodule_search_locations[0]}/proto"]
        sys.modules[_ALIAS] = package
    return importlib.import_module(f"{_ALIAS}.{name}")


MODEL: Any = _load("Model_pb2")
MIL: Any = _load("MIL_pb2")
FEATURES: Any = _load("FeatureTypes_pb2")
