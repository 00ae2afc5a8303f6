from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from typing import TYPE_CHECKING

from hosts import Host

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.close()
