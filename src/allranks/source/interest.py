"""Which functions matter, told from text: those that speak of ranks, files or training, and whatever names them.

A program is mostly code that has no part in how its ranks communicate. Its functions are found on the text by
their `def` lines; a function matters when its text has a telling word, or a word that is the name of a function
or class that matters. Among those that matter, some may communicate: they are followed condition by condition,
the others roughly.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from .program import Program

Key = tuple["Path", int]

NOT_FINITE = re.compile(r"(?i)isnan|isfinite|isinf|\bnan\b|\bfinite\b|\binf\b")
"""The text of a test for a loss that is not finite."""

_GROUPS = frozenset(
    ("dist", "distributed", "c10d", "comm", "hvd", "COMM_WORLD", "accelerator", "fabric", "MPI")
)
_COLLECTIVE = re.compile(
    r"(_?)(barrier|monitored_barrier|all_?reduce\w*|all_?gather\w*|broadcast\w*|reduce\w*|gather\w*|scatter\w*"
    r"|all_?to_?all\w*|new_(sub)?groups?|send|recv|isend|irecv|batch_isend_irecv|bcast|Bcast|wait_for_everyone|prepare"
    r"|save_state|load_state|backward|setup|log|print|synchronize)"
)
_SPEAKING = re.compile(
    r"barrier|\w*all_?reduce\w*|\w*all_?gather\w*|broadcast(_object\w*|_param\w*|_optim\w*)?|DDP|DistributedDataParallel"
    r"|FSDP|FullyShardedDataParallel|\w*[Ss]ync_?[Bb](atch|N|n)\w*|no_sync|fully_shard|new_group|Accelerator"
    r"|init_process_group|deepspeed|start_processes|spawn|Process|init_device_mesh"
)
_TELLING = re.compile(
    r"dist|\w*distributed\w*|rank|\w*_rank|\w*RANK\w*|DataParallel|zero_grad|GradScaler|open|SummaryWriter|wandb|print"
    r"|tqdm|trange|\w*seed\w*|random_split|DataLoader|\w*Sampler|optim|\w*FileHandler|set_epoch|world_size|WORLD_SIZE"
    r"|is_main\w*|is_master\w*|\w*accelerator|fabric|set_device|environ|getenv|parse_args|add_argument|makedirs|mkdir"
    r"|get_world\w*|master_only|load_state_dict|yield|clip_grad\w*|write_text|shutil|MPI|hvd|copytree"
    r"|register_hook|register_comm_hook|requires_grad_?|add_module|(named_)?parameters|state_dict|shuffle|permutation"
    r"|rand|randn|randint|randperm|rand_like|randn_like|add_param_group"
)
_FOREIGN = frozenset(
    (
        "torch",
        "nn",
        "F",
        "np",
        "os",
        "sys",
        "timm",
        "json",
        "math",
        "logging",
        "transformers",
        "wandb",
        "time",
    )
)
_STARTING = re.compile(
    r"init_process_group|init_distributed\w*|init_device_mesh|Accelerator|PartialState|DistributedDataParallel|DDP|FSDP"
    r"|FullyShardedDataParallel|fully_shard|start_processes|Fabric|TorchTrainer|notebook_launcher|elastic_launch"
)
"""Words of code that begins a distributed run."""
_STARTING_CALLS = frozenset(
    (("mp", "spawn"), ("multiprocessing", "spawn"), ("hvd", "init"), ("deepspeed", "initialize"), ("mp", "Process"),
     ("pl", "Trainer"), ("L", "Trainer"), ("lightning", "Trainer"), ("xmp", "spawn"), ("", "spawn"))
)  # fmt: skip
_TOKEN = re.compile(r"([A-Za-z_]\w*)?([.@]?)\b([A-Za-z_]\w*)[ ]?(\(?)")
_SAYS, _TELLS, _CHECKS, _RAISES, _BUILDS, _STARTS = 1, 2, 4, 8, 16, 32
_MODEL = re.compile(r"\([^)\n]*Module\b")
_DEF = re.compile(r"^([ \t]*)(?:async[ \t]+)?(def|class)[ \t]+(\w+)", re.MULTILINE)
_COMMON = frozenset(
    ("train", "eval", "test", "update", "save", "load", "print", "step", "forward", "get", "set", "add", "log", "run",
     "write", "read", "open", "close", "start", "stop", "init", "main", "info", "mean", "sum", "to", "fit", "call",
     "apply", "copy", "format", "join", "split", "reset", "append", "build", "size", "numel", "view", "item", "tolist")
)  # fmt: skip
"""Names after a dot that say nothing about what is meant."""
_OWN_NAME = re.compile(r"\w*_\w+|\w{11,}")
"""Method names that are not likely to be those of some other class."""


class _Closure:
    """The functions with a word, and those that name them. A method is named by `.name`, a class or function by
    its name."""

    def __init__(self, whole_classes: bool) -> None:
        self.whole_classes = whole_classes
        """Whether what makes an object of a class counts as naming all its methods, or only `__init__`."""
        self.told: set[Key] = set()
        self.names: set[str] = set()
        self.classes: set[str] = set()

    def tell(self, key: Key, name: str, owner: str) -> set[str]:
        """Adds a function; the names that are new by it."""
        self.told.add(key)
        new = {name}
        if owner:
            self.classes.add(owner)
            new = {owner} if self.whole_classes or name == "__init__" else set()
            if _OWN_NAME.fullmatch(name) and name[:2] != "__":
                new.add(f".{name}")
        elif name not in _COMMON:
            new.add(f".{name}")
        new -= self.names
        self.names |= new
        return new


class Interest:
    """What matters in the files of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._files: set[Path] = set()
        self._words: dict[Key, frozenset[str]] = {}
        self._owner: dict[Key, tuple[str, str]] = {}
        self._telling = _Closure(whole_classes=True)
        self._communicating = _Closure(whole_classes=False)
        self._starting = _Closure(whole_classes=True)

    def add(self, paths: list[Path]) -> None:
        """Reads more files, and settles what matters again."""
        new = [p for p in paths if p not in self._files]
        if not new:
            return
        for path in new:
            self._files.add(path)
            self._read(path)
        users: dict[str, list[Key]] = defaultdict(list)
        for key, words in self._words.items():
            for word in words:
                users[word].append(key)
        for closure in (self._telling, self._communicating, self._starting):
            todo = list(closure.names)
            while todo:
                for key in users.get(todo.pop(), ()):
                    if key not in closure.told:
                        todo += closure.tell(key, *self._owner[key])

    def _read(self, path: Path) -> None:
        """Hears every function of a file. The text from one `def` line to the next is the function's, and that of
        the functions around it, whose own text goes on behind it."""
        text = self.program.text(path)
        found = list(_DEF.finditer(text))
        around: list[tuple[int, str, Key | None]] = []
        heard: dict[Key, int] = {}
        line, at = 1, 0
        for i, match in enumerate(found):
            line += text.count("\n", at, match.start())
            at = match.start()
            indent = len(match[1].expandtabs())
            while around and around[-1][0] >= indent:
                around.pop()
            if match[2] == "class":
                around.append((indent, match[3], None))
                if _MODEL.match(text, match.end()):
                    # A function that makes a model is followed, so that the model is known.
                    self._telling.names.add(match[3])
                continue
            key = (path, line)
            owner = around[-1][1] if around and around[-1][2] is None else ""
            self._owner[key] = (match[3], owner)
            around.append((indent, match[3], key))
            end = found[i + 1].start() if i + 1 < len(found) else len(text)
            says, words = _heard(text, match.end(), end)
            for _, _, other in around:
                if other is not None:
                    heard[other] = heard.get(other, 0) | says
                    self._words[other] = self._words.get(other, frozenset()) | words
        for key, says in heard.items():
            if says & _STARTS:
                self._starting.tell(key, *self._owner[key])
            if says & (_TELLS | _SAYS) or (says & _BUILDS and not self._owner[key][1]):
                self._telling.tell(key, *self._owner[key])
            if says & _SAYS or says & (_CHECKS | _RAISES) == (_CHECKS | _RAISES):
                self._communicating.tell(key, *self._owner[key])
                self._telling.tell(key, *self._owner[key])

    def starts(self, path: Path) -> bool:
        """True for a file that begins a distributed run, itself or through what it calls."""
        text = self.program.text(path)
        says, names = _heard(text, 0, len(text))
        return bool(says & _STARTS) or not self._starting.names.isdisjoint(names - _COMMON)

    def speaks(self, text: str) -> bool:
        """True for a piece of code that may communicate, as far as its words tell."""
        says, names = _heard(text, 0, len(text))
        return bool(says & _SAYS) or not self._communicating.names.isdisjoint(names)

    def matters(self, path: Path, line: int) -> bool:
        """True for a function, by the line of its `def`, that is worth following."""
        if path not in self._files:
            self.add([path])
        return (path, line) in self._telling.told

    def class_matters(self, name: str) -> bool:
        """True for a class with a method that is worth following."""
        return name in self._telling.classes

    def communicates(self, path: Path, line: int) -> bool:
        """True for a function that may communicate or leave, itself or through what it calls."""
        if path not in self._files:
            self.add([path])
        return (path, line) in self._communicating.told

    def class_communicates(self, name: str) -> bool:
        """True for a class with such a method."""
        return name in self._communicating.classes


