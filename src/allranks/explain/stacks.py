"""Stacks of living processes, as `py-spy dump` prints them: where every rank stood."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from ..world import Frame
from .logs import Line, plain
from .match import Incident, Story, call_of
from .raised import Raised, is_user

if TYPE_CHECKING:
    from pathlib import Path

    from .logs import Origin

_LARGEST = 64 * 1024 * 1024
_PROCESS = re.compile(r"Process (?P<pid>\d+): (?P<command>.*)")
_THREAD = re.compile(r'Thread (?:0x)?[0-9A-Fa-f]+ \((?P<state>[^)]*)\)(?:: "(?P<name>[^"]*)")?')
_FRAME = re.compile(r"[ \t]{1,40}(?P<function>\S.{0,400}?) \((?P<path>\S.{0,400}?):(?P<line>\d{1,9})\)\s*$")
_RANK = re.compile(r"--(?:local[-_])?rank[= ](?P<rank>\d{1,6})\b")
_PACKAGES = frozenset([
    "torch", "torchvision", "numpy", "accelerate", "transformers", "datasets", "tokenizers", "lightning", "deepspeed",
    "pytorch_lightning", "lightning_fabric", "ray", "megatron", "timm", "PIL", "cv2", "tqdm", "runpy", "torchrun",
])  # fmt: skip
"""Packages whose frames are no user's, as far as a job's stacks usually hold them."""
_HELPERS = re.compile(
    r"torchrun|torch\.distributed\.(?:run|launch)|resource_tracker|compile_worker|accelerate\S* launch"
)


def read_stacks(path: Path, story: Story, origin: Origin) -> None:
    """Reads the main thread's stack of every process in a file into `story`, as a process that was stopped there."""
    name = str(path)
    with path.open("rb") as file:
        text = file.read(_LARGEST).decode("utf-8", "replace")
    story.files.append(name)
    frames: list[Frame] = []
    head: Line | None = None
    command, main = "", False
    for number, raw in enumerate(text.splitlines(), 1):
        line = Line(number, plain(raw), plain(raw), origin)
        if match := _PROCESS.match(line.text):
            _add(story, command, origin.rank, frames, head)
            command, frames, head, main = match["command"], [], None, False
        elif match := _THREAD.match(line.text):
            # py-spy names the main thread; without names the first one is it.
            main = match["name"] == "MainThread" if match["name"] else not frames
            head = line if main else head
        elif main and (match := _FRAME.match(line.text)):
            frames.insert(
                0, Frame(match["path"], int(match["line"]), match["function"], user=_is_user(match["path"]))
            )
        elif not line.text.strip():
            main = False
        story.lines += 1
    _add(story, command, origin.rank, frames, head)


def _is_user(path: str) -> bool:
    """As for tracebacks; py-spy shortens paths to what stands below a folder of sys.path, the packages' and the
    user's alike."""
    if path.startswith(("/", "<")) or path[1:2] == ":":
        return is_user(path)
    top = path.replace("\\", "/").split("/")[0].removesuffix(".py")
    return top not in sys.stdlib_module_names and top not in _PACKAGES


def _add(story: Story, command: str, rank: int | None, frames: list[Frame], head: Line | None) -> None:
    if head is None or not frames or _HELPERS.search(command):
        return
    if any("_worker_loop" in frame.function for frame in frames):
        return
    if match := _RANK.search(command):
        rank = int(match["rank"])
    if rank is None:
        rank = len([one for one in story.incidents.values() if one.role == "stopped"])
    frame = next((frame for frame in reversed(frames) if frame.user), None)
    call = call_of(frames)
    known = story.incidents.setdefault(
        ("stopped", call, frame),
        Incident("stopped", [], "", "", frame, head, call=call, error=Raised(frames=frames)),
    )
    known.count += 1
    known.ranks.add(rank)
    known.lines.append(head)
    story.launch.ranks.add(rank)
