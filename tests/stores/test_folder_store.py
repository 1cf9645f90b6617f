"""A folder store after kills and on a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from foxhunt_pipeline.stores.folder import FolderStore

FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from foxhunt_pipeline.errors import StoreError
from foxhunt_pipeline.stores.folder import FolderStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store = FolderStore(Path(sys.argv[1]))
etag = store.get("k").etag
for write in (
    lambda: store.put_new("new", bytes(1_000_000)),
    lambda: store.replace("k", bytes(1_000_000), etag),
    lambda: store.put_file_new("file", Path(sys.argv[2])),
    lambda: store.fetch("big", Path(sys.argv[3]), sha256="0" * 64, size=1_000_000),
):
    try:
        write()
    except StoreError as error:
        assert "Free space" in str(error), error
    else:
        raise AssertionError("written beyond the limit")
print("refused")
"""

WRITER = """
import sys
from pathlib import Path
from foxhunt_pipeline.stores.folder import FolderStore
FolderStore(Path(sys.argv[1])).put_file_new("k", Path(sys.argv[2]))
"""


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    store.put_new("k", b"old")
    store.put_new("big", bytes(1_000_000))
    big = tmp_path / "file"
    big.write_bytes(bytes(1_000_000))
    down = tmp_path / "down" / "file"
    run = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(store.path), str(big), str(down)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "refused\n", run.stderr
    assert [head.key for head in store.list("")] == ["big", "k"]
    assert store.get("k").data == b"old"
    assert not down.exists()
    assert [*tmp_path.rglob("?*.tmp")] == []
    store.put_new("new", bytes(1_000_000))


def test_a_writer_killed_half_way_leaves_no_object(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(store.path), str(pipe)])
    with pipe.open("wb") as half:
        half.write(bytes(3 << 20))
        half.flush()
        deadline = time.monotonic() + 20
        while not any(p.stat().st_size for p in store.path.rglob("?*.tmp")):
            assert time.monotonic() < deadline, "the writer did not begin"
            time.sleep(0.01)
        writer.send_signal(signal.SIGKILL)
        assert writer.wait() == -signal.SIGKILL
    assert [*store.list("")] == []
    assert store.head("k") is None

    whole = tmp_path / "whole"
    whole.write_bytes(b"whole")
    assert store.put_file_new("k", whole)
    assert store.get("k").data == b"whole"

    (left,) = store.path.rglob("?*.tmp")
    store.probe()
    assert left.exists(), "another process may be writing it"
    os.utime(left, (time.time() - 2 * 86400,) * 2)
    store.probe()
    assert not left.exists()
