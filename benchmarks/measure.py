"""Run a command and measure it from outside: wall seconds, CPU seconds, peak memory of it and all its children."""

import os
import subprocess
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

INTERVAL = 0.02  # seconds between two looks at the memory


@dataclass(frozen=True)
class Usage:
    """``peak_rss_mb`` counts mapped files, ``peak_anon_mb`` only what cannot be dropped and read again (RssAnon)."""

    wall_s: float
    user_s: float
    system_s: float
    peak_rss_mb: float
    peak_anon_mb: float

    def as_dict(self) -> dict[str, float]:
        return {name: round(value, 2) for name, value in asdict(self).items()}


def measure(command: list[str], cwd: Path | None = None) -> tuple[Usage, str]:
    """The usage and the output of ``command``; RuntimeError with its last lines when it fails. Linux only."""
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    sampler = _Sampler(process.pid)
    sampler.start()
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, spent = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    sampler.stop()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        last = "\n".join(output.splitlines()[-15:])
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{last}")
    return Usage(wall, spent.ru_utime, spent.ru_stime, sampler.rss_kb * 1.024e-3, sampler.anon_kb * 1.024e-3), output


class _Sampler(threading.Thread):
    """Adds up /proc/PID/status over a process tree.

    Not ru_maxrss: a child inherits there the size of the process that forked it.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.rss_kb = self.anon_kb = 0
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(INTERVAL):
            tree = [_status(pid) for pid in _tree(self.pid)]
            alone = tree[0].get("VmHWM", 0) if tree else 0  # the kernel's own peak misses nothing between two looks
            self.rss_kb = max(self.rss_kb, alone, sum(s.get("VmRSS", 0) for s in tree))
            self.anon_kb = max(self.anon_kb, sum(s.get("RssAnon", 0) for s in tree))

    def stop(self) -> None:
        self._done.set()
        self.join()


def _tree(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it has just ended
        return [pid]
    return [pid, *(p for child in children for p in _tree(child))]


def _status(pid: int) -> dict[str, int]:
    """The fields in kB (1024 bytes) of /proc/PID/status."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
