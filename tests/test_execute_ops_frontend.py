"""Operations in the forms that Apple's torch frontend writes, against torch."""

import numpy as np
import pytest
import torch
from execute_helpers import convert_torch, coremltools
from torch import nn

from anemone.execute import Program

coremltools()
F = nn.functional

class Calling(nn.Module):
    """A function of its inputs as a module."""

    def __init__(self, function, *modules) -> None:
        super().__init__()
        self.function, self.inner = function, nn.ModuleList(modules)

    def forward(self, *inputs):
        return self.function(*self.inner, *inputs)


IMAGE, LINE, SEQUENCE = (1, 4, 9, 8), (2, 4, 11), (5, 2, 3)
MODULES = {
    "max_pool": (
        "max_pool",
        nn.MaxPool2d(3, 2, 1, ceil_mode=True), IMAGE),
    "max_pool_1d": (
        "max_pool",
        nn.MaxPool1d(3, 2, padding=1), LINE),
    "avg_pool": (
        "avg_pool",
        nn.AvgPool2d((3, 2), (2, 1), (1, 0), count_include_pad=False), IMAGE),
    "avg_pool_counting_padding": (
        "avg_pool",
        nn.AvgPool2d(3, 2, 1, ceil_mode=True), IMAGE),
    "adaptive_pool": (
        "avg_pool",
        nn.AdaptiveAvgPool2d((3, 4)), IMAGE),
    "global_pool": (
        "reduce_mean",
        nn.AdaptiveAvgPool2d(1), IMAGE),
    "conv_same": (
        "conv",
        nn.Conv2d(4, 6, 3, padding="same", dilation=2), IMAGE),
    "conv_reflecting": (
        "conv pad",
        nn.Conv2d(4, 6, 3, padding=2, padding_mode="reflect"), IMAGE),
    "conv_3d": (
        "conv",
        nn.Conv3d(2, 4, (2, 3, 1), stride=(1, 2, 1), groups=2), (1, 2, 4, 6, 3)),
    "transposed_1d": (
        "conv_transpose",
        nn.ConvTranspose1d(4, 3, 4, 2, 1), LINE),
    "transposed": (
        "conv_transpose crop",
        nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2), IMAGE),
    "transposed_dilated": (
        "conv_transpose",
        nn.ConvTranspose2d(4, 2, 3, (1, 2), (0, 1), dilation=(2, 1)), IMAGE),
    "lstm": (
        "lstm concat split stack",
        nn.LSTM(3, 4, num_layers=2, bidirectional=True), SEQUENCE),
    "lstm_batch_first": (
        "expand_dims lstm transpose",
        nn.LSTM(3, 5, batch_first=True), SEQUENCE),
    "rnn": (
        "rnn stack",
        nn.RNN(3, 4, num_layers=2, nonlinearity="relu"), SEQUENCE),
    "nearest": (
        "upsample_nearest_neighbor",
        nn.Upsample(scale_factor=(2, 3), mode="nearest"), IMAGE),
    "nearest_1d": (
        "expand_dims squeeze upsample_nearest_neighbor",
        nn.Upsample(scale_factor=2, mode="nearest"), LINE),
    "bilinear": (
        "upsample_bilinear",
        nn.Upsample(size=(18, 16), mode="bilinear"), IMAGE),
    "bilinear_aligned": (
        "upsample_bilinear",
        nn.Upsample(size=(13, 5), mode="bilinear", align_corners=True), IMAGE),
    "linear_1d": (
        "expand_dims squeeze upsample_bilinear",
        nn.Upsample(scale_factor=2, mode="linear", align_corners=False), LINE),
    "grid_sample": (
        "resample",
        Calling(lambda x, g: F.grid_sample(x, g, padding_mode="reflection", align_corners=False)),
        IMAGE, (1, 5, 6, 2)),
    "grid_nearest": (
        "resample",
        Calling(lambda x, g: F.grid_sample(x, g, "nearest", "border", align_corners=True)),
        IMAGE, (1, 5, 6, 2)),
    "pixel_shuffle": (
        "pixel_shuffle",
        nn.PixelShuffle(2), IMAGE),
    "pixel_unshuffle": (
        "pixel_unshuffle",
        nn.PixelUnshuffle(4), (1, 2, 8, 4)),
    "im2col": (
        "conv reshape",
        nn.Unfold((3, 2), padding=1, stride=2), IMAGE),
    "batch_norm": (
        "batch_norm conv mul sigmoid_hard thresholded_relu",
        nn.Sequential(nn.Conv2d(4, 4, 1), nn.Hardswish(), nn.BatchNorm2d(4)), IMAGE),
    "group_norm": (
        "add real_div reduce_mean reshape sqrt square sub",
        nn.GroupNorm(2, 4), IMAGE),
    "instance_norm": (
        "instance_norm",
        nn.InstanceNorm1d(4, affine=True), LINE),
    "prelu": (
        "leaky_relu",
        nn.PReLU(4, init=0.3), IMAGE),
    "activations": (
        "abs add clip elu gelu greater_equal linear_activation mul real_div relu6 sigmoid_hard threshold",
        Calling(lambda x: (F.gelu(x), F.hardsigmoid(x), F.elu(x, 0.5), F.softsign(x),
                           F.relu6(x * 4), F.threshold(x, 0.1, 0.0), F.hardtanh(x))), LINE),
    "norms": (
        "abs maximum mul pow real_div reduce_l2_norm reduce_mean reduce_sum sqrt square sub tile",
        Calling(lambda x: (x.norm(dim=1), x.norm(p=1, dim=(1, 2)), F.normalize(x, dim=-1), x.std(1))), LINE),
    "triangles": (
        "band_part sub",
        Calling(lambda x: (x.tril(), x.triu(1))), LINE),
    "sorting": (
        "argsort gather_along_axis topk",
        Calling(lambda x: (*x.sort(-1, descending=True), *x.topk(2, 1, largest=False))), LINE),
    "scattering": (
        "scatter_along_axis slice_by_index",
        Calling(lambda x: x.scatter_add(2, torch.tensor([[[0, 3, 3]]]).expand(2, 4, 3), x[:, :, :3])), LINE),
    "einsum": (
        "add matmul transpose",
        Calling(lambda x: torch.einsum("bct,bdt->bcd", x, x + 1)), LINE),
    "rolling": (
        "gather",
        Calling(lambda x: (x.roll(3, -1), x.roll((1, 2), (0, 2)))), LINE),
    "comparing": (
        "abs add floor floor_div greater less logical_and mul select sub",
        Calling(lambda x: ((x > 0) & (x < 1)).float() + torch.where(x.abs() > 1, x.floor(), x.remainder(0.5))), LINE),
}  # fmt: skip


