"""The packages compute what transformers computes from the same checkpoint, however the text is cut into calls."""

import numpy as np
import pytest
from bundles import Client, cosines, package_files, some_ids
from tiny import CLASSES, make_tiny, truth_generate, truth_logits

from anemone.runtime.generate import load
from anemone.runtime.session import Session

TYPES = tuple(CLASSES)
VARIANTS = {
    "llama": ("llama", {}),
    "llama-untied": ("llama", {"tied": False}),
    "llama-wide-heads": ("llama", {"head_dim": 32}),
    "llama-all-biases": ("llama", {"qkv_bias": True, "mlp_bias": True}),
    "llama-mlp-bias": ("llama", {"mlp_bias": True, "tied": False}),
    "llama-no-groups": ("llama", {"kv_heads": 4}),
    "llama-bf16": ("llama", {"dtype": "bfloat16"}),
    "qwen2": ("qwen2", {}),
    "qwen2-untied": ("qwen2", {"tied": False}),
    "qwen3": ("qwen3", {}),
    "qwen3-wide-heads-untied": ("qwen3", {"head_dim": 32, "tied": False}),
    "qwen3-narrow-heads": ("qwen3", {"head_dim": 8}),
    "qwen3-biases": ("qwen3", {"qkv_bias": True}),
    "mistral": ("mistral", {}),
    "mistral-untied-wide-heads": ("mistral", {"tied": False, "head_dim": 32}),
    "mistral-one-key-head": ("mistral", {"kv_heads": 1}),
    "mistral-fp16": ("mistral", {"dtype": "float16", "vocab": 323}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_fp16_packages_compute_what_transformers_computes(workshop, name):
    model_type, options = VARIANTS[name]
    source = workshop.checkpoint(model_type, **options)
    ids = some_ids(21)
    truth = truth_logits(source, ids)
    client = Client(workshop.bundle(source))
    for how, logits in (("infer", client.decode(ids)), ("score", client.score(ids))):
        assert np.isfinite(logits).all()
        assert cosines(logits, truth).min() >= 0.9999, how


@pytest.mark.parametrize("model_type", TYPES)
def test_greedy_text_is_that_of_transformers(workshop, model_type):
    source = workshop.checkpoint(model_type)
    prompt = some_ids(19)
    assert Client(workshop.bundle(source)).greedy(prompt, 12) == truth_generate(source, prompt, 12)


@pytest.mark.parametrize("rope", [None, {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}], ids=str)
@pytest.mark.parametrize("model_type", TYPES)
def test_both_config_layouts_give_the_same_packages(workshop, model_type, rope):
    if rope:
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}
    old, new = (workshop.bundle(workshop.checkpoint(model_type, layout=v, rope=rope)) for v in ("v4", "v5"))
    assert package_files(old) == package_files(new)


@pytest.mark.parametrize("numerics", ["float16", "float32"])
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_any_number_of_chunks_gives_the_same_bits(workshop, model_type, numerics):
    source = workshop.checkpoint(model_type, layers=7)
    ids = some_ids(17)
    results = {}
    for chunks in (1, 2, 3, 4, 7):
        folder = workshop.bundle(source, chunks=chunks)
        assert len(list(folder.glob("*_chunk_*.mlpackage"))) == chunks
        client = Client(folder, numerics)
        results[chunks] = (client.decode(ids), client.score(ids), client.hidden_states(ids[:8], 0, "score"))
    for chunks, found in results.items():
        assert all(np.array_equal(a, b) for a, b in zip(found, results[1], strict=True)), chunks
    # fp16 weights alone cost seven random layers a cosine of 0.9999 in transformers itself
    assert cosines(results[1][0], truth_logits(source, ids)).min() >= 0.999


def worst(logits, expected):
    """The largest difference, as a part of the largest logit."""
    return np.abs(logits - expected).max() / max(1, np.abs(expected).max())


class Recorder:
    """A greedy sampler that keeps the logits it saw."""

    def __init__(self):
        self.seen = []

    def require(self, argmax):
        assert not argmax

    def pick(self, output):
        self.seen.append(np.array(output))
        return int(np.argmax(output))


def generate(folder, prompt, count, numerics="float16", sampler=None):
    """Tokens by the product's session; random models know no end, so stop tokens do not count."""
    engine = load(folder, numerics=numerics).engine
    return list(Session(engine).generate(prompt, max_tokens=count, sampler=sampler))


def one_by_one(client, prompt, count):
    """Greedy tokens without any batch function."""
    tokens = [int(np.argmax(client.decode(prompt)[-1]))]
    for i in range(count - 1):
        tokens.append(int(np.argmax(client.decode(tokens[-1:], len(prompt) + i)[0])))
    return tokens


LENGTHS = {"1": 1, "b-1": 7, "b": 8, "b+1": 9, "2b": 16, "2b+1": 17, "context-1": 63}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("model_type", TYPES)
def test_prompts_of_any_length_give_what_one_by_one_decoding_gives(workshop, model_type, length):
    folder = workshop.bundle(workshop.checkpoint(model_type))
    prompt = some_ids(LENGTHS[length], seed=LENGTHS[length])
    count = min(5, 64 - len(prompt) + 1)
    recorder = Recorder()
    tokens = generate(folder, prompt, count, numerics="float32", sampler=recorder)
    single = Client(folder, "float32")
    expected = single.decode([*prompt, *tokens[:-1]])[len(prompt) - 1 :]
    assert tokens == [int(np.argmax(row)) for row in expected]
    assert len(tokens) == count
    assert worst(np.stack(recorder.seen), expected) <= 1e-5

    client = Client(folder, "float32")  # as other clients drive the packages: whole batches, then the rest singly
    client.prefill(prompt)
    last = client.decode(prompt[-1:], len(prompt) - 1)
    assert worst(last[0], expected[0]) <= 1e-5

    narrow, single = Client(folder), Client(folder)
    assert narrow.greedy(prompt, count - 1) == one_by_one(single, prompt, count - 1)


@pytest.mark.parametrize("name", VARIANTS)
def test_score_gives_the_rows_that_infer_gives(workshop, name):
    model_type, options = VARIANTS[name]
    client = Client(workshop.bundle(workshop.checkpoint(model_type, **options)), "float32")
    ids = some_ids(20)
    single = client.decode(ids)
    client.restart()
    assert worst(client.score(ids), single) <= 1e-5


@pytest.mark.parametrize("model_type", TYPES)
def test_both_ways_to_write_the_cache_give_the_same(workshop, model_type):
    source = workshop.checkpoint(model_type)
    by_slice, by_mask = (Client(workshop.bundle(source, kv_write=how)) for how in ("slice", "mask"))
    prompt = some_ids(21)
    assert by_slice.greedy(prompt, 10) == by_mask.greedy(prompt, 10)
    by_slice.restart()
    by_mask.restart()
    assert np.array_equal(by_slice.score(prompt), by_mask.score(prompt))


@pytest.mark.parametrize("kv_write", ["slice", "mask"])
@pytest.mark.parametrize("model_type", TYPES)
def test_masks_of_minus_infinity_work_like_finite_ones(workshop, model_type, kv_write):
    folder = workshop.bundle(workshop.checkpoint(model_type), kv_write=kv_write)
    ids = some_ids(16)
    infinite, finite = Client(folder), Client(folder, hidden=-40000.0)
    for ways in ("decode", "score"):
        a, b = (getattr(client, ways)(ids) for client in (infinite, finite))
        assert np.isfinite(a).all()
        assert np.array_equal(a, b)
    assert infinite.greedy(ids, 8) == finite.greedy(ids, 8)


@pytest.mark.parametrize("model_type", TYPES)
def test_a_prefill_of_64_may_be_cut_as_you_like(workshop, model_type):
    source = workshop.checkpoint(model_type)
    prompt = some_ids(64)
    wide, narrow = (Client(workshop.bundle(source, context=128, batch=batch)) for batch in (64, 16))
    expected = wide.greedy(prompt, 12)  # one call of 64
    assert narrow.greedy(prompt, 12) == expected  # 4 calls of 16
    wide.restart()
    tokens = []
    logits = wide.decode(prompt)  # 64 calls of one
    for i in range(12):
        tokens.append(int(np.argmax(logits[-1])))
        logits = wide.decode(tokens[-1:], 64 + i)
    assert tokens == expected

    engine = load(workshop.bundle(source, context=128, batch=64)).engine
    state = engine.new_state()
    for start in range(0, 64, 16):  # padded calls
        engine.prefill(state, prompt[start : start + 16], start)
    assert int(np.argmax(engine.step(state, prompt[-1], 63))) == expected[0]


@pytest.mark.parametrize("vocab", [320, 331])
@pytest.mark.parametrize("model_type", TYPES)
def test_an_argmax_head_chooses_the_tokens_of_the_logits(workshop, model_type, vocab):
    source = workshop.checkpoint(model_type, vocab=vocab)
    plain, chosen = workshop.bundle(source), workshop.bundle(source, argmax=True)
    prompt = some_ids(13)
    expected = Client(plain).greedy(prompt, 12)
    assert Client(chosen).greedy(prompt, 12) == expected
    assert generate(chosen, prompt, 12) == expected


@pytest.mark.parametrize("head_split", [1, 3, 16, 331])
def test_any_split_of_the_head_gives_the_same_logits(workshop, head_split):
    source = workshop.checkpoint("llama", vocab=331)
    ids = some_ids(9)
    expected = Client(workshop.bundle(source)).decode(ids)
    found = Client(workshop.bundle(source, head_split=head_split)).decode(ids)
    assert found.shape == (9, 331)
    assert np.abs(found - expected).max() <= 1e-2  # a product of one column may add in another order
    assert (found.argmax(-1) == expected.argmax(-1)).all()


def test_a_context_that_is_no_multiple_of_the_batch(workshop):
    source = workshop.checkpoint("llama", max_positions=1024)
    folder = workshop.bundle(source, context=1000, batch=64)
    prompt = some_ids(997)
    expected = truth_generate(source, prompt, 4)
    run = Session(load(folder).engine).generate(prompt)
    tokens = list(run)
    assert tokens[:4] == expected
    assert (len(tokens), run.stop_reason) == (4, "context")
    assert Client(folder).greedy(prompt, 3) == expected[:3]
    client = Client(folder)
    client.prefill(prompt)
    last = client.decode(prompt[-1:], 996)
    assert cosines(last, truth_logits(source, prompt)[-1:]).min() >= 0.9999


@pytest.mark.parametrize("batch", [32, 48, 128, 256])
@pytest.mark.parametrize("lut", [None, "4", "6"])
def test_the_recorded_batch_is_the_one_that_runs(workshop, batch, lut):
    from anemone.compress.spec import parse_lut

    source = workshop.checkpoint("qwen2")
    folder = workshop.bundle(source, context=512, batch=batch, lut_embeddings=parse_lut(lut) if lut else None)
    client = Client(folder)
    assert client.batch == batch
    for key in ("embeddings", "lm_head", "ffn"):
        assert (folder / client.parameters[key]).is_dir()
    assert client.parameters["lut_embeddings"] == (int(lut) if lut else "none")
    prompt = some_ids(batch + 5)
    expected = client.greedy(prompt, 6)
    assert load(folder).engine.batch == batch
    assert generate(folder, prompt, 6) == expected
    if lut is None:
        assert expected == truth_generate(source, prompt, 6)


SCALED = {
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256},
    "linear": {"factor": 4.0},
    "yarn": {"factor": 8.0, "original_max_position_embeddings": 256},
}
DECISIVE = {"llama3": 7, "linear": 4, "yarn": 10}
"""Seeds whose 40 greedy tokens are all ahead of the second choice by far more than fp16's noise."""


@pytest.mark.parametrize("kind", SCALED)
def test_text_beyond_position_1000_is_that_of_transformers(workshop, tmp_path, kind):
    options = {"max_positions": 2048, "tied": False, "head_dim": 32, "seed": DECISIVE[kind]}
    rope = {"rope_type": kind, "rope_theta": 10000.0, **SCALED[kind]}
    source = workshop.checkpoint("llama", rope=rope, **options)
    prompt = some_ids(1003, seed=2)
    expected = truth_generate(source, prompt, 40)
    best = np.sort(truth_logits(source, [*prompt, *expected])[len(prompt) - 1 : -1])
    assert (best[:, -1] - best[:, -2]).min() > 0.03
    assert expected != truth_generate(make_tiny(tmp_path, "llama", **options), prompt, 40)  # the kind does matter
    folder = workshop.bundle(source, context=1280, batch=64)
    assert Client(folder).greedy(prompt, 40) == expected
    assert generate(folder, prompt, 40) == expected
