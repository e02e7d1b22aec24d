"""Trained weights: fp16 bundles against transformers in float32 on the first 512 tokens of WikiText-2's test text."""

import os
from pathlib import Path

import numpy as np
import pytest
from bundles import Client, cosines, mean_kl
from shared_files import shared
from tiny import truth_generate, truth_logits

from anemone.checkpoint import open_checkpoint
from anemone.evaluate.verify import verify
from anemone.runtime.generate import load

SMALL = ("stories260K", "tiny-qwen3-stories")
TOKENS = 512


def smollm2() -> Path:
    """A folder in Hugging Face's layout: named by ANEMONE_SMOLLM2, or below models/ of the checkout."""
    places = [os.environ.get("ANEMONE_SMOLLM2"), *Path(__file__).resolve().parents[1].glob("models/*/")]
    for place in places:
        if place and (Path(place) / "model.safetensors").is_file():
            return Path(place)
    pytest.skip("no SmolLM2 folder: set ANEMONE_SMOLLM2")


def wikitext_ids(source: Path) -> list[int]:
    from tokenizers import Tokenizer

    text = shared("data/wikitext2-test.txt").read_text()[:10000]
    return Tokenizer.from_file(str(source / "tokenizer.json")).encode(text).ids[:TOKENS]


def assert_faithful(source: Path, folder: Path) -> None:
    ids = wikitext_ids(source)
    assert len(ids) == TOKENS
    truth = truth_logits(source, ids)
    client = Client(folder)
    logits = client.score(ids)
    assert np.isfinite(logits).all()
    assert (logits.argmax(-1) == truth.argmax(-1)).mean() >= 0.99
    assert mean_kl(truth, logits) <= 1e-3
    client.restart()
    single = client.decode(ids[:40])
    assert cosines(single, truth[:40]).min() >= 0.9999
    assert mean_kl(truth[:40], single) <= 1e-3


@pytest.mark.parametrize("name", SMALL)
def test_small_trained_models_are_faithful(workshop, name):
    source = shared(f"models/{name}")
    assert_faithful(source, workshop.bundle(source, context=TOKENS, batch=64))


@pytest.mark.parametrize("name", SMALL)
def test_a_greedy_story_is_that_of_transformers(workshop, name):
    source = shared(f"models/{name}")
    folder = workshop.bundle(source, context=TOKENS, batch=64)
    begin = open_checkpoint(str(source)).config["bos_token_id"]
    story = truth_generate(source, [begin], 200)
    assert Client(folder).greedy([begin], 200) == story
    session = load(folder).session
    stop = next((i for i, token in enumerate(story) if token in session.stop_tokens), len(story))
    assert list(session.generate([begin], max_tokens=200)) == story[:stop]


@pytest.mark.parametrize("name", SMALL)
def test_verification_passes_and_measures_the_cost_of_few_bits(workshop, name):
    from anemone.compress.spec import LutSpec

    source = shared(f"models/{name}")
    checkpoint = open_checkpoint(str(source))
    plain = verify(workshop.bundle(source, context=TOKENS, batch=64), checkpoint)
    assert plain.passed
    lut = {"lut_ffn": LutSpec(4, 8), "lut_lmhead": LutSpec(6, 8)}
    coarse = verify(workshop.bundle(source, context=TOKENS, batch=64, **lut), checkpoint)
    assert coarse.passed
    costs = [report.as_dict()["checkpoint"]["mean_kl"] for report in (plain, coarse)]
    assert costs[0] <= 1e-3 < costs[1]  # the graph is right in both; palettisation is seen where it happened


@pytest.mark.slow
def test_smollm2_is_faithful(workshop):
    source = smollm2()
    assert_faithful(source, workshop.bundle(source, context=TOKENS, batch=64))


@pytest.mark.slow
def test_smollm2_tells_what_transformers_tells(workshop):
    source = smollm2()
    folder = workshop.bundle(source, context=TOKENS, batch=64)
    ids = load(folder).text.encode("The capital of France is")
    assert Client(folder).greedy(ids, 24) == truth_generate(source, ids, 24)
