"""Answers to the host: where the main thread stands, what it waits for, which calls are not complete.

The stack is the record of what is going on: the wrappers' own frames are found on it, with the call or the Work
they hold, so that nothing has to be written down while all goes well.
"""

from __future__ import annotations

import sys
import threading

from . import stack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MARKS = {
    "recorded": "call",
    "kernel": "call",
    "direct_call": "call",
    "recorded_call": "call",
    "waiting_call": "work",
    "store_call": "store",
}
"""Names of the wrappers' functions -> what their presence on a stack means."""


class Answers:
    """Answers questions of the host; runs in the guest's thread while the main thread may be blocked."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.main = threading.main_thread().ident or 0

    def __call__(self, name: str) -> dict[str, Any]:
        """The answer to "standing" (stack, what is waited for, pending calls) or "locals"."""
        frame = sys._current_frames().get(self.main)
        if name == "locals":
            return {"locals": self.locals(frame)}
        self.recorder.prune_all()
        answer = {
            "stack": stack.rows(stack.walk(frame)),
            "pending": [serial for serial, _ in list(self.recorder.pending)],
        }
        answer.update(self.standing(frame))
        return answer

    def standing(self, frame: Any) -> dict[str, Any]:
        """`in`: the innermost wrapper that the thread is in and its serial, key or address; `instruction`: a number
        that stays while the thread stays; `top`: whose code the innermost frame runs."""
        top, key = None, stack.site_key(frame, 64)
        inner, detail = "", None
        while frame is not None:
            code = stack.describe(frame.f_code)
            if code.owner != stack.GUEST:
                if top is None:
                    top = code
            else:
                mark = _MARKS.get(frame.f_code.co_name, "")
                # A Work of a call that is itself on the stack, and a store that making a group waits at, say less
                # than that call does.
                if mark and (
                    not inner or (inner == "work" and not detail) or (inner == "store" and mark == "call")
                ):
                    inner, detail = mark, self.detail(mark, frame)
            frame = frame.f_back
        return {
            "in": inner,
            "detail": detail,
            "instruction": key,
            "top": top.owner if top is not None else stack.LIBRARY,
            "top_path": top.path if top is not None else "",
            "top_function": top.function if top is not None else "",
        }

    def detail(self, inner: str, frame: Any) -> Any:
        """What a wrapper's frame tells: serials of its calls, of its Work, or the keys of its store."""
        values = frame.f_locals
        try:
            if inner == "call":
                return [values.get("serial", 0)]
            if inner == "work":
                work = values.get("self")
                return [serial for serial, other in list(self.recorder.pending) if other is work]
            return _store(values)
        finally:
            stack.release(frame, values)

    def locals(self, frame: Any) -> list[Any]:
        """[(path, line, variables)] of the user's frames, outermost first."""
        found: list[Any] = []
        while frame is not None and len(found) < 40:
            code = stack.describe(frame.f_code)
            if code.owner == stack.USER:
                found.append((code.path, frame.f_lineno, stack.simple_locals(frame)))
            frame = frame.f_back
        return found[::-1]


def _store(values: Any) -> dict[str, Any]:
    store, args = values.get("self"), values.get("args") or ()
    keys = args[0] if args else ""
    address = ""
    for _ in range(8):  # through PrefixStores
        if hasattr(store, "host"):
            address = "%s:%s" % (store.host, store.port)
            break
        store = getattr(store, "underlying_store", None)
        if store is None:
            break
    return {
        "keys": [str(k) for k in (keys if isinstance(keys, (list, tuple)) else [keys])][:20],
        "address": address,
    }
