"""Bundles whose meta.yaml or manifest was edited or damaged, and verifications that have nothing to stand on."""

import json
import math
import shutil

import pytest
import yaml

from anemone.errors import AnemoneError, PackageError, RequestError
from anemone.evaluate.verify import verify
from anemone.jsontext import dumps
from anemone.package.bundle import read_bundle
from anemone.runtime.generate import load

PARAMETERS = {
    "no chunks": {"num_chunks": 0},
    "fewer than no chunks": {"num_chunks": -1},
    "more chunks than memory": {"num_chunks": 10**9},
    "no batch": {"batch_size": 0},
    "a batch beyond the context": {"batch_size": 65},
    "no context": {"context_length": 0},
    "a negative context": {"context_length": -5},
    "a context in words": {"context_length": "64"},
    "a context beyond memory": {"context_length": 10**12},
    "no vocabulary": {"vocab_size": 0},
    "another vocabulary than the head's": {"vocab_size": 321},
    "a head of no parts": {"split_lm_head": 0, "lm_head_chunk_sizes": None},
    "a head's parts in one number": {"lm_head_chunk_sizes": 320},
    "a head's parts in words": {"lm_head_chunk_sizes": ["40"] * 8},
    "a switch in words": {"argmax_in_model": "no"},
    "a nameless part": {"embeddings": None},
    "a monolithic model": {"ffn": None, "monolithic_model": "llama_monolithic_full.mlmodelc"},
}
MANIFESTS = {
    "a later format": {"format": 2},
    "a recipe in one number": {"recipe": 5},
    "a stop token without a list": {"stop_tokens": 2},
    "stop tokens in words": {"stop_tokens": ["</s>"]},
}
TEXTS = ("", "- a", "\tx: ]", "model_info:\n  parameters: 5\n", "!!python/object:os.system x", "model_info:\n  - [")


@pytest.fixture(scope="module")
def bundle(workshop):
    return workshop.bundle(workshop.checkpoint("llama"))


@pytest.fixture
def copied(bundle, tmp_path):
    return shutil.copytree(bundle, tmp_path / "bundle")


def edit(folder, **changes):
    """Change parameters of meta.yaml; None takes a key away."""
    meta = yaml.safe_load((folder / "meta.yaml").read_text())
    values = meta["model_info"]["parameters"] | changes
    meta["model_info"]["parameters"] = {key: value for key, value in values.items() if value is not None}
    (folder / "meta.yaml").write_text(yaml.safe_dump(meta))


def one_line(caught):
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_meta_that_cannot_be_true_is_refused(copied, name):
    edit(copied, **PARAMETERS[name])
    with pytest.raises(PackageError, match=r"meta\.yaml") as caught:
        read_bundle(copied)
    one_line(caught)


@pytest.mark.parametrize("name", sorted(MANIFESTS))
def test_a_manifest_that_cannot_be_true_is_refused(copied, name):
    manifest = json.loads((copied / "manifest.json").read_text())
    (copied / "manifest.json").write_text(json.dumps(manifest | MANIFESTS[name]))
    with pytest.raises(PackageError, match=r"manifest\.json") as caught:
        read_bundle(copied)
    one_line(caught)


@pytest.mark.parametrize("text", TEXTS)
def test_meta_that_is_no_bundle_is_refused_in_one_line(copied, text):
    (copied / "meta.yaml").write_text(text)
    with pytest.raises(PackageError, match=r"meta\.yaml") as caught:
        read_bundle(copied)
    one_line(caught)


def test_a_bundle_as_anemll_writes_it_is_read_without_a_manifest(copied):
    (copied / "manifest.json").unlink()
    names = yaml.safe_load((copied / "meta.yaml").read_text())["model_info"]["parameters"]
    compiled = {key: names[key].replace(".mlpackage", ".mlmodelc") for key in ("embeddings", "lm_head", "ffn")}
    edit(copied, **compiled)
    assert load(copied).generate("in the hall", max_tokens=3).text is not None
    edit(copied, ffn=compiled["ffn"].replace("_chunk_01of01", ""), lm_head_chunk_sizes=None)
    assert read_bundle(copied).chunks[0].name.endswith("_chunk_01of01.mlpackage")


def test_a_head_without_the_promised_outputs_is_named(copied, workshop):
    edit(copied, argmax_in_model=True)
    with pytest.raises(AnemoneError, match="argmax_"):
        load(copied).generate("in", max_tokens=2)
    with pytest.raises(AnemoneError, match="argmax_"):
        verify(copied, workshop.checkpoint("llama"), tokens=8)


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_nothing_is_verified_on_a_text_without_words(bundle, workshop, text):
    with pytest.raises(RequestError, match="no tokens"):
        verify(bundle, workshop.checkpoint("llama"), text=text)


def test_a_text_shorter_than_asked_for_is_said(bundle, workshop, caplog):
    report = verify(bundle, workshop.checkpoint("llama"), text="in the", tokens=100)
    assert report.graph.rows < 100
    assert f"only {report.graph.rows} of the 100 tokens" in caplog.text


@pytest.mark.parametrize("limit", [-1.0, math.nan, math.inf])
def test_a_limit_that_is_none_is_refused(bundle, workshop, limit):
    with pytest.raises(RequestError, match="max-kl"):
        verify(bundle, workshop.checkpoint("llama"), max_kl=limit)


def test_another_checkpoint_with_the_same_vocabulary_is_refused(bundle, workshop):
    with pytest.raises(PackageError, match="another checkpoint"):
        verify(bundle, workshop.checkpoint("llama", intermediate=96), tokens=8)


def test_a_head_of_single_rows_can_be_verified(workshop):
    source = workshop.checkpoint("llama")
    assert verify(workshop.bundle(source, head_split=320), source, tokens=8).passed


def test_a_prompt_that_is_no_text_is_refused(bundle):
    with pytest.raises(RequestError, match="UTF-8"):
        load(bundle).generate("in \udcff", max_tokens=1)


def test_json_has_no_words_for_nan():
    text = dumps({"kl": math.nan, "gates": [{"limit": math.inf, "value": 1.5}], "name": "é"})
    assert text == '{"kl": null, "gates": [{"limit": null, "value": 1.5}], "name": "é"}'