def _heard(text: str, start: int, end: int) -> tuple[int, frozenset[str]]:
    """(what the words of a piece of code say, the names that it calls or decorates with; names after a dot with
    the dot)."""
    says, names = 0, set()
    for token in set(_TOKEN.findall(text, start, end)):
        kind, name = _weighed(token)
        says |= kind
        if name:
            names.add(name)
    return says, frozenset(names)


@lru_cache(maxsize=1 << 16)
def _weighed(token: tuple[str, str, str, str]) -> tuple[int, str]:
    """(what one word says, the name that it stands for)."""
    owner, before, word, paren = token
    says = 0
    if before == "." and paren and (not owner or owner in _GROUPS) and _COLLECTIVE.fullmatch(word):
        says |= _SAYS if owner or word not in ("log", "print", "setup", "backward", "prepare") else _TELLS
    if before == "." and word == "backward" and paren:
        says |= _SAYS
    if before == "." and word == "step" and ("optim" in owner or "scaler" in owner):
        says |= _SAYS
    if word == "exit" and paren:
        says |= _SAYS
    if _SPEAKING.fullmatch(word) and (paren or word in ("deepspeed", "no_sync")):
        says |= _SAYS
    if paren and (_STARTING.fullmatch(word) or (owner, word) in _STARTING_CALLS):
        says |= _STARTS
    for part in (owner, word):
        if part and _TELLING.fullmatch(part):
            says |= _TELLS
        if part and NOT_FINITE.search(part):
            says |= _CHECKS
        if part == "raise":
            says |= _RAISES
    if before == "." and word in ("save", "load") and owner in ("torch", "np", "dcp"):
        says |= _TELLS
    if before == "." and paren and owner in ("nn", "models") and word[0].isalpha():
        says |= _BUILDS
    if before == ".":
        return says, "." + word if paren else word if word[0].isupper() else owner if owner[
            :1
        ].isupper() else ""
    return says, word if paren or before == "@" or word[0].isupper() else ""
