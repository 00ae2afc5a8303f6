"""How fast `allranks explain` reads a long log with one failure in it, on one core, and how much memory it takes.

    python benchmarks/explain_logs.py                   # 2 GiB in a temporary folder
    python benchmarks/explain_logs.py --size 512M --folder /scratch --keep

Writes a synthetic log (progress bars, metrics, prefixes of ranks, words like "error") with one KeyError on one of
eight ranks at two thirds of it, explains it in a fresh process, and prints seconds, MB/s and the largest resident
size. The verdict is checked: a figure for a wrong answer would mean nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
FAILURE = """\
[rank5]: Traceback (most recent call last):
[rank5]:   File "/workspace/train.py", line 39, in <module>
[rank5]:     main()
[rank5]:   File "/workspace/data/manifest.py", line 17, in __getitem__
[rank5]:     return features, SPEAKERS[row["speaker"]]
[rank5]: KeyError: 'spk23'
"""


def size_of(text: str) -> int:
    """ "512M" -> bytes."""
    unit = text[-1].upper()
    return int(float(text[:-1]) * UNITS[unit]) if unit in UNITS else int(text)


def progress(drawn: random.Random) -> bytes:
    """About 4 MiB of what training prints."""
    lines = []
    for step in range(40_000):
        loss, rank = drawn.random() * 3, drawn.randrange(8)
        lines.append(
            (
                f"2024-01-09 08:15:20,006 INFO step {step}/400000 loss {loss:.4f} error {loss / 9:.3f} lr 1.0e-03\n",
                f"[rank{rank}]: Train: 0 [{step:>5}/5004 ({step % 100:>3}%)]  Loss: {loss:.2f}  Time: 0.512s\n",
                f"Epoch 11:  62%|##########   | {step}/200000 [09:51<06:02,  2.10it/s, loss={loss:.3f}]\r",
                f"W0109 08:15:{step % 60:02}.000000 90144 data.py:87] slow shard {step}, read error rate 0.0{rank}\n",
            )[step % 4]
        )
    return "".join(lines).encode()


def write(path: Path, size: int) -> None:
    """A log of about `size` bytes."""
    block = progress(random.Random(1))
    with path.open("wb") as file:
        written = 0
        while written < size:
            if written <= size * 2 // 3 < written + len(block):
                written += file.write(FAILURE.encode())
            written += file.write(block)


def main() -> int:
    """Writes, explains, prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=size_of, default="2G", help="default %(default)s")
    parser.add_argument("--folder", type=Path, help="where the log is written; default: a temporary folder")
    parser.add_argument("--keep", action="store_true", help="leave the log there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        log = (options.folder if options.keep and options.folder else Path(scratch)) / "explain_logs.log"
        write(log, options.size)
        size = log.stat().st_size
        began = time.perf_counter()
        command = [sys.executable, "-m", "allranks", "explain", "--output-format", "json", str(log)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False, cwd=scratch)
        seconds = time.perf_counter() - began
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    finding = json.loads(done.stdout)["findings"][0]
    right = (
        finding["fault"] == "child-failed-first"
        and finding["ranks"] == [5]
        and finding["location"]["line"] == 17
    )
    cpu = usage.ru_utime + usage.ru_stime
    print(f"{size / 1e6:.0f} MB in {seconds:.1f} s ({cpu:.1f} s of CPU): {size / 1e6 / cpu:.0f} MB/s of CPU")
    print(
        f"largest resident size {usage.ru_maxrss / 1024:.0f} MiB; the verdict is {'right' if right else 'WRONG'}"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
