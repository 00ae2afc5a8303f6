"""The command runs as if alone: output, input, status, signals; and nothing of it is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from allranks.errors import AllranksError
from allranks.run import process, watch
from allranks.run.launch import Job
from allranks.run.server import Server

from .conftest import JOBS, Run

if TYPE_CHECKING:
    from collections.abc import Callable

HOSTED = JOBS / "hosted.py"


def hosted(report: Path, *command: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(HOSTED), str(report), *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, **options,  # type: ignore[call-overload]
    )  # fmt: skip


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 30
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path.read_text().strip()


def test_output_input_and_status_pass_through(tmp_path: Path) -> None:
    host = hosted(tmp_path / "report", "sh", "-c", "cat; echo err >&2; exit 3", stdin=subprocess.PIPE)
    out, err = host.communicate("typed\n", timeout=30)
    assert (out, err, host.returncode) == ("typed\n", "err\n", 3)
    assert json.loads((tmp_path / "report").read_text()) == {"status": 3, "delivered": 1, "ranks": 0}


def test_a_signal_that_killed_the_command_shows_in_the_status(run: Callable[..., Run]) -> None:
    assert run("sh", "-c", "kill -SEGV $$").status == 128 + signal.SIGSEGV


@pytest.mark.parametrize(("command", "status"), [("/nonexistent/python", 127), ("/etc/hostname", 126)])
def test_a_command_that_cannot_start(command: str, status: int) -> None:
    folders = set(Path("/tmp").glob(f"allranks-{os.getpid()}-*"))
    with pytest.raises(AllranksError) as caught:
        watch([command], judge=lambda world, final: [], dead=lambda world: False)
    assert (caught.value.slug, caught.value.status) == ("command-not-started", status)
    assert set(Path("/tmp").glob(f"allranks-{os.getpid()}-*")) == folders
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_command_and_the_report_is_written(tmp_path: Path, number: signal.Signals) -> None:
    ready = tmp_path / "ready"
    code = (
        "import signal, sys, time, os\n"
        f"signal.signal({int(number)}, lambda n, f: sys.exit(40 + n))\n"
        f"open({str(ready)!r}, 'w').write(f'{{os.getpid()}}\\n')\n"
        "time.sleep(60)\n"
    )
    host = hosted(tmp_path / "report", sys.executable, "-c", code)
    wait_for(ready)
    host.send_signal(number)
    host.communicate(timeout=30)
    assert host.returncode == 40 + number
    assert json.loads((tmp_path / "report").read_text())["delivered"] == 1


def test_what_a_command_leaves_behind_when_it_is_terminated_is_ended(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    host = hosted(tmp_path / "report", "sh", "-c", f"sleep 300 & echo $! > {ready}; wait")
    left = int(wait_for(ready))
    host.send_signal(signal.SIGTERM)
    host.communicate(timeout=30)
    assert host.returncode == 128 + signal.SIGTERM
    assert process.gone(left)


def test_what_a_command_leaves_behind_when_it_ends_goes_on(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    host = hosted(tmp_path / "report", "sh", "-c", f"sleep 300 >/dev/null 2>&1 & echo $! > {ready}")
    left = int(wait_for(ready))
    host.communicate(timeout=30)
    assert host.returncode == 0
    assert not process.gone(left)
    os.kill(left, signal.SIGKILL)


def test_a_killed_host_leaves_the_job_running(tmp_path: Path) -> None:
    ready, done = tmp_path / "ready", tmp_path / "done"
    code = (
        "import os, time\nimport torch.distributed as dist\n"
        "dist.init_process_group('gloo', rank=0, world_size=1)\n"
        f"open({str(ready)!r}, 'w').write(f'{{os.getpid()}}\\n')\n"
        f"while os.getppid() == {{host}}: time.sleep(0.02)\n"
        "time.sleep(0.3)\nout = [None]\ndist.all_gather_object(out, 5)\ndist.destroy_process_group()\n"
        f"open({str(done)!r}, 'w').write(f'{{out}}\\n')\n"
    )
    fake = Path(__file__).parent.parent / "rank" / "fake"
    environment = {**os.environ, "PYTHONPATH": str(fake)}
    code = code.replace("{host}", "int(os.environ['HOST'])")
    shell = 'HOST=$PPID exec "$0" -c "$1"'
    host = hosted(tmp_path / "report", "sh", "-c", shell, sys.executable, code, env=environment)
    pid = int(wait_for(ready))
    host.kill()
    host.wait(30)
    assert wait_for(done) == "[5]"
    deadline = time.monotonic() + 10
    while not process.gone(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for pipe in (host.stdout, host.stderr):
        assert pipe is not None
        pipe.close()


def test_what_a_killed_host_left_behind_is_swept() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    stale = Path("/tmp") / f"allranks-{child.pid}-test"
    stale.mkdir(exist_ok=True)
    server = Server("token")
    try:
        assert not stale.exists()
        assert Path(server.folder).stat().st_mode & 0o777 == 0o700
    finally:
        server.close()
    assert not Path(server.folder).exists()


def test_a_dead_job_is_ended_with_all_below_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    stubborn = f"trap '' TERM; sleep 60 & echo $! >> {pids}; echo $$ >> {pids}; wait; sleep 60"
    command = ["sh", "-c", f"setsid sh -c '{stubborn.replace(chr(39), chr(34))}' & echo $$ >> {pids}; wait"]
    job = Job(command, dict(os.environ))
    try:
        deadline = time.monotonic() + 20
        while not pids.exists() or len(pids.read_text().split()) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        job.end(grace_s=0.3)
    finally:
        job.close()
    assert [int(word) for word in pids.read_text().split() if not process.gone(int(word))] == []
    assert job.status is not None
