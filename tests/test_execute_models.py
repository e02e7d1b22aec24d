"""Whole networks through Apple's torch frontend, against torch; their weights are random."""

import numpy as np
import pytest
import torch
from execute_helpers import convert_torch
from torch import nn
from torch_models import Bert, ResNet, Tagger, UNet, Vgg, Whisper

from anemone.execute import Program

FOLDED = 1e-3
"""Apple's passes fold batch norms into convolutions and add an LSTM's two biases; the results are stored as fp16."""


def ids(*shape: int, below: int) -> torch.Tensor:
    return torch.randint(0, below, shape, dtype=torch.int32)


def padding_mask(rows: int, seen: int) -> torch.Tensor:
    """(1, rows): ones, then zeros for padding."""
    return (torch.arange(rows) < seen).float()[None]


def lively(module: nn.Module) -> nn.Module:
    """Statistics and gains as after training, parameters that both precisions store alike."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.uniform_(-0.3, 0.3)
            part.running_var.uniform_(0.5, 2)
        if isinstance(part, (nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.uniform_(part.bias, -0.3, 0.3)
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.half().float()
    return module.eval()


SMALL = {
    "vgg": lambda: (Vgg(), [torch.rand(2, 3, 48, 40)]),
    "resnet": lambda: (ResNet(), [torch.rand(1, 3, 64, 48)]),
    "unet": lambda: (UNet(), [torch.rand(1, 3, 32, 24)]),
    "bert": lambda: (Bert(), [ids(1, 24, below=100), ids(1, 24, below=2), padding_mask(24, 17)]),
    "whisper": lambda: (Whisper(), [torch.randn(1, 16, 60)]),
    "lstm": lambda: (Tagger(), [ids(2, 19, below=60)]),
}
LARGE = {
    "vgg": lambda: (Vgg(64, 4), [torch.rand(1, 3, 224, 224)]),
    "resnet": lambda: (ResNet(64, 4), [torch.rand(1, 3, 224, 224)]),
    "unet": lambda: (UNet(32), [torch.rand(1, 3, 256, 256)]),
    "bert": lambda: (
        Bert(768, 12, 12, 30522, 512),
        [ids(1, 256, below=30522), ids(1, 256, below=2), padding_mask(256, 200)],
    ),
    "whisper": lambda: (Whisper(80, 384, 6, 4, 3000), [torch.randn(1, 80, 3000)]),
    "lstm": lambda: (Tagger(10000, 256, 512), [ids(1, 100, below=10000)]),
}


def check(make, folder, precision: str, numerics: str, tolerance: float) -> None:
    """``tolerance``: of the largest value of each output."""
    torch.manual_seed(0)
    module, examples = make()
    examples = [e.half().float() if e.is_floating_point() else e for e in examples]
    package = convert_torch(lively(module), examples, folder / "model.mlpackage", precision)
    with torch.no_grad():
        wanted = module(*examples)
    inputs = {f"x{i}" if i else "x": example.numpy() for i, example in enumerate(examples)}
    got = Program(package, numerics=numerics).predict(inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    assert len(got) == len(wanted)
    for (name, value), truth in zip(got.items(), wanted, strict=True):
        assert value.shape == tuple(truth.shape)
        error = np.abs(value - truth.numpy()).max() / truth.abs().max().item()
        assert error < tolerance, f"{name}: {error}"


@pytest.mark.parametrize("name", SMALL)
def test_fp32_networks_give_what_torch_gives(name, tmp_path):
    check(SMALL[name], tmp_path, "FLOAT32", "float32", 1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_fp16_networks_without_rounding_give_what_torch_gives(name, tmp_path):
    check(SMALL[name], tmp_path, "FLOAT16", "float32", FOLDED)


@pytest.mark.parametrize("name", SMALL)
def test_fp16_networks_round_as_fp16_does(name, tmp_path):
    check(SMALL[name], tmp_path, "FLOAT16", "float16", 2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize(("precision", "tolerance"), [("FLOAT32", 1e-4), ("FLOAT16", FOLDED)])
def test_networks_of_real_size_give_what_torch_gives(name, precision, tolerance, tmp_path):
    check(LARGE[name], tmp_path, precision, "float32", tolerance)
