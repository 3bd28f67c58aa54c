"""What one GPU can show. Several processes use it here, so that none may take all of its memory."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
