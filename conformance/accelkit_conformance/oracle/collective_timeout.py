"""Check that a rank which waits in a collective notices that another rank does not take part in it. A backend may end the process of the
waiting rank, so each rank makes the calls in a new process, which runs this module."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelkit_conformance.subprocess_checks import about, answer, ask, received

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_TIMEOUT = 2
_SECONDS = 60


def check_timeout(subject: Subject) -> None:
    """Check that ``all_reduce`` on rank 0 raises an error or ends the process if no other rank calls it.

    Raises:
        AssertionError: If a new process fails before ``all_reduce``, or if rank 0 still waits after 60 s.
    """
    import torch.distributed as dist

    folder: list[Any] = [tempfile.mkdtemp() if subject.rank == 0 else None]
    dist.broadcast_object_list(folder, src=0, device=subject.device)
    request = {**about(subject.record), "folder": folder[0], "rank": subject.rank, "size": subject.world_size}
    limit = 2.5 * _SECONDS + subject.first_call_timeout  # NCCL waits for another minute before it ends the process
    try:
        found = ask(__name__, request, limit)
    except AssertionError as error:
        if subject.rank or not Path(folder[0], "called").exists() or "did not end" in str(error):
            raise
        found = {}  # the backend ended the process
    finally:
        Path(folder[0], f"done-{subject.rank}").touch()
    assert not found.get("is_late"), f"rank 0 waited more than {_SECONDS} s for a rank that did not take part"
    assert not found.get("result"), f"all_reduce returned {found['result']}, although no other rank took part"
    dist.barrier()
    if subject.rank == 0:
        import shutil

        shutil.rmtree(folder[0])


def main() -> None:
    """Wait in ``all_reduce`` on rank 0. On another rank, wait until rank 0 has ended. This function runs in the new process."""
    request, record = received()
    import torch
    import torch.distributed as dist

    from accelkit.discovery import loading
    from accelkit.runtime.process_group import backend_of
    from accelkit_conformance.subject import Subject

    folder, rank, size = Path(request["folder"]), request["rank"], request["size"]
    cls: Any = loading.load_class(record)
    instance = loading.instantiate(cls, record)
    instance.load()
    subject = Subject(record, cls, rank=rank, world_size=size)
    subject.use(instance)
    dist.init_process_group(
        backend_of(subject.device, instance.process_group_backend), init_method=f"file://{folder / 'store'}", rank=rank, world_size=size
    )
    group = dist.new_group(timeout=datetime.timedelta(seconds=_TIMEOUT))
    x = torch.ones(4, device=subject.device)
    dist.all_reduce(x, group=group)
    subject.synchronize()
    if rank:
        while not Path(folder, "done-0").exists():
            time.sleep(0.05)
        return answer({})
    Path(folder, "called").touch()
    start, result = time.monotonic(), ""
    with contextlib.suppress(Exception):
        dist.all_reduce(x, group=group)
        result = str(x.tolist())
    answer({"is_late": time.monotonic() - start > _SECONDS, "result": result})
    sys.stdout.flush()
    os._exit(0)  # the group may wait for the other rank while it is destroyed


if __name__ == "__main__":
    main()
