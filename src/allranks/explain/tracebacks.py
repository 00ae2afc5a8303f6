"""Tracebacks, put together again from lines: plain, chained, boxed, logged, of workers, of several ranks interleaved.

Ranks that write to one file without a prefix print their tracebacks line by line into each other. Each line is given
to the open traceback that it can continue: a frame after a source line, a source line after its frame.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..world import Frame
from .native import NativeStacks
from .raised import Raised, Traceback, is_user

if TYPE_CHECKING:
    from .logs import Line

HEADER = "Traceback (most recent call last)"
LONGEST_MESSAGE = 60
"""Lines of an exception's message that are kept."""
_MOST_OPEN = 512
_MOST_FRAMES = 400
_WOVEN = 16
_MOST_SHAPES = 8
_LONGEST_NAME = 160
_DIGIT = re.compile(r"\d")
_PATIENCE = 400
"""Lines after which a traceback that got none is given up."""

_FRAME = re.compile(
    r'\s*(?:[|+>│╎]\s*)*File (?:"(?P<path>[^"]+)", line (?P<line>\d+)(?:,? in (?P<function>.*?))?'
    r"|(?P<cell>[^\s\":]+):(?P<at>\d+)(?:, in (?P<name>[\w.<>]+).*)?)\s*$"
)
_GLUED = re.compile(
    r'(?P<before>.+?)File "(?P<path>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?'
    r"\s*(?P<cell>)(?P<name>)(?P<at>)$"
)
_CARETS = re.compile(r"[ ~]*\^[\^~]*")
_EXCEPTION = re.compile(
    r"(?P<indent>\s*)(?:[|+│]\s*)?(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:\[[\w., ]+\])?"
    r"(?: ?:(?: (?P<message>.*))?)?\s*$"
)
_STRONG = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Abort|Failure|Fault|Signal|Expired|Iteration|NotMet|Invalid\w*)\w*$"
    r"|^(?:queue\.|_queue\.)?(?:Empty|Full)$|^concurrent\.futures\.\w+|^\w+(?:\.\w+)+$"
)
"""What an exception's type looks like; other names count only right after a traceback's last line."""
_NOT_TYPES = frozenset(
    [
        "Epoch",
        "Step",
        "Loss",
        "Train",
        "Loading",
        "Iter",
        "Test",
        "Eval",
        "Rank",
        "Node",
        "File",
        "usage",
        "INFO",
        "DEBUG",
    ]
)
_MARKS = re.compile(
    r"[\s|│]*[~^][~^ ]*$|\s*\[Previous line repeated \d+ more times\]"
    r"|\s*[│└├╰][│└├╰ ].*|\s*\.\.\.<\d+ lines>\.\.\.$"
)
"""Lines below a source line that point into it."""
_BOX = re.compile(r"[╭┌+][─━-]{2}")
_BOX_END = re.compile(r"\s*[╰└+][─━-]{2}")
_SIDES = ("│", "|")
_BOX_FRAME = re.compile(r"(?P<path>(?:/|~|[A-Za-z]:\\|<|\.?\w)\S*?):(?P<line>\d+)(?: in (?P<function>.+))?$")
_CAUSE = "The above exception was the direct cause of the following exception"
_CONTEXT = "During handling of the above exception, another exception occurred"
_INNER = re.compile(
    r"Original Traceback|-- Process (?P<index>\d+) terminated with the following error:|Remote Traceback"
)
"""Before the traceback of another process that the exception above carries."""
_TIES = re.compile(rf"{_CAUSE}|{_CONTEXT}|{_INNER.pattern}")
_LOGGED = re.compile(
    r"(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL|FATAL)\b|\[[EWIF][ \d]|\[\w+\] |\[\d+\]: "
    r"|terminate called|usage: |=+$|-+$"
)
"""What another writer's line begins with: no message of an exception goes on there."""
_NATIVE = re.compile(r"frame #\d+: |Exception raised from ")
"""Lines of C++ stacks, which say nothing to a user."""
_IGNORED = re.compile(
    r"Exception ignored in|Error in atexit|Exception in thread .{0,80}(?:_pin_memory|QueueFeeder|resource)"
)


