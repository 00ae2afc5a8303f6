from __future__ import annotations

import glob
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hosts import FAKE, Host

from allranks.run.launch import BOOT

if TYPE_CHECKING:
    from pathlib import Path

_INSTALLED = glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python"))
PYTHONS = [sys.executable, *sorted(path for path in _INSTALLED if re.search(r"/3\.(8|9|1\d)\.", path))]
JOB = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", world_size=1, rank=0)
out = [None]
dist.all_gather_object(out, 1)
group = dist.new_group([0])
dist.destroy_process_group()
print("done", out)
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_the_guest_works_in_every_python(host: Host, python: str) -> None:
    done = host.run(python, JOB)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done [1]\n", "")
    (hello,) = host.said("hello")
    assert hello[1]["argv"][0] == python
    assert host.said("torch") == [("torch", "2.1.0")]
    (init,) = host.said("init")
    assert init[1:4] == (0, 1, {"backend": "gloo", "world_size": 1, "rank": 0})
    ops = [m[2] for m in host.said("kind")]
    assert ops == ["init_process_group", "all_gather_object", "new_group", "destroy_process_group"]
    assert [r.position for r in host.records()] == [0, 0, 1, 2]
    assert host.said("goodbye") == [("goodbye", {"destroyed": True, "group_alive": False})]
    assert host.said("broken") == []
    # This torch has no operators to watch: that must be told and not be silence.
    assert [m[1] for m in host.said("blind")] == ["operators"]


def test_the_call_sites_are_the_users_lines(host: Host, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch.distributed as dist\n\ndef main():\n"
        "    dist.init_process_group('gloo', rank=0, world_size=1)\n\nmain()\n"
    )
    subprocess.run([sys.executable, script], env=host.environment(FAKE), check=True, timeout=60)
    host.collect()
    path = str(script)
    assert host.said("site")[0][2] == [(path, 6, "<module>", 1, True), (path, 4, "main", 3, True)]


def test_nothing_happens_without_a_host() -> None:
    code = "import sys; print(sorted(m for m in sys.modules if 'allranks' in m), len(sys.meta_path))"
    plain = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    alone = subprocess.run(
        [sys.executable, "-c", code], env=plain, capture_output=True, text=True, check=True
    )
    env = {**plain, "PYTHONPATH": str(BOOT)}
    watched = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert watched.stdout == alone.stdout


def test_a_host_that_is_gone_does_not_matter(host: Host) -> None:
    env = {**host.environment(FAKE), "ALLRANKS_SOCKET": "/nonexistent/s", "RANK": "0"}
    done = subprocess.run([sys.executable, "-c", JOB], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done [1]\n", "")


def test_a_wrong_token_is_not_heard(host: Host) -> None:
    done = host.run(sys.executable, JOB, ALLRANKS_TOKEN="other")
    assert done.returncode == 0
    assert host.messages == {}


def test_a_hidden_sitecustomize_still_runs(host: Host, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 42\n")
    done = host.run(
        sys.executable, "import sitecustomize; print(mine, sitecustomize.__file__)", paths=(tmp_path, FAKE)
    )
    assert done.stdout == f"42 {tmp_path}/sitecustomize.py\n"


def test_an_error_in_a_hidden_sitecustomize_shows_as_it_would_alone(host: Host, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('mine')\n")
    done = host.run(sys.executable, "print('on')", paths=(tmp_path, FAKE))
    assert done.stdout == "on\n"
    assert "RuntimeError: mine" in done.stderr


def test_a_process_without_torch_stays_unheard(host: Host) -> None:
    assert host.run(sys.executable, "import logging, subprocess, argparse").returncode == 0
    assert host.messages == {}


def test_a_rank_is_heard_before_it_imports_torch(host: Host) -> None:
    done = host.run(
        sys.executable, "import argparse; argparse.ArgumentParser().parse_args(['--x'])", RANK="3"
    )
    assert done.returncode == 2
    (hello,) = host.said("hello")
    assert hello[1]["environment"] == {"RANK": "3"}
    (fact,) = [m for m in host.said("fact") if m[1] == "argparse"]
    assert fact[2] == "unrecognized arguments: --x"
