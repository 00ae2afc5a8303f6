"""The rules on programs: `programs/<fault>.md` says what must be found on which line, and that nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from allranks.check import engine
from allranks.config import Config
from allranks.faults import catalogue
from allranks.findings import Severity

from .book import Program, programs

_MARK = re.compile(r"#(?P<mark>[!?])\s*(?P<faults>[\w, -]+)")


@pytest.mark.parametrize("program", programs("programs"), ids=lambda p: f"{p.fault}: {p.title}")
def test_what_is_found_is_what_the_marks_say(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected: dict[str, set[tuple[str, int, str]]] = {"!": set(), "?": set()}
    for name, code in program.files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, "utf-8")
        for number, line in enumerate(code.splitlines(), 1):
            for mark in _MARK.finditer(line):
                faults = [fault.strip() for fault in mark["faults"].split(",")]
                assert set(faults) <= set(catalogue()), f"{name}:{number}: {faults}"
                expected[mark["mark"]] |= {(name, number, fault) for fault in faults}
    report = engine.check([Path("train.py")], Config(root=tmp_path))
    assert not report.blind_spots, [str(spot.message) for spot in report.blind_spots]
    loud, infos = set(), set()
    for finding in report.findings:
        assert finding.location is not None
        place = (finding.location.path, finding.location.line or 0, finding.fault)
        (infos if finding.severity is Severity.INFO else loud).add(place)
    assert loud == expected["!"]
    assert expected["?"] <= infos
