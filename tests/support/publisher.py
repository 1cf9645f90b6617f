"""Publishes from many processes, or from one that is killed after its n-th call to the store.

``python publisher.py race|kill STORE-CONFIG-JSON FILES…``; each file is a checkpoint. It imports
torch once and forks, so that dozens of real processes start in no time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foxhunt_pipeline.checkpoints.publish import promote, publish
from foxhunt_pipeline.config import StoreConfig
from resources.stores import open_store

CALLS = ("put_file_new", "put_new", "replace")
MANIFEST = {
    "stage": "champion",
    "gates": [{"gate": "finite", "number": 0, "bound": 0, "passed": True}],
}


class Killer:
    """A store that ends its process, as by power failure, around its n-th write: before it for
    an even ``fuse``, after it for an odd one."""

    def __init__(self, store: Any, fuse: int) -> None:
        self._store = store
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return self._around(method) if name in CALLS else method

    def _around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self._tick()
            result = method(*args, **options)
            self._tick()
            return result

        return call

    def _tick(self) -> None:
        if self._fuse == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._fuse -= 1


def fork(work: Callable[[], None]) -> int:
    """Run ``work`` in a process of its own and return its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def status(pid: int) -> int:
    """Exit status of a forked process; minus the signal if one ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(mode: str, config: str, files: list[Path]) -> Any:
    store = open_store(StoreConfig.model_validate_json(config))  # connects in the children only

    def release(store: Any, model: str, file: Path) -> None:
        made = publish(store, model, file, {**MANIFEST, "provenance": {"file": file.name}})
        promote(store, model, made.version, reason="better")

    if mode == "race":
        start = time.monotonic() + 0.2

        def racer(file: Path) -> None:
            time.sleep(max(0.0, start - time.monotonic()))
            release(store, "raced", file)

        return [status(pid) for pid in [fork(lambda f=file: racer(f)) for file in files]]
    ends = []
    while not ends or ends[-1] != 0:
        fuse, model = len(ends), f"killed_{len(ends)}"
        killed = Killer(store, fuse)
        ends.append(status(fork(lambda s=killed, m=model: release(s, m, files[0]))))
        assert status(fork(lambda m=model: release(store, m, files[0]))) == 0
    return ends


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], [Path(name) for name in sys.argv[3:]])))
