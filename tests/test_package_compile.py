"""Compiling, with a stand-in for Xcode's tool."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from anemone.errors import AnemoneError
from anemone.package.compile import SKIPPED, compile_package


class Xcode:
    """Answers like xcrun; ``fails`` is what coremlcompiler says on its way out."""

    def __init__(self, found=True, fails="", stops=None):
        self.found, self.fails, self.stops, self.calls = found, fails, stops, []

    def __call__(self, command, **options):
        self.calls.append(command)
        if command[1] == "--find":
            return SimpleNamespace(returncode=0 if self.found else 72, stdout="", stderr="")
        _, _, _, package, folder = command
        result = Path(folder) / Path(package).with_suffix(".mlmodelc").name
        result.mkdir()
        (result / "model.mil").write_text("half")
        if self.stops:
            raise self.stops
        if self.fails:
            return SimpleNamespace(returncode=1, stdout="", stderr=self.fails)
        (result / "model.mil").write_text("whole")
        return SimpleNamespace(returncode=0, stdout=str(result), stderr="")


def no_xcrun(command, **options):
    raise FileNotFoundError("xcrun")


def test_compiles_into_the_folder(tmp_path):
    xcode = Xcode()
    compiled = compile_package(tmp_path / "a b.mlpackage", tmp_path / "out", xcode, "darwin")
    assert compiled.path == tmp_path / "out" / "a b.mlmodelc"
    assert (compiled.path / "model.mil").read_text() == "whole"
    assert list((tmp_path / "out").iterdir()) == [compiled.path]
    assert xcode.calls[-1][:4] == ["xcrun", "coremlcompiler", "compile", str(tmp_path / "a b.mlpackage")]


def test_replaces_an_older_result(tmp_path):
    (tmp_path / "a.mlmodelc").mkdir()
    (tmp_path / "a.mlmodelc" / "stale").touch()
    compile_package(tmp_path / "a.mlpackage", tmp_path, Xcode(), "darwin")
    assert [file.name for file in (tmp_path / "a.mlmodelc").iterdir()] == ["model.mil"]


@pytest.mark.parametrize("stops", [None, KeyboardInterrupt()])
def test_failure_says_why_and_leaves_the_older_result(tmp_path, stops):
    (tmp_path / "a.mlmodelc").mkdir()
    with pytest.raises(KeyboardInterrupt if stops else AnemoneError, match=None if stops else "op 'foo' is unknown"):
        compile_package(tmp_path / "a.mlpackage", tmp_path, Xcode(fails="op 'foo' is unknown\n", stops=stops), "darwin")
    assert list(tmp_path.iterdir()) == [tmp_path / "a.mlmodelc"]
    assert not list((tmp_path / "a.mlmodelc").iterdir())


@pytest.mark.parametrize(
    ("run", "platform"), [(Xcode(), "linux"), (Xcode(found=False), "darwin"), (no_xcrun, "darwin")]
)
def test_says_that_it_was_skipped(tmp_path, run, platform):
    compiled = compile_package(tmp_path / "a.mlpackage", tmp_path / "out", run, platform)
    assert (compiled.path, compiled.skipped) == (None, SKIPPED)
    assert list(tmp_path.iterdir()) == []
