from pathlib import Path

import pytest

from tests.hub.made import make


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    root = tmp_path_factory.mktemp("made") / "private-folder"
    root.mkdir()
    make(root)
    return root
