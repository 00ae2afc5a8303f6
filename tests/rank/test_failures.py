from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hosts import FAKE, Host
from test_boot import PYTHONS

from allranks.rank.failure import Failures

if TYPE_CHECKING:
    from pathlib import Path

IMPORT = "import torch.distributed as dist\n"


def exceptions(host: Host) -> list[tuple[str, str, str]]:
    return [(m[2], m[4], m[5]) for m in host.said("exception")]


def test_an_uncaught_exception_is_told_with_its_lines(host: Host) -> None:
    done = host.run(sys.executable, IMPORT + "def f():\n    raise ValueError('boom')\nf()")
    assert done.returncode == 1
    assert "ValueError: boom" in done.stderr
    assert exceptions(host) == [("uncaught", "ValueError", "boom")]
    assert host.said("goodbye") == [("goodbye", {"destroyed": False, "group_alive": False})]


@pytest.mark.parametrize(
    "handler",
    [
        "log.warning('bad batch: %s', e)",
        "log.error('bad batch', exc_info=True)",
        "log.info(e)",
        "log.info(f'skipped {e}')",
        "traceback.print_exc()",
        "print('skipped', e)",
    ],
)
def test_a_swallowed_exception_is_told(host: Host, tmp_path: Path, handler: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import logging, traceback\n" + IMPORT + "log = logging.getLogger()\n"
        "dist.init_process_group('gloo', rank=0, world_size=1)\n"
        f"try:\n    [][3]\nexcept IndexError as e:\n    {handler}\n"
    )
    subprocess.run(
        [sys.executable, script], env=host.environment(FAKE), check=True, timeout=60, capture_output=True
    )
    host.collect()
    (found,) = exceptions(host)
    assert found[0] in ("logged", "handled")
    assert found[1:] == ("IndexError", "list index out of range")


def test_what_a_library_catches_is_no_news(host: Host, tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "careful.py").write_text(
        "import logging\n\ndef run():\n    try:\n        [][3]\n    except IndexError as e:\n"
        "        print('no'); logging.warning('none')\n"
    )
    code = IMPORT + "dist.init_process_group('gloo', rank=0, world_size=1)\nimport careful; careful.run()"
    assert host.run(sys.executable, code, paths=(FAKE, library)).returncode == 0
    assert exceptions(host) == []


def test_one_exception_seen_twice_is_one(host: Host) -> None:
    code = (
        "import logging\n"
        + IMPORT
        + "try:\n    dist.init_process_group('broken', rank=0, world_size=1)\nexcept ValueError:\n"
        "    logging.exception('setup')\n    raise\n"
    )
    host.run(sys.executable, code)
    assert exceptions(host) == [("passing", "ValueError", "no such backend")]
    number = host.said("exception")[0][1]
    assert [m[1:] for m in host.said("again")] == [(number, "logged"), (number, "uncaught")]


def test_an_exception_on_its_way_has_the_frames_around_it(host: Host) -> None:
    code = IMPORT + "def setup():\n    dist.init_process_group('broken', rank=0, world_size=1)\nsetup()\n"
    host.run(sys.executable, code)
    frames = host.said("exception")[0][6]
    assert [(f[1], f[2]) for f in frames if f[0] == "<string>"] == [(4, "<module>"), (3, "setup")]
    assert frames[-1][2] == "init_process_group"


def test_sys_exit_says_where(host: Host, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(IMPORT + "import sys\n\ndef stop():\n    sys.exit(3)\n\nstop()\n")
    done = host.run(sys.executable, f"import runpy; runpy.run_path({str(script)!r})")
    assert done.returncode == 3
    (fact,) = [m for m in host.said("fact") if m[1] == "exit_call"]
    assert fact[2:5] == ("sys.exit", 3, "")
    assert [(f[1], f[2]) for f in fact[5]] == [(7, "<module>"), (5, "stop")]


def test_a_parent_tells_how_its_children_ended(host: Host) -> None:
    code = (
        IMPORT + "import subprocess, sys, os, signal\n"
        "a = subprocess.Popen([sys.executable, '-c', 'raise SystemExit(7)'])\na.wait()\n"
        "b = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\nb.terminate()\nb.wait()\n"
        "print(a.pid, b.pid)\n"
    )
    done = host.run(sys.executable, code)
    first, second = (int(word) for word in done.stdout.split())
    assert [m[1:] for m in host.said("child")] == [(first, 7), (second, -15)]
    assert [m[1:] for m in host.said("signalled")] == [(second, 15)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing(host: Host, tmp_path: Path, method: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import multiprocessing as mp\n" + IMPORT + "\ndef work(rank):\n"
        "    dist.init_process_group('gloo', rank=rank, world_size=2)\n"
        "    if rank == 1:\n        raise KeyError('mine')\n\n"
        "if __name__ == '__main__':\n"
        f"    context = mp.get_context({method!r})\n"
        "    ranks = [context.Process(target=work, args=(r,)) for r in range(2)]\n"
        "    [p.start() for p in ranks]\n    [p.join() for p in ranks]\n"
        "    print([p.exitcode for p in ranks])\n"
    )
    done = host.run(
        sys.executable,
        f"import sys, runpy; sys.argv = [{str(script)!r}]; runpy.run_path({str(script)!r}, run_name='__main__')",
        paths=(FAKE, tmp_path),
    )
    assert done.stdout == "[0, 1]\n"
    assert sorted(m[1] for m in host.said("init")) == [0, 1]
    assert exceptions(host) == [("uncaught", "KeyError", "'mine'")]
    by_rank = {
        next(m[1] for m in messages if m[0] == "init"): messages
        for messages in host.messages.values()
        if any(m[0] == "init" for m in messages)
    }
    assert [m for m in by_rank[0] if m[0] == "goodbye"] == [
        ("goodbye", {"destroyed": False, "group_alive": True})
    ]


@pytest.mark.parametrize("python", [p for p in PYTHONS if re.search(r"/3\.1[2-9]\.", p)] or [sys.executable])
def test_from_python_3_12_on_silence_is_heard_too(host: Host, tmp_path: Path, python: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        IMPORT + "dist.init_process_group('gloo', rank=0, world_size=1)\n"
        "for n in range(3):\n    try:\n        [][n]\n    except IndexError:\n        pass\n"
        "try:\n    getattr(dist, 'missing')\nexcept AttributeError:\n    pass\n"
    )
    subprocess.run([python, script], env=host.environment(FAKE), check=True, timeout=60)
    host.collect()
    heard = exceptions(host)
    if python == sys.executable and sys.version_info < (3, 12):
        assert heard == []
        return
    assert [kind for _, kind, _ in heard] == ["IndexError"] * 3 + ["AttributeError"]
    assert host.said("exception")[0][6][-1][1] == 5


def test_what_was_there_last_is_told_before_the_error_that_ends_the_program() -> None:
    sent: list[str] = []
    guest = SimpleNamespace(sink=object(), send=lambda *message: sent.append(message[0]), failed=pytest.fail)
    failures = Failures(guest)
    failures.at_end.append(lambda: sent.append("look"))
    failures.tell(KeyError("batch"), "handled")
    failures.tell(ValueError("boom"), "uncaught")
    assert sent == ["exception", "look", "exception"]
