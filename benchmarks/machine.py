"""Where a measurement was made: versions, processor, commit."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("anemone-llm", "coremltools", "numpy", "torch", "transformers", "ckwrap")


def versions(python: Path) -> dict[str, str]:
    """The packages that count, as installed for ``python``."""
    code = (
        "import json, sys, platform\nfrom importlib import metadata\nfound = {'python': platform.python_version()}\n"
        "for name in sys.argv[1:]:\n    try: found[name] = metadata.version(name)\n"
        "    except metadata.PackageNotFoundError: pass\nprint(json.dumps(found))"
    )
    done = subprocess.run([python, "-c", code, *PACKAGES], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def record(**pythons: Path) -> dict[str, object]:
    """The command, the commit, the machine and each environment's versions."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit.stdout.strip() or "unknown",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()],
        "versions": {name: versions(python) for name, python in pythons.items()},
    }


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()
