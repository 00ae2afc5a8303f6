"""Which functions matter, told from text: those that speak of ranks, files or training, and whatever names them.

A program is mostly code that has no part in how its ranks communicate. Its functions are found on the text by
their `def` lines; a function matters when its text has a telling word, or a word that is the name of a function
or class that matters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from .program import Program

TELLING = re.compile(
    r"\bdist\b|distributed|\brank\b|_rank\b|RANK|barrier|all_?reduce|all_?gather|broadcast|\bDDP\b|DataParallel|fsdp|FSDP"
    r"|SyncB|\.backward\(|zero_grad|optim\w*\.step\(|GradScaler|torch\.save|torch\.load|\bopen\(|SummaryWriter|wandb"
    r"|\bprint\(|tqdm|_seed\(|\.seed\(|random_split|DataLoader|Sampler|torch\.optim|FileHandler|set_epoch|synchronize"
    r"|world_size|WORLD_SIZE|is_main|is_master|\bMPI\b|\bhvd\b|accelerator|fabric|\bspawn\b|set_device|os\.environ|getenv"
    r"|parse_args|add_argument|\bexit\(|\bDistributed|no_sync|fully_shard|new_group|Accelerator|makedirs|mkdir"
    r"|init_process_group|get_world|\bgather|\breduce_|master_only|load_state_dict|torch\.compile"
    r"|yield|manual_seed|clip_grad|Process\("
)
_DEF = re.compile(r"^([ \t]*)(?:async[ \t]+)?(def|class)[ \t]+(\w+)", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w+")


class Interest:
    """What matters in the files of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._files: set[Path] = set()
        self._told: set[tuple[Path, int]] = set()
        self._names: set[str] = set()
        self._classes: set[str] = set()
        self._words: dict[tuple[Path, int], frozenset[str]] = {}
        self._owner: dict[tuple[Path, int], tuple[str, str]] = {}

    def add(self, paths: list[Path]) -> None:
        """Reads more files, and settles what matters again."""
        new = [p for p in paths if p not in self._files]
        if not new:
            return
        for path in new:
            self._files.add(path)
            self._read(path)
        self._settle()

    def _read(self, path: Path) -> None:
        text = self.program.text(path)
        found = list(_DEF.finditer(text))
        classes: list[tuple[int, str]] = []
        line, at = 1, 0
        for i, match in enumerate(found):
            line += text.count("\n", at, match.start())
            at = match.start()
            indent = len(match[1].expandtabs())
            while classes and classes[-1][0] >= indent:
                classes.pop()
            if match[2] == "class":
                classes.append((indent, match[3]))
                continue
            body = text[match.start() : found[i + 1].start() if i + 1 < len(found) else len(text)]
            key = (path, line)
            self._owner[key] = (match[3], classes[-1][1] if classes else "")
            self._words[key] = frozenset(_WORD.findall(body, len(match[0]) - len(match[3])))
            if TELLING.search(body):
                self._told.add(key)
                self._name(key)

    def _name(self, key: tuple[Path, int]) -> None:
        name, owner = self._owner[key]
        self._names.add(name)
        if owner:
            self._classes.add(owner)
            if name in ("__init__", "__call__", "forward", "__enter__", "__exit__", "__iter__", "step"):
                self._names.add(owner)

    def _settle(self) -> None:
        users: dict[str, list[tuple[Path, int]]] = defaultdict(list)
        defined = {name for name, _ in self._owner.values()} | {owner for _, owner in self._owner.values()}
        for key, words in self._words.items():
            if key not in self._told:
                for word in words & defined:
                    users[word].append(key)
        todo = list(self._names)
        done = set(todo)
        while todo:
            for key in users.get(todo.pop(), ()):
                if key in self._told:
                    continue
                self._told.add(key)
                before = len(self._names)
                self._name(key)
                if len(self._names) > before:
                    fresh = self._names - done
                    done |= fresh
                    todo += fresh

    def matters(self, path: Path, line: int) -> bool:
        """True for a function, by the line of its `def`, that is worth following."""
        if path not in self._files:
            self.add([path])
        return (path, line) in self._told

    def class_matters(self, name: str) -> bool:
        """True for a class with a method that is worth following."""
        return name in self._classes
