"""Whole networks in torch, small by default: what people convert, written from the papers."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F


class Vgg(nn.Module):
    """Convolutions and pooling, a classifier on what is left."""

    def __init__(self, width: int = 8, stages: int = 3) -> None:
        super().__init__()
        channels = [3, *(width << stage for stage in range(stages))]
        self.pairs = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU())
            for a, b in pairwise(channels)
        )
        self.classify = nn.Sequential(nn.Linear(channels[-1] * 9, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, image):  # (N, 3, H, W) -> (N, 10)
        for index, pair in enumerate(self.pairs):
            pool = F.max_pool2d if index else F.avg_pool2d
            image = pool(pair(image), 2)
        return torch.softmax(self.classify(F.adaptive_avg_pool2d(image, 3).flatten(1)), -1)


class Residual(nn.Module):
    """A bottleneck; a stride or dilation in the middle."""

    def __init__(self, inputs: int, outputs: int, stride: int, dilation: int) -> None:
        super().__init__()
        middle = outputs // 2
        self.reduce = nn.Sequential(nn.Conv2d(inputs, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU())
        self.spread = nn.Sequential(
            nn.Conv2d(middle, middle, 3, stride, padding=dilation, dilation=dilation, groups=2, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU(),
            nn.Conv2d(middle, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x):
        return torch.relu(self.spread(self.reduce(x)) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self, width: int = 16, depth: int = 1) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        layers, inputs = [], width
        for outputs, stride, dilation in ((2 * width, 1, 1), (4 * width, 2, 1), (4 * width, 1, 2)):
            for index in range(depth):
                layers.append(Residual(inputs, outputs, stride if index == 0 else 1, dilation))
                inputs = outputs
        self.layers, self.classify = nn.Sequential(*layers), nn.Linear(inputs, 10)

    def forward(self, image):  # (N, 3, H, W) -> (N, 10)
        return self.classify(self.layers(self.pool(self.stem(image))).mean((2, 3)))


class Inverted(nn.Module):
    """MobileNet's block: expand, one filter per channel, squeeze-and-excite, project."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide = 4 * inputs
        self.expand = nn.Sequential(nn.Conv2d(inputs, wide, 1), nn.BatchNorm2d(wide), nn.Hardswish())
        self.depthwise = nn.Conv2d(wide, wide, 5, stride, padding=2, groups=wide)
        self.squeeze = nn.Sequential(nn.Conv2d(wide, inputs, 1), nn.ReLU6(), nn.Conv2d(inputs, wide, 1), nn.Sigmoid())
        self.project = nn.Conv2d(wide, outputs, 1)

    def forward(self, x):
        x = self.depthwise(self.expand(x))
        return self.project(x * self.squeeze(F.adaptive_avg_pool2d(x, 1)))


class UNet(nn.Module):
    """Depthwise-separable on the way down, transposed convolutions and upsampling on the way up."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([Inverted(width, 2 * width, 2), Inverted(2 * width, 4 * width, 2)])
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.merge = nn.Conv2d(4 * width, width, 3, padding=1)
        self.norm = nn.GroupNorm(2, width)
        self.out = nn.Conv2d(2 * width, 2, 1)

    def forward(self, image):  # (N, 3, H, W) -> (N, 2, H, W)
        top = F.leaky_relu(self.stem(image), 0.1)
        middle = self.down[0](top)
        merged = self.merge(torch.cat([self.up(self.down[1](middle)), middle], 1))
        grown = F.interpolate(F.silu(self.norm(merged)), scale_factor=2, mode="bilinear", align_corners=False)
        return self.out(torch.cat([grown, top], 1))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=b) for b in (True, False, True))
        self.o = nn.Linear(width, width)

    def forward(self, x, mask=None):  # (N, S, width)
        count, rows, width = x.shape
        q, k, v = (
            f(x).view(count, rows, self.heads, width // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        weights = torch.softmax(scores if mask is None else scores + mask, -1)
        return self.o((weights @ v).transpose(1, 2).reshape(count, rows, width))


class Block(nn.Module):
    """An encoder layer, its norms before its parts or after."""

    def __init__(self, width: int, heads: int, before: bool) -> None:
        super().__init__()
        self.before, self.attend = before, Attention(width, heads)
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, mask=None):
        if self.before:
            x = x + self.attend(self.norm(x), mask)
            return x + self.mlp(self.mlp_norm(x))
        x = self.norm(x + self.attend(x, mask))
        return self.mlp_norm(x + self.mlp(x))


class Bert(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4, layers: int = 2, vocab: int = 100, longest: int = 64) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(vocab, width), nn.Embedding(2, width)
        self.positions, self.norm = nn.Embedding(longest, width), nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(Block(width, heads, before=False) for _ in range(layers))
        self.pool = nn.Linear(width, width)

    def forward(self, ids, kinds, mask):  # (N, S), (N, S), (N, S) of 0 and 1 -> (N, S, width), (N, width)
        tokens = self.words(ids) + self.kinds(kinds) + self.positions(torch.arange(ids.shape[1]))
        hidden, added = self.norm(tokens), (1.0 - mask[:, None, None, :]) * -10000.0
        for layer in self.layers:
            hidden = layer(hidden, added)
        return hidden, torch.tanh(self.pool(hidden[:, 0]))


class Whisper(nn.Module):
    """The encoder: two convolutions over a spectrogram, fixed positions, pre-norm layers."""

    def __init__(self, mels: int = 16, width: int = 32, heads: int = 4, layers: int = 2, frames: int = 60) -> None:
        super().__init__()
        self.first = nn.Conv1d(mels, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.register_buffer("positions", torch.randn(frames // 2, width) / 4)
        self.layers = nn.ModuleList(Block(width, heads, before=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, mel):  # (N, mels, frames) -> (N, frames / 2, width)
        x = F.gelu(self.second(F.gelu(self.first(mel)))).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Tagger(nn.Module):
    """Embeddings, two bidirectional LSTM layers, a label per step."""

    def __init__(self, vocab: int = 60, width: int = 16, hidden: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.lstm = nn.LSTM(width, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.label = nn.Linear(2 * hidden, 7)

    def forward(self, ids):  # (N, S) -> (N, S, 7), the last states (4, N, hidden)
        x, (last, cell) = self.lstm(self.embed(ids))
        return self.label(x), last, cell
