"""Conversions that meet something in their way: other conversions, older files, a full disk, a missed gate."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bundles import FP16, command, weight_file
from tiny import make_tiny

from anemone.compress.spec import LutSpec
from anemone.conversion.convert import convert
from anemone.conversion.plan import make_plan
from anemone.conversion.steps import Steps
from anemone.errors import CheckpointError, GateFailed, PackageError, RecipeError
from anemone.evaluate import report
from anemone.package.bundle import read_bundle
from anemone.package.place import sole_writer
from anemone.recipe import Recipe

RECIPE = Recipe(**FP16, context=64, batch=8)
SMALL = ("--context", "64", "--batch", "8")


@pytest.fixture
def source(tmp_path):
    return make_tiny(tmp_path / "source", "llama")


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob(".*"))


def test_each_step_can_be_the_first(source, tmp_path):
    """As in ANEMLL: --only writes its part, whatever else is there or not."""
    out = tmp_path / "out"
    for step, parts in ((3, 1), (1, 2), (2, 3)):
        convert(source, out, RECIPE, steps=Steps(only=step))
        assert len(list(out.iterdir())) == parts
    for step in (6, 7, 8):
        convert(source, out, RECIPE, steps=Steps(only=step))
    assert read_bundle(out).manifest["validated"]
    with pytest.raises(RecipeError, match="nothing"):
        convert(source, out, RECIPE, steps=Steps(only=8), verification=False)


def test_a_folder_has_one_writer_at_a_time(source, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with sole_writer(out), pytest.raises(PackageError, match="another conversion"):
        convert(source, out, RECIPE, verification=False)
    assert not list(out.iterdir())
    convert(source, out, RECIPE, verification=False)


def test_a_bundle_ends_where_one_of_its_parts_is_replaced_by_another(source, tmp_path):
    """An embedding for another context beside chunks for the old one is no bundle until all parts are new."""
    out = tmp_path / "out"
    convert(source, out, RECIPE, verification=False)
    longer = Recipe(**FP16, context=128, batch=8)
    convert(source, out, longer, steps=Steps(only=2))
    with pytest.raises(PackageError, match="not a bundle"):
        read_bundle(out)
    convert(source, out, longer, verification=False)
    assert read_bundle(out).context == 128
    convert(source, out, longer, steps=Steps(only=2))  # the same part again
    assert read_bundle(out).context == 128


def test_what_an_older_model_left_is_not_used(source, tmp_path):
    out = tmp_path / "out"
    (source / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    convert(source, out, RECIPE, verification=False)
    assert (out / "chat_template.jinja").is_file()
    (source / "chat_template.jinja").unlink()
    convert(source, out, RECIPE, verification=False)
    assert not (out / "chat_template.jinja").exists()
    assert "chat_template.jinja" not in read_bundle(out).manifest["files"]


def test_a_manifest_lists_the_bundle_and_nothing_else(source, tmp_path):
    out = tmp_path / "out"
    (out / "holiday").mkdir(parents=True)
    (out / "holiday" / "film.mov").write_bytes(b"x")
    (out / "notes.txt").write_text("x")
    convert(source, out, RECIPE, verification=False)
    assert {name.split("/")[0] for name in read_bundle(out).manifest["files"]}.isdisjoint({"holiday", "notes.txt"})


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin", "model.onnx"])
def test_no_other_model_is_overwritten(source, tmp_path, weights):
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(source / "config.json", other)
    (other / weights).write_bytes(b"")
    before = (other / "config.json").read_bytes()
    with pytest.raises(PackageError, match="another folder"):
        convert(source, other, RECIPE)
    assert (other / "config.json").read_bytes() == before


def break_tokenizer(source: Path, name: str) -> None:
    damage = {"tokenizer.json": "{", "tokenizer_config.json": "[]", "generation_config.json": '{"eos_token_id": "2"}'}
    (source / name).write_text(damage[name])


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_damaged_text_files_are_found_before_anything_is_written(source, tmp_path, name):
    break_tokenizer(source, name)
    with pytest.raises(CheckpointError):
        convert(source, tmp_path / "out", RECIPE)
    assert not (tmp_path / "out").exists()


def test_a_missing_tokenizer_is_found_before_anything_is_written(source, tmp_path):
    (source / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        convert(source, tmp_path / "out", RECIPE)
    assert not (tmp_path / "out").exists()
    convert(source, tmp_path / "out", RECIPE, verification=False)


@pytest.mark.parametrize("token", [{}, {"content": 5}, 5])
def test_an_end_token_without_text_ends_nothing(source, tmp_path, token):
    settings = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": token}))
    convert(source, tmp_path / "out", RECIPE, verification=False)
    assert list(read_bundle(tmp_path / "out").stop_tokens) == [1, 3]


@pytest.mark.parametrize("prefix", ["", "a b", "-x", ".x", "../x", "é", "a_chunk_b", "a" * 65, "a\n"])
def test_a_prefix_must_be_a_plain_file_name(prefix):
    with pytest.raises(RecipeError, match="prefix"):
        Recipe(prefix=prefix)
    Recipe(prefix="3B-v1.2_x")


def test_a_missed_gate_still_reports(source, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "MAX_MEAN_KL", -1.0)
    with pytest.raises(GateFailed) as caught:
        convert(source, tmp_path / "api", RECIPE)
    assert not caught.value.result.report.passed
    done = command("convert", source, "-o", tmp_path / "out", *SMALL, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["verify"]["passed"] is False
    assert "does not pass" in done.stderr.splitlines()[-1]


def test_a_kept_part_that_has_changed_on_disk_names_the_way_out(source, tmp_path):
    out = tmp_path / "out"
    convert(source, out, RECIPE)
    with open(weight_file(out / "llama_lm_head.mlpackage"), "r+b") as weights:
        weights.seek(5000)
        weights.write(bytes(32))
    with pytest.raises(GateFailed, match="--restart 1"):
        convert(source, out, RECIPE)
    assert convert(source, out, RECIPE, steps=Steps(restart=1)).report.passed


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
from anemone.cli.main import main
main()
"""


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(source, tmp_path):
    out = tmp_path / "out"
    arguments = [sys.executable, "-c", LIMITED, "convert", source, "-o", out, *SMALL, "--no-verify"]
    done = subprocess.run([str(part) for part in arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr.splitlines()[-1]
    assert not hidden(out)


def test_a_file_in_the_way_is_one_line(source, tmp_path):
    (tmp_path / "file").write_text("")
    done = command("convert", source, "-o", tmp_path / "file" / "out", *SMALL)
    assert done.returncode == 2
    assert "Not a directory" in done.stderr.splitlines()[-1]


def test_what_a_killed_conversion_left_is_removed(source, tmp_path):
    out = tmp_path / "out"
    left = out / ".old_lm_head.mlpackage.partial"
    left.mkdir(parents=True)
    convert(source, out, RECIPE, verification=False)
    assert not hidden(out)


def test_the_sizes_that_are_shown_add_up(source, tmp_path):
    done = command("convert", source, "-o", tmp_path / "out", *SMALL, "--no-verify", "--json")
    shown = json.loads(done.stdout)
    assert shown["total_bytes"] == sum(part["bytes"] for part in shown["parts"])
    text = command("convert", source, "-o", tmp_path / "out", *SMALL, "--no-verify").stdout
    assert f"{shown['total_bytes'] / 1e3:.1f} kB, " in text


def test_palettisation_that_makes_a_part_larger_is_said(source):
    assert "no less than fp16" in " ".join(make_plan(source, Recipe(lut_ffn=LutSpec(8, 1))).notes)
    assert "no less than fp16" not in " ".join(make_plan(source).notes)
