"""Launches in which a rank starts the others."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

import pytest

from allranks.run import watch

from .conftest import JOBS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def test_a_rank_that_starts_the_other_is_not_taken_for_alone(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    report, status = watch([sys.executable, str(JOBS / "starts_the_other.py"), str(port)])
    assert status == 0
    assert [f.fault for f in report.loud] == []