KINDS = {kind for kinds, *_ in MODULES.values() for kind in kinds.split()}
COVERS = dict.fromkeys(sorted({*KINDS, "while_loop", "cond"}), "Apple's frontend")


@pytest.mark.parametrize("name", MODULES)
def test_module(name, tmp_path):
    torch.manual_seed(6)
    kinds, module, *shapes = MODULES[name]
    module.eval()
    for tensor in [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]:
        tensor.data = tensor.data.half().float()
    examples = [torch.randn(shape).half().float() for shape in shapes]
    program = Program(convert_torch(module, examples, tmp_path / "a.mlpackage"))
    with torch.no_grad():
        wanted = module(*examples)
    wanted = _flat(wanted)
    assert set(kinds.split()) <= {op.kind for op in program.graph("main").body.ops}
    got = program.predict({f"x{i}" if i else "x": e.numpy() for i, e in enumerate(examples)})
    assert len(got) == len(wanted)
    for result, value in zip(got.values(), wanted, strict=True):
        np.testing.assert_allclose(result, value.numpy(), atol=2e-5, rtol=2e-5)


def _flat(values):
    return [v for value in values for v in _flat(value)] if isinstance(values, (tuple, list)) else [values]


class Collatz(nn.Module):
    """Control flow that torch.jit.script keeps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.zeros(1)
        while bool((x > 1).any()):
            if bool((x % 2 == 0).all()):  # noqa: SIM108 - a branch, not a choice of values
                x = x / 2
            else:
                x = 3 * x + 1
            steps = steps + 1
        return steps


def test_scripted_control_flow(tmp_path):
    ct = coremltools()
    scripted = torch.jit.script(Collatz().eval())
    model = ct.convert(
        scripted, inputs=[ct.TensorType("x", (1,), dtype=np.float32)], minimum_deployment_target=ct.target.iOS18,
        compute_precision=ct.precision.FLOAT32, skip_model_load=True,
    )  # fmt: skip
    model.save(str(tmp_path / "a.mlpackage"))
    program = Program(tmp_path / "a.mlpackage")
    (loop,) = (op for op in program.graph("main").body.ops if op.kind == "while_loop")
    assert "cond" in {op.kind for op in loop.blocks[1].ops}
    for start, steps in ((1, 0), (6, 8), (7, 16), (27, 111)):
        (got,) = program.predict({"x": [float(start)]}).values()
        assert got == steps
