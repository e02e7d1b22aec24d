"""Programs that Apple's torch frontend writes, against torch itself."""

import numpy as np
import pytest
import torch
from execute_helpers import convert_torch, coremltools
from torch import nn

from anemone.execute import Program

COVERS = dict.fromkeys(("read_state", "write_state", "slice_update"), "Apple's frontend")
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, CONTEXT, LAYERS, VOCAB = 64, 4, 2, 16, 24, 2, 50


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotated(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Layer(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.norm, self.mlp_norm = RMSNorm(HIDDEN), RMSNorm(HIDDEN)
        self.q = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.k = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.v = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.o = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.gate, self.up = nn.Linear(HIDDEN, 128, bias=False), nn.Linear(HIDDEN, 128, bias=False)
        self.down = nn.Linear(128, HIDDEN, bias=False)

    def forward(self, x, keys, values, cos, sin, mask, rows: int):
        h = self.norm(x)
        q = rotated(self.q(h).view(1, rows, HEADS, HEAD_DIM).transpose(1, 2), cos, sin)
        k = rotated(self.k(h).view(1, rows, KV_HEADS, HEAD_DIM).transpose(1, 2), cos, sin)
        v = self.v(h).view(1, rows, KV_HEADS, HEAD_DIM).transpose(1, 2)
        end = mask.shape[-1]  # as in Apple's own stateful example: the mask's length says how far the context goes
        keys[self.index : self.index + 1, :, end - rows : end] = k
        values[self.index : self.index + 1, :, end - rows : end] = v
        past_k = keys[self.index : self.index + 1, :, :end].repeat_interleave(HEADS // KV_HEADS, 1)
        past_v = values[self.index : self.index + 1, :, :end].repeat_interleave(HEADS // KV_HEADS, 1)
        scores = q @ past_k.transpose(-1, -2) / HEAD_DIM**0.5 + mask
        mixed = (torch.softmax(scores, -1) @ past_v).transpose(1, 2).reshape(1, rows, -1)
        x = x + self.o(mixed)
        h = self.mlp_norm(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Stateful: the cache lives in buffers that become states."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer(i) for i in range(LAYERS))
        self.norm = RMSNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)
        shape = (LAYERS, KV_HEADS, CONTEXT, HEAD_DIM)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))
        angles = torch.arange(CONTEXT)[:, None] / 10000 ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin())

    def forward(self, ids, positions, mask):
        rows = ids.shape[1]
        cos, sin = self.cos[positions], self.sin[positions]
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.keys, self.values, cos, sin, mask, rows)
        return self.head(self.norm(x))


def causal(rows: int, end: int) -> np.ndarray:
    """(1, 1, rows, end): the last ``rows`` of ``end`` positions, each seeing itself and what came before."""
    seen = np.arange(end) <= np.arange(end - rows, end)[:, None]
    return np.where(seen, 0, -1e4).astype(np.float32)[None, None]


def llama_package(path, precision: str):
    ct = coremltools()
    torch.manual_seed(3)
    model = Llama().eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()  # both precisions then store the same weights
    rows, end = ct.RangeDim(1, CONTEXT, default=4), ct.RangeDim(1, CONTEXT, default=4)
    kind = np.float16 if precision == "FLOAT16" else np.float32
    package = convert_torch(
        model,
        (torch.zeros(1, 4, dtype=torch.int32), torch.arange(4, dtype=torch.int32), torch.zeros(1, 1, 4, 4)),
        path,
        precision,
        inputs=[
            ct.TensorType("ids", shape=(1, rows), dtype=np.int32),
            ct.TensorType("positions", shape=(rows,), dtype=np.int32),
            ct.TensorType("mask", shape=(1, 1, rows, end), dtype=kind),
        ],
        outputs=[ct.TensorType("logits", dtype=kind)],
        states=[
            ct.StateType(ct.TensorType(shape=(LAYERS, KV_HEADS, CONTEXT, HEAD_DIM), dtype=np.float16), name=name)
            for name in ("keys", "values")
        ],
    )
    model.keys.zero_()
    model.values.zero_()
    return model, package