@dataclass(slots=True)
class _Open:
    """A traceback whose exception has not been read yet."""

    raised: Raised
    lines: list[Line]
    indent: int | None = 0
    """Columns before the header; None where the header stands behind other words."""
    expects_code: bool = False
    boxed: bool = False
    last: int = 0
    """Index of the last line that was given to it, in its stream."""
    link: str = ""
    chained: Traceback | None = None
    process: int | None = None
    part: str = ""
    """A path in a box whose rest stands on the next line."""

    @property
    def place(self) -> tuple[str, int] | None:
        """Where its innermost frame so far stands."""
        return (self.raised.frames[-1].path, self.raised.frames[-1].line) if self.raised.frames else None


class Assembler:
    """Puts the tracebacks of one stream together; `done` are those that ended, in that order."""

    def __init__(self) -> None:
        self.done: list[Traceback] = []
        self._native = NativeStacks(self.done)
        self._open: list[_Open] = []
        self._index = 0
        self._recent: Traceback | None = None
        self._told: list[tuple[Raised, int]] = []
        """Exceptions whose message may go on in the next lines, with the index of the last line of each."""
        self._shapes: set[str] = set()
        """What stood before headers, digits made equal: a prefix that this program does not know of."""
        self._link = ""
        self._process: int | None = None
        self._ignored = False
        self._first: set[Frame] = set()
        """Frames with which tracebacks began."""
        self._source: dict[tuple[str, int], str] = {}
        """The source line of each place, once it was seen."""
        self._inner: dict[tuple[str, int], set[tuple[str, int] | None]] = {}
        """What followed each place: the next frame, or None where the traceback ended."""

    def feed(self, line: Line) -> bool:
        """Takes one line; True when it is part of a traceback."""
        self._index += 1
        if self._shapes:
            line = self._without_prefix(line)
        text = line.text
        if self._native.feed(line):
            return True
        if HEADER in text:
            self._begin(line, text)
            return True
        boxed = next((opened for opened in self._open if opened.boxed), None)
        if boxed is not None and self._box(boxed, line, text):
            return True
        if "File " in text and (match := _FRAME.match(text)):
            self._frame(line, match)
            return True
        if 'File "' in text and self._open and (match := _GLUED.match(text)):
            # Python writes a traceback in pieces: a frame may stand behind another process's source line or marks.
            before = match["before"]
            if before.strip(" ^~"):
                self._inside(replace(line, text=before), before)
            self._frame(line, match)
            return True
        if self._open and self._inside(line, text):
            return True
        if self._told and self._goes_on(line, text):
            return True
        return self._between(text)

    def close(self) -> None:
        """The stream ends, or a gap follows: what is open is taken as it is."""
        self._native.close()
        for opened in list(self._open):
            if opened.raised.frames:
                self._finish(opened)
        self._open.clear()
        self._told.clear()
        self._link, self._ignored = "", False

    # ------------------------------------------------------------------------------------------- how it begins

    def _without_prefix(self, line: Line) -> Line:
        """The line without what also stood before the header of a traceback."""
        for shape in self._shapes:
            if _DIGIT.sub("0", line.text[: len(shape)]) == shape:
                return replace(line, text=line.text[len(shape) :])
        return line

    def _begin(self, line: Line, text: str) -> None:
        before = text[: text.index(HEADER)]
        boxed = bool(_BOX.search(text))
        # Two processes that write at once print a header behind the other's last line.
        if not boxed and (match := _EXCEPTION.match(before)) and _is_strong(match["type"]) and self._open:
            self._inside(line, before)
        indent = len(before) if not before.strip() else None
        if indent is None and not boxed and len(self._shapes) < _MOST_SHAPES:
            self._shapes.add(_DIGIT.sub("0", before))
        opened = _Open(Raised(first=line.number, ignored=self._ignored), [line], indent, last=self._index)
        opened.boxed = boxed
        if "Original" in before:
            self._link = "inner"
        if self._link:
            opened.link, opened.chained, opened.process = self._link, self._recent, self._process
        self._link, self._process, self._ignored = "", None, False
        self._open.append(opened)
        if len(self._open) > _MOST_OPEN:
            self._open.pop(0)

    def _between(self, text: str) -> bool:
        """Lines that tie the traceback before to the one after."""
        if not text.strip():
            return False
        if _CAUSE in text or _CONTEXT in text:
            self._link = "cause"
        elif match := _INNER.search(text):
            self._link = "inner"
            self._process = int(match["index"]) if match["index"] else None
        else:
            self._ignored = bool(_IGNORED.search(text))
            if not text.startswith((" ", '"')):
                self._link = ""
            return False
        return True

    # ---------------------------------------------------------------------------------------------- what it holds

    def _frame(self, line: Line, match: re.Match[str]) -> None:
        path, number = match["path"] or match["cell"], int((match["line"] or match["at"])[:9])
        frame = Frame(path, number, (match["function"] or match["name"] or "").strip(), user=is_user(path))
        opened = self._continued(frame)
        if opened is None:
            indent = len(line.text) - len(line.text.lstrip())
            opened = _Open(Raised(first=line.number), [], max(indent - 2, 0))
            self._open.append(opened)
        elif opened.indent is None:
            glued = not line.text.lstrip().startswith("File")
            opened.indent = 0 if glued else max(len(line.text) - len(line.text.lstrip()) - 2, 0)
        before = opened.place
        if before is not None:
            self._inner.setdefault(before, set()).add((path, number))
        elif HEADER in opened.lines[0].text if opened.lines else False:
            self._first.add(frame)
        if len(opened.raised.frames) < _MOST_FRAMES:
            opened.raised.frames.append(frame)
        opened.expects_code = True
        self._give(opened, line)

    def _continued(self, frame: Frame) -> _Open | None:
        """The open traceback that a frame continues: one that has shown its last source line, rather one in which
        this frame was seen to follow before, and of equals the one that has waited longest."""

        def fits(opened: _Open) -> tuple[int, int]:
            score = 0 if opened.expects_code else 2
            place = opened.place
            if place is None:
                outermost = frame in self._first if self._first else frame.function == "<module>"
                score += 3 if outermost else -1
            elif (frame.path, frame.line) in self._inner.get(place, ()):
                score += 4
            elif self._inner.get(place):
                score -= 2
            return score, -opened.last

        return max((opened for opened in self._open if not opened.boxed), key=fits, default=None)

    def _inside(self, line: Line, text: str) -> bool:
        """A line while tracebacks are open: a source line, marks below it, or the exception."""
        stripped = text.strip()
        if not stripped:
            return True
        latest = max(self._open, key=lambda opened: opened.last)
        if _MARKS.match(text):
            self._give(latest, line)
            return True
        match = _EXCEPTION.match(text)
        if match is None and "^" in text:
            match = _EXCEPTION.match(_CARETS.sub("", text).strip())
        if match and (opened := self._ended(match)):
            raised = opened.raised
            raised.type, raised.message = match["type"], (match["message"] or "").strip()
            self._give(opened, line)
            self._finish(opened)
            self._told.append((raised, self._index))
            return True
        indent = len(text) - len(text.lstrip())
        waiting = [o for o in self._open if o.expects_code and indent > (o.indent or 0) + 2]
        if waiting:
            opened = max(waiting, key=lambda o: (self._shows(o, stripped), -o.last))
            opened.expects_code = False
            if opened.place is not None:
                self._source.setdefault(opened.place, stripped)
            self._give(opened, line)
            return True
        if latest.last == self._index - 1 and indent > (latest.indent or 0) + 2:
            self._give(latest, line)
            return True
        self._age()
        return False

    def _shows(self, opened: _Open, source: str) -> int:
        """Whether a source line is the one of the place where a traceback stands: 1 yes, 0 not known, -1 no."""
        known = self._source.get(opened.place) if opened.place else None
        return 0 if known is None else 1 if known == source else -1

    def _ended(self, match: re.Match[str]) -> _Open | None:
        """The open traceback that an exception's line ends, if the line can be one."""
        indent, name = len(match["indent"]), match["type"]
        strong = _is_strong(name)
        if (
            name.startswith("nccl")
            or len(name) > _LONGEST_NAME
            or (not strong and (name in _NOT_TYPES or not name[:1].isupper()))
        ):
            return None

        def fits(opened: _Open) -> tuple[int, int]:
            known = self._inner.get(opened.place) if opened.place else None
            ended = 0 if not known else 2 if None in known else -2
            return ended + (0 if opened.expects_code else 1), -opened.last

        candidates = [
            opened
            for opened in self._open
            if opened.raised.frames
            and abs(indent - (opened.indent or 0)) <= 1
            and (strong or opened.last == self._index - 1)
        ]
        return max(candidates, key=fits, default=None)

    def _goes_on(self, line: Line, text: str) -> bool:
        """The message of an exception may have more lines."""
        # Where other processes print at the same time, their lines stand between those of a message.
        reach = _WOVEN if self._open or len(self._told) > 1 else 2
        near = [(raised, at) for raised, at in self._told if self._index - at <= reach]
        self._told = near
        if not near or line.time is not None or _LOGGED.match(text):
            self._told = []
            return False
        if not text.strip():
            self._told = [(raised, self._index) for raised, _ in near] if len(near) == 1 else near
            return False
        match = _EXCEPTION.match(text)
        if (match and _is_strong(match["type"]) and not match["type"].startswith("nccl")) or _TIES.search(
            text
        ):
            self._told = []
            return False
        # Of several messages it goes to the one that was written to last, unless that has this very line already:
        # ranks that print the same text line by line.
        known = f"\n{text.rstrip()}"
        raised = max(near, key=lambda one: (known not in one[0].message, one[1]))[0]
        self._told = [(one, self._index if one is raised else at) for one, at in near]
        if raised.message.count("\n") < LONGEST_MESSAGE and not _NATIVE.match(text):
            raised.message += known
            raised.more.append(line)
        return True

    def _box(self, opened: _Open, line: Line, text: str) -> bool:
        """A line of a traceback that rich has drawn in a box."""
        if _BOX_END.match(text):
            opened.boxed, opened.expects_code = False, False
            self._give(opened, line)
            return True
        between = text.strip()
        if not between.startswith(_SIDES):
            return False
        content = between[1:].rstrip().removesuffix("│").removesuffix("|").rstrip().removeprefix(" ")
        if match := _BOX_FRAME.match(opened.part + content):
            path = match["path"]
            function = (match["function"] or "").strip()
            if len(opened.raised.frames) < _MOST_FRAMES:
                opened.raised.frames.append(Frame(path, int(match["line"][:9]), function, user=is_user(path)))
        opened.part = content if content.startswith(("/", "~")) and ":" not in content else ""
        self._give(opened, line)
        return True

    # ------------------------------------------------------------------------------------------------ how it ends

    def _give(self, opened: _Open, line: Line) -> None:
        opened.last = self._index
        opened.raised.end = line.number
        opened.lines.append(line)
        opened.raised.code.append(line.text)

    def _finish(self, opened: _Open) -> None:
        raised = opened.raised
        if opened.place is not None:
            self._inner.setdefault(opened.place, set()).add(None)
        chain, lines, process = [raised], opened.lines, opened.process
        before = opened.chained
        if before is not None and opened.link:
            chain = [raised, *before.chain] if opened.link == "inner" else [*before.chain, raised]
            lines = [*before.lines, *lines]
            process = before.process if process is None else process
            if before in self.done:
                self.done.remove(before)
        self._recent = Traceback(chain, lines, process)
        self.done.append(self._recent)
        if opened in self._open:
            self._open.remove(opened)

    def _age(self) -> None:
        """Gives up what has had no line for long."""
        old = [opened for opened in self._open if self._index - opened.last > _PATIENCE]
        for opened in old:
            if opened.raised.frames:
                self._finish(opened)
            else:
                self._open.remove(opened)


def _is_strong(name: str) -> bool:
    return len(name) <= _LONGEST_NAME and _STRONG.search(name) is not None
