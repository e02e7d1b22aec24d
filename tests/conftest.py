"""What whole conversions share: each checkpoint and each bundle is made once per session."""

import pytest


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    """A ``bundles.Workshop``: builds tiny checkpoints and their bundles."""
    from bundles import Workshop

    return Workshop(tmp_path_factory.mktemp("workshop"))
