from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hosts import Host


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.close()