@pytest.mark.parametrize(
    ("precision", "numerics", "tolerance"),
    [
        ("FLOAT32", "float32", 1e-4),
        ("FLOAT32", "float16", 1e-3),
        ("FLOAT16", "float32", 1e-3),
        ("FLOAT16", "float16", 1e-3),
    ],
)
def test_stateful_llama(precision, numerics, tolerance, tmp_path):
    model, package = llama_package(tmp_path / "llama.mlpackage", precision)
    program = Program(package, numerics=numerics)
    state = program.new_state()
    rng = np.random.default_rng(0)
    end = 0
    for rows in (7, 1, 1, 3, 1, 1):
        end += rows
        inputs = {
            "ids": rng.integers(0, VOCAB, (1, rows)).astype(np.int32),
            "positions": np.arange(end - rows, end, dtype=np.int32),
            "mask": causal(rows, end),
        }
        with torch.no_grad():
            wanted = model(*(torch.from_numpy(inputs[k]) for k in ("ids", "positions", "mask"))).numpy()
        got = program.predict(inputs, state)["logits"]
        assert np.abs(got - wanted).max() <= tolerance * np.abs(wanted).max()
        assert np.linalg.norm(got - wanted) <= tolerance * np.linalg.norm(wanted)
    np.testing.assert_allclose(state["keys"], model.keys.numpy(), atol=3e-3)
    assert not state["values"][:, :, end:].any()


class Kitchen(nn.Module):
    """Many operations side by side, each output on its own."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 8)
        self.norm, self.batch, self.instance = nn.LayerNorm(8), nn.BatchNorm2d(6), nn.InstanceNorm2d(6, affine=True)
        self.conv = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(6, 6, 3, groups=6, padding="same")
        self.dilated = nn.Conv1d(8, 4, 3, dilation=2, padding=2)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.lin = nn.Linear(8, 5)

    def forward(self, x, ids, image):  # (2, 7, 8), (2, 7), (1, 3, 12, 10)
        e = self.embed(ids)
        y = torch.relu(self.batch(self.conv(image)))
        mask = torch.ones(7, 7).tril() == 0
        return (
            self.norm(x + e),
            self.instance(self.depthwise(y)),
            nn.functional.silu(self.dilated(x.transpose(1, 2))),
            self.attend(x, e, e, need_weights=False)[0],
            nn.functional.scaled_dot_product_attention(x[:, None], e[:, None], e[:, None], attn_mask=~mask),
            torch.softmax((x @ e.transpose(1, 2)).masked_fill(mask, -1e4), -1),
            torch.einsum("bqd,bkd->bqk", x, e),
            torch.topk(x, 3, dim=-1)[0],
            torch.argmax(x, dim=1).int(),
            torch.gather(x, 2, (ids % 8)[:, :, None].long()),
            x[:, 1:-1:2, ::3],
            x.flip(1).cumsum(1),
            torch.cat([x, e], -1).chunk(4, -1)[2],
            torch.stack([x, e], 1).flatten(1, 2),
            nn.functional.pad(image, (1, 2, 0, 1), mode="reflect"),
            torch.where(x > 0, x, e * 2),
            nn.functional.gelu(x) + nn.functional.gelu(e, approximate="tanh"),
            torch.sqrt(x.abs() + 1) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3) + torch.erf(x),
            torch.clamp(x, -0.5, 0.5) + torch.maximum(x, e) - torch.exp(-e.abs()) + torch.sin(x) * torch.cos(e),
            x.sum((0, 2)), x.amax(1), x.var(-1, unbiased=False), torch.logsumexp(x, 1),
            torch.log_softmax(self.lin(x), -1), nn.functional.softplus(x), nn.functional.elu(x), torch.tanh(x),
            x.repeat(1, 2, 1)[:, None].expand(2, 3, 14, 8), x.permute(2, 0, 1).reshape(4, -1), torch.triu(x[0, :, :7]),
            nn.functional.one_hot(ids.long() % 5, 5).float() * 0.5, (ids > 3).float(), x.new_zeros(3) + torch.arange(3),
            image.mean((2, 3)), nn.functional.normalize(x, dim=-1), torch.minimum(x, e).round(),
            x.index_select(1, ids[0].long() % 7),
            x.unsqueeze(0).squeeze(0), torch.floor(x * 3) % 2, torch.masked_fill(x, ids[:, :, None] > 5, 0.25),
        )  # fmt: skip


@pytest.mark.parametrize("precision", ["FLOAT32", "FLOAT16"])
def test_many_operations(precision, tmp_path):
    torch.manual_seed(4)
    module = Kitchen().eval()
    for parameter in module.parameters():
        parameter.data = parameter.data.half().float()
    examples = (
        torch.randn(2, 7, 8).half().float(),
        torch.randint(0, 40, (2, 7), dtype=torch.int32),
        torch.randn(1, 3, 12, 10).half().float(),
    )
    program = Program(convert_torch(module, examples, tmp_path / "kitchen.mlpackage", precision))
    with torch.no_grad():
        wanted = module(*examples)
    names = ("x", "x1", "x2")
    got = program.predict({n: e.numpy() for n, e in zip(names, examples, strict=True)})
    tolerance = 1e-5 if precision == "FLOAT32" else 8e-3
    for index, (name, value) in enumerate(zip(got, wanted, strict=True)):
        np.testing.assert_allclose(got[name], value.numpy(), rtol=tolerance, atol=tolerance, err_msg=f"output {index}")
