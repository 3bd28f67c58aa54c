"""What tests of pipelines within this process share."""

import gc
from collections.abc import Iterator

import alpa
import pytest


@pytest.fixture
def local_pipelines() -> Iterator[None]:
    """Alpa in this process alone; the meshes of a test end with it."""
    alpa.init(cluster="local")
    yield
    alpa.shutdown()
    gc.collect()
