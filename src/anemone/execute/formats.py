"""The forms in which Core ML models come: packages, compiled folders, bare model files. All become one message."""

from pathlib import Path
from typing import Any

from anemone.errors import ExecuteError
from anemone.execute import files, proto
from anemone.execute.text.description import fill_description, read_metadata
from anemone.execute.text.parser import parse_program

TEXT = "model.mil"
_OTHER_KINDS = {
    "neuralNetwork": "a neural network, the format before ML Programs",
    "neuralNetworkClassifier": "a neural network, the format before ML Programs",
    "neuralNetworkRegressor": "a neural network, the format before ML Programs",
    "pipeline": "a pipeline of several models",
    "pipelineClassifier": "a pipeline of several models",
    "pipelineRegressor": "a pipeline of several models",
}
_ONLY = "only ML Programs can be executed"


def read_model(path: Path) -> tuple[Any, Path]:
    """The Model message of a .mlpackage or a .mlmodelc, and the folder that its weights are named from.

    Raises ExecuteError for anything else, and for models that are no ML Programs.
    """
    if path.is_file():
        raise ExecuteError(_about_file(path))
    if (path / "Manifest.json").exists() or not _is_compiled(path):
        file = files.model_file(path)
        model = proto.parse_model(files.read_bytes(file), file)
        _check_kind(path, model)
        return model, file.parent
    return _compiled(path), path


def _is_compiled(path: Path) -> bool:
    return path.is_dir() and (path.suffix == ".mlmodelc" or (path / TEXT).exists())


def _about_file(path: Path) -> str:
    """Why a file is not what is asked for."""
    if path.suffix == ".mil":
        return f"{path} is the program of a compiled model; give the folder that holds it"
    if path.suffix != ".mlmodel":
        return f"{path} is a file; give a .mlpackage or .mlmodelc folder"
    model = proto.parse_model(files.read_bytes(path), path)
    _check_kind(path, model)
    return f"{path} is the model file of an ML Program, which runs only with its weights: give the .mlpackage folder"


def _check_kind(path: Path, model: Any) -> None:
    kind = model.WhichOneof("Type")
    if kind is None:
        raise ExecuteError(f"{path} is damaged: its model file holds no model")
    if kind != "mlProgram":
        raise ExecuteError(f"{path} holds {_OTHER_KINDS.get(kind, f'a model of type {kind}')}; {_ONLY}")


def _compiled(path: Path) -> Any:
    """The Model message that a compiled folder stands for."""
    if not (path / TEXT).exists():
        raise ExecuteError(_about_compiled(path))
    text = files.read_text(files.inside(path, path / TEXT))
    metadata = {}
    if (path / "metadata.json").exists():
        file = files.inside(path, path / "metadata.json")
        try:
            metadata = dict(read_metadata(files.read_text(file)))
        except (ValueError, RecursionError) as error:
            raise ExecuteError(f"{file} is damaged: {error}") from error
    model = proto.new_model()
    version = metadata.get("specificationVersion")
    model.specificationVersion = version if isinstance(version, int) and 0 < version < 1000 else 0
    functions = parse_program(text, str(path / TEXT), model.mlProgram)
    fill_description(model, functions, metadata, proto.dtype_names())
    return model


def _about_compiled(path: Path) -> str:
    """What a compiled folder without a program is."""
    if (path / "model0").is_dir():
        return f"{path} holds {_OTHER_KINDS['pipeline']}; {_ONLY}: give one of its parts, such as {path / 'model0'}"
    if any((path / name).exists() for name in ("model.espresso.net", "neural_network_optionals")):
        return f"{path} holds {_OTHER_KINDS['neuralNetwork']}; {_ONLY}"
    return f"{path} has no {TEXT}: it is damaged, or it holds a model of another kind than an ML Program"
