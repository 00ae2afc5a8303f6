"""Checks many inputs that no user meant, and prints those on which something went wrong or took long.

    python tools/fuzz_check.py --count 100000 --seed 1
    python tools/fuzz_check.py --count 100000 --seed 1 FOLDER ...   # mutates the programs below FOLDER too

An input is kept, as `fuzz-<seed>-<number>.py`, when an error came out of the check, a rule or the analysis of a
program failed, or it took longer than 10 s of the processor. The same seed and folders
give the same inputs. Status 1 when there is any.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from check.book import programs  # noqa: E402 - the tests' own programs and mutations
from check.mutants import mutants  # noqa: E402

from allranks.check import engine  # noqa: E402
from allranks.config import Config  # noqa: E402
from allranks.source.machine import Machine  # noqa: E402

LIMIT_S = 10
"""Seconds of the processor, so that a busy machine does not count."""
LARGEST = 20_000
"""Bytes of a program up to which it is mutated: longer ones would only make fewer inputs."""


class TooLong(BaseException):
    """Not an Exception: nothing inside may catch it."""


def late(*_: object) -> None:
    """Ends the check of one input."""
    raise TooLong


def inspect(path: Path) -> list[str]:
    """What went wrong while a file was checked."""
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    failed.clear()
    try:
        report = engine.check([path], Config(root=path.parent), edits=True)
    except TooLong:
        return [f"longer than {LIMIT_S} s"]
    except Exception:
        return [traceback.format_exc(limit=-3)]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return failed + [str(spot.message) for spot in report.blind_spots if spot.slug == "rule-failed"]


failed: list[str] = []


def main() -> int:
    """Checks the inputs; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sources = [program.files["train.py"].encode() for program in programs("programs")]
    for folder in options.folders:
        files = sorted(path for path in folder.rglob("*.py") if path.is_file())
        sources += [data for path in files if 0 < len(data := path.read_bytes()) <= LARGEST]
    signal.signal(signal.SIGPROF, late)
    missed = Machine.missed

    def heard(self: Any, what: str) -> None:
        if what == "failure":
            failed.append(traceback.format_exc(limit=-3))
        missed(self, what)

    Machine.missed = heard  # type: ignore[method-assign]
    wrong, longest, here, begin = 0, 0.0, Path.cwd(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number, (name, data) in enumerate(mutants(options.seed, options.count, sources), 1):
            path = Path(folder) / name
            path.write_bytes(data)
            started = time.process_time()
            problems = inspect(path)
            longest = max(longest, time.process_time() - started)
            path.unlink()
            if problems:
                wrong += 1
                kept = here / f"fuzz-{options.seed}-{number}{path.suffix}"
                kept.write_bytes(data)
                print(kept.name, *problems, sep="\n    ", flush=True)
            if number % 1000 == 0:
                print(
                    f"{number:,} in {time.process_time() - begin:.0f} s, longest {longest:.2f} s, {wrong} wrong",
                    flush=True,
                )
        os.chdir(here)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
