"""What a conversion costs by the usual route: a torch module in ANE form, traced, converted and merged by coremltools.

    python benchmarks/torch_route.py parts|monolith CHECKPOINT OUT    # needs torch and coremltools 9.0, numpy < 2.4

A plain, fair stand-in for a Qwen3 checkpoint: fp16 modules, 1x1 convolutions, one process, each part freed before the
next. Inputs, outputs and state are those that ``anemone convert`` writes.
parts: embeddings, one chunk with the functions infer and prefill, LM head in 16 splits: four traces.
monolith: one package whose functions infer and prefill hold the whole model: two traces.
"""

import gc
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import coremltools as ct
import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

CONTEXT, BATCH, SPLITS = 512, 64, 16
STATE = "model_model_kv_cache_0"
LOGITS = [f"logits{i}" for i in range(1, SPLITS + 1)]


class Norm(nn.Module):
    """RMSNorm as layer_norm of (x, -x), over the last axis."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(weight, requires_grad=False), eps

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        doubled = nn.functional.layer_norm(torch.cat([x, -x], -1), (2 * width,), eps=self.eps)
        return doubled[..., :width] * self.weight


def linear(weight: Tensor) -> nn.Conv2d:
    conv = nn.Conv2d(weight.shape[1], weight.shape[0], 1, bias=False, dtype=weight.dtype)
    conv.weight = nn.Parameter(weight[:, :, None, None], requires_grad=False)
    return conv


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Layer(nn.Module):
    def __init__(self, weights: dict[str, Tensor], index: int, config: dict) -> None:
        super().__init__()
        self.index, self.layers = index, config["num_hidden_layers"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim, eps = config["head_dim"], config["rms_norm_eps"]
        names = {name.removeprefix(f"model.layers.{index}.").removesuffix(".weight"): w for name, w in weights.items()}
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            self.add_module(name, linear(names[f"self_attn.{name}"]))
        for name in ("gate_proj", "up_proj", "down_proj"):
            self.add_module(name, linear(names[f"mlp.{name}"]))
        self.q_norm, self.k_norm = (Norm(names[f"self_attn.{name}"], eps) for name in ("q_norm", "k_norm"))
        self.input_norm, self.mlp_norm = (
            Norm(names[name], eps) for name in ("input_layernorm", "post_attention_layernorm")
        )

    def split(self, x: Tensor, heads: int) -> Tensor:  # (1, heads * D, 1, S) -> (1, heads, S, D)
        return x.view(1, heads, self.head_dim, x.shape[-1]).permute(0, 1, 3, 2)

    def attend(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor, pos: Tensor, cache: Tensor) -> Tensor:
        rows = x.shape[-1]
        q = rotate(self.q_norm(self.split(self.q_proj(x), self.heads)), *rope)
        k = rotate(self.k_norm(self.split(self.k_proj(x), self.kv_heads)), *rope)
        v = self.split(self.v_proj(x), self.kv_heads)
        k_row, v_row = self.index, self.layers + self.index
        cache[k_row : k_row + 1, :, pos : pos + rows, :] = k
        cache[v_row : v_row + 1, :, pos : pos + rows, :] = v
        repeat = self.heads // self.kv_heads
        keys = cache[k_row : k_row + 1].repeat_interleave(repeat, 1)
        values = cache[v_row : v_row + 1].repeat_interleave(repeat, 1)
        scores = q @ keys.transpose(-1, -2) * self.head_dim**-0.5 + mask
        mixed = torch.softmax(scores, -1) @ values  # (1, heads, S, D)
        return self.o_proj(mixed.permute(0, 1, 3, 2).reshape(1, self.heads * self.head_dim, 1, rows))

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor, pos: Tensor, cache: Tensor) -> Tensor:
        def columns(t: Tensor) -> Tensor:  # (1, S, H) -> (1, H, 1, S)
            return t.permute(0, 2, 1).unsqueeze(2)

        def rows(t: Tensor) -> Tensor:  # (1, H, 1, S) -> (1, S, H)
            return t.squeeze(2).permute(0, 2, 1)

        x = x + rows(self.attend(columns(self.input_norm(x)), rope, mask, pos, cache))
        h = columns(self.mlp_norm(x))
        return x + rows(self.down_proj(nn.functional.silu(self.gate_proj(h)) * self.up_proj(h)))


class Chunk(nn.Module):
    """All layers. ``infer`` ends in the final norm; ``prefill`` returns its first row, as clients expect."""

    def __init__(self, weights: dict[str, Tensor], config: dict, prefill: bool) -> None:
        super().__init__()
        layers, head_dim = config["num_hidden_layers"], config["head_dim"]
        self.prefill = prefill
        self.layers = nn.ModuleList(
            Layer({n: w for n, w in weights.items() if n.startswith(f"model.layers.{i}.")}, i, config)
            for i in range(layers)
        )
        self.norm = Norm(weights["model.norm.weight"], config["rms_norm_eps"])
        frequency = config["rope_theta"] ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        angle = torch.outer(torch.arange(CONTEXT, dtype=torch.float64), torch.cat([frequency, frequency]))
        self.register_buffer("cos", angle.cos().half())
        self.register_buffer("sin", angle.sin().half())
        shape = (2 * layers, config["num_key_value_heads"], CONTEXT, head_dim)
        self.register_buffer(STATE, torch.zeros(shape, dtype=torch.float16))

    def run(self, x: Tensor, position_ids: Tensor, causal_mask: Tensor, current_pos: Tensor) -> Tensor:
        positions = position_ids if self.prefill else current_pos
        rope = self.cos[positions], self.sin[positions]
        for layer in self.layers:
            x = layer(x, rope, causal_mask, current_pos, getattr(self, STATE))
        return x

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        x = self.run(*inputs)
        return x[:, :1] if self.prefill else self.norm(x)


class Head(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.parts = nn.ModuleList(linear(part.contiguous()) for part in weight.tensor_split(SPLITS))

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, ...]:
        x = hidden_states.permute(0, 2, 1).unsqueeze(2)
        return tuple(part(x).squeeze(2).permute(0, 2, 1) for part in self.parts)


class Monolith(Chunk):
    """Token ids in, logits out, with the final norm on every row."""

    def __init__(self, weights: dict[str, Tensor], config: dict, prefill: bool) -> None:
        super().__init__(weights, config, prefill)
        embeddings = weights["model.embed_tokens.weight"]
        self.embeddings = nn.Embedding.from_pretrained(embeddings)
        self.head = Head(weights.get("lm_head.weight", embeddings))

    def forward(self, input_ids: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.head(self.norm(self.run(self.embeddings(input_ids), *inputs)))


def convert(module: nn.Module, example: tuple[Tensor, ...], inputs: list, outputs: list[str], path: Path) -> None:
    """Trace, convert and save one function."""
    module.eval()
    state = getattr(module, STATE, None)
    states = None
    if state is not None:
        states = [ct.StateType(wrapped_type=ct.TensorType(shape=tuple(state.shape), dtype=np.float16), name=STATE)]
    with torch.no_grad():
        traced = torch.jit.trace(module, example, check_trace=False)
    model = ct.convert(
        traced,
        inputs=inputs,
        outputs=[ct.TensorType(name=name, dtype=np.float16) for name in outputs],
        states=states,
        convert_to="mlprogram",
        compute_precision=ct.precision.FLOAT16,
        minimum_deployment_target=ct.target.iOS18,
        skip_model_load=True,
    )
    model.save(str(path))


def state_inputs(rows: int) -> dict[str, tuple[tuple[int, ...], type]]:
    return {
        "position_ids": ((rows,), np.int32),
        "causal_mask": ((1, 1, rows, CONTEXT), np.float16),
        "current_pos": ((1,), np.int32),
    }


def convert_static(module: nn.Module, inputs: dict, outputs: list[str], path: Path) -> None:
    """Convert with fixed shapes; ``inputs`` maps a name to (shape, dtype)."""
    example = tuple(torch.from_numpy(np.zeros(shape, dtype)) for shape, dtype in inputs.values())
    types = [ct.TensorType(name=name, shape=shape, dtype=dtype) for name, (shape, dtype) in inputs.items()]
    convert(module, example, types, outputs, path)


def convert_functions(make: Callable[[int, Path], None], out: Path) -> None:
    """Convert infer and prefill on their own, then merge the two packages."""
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        merged = ct.utils.MultiFunctionDescriptor()
        for name, rows in {"infer": 1, "prefill": BATCH}.items():
            part = Path(folder, f"{name}.mlpackage")
            make(rows, part)
            gc.collect()
            merged.add_function(str(part), src_function_name="main", target_function_name=name)
        merged.default_function_name = "infer"
        ct.utils.save_multifunction(merged, str(out))
    gc.collect()


def convert_parts(weights: dict[str, Tensor], config: dict, out: Path) -> None:
    hidden, embeddings = config["hidden_size"], weights["model.embed_tokens.weight"]
    shapes = ct.EnumeratedShapes(shapes=[[1, 1], [1, BATCH]], default=[1, 1])
    ids = [ct.TensorType(name="input_ids", shape=shapes, dtype=np.int32)]
    example, lookup = (torch.zeros((1, 1), dtype=torch.int32),), nn.Embedding.from_pretrained(embeddings)
    convert(lookup, example, ids, ["hidden_states"], out / "qwen_embeddings.mlpackage")
    gc.collect()

    def chunk(rows: int, path: Path) -> None:
        inputs = {"hidden_states": ((1, rows, hidden), np.float16)} | state_inputs(rows)
        convert_static(Chunk(weights, config, prefill=rows > 1), inputs, ["output_hidden_states"], path)

    convert_functions(chunk, out / "qwen_FFN_PF_chunk_01of01.mlpackage")
    head = Head(weights.get("lm_head.weight", embeddings))
    convert_static(head, {"hidden_states": ((1, 1, hidden), np.float16)}, LOGITS, out / "qwen_lm_head.mlpackage")


def convert_monolith(weights: dict[str, Tensor], config: dict, out: Path) -> None:
    def whole(rows: int, path: Path) -> None:
        inputs = {"input_ids": ((1, rows), np.int32)} | state_inputs(rows)
        convert_static(Monolith(weights, config, prefill=rows > 1), inputs, LOGITS, path)

    convert_functions(whole, out / "qwen_monolithic_full.mlpackage")


def main(layout: str, source: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    weights = {name: w.half() for name, w in load_file(source / "model.safetensors").items()}
    {"parts": convert_parts, "monolith": convert_monolith}[layout](weights, config, out)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
