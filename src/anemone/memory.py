"""This process's memory, as far as the system tells."""

import sys


def peak_rss_mb() -> float:
    """Largest resident set so far in MB, file-backed pages included; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
