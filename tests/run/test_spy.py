from __future__ import annotations

from allranks.run.spy import main_stack
from allranks.world import Frame


def test_the_main_threads_frames_outermost_first() -> None:
    def frame(name: str, path: str, line: int) -> dict[str, object]:
        return {"name": name, "filename": path, "line": line}

    other = {"os_thread_id": 8, "frames": [frame("run", "/usr/lib/python3.11/threading.py", 1)]}
    main = {
        "os_thread_id": 7,
        "frames": [
            frame("sleep", "/v/lib/python3.11/site-packages/torch/x.py", 3),
            frame("kernel", "/v/lib/python3.11/site-packages/allranks/rank/kernel.py", 9),
            frame("main", "/job/train.py", 2),
        ],
    }
    assert main_stack([other, main], 7) == (
        Frame("/job/train.py", 2, "main"),
        Frame("/v/lib/python3.11/site-packages/torch/x.py", 3, "sleep", user=False),
    )
    assert main_stack([other], 7) == ()
