"""One decoder in a process of its own, timed on request: how benchmarks/execute.py lets several run in turn.

    python benchmarks/decoders.py anemone|transformers|llama PATH

One JSON object on standard output once a prefill and a token have run: the seconds that this took, imports included.
Then, for each line ``prefill N`` or ``decode N`` on standard input, the wall and CPU seconds of a prompt of N tokens
into an empty cache, or of one of N further tokens.
"""

import json
import sys
import time

PROMPT = 64


class Anemone:
    """A bundle in the executor. A prefill fills the cache and gives no logits."""

    def __init__(self, path: str) -> None:
        from anemone.execute import Program
        from anemone.package.bundle import read_bundle
        from anemone.runtime.bundle_engine import BundleEngine

        self.engine = BundleEngine(read_bundle(path), Program)
        self.state = self.engine.new_state()

    def prefill(self, ids: list[int]) -> None:
        self.engine.prefill(self.state, ids, 0)
        self.position = len(ids)

    def decode(self, token: int) -> None:
        self.engine.step(self.state, token, self.position)
        self.position += 1


class Transformers:
    """The checkpoint in fp32, eager attention. A prefill runs the body alone, without logits."""

    def __init__(self, path: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        self.torch = torch
        load = AutoModelForCausalLM.from_pretrained
        self.model = load(path, dtype=torch.float32, attn_implementation="eager").eval()

    def prefill(self, ids: list[int]) -> None:
        self.cache = self.model.model(self.torch.tensor([ids]), use_cache=True).past_key_values

    def decode(self, token: int) -> None:
        self.model(self.torch.tensor([[token]]), past_key_values=self.cache, use_cache=True)


class Llama:
    """llama.cpp through xllamacpp, whose wheels need no compiler. A prefill includes the logits of its last token."""

    def __init__(self, path: str) -> None:
        import xllamacpp

        options = xllamacpp.CommonParams()
        options.model.path, options.n_ctx, options.n_parallel = path, 512, 1
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
        options.verbosity = 0
        self.server = xllamacpp.Server(options)

    def run(self, prompt: int, tokens: int) -> None:
        request = {"prompt": list(range(100, 100 + prompt)), "n_predict": tokens, "cache_prompt": False}
        self.server.handle_completions(request | {"temperature": 0, "ignore_eos": True})


def spent(work) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def timed(decoder, what: str, count: int) -> tuple[float, float]:
    """Wall and CPU seconds of a prompt or of each token."""
    if isinstance(decoder, Llama):
        first = spent(lambda: decoder.run(count if what == "prefill" else PROMPT, 1))
        if what == "prefill":
            return first
        more = spent(lambda: decoder.run(PROMPT, count + 1))
        return (more[0] - first[0]) / count, (more[1] - first[1]) / count
    if what == "prefill":
        return spent(lambda: decoder.prefill(list(range(100, 100 + count))))
    decoder.prefill(list(range(100, 100 + PROMPT)))
    wall, cpu = spent(lambda: [decoder.decode(100 + token) for token in range(count)])
    return wall / count, cpu / count


def main() -> None:
    kinds = {"anemone": Anemone, "transformers": Transformers, "llama": Llama}
    begun = time.perf_counter()
    decoder = kinds[sys.argv[1]](sys.argv[2])
    timed(decoder, "decode", 1)
    loaded = {"load_wall_s": time.perf_counter() - begun, "load_cpu_s": time.process_time()}
    print(json.dumps(loaded), flush=True)
    for line in sys.stdin:
        what, count = line.split()
        wall, cpu = timed(decoder, what, int(count))
        print(json.dumps({"wall_s": wall, "cpu_s": cpu}), flush=True)


if __name__ == "__main__":
    main()
