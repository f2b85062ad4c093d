"""Verify a checkpoint block by block, in threads while the program runs. A block that is needed before its turn is verified immediately."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelkit.errors import CheckpointError
from accelkit.regular_file import open_regular
from accelkit.runtime.checkpoints import step_dirs
from accelkit.runtime.checkpoints.atomic_io import BLOCK, MOST_THREADS, block_checksum
from accelkit.runtime.checkpoints.manifest import damaged, naming

Block = tuple[str, int]
"""The name of a file as in the manifest, and the index of a block in that file."""

_SECONDS_TO_MAIN_THREAD = 1.0
"""The interval, in seconds, at which a thread that waits for a block checks whether the main thread has ended."""


class BlockVerification:
    """The verification of a checkpoint's files. Each block is verified once, in the first thread that reaches the block.

    The constructor opens the files. They are closed when a thread started by ``start`` sees that every block is verified, or else when this
    object is garbage-collected. Until then, a shared lock protects the checkpoint, so that saves with the option ``keep_last`` do not
    remove it. If something else removes the checkpoint, the open files can still be read.

    Args:
        step: The folder of the checkpoint (``step-N``).
        manifest: The manifest of the checkpoint, which must have the checksums of the blocks.
        blocks_of: The blocks that contain each tensor, by the tensor's key. Every block must also be in ``order``.
        order: All blocks, in the order in which to verify them.

    Raises:
        OSError: If a file cannot be opened.
    """

    def __init__(self, step: Path, manifest: Mapping[str, Any], blocks_of: Mapping[str, Sequence[Block]], order: Iterable[Block]) -> None:
        self._step, self._manifest, self._blocks_of = step, manifest, blocks_of
        self._order = list(dict.fromkeys(order))
        self._resources = contextlib.ExitStack()
        weakref.finalize(self, self._resources.close)
        self._resources.enter_context(step_dirs.in_use(step))
        self._files: dict[str, int] = {}
        for name in dict.fromkeys(name for name, _ in self._order):
            self._files[name] = open_regular(step / name)
            self._resources.callback(os.close, self._files[name])
        self._claimed = set[Block]()
        self._outcomes: dict[Block, str] = {}  # why a block is damaged, or "" if it is intact
        self._condition = threading.Condition()
        self._process = os.getpid()
        self._threads: list[threading.Thread] = []
        self._has_to_stop = False
        self._has_raised = False

    def wait(self, key: str) -> None:
        """Wait until every block of a tensor is verified. The calling thread verifies the blocks that no other thread has started on.

        Raises:
            CheckpointError: On every call, if one of the blocks is damaged. The error names the file and the tensor.
        """
        for block in self._blocks_of[key]:
            if why := self._outcome(block):
                raise self._error(block, why, key)

    def wait_for_all(self, *, once: bool = False) -> None:
        """Wait until every block is verified. The calling thread verifies the blocks that no other thread has started on.

        Args:
            once: If True, do not raise an error after ``wait`` or ``wait_for_all`` has already raised one.

        Raises:
            CheckpointError: If one of the blocks is damaged. The error names the file and at most three of the tensors in this block.
        """
        for block in self._order:
            if (why := self._outcome(block)) and not (once and self._has_raised):
                raise self._error(block, why)

    def is_intact(self, key: str) -> bool:
        """Return whether every block of a tensor has been verified and is intact. Does not wait."""
        return all(self._outcomes.get(block) == "" for block in self._blocks_of[key])

    @property
    def is_complete(self) -> bool:
        """Whether every block has been verified and is intact."""
        return all(self._outcomes.get(block) == "" for block in self._order)

    def start(self, when_done: Callable[[], None]) -> None:
        """Start threads that verify the blocks. The first thread to see that every block is verified calls ``when_done``.

        If the main thread ends or ``stop`` is called before that, the threads end early, and ``when_done`` is not called.
        """
        for number in range(min(len(self._order), os.cpu_count() or 1, MOST_THREADS)):
            thread = threading.Thread(target=self._work, args=(when_done,), name=f"accelkit-verify-{number}")
            with contextlib.suppress(RuntimeError):  # Python is shutting down; each tensor is verified at its first use instead
                thread.start()
                self._threads.append(thread)

    def stop(self) -> None:
        """Stop the threads and wait until they have ended. Each of them first finishes the block that it is verifying.

        From then on, ``wait`` and ``wait_for_all`` verify the blocks that have not been verified yet.
        """
        with self._condition:
            self._has_to_stop = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self, when_done: Callable[[], None]) -> None:
        is_done = False
        while not is_done:
            for block in self._order:
                if self._has_to_end:
                    return
                self._verify(block)
            with self._condition:  # the main thread may still be verifying a block, and may be interrupted before it has finished
                while not (self._has_to_end or self._has_all_outcomes or len(self._claimed) < len(self._order)):
                    self._condition.wait(_SECONDS_TO_MAIN_THREAD)
                if self._has_to_end:
                    return
                is_done = self._has_to_stop = self._has_all_outcomes
        when_done()
        self._resources.close()

    @property
    def _has_to_end(self) -> bool:
        return self._has_to_stop or not threading.main_thread().is_alive()

    @property
    def _has_all_outcomes(self) -> bool:
        return len(self._outcomes) == len(self._order)

    def _outcome(self, block: Block) -> str:
        if os.getpid() != self._process:  # after a fork, the threads are gone, and one of them may have held the lock
            if block not in self._outcomes:
                self._outcomes[block] = self._check(block)
            return self._outcomes[block]
        while block not in self._outcomes:
            self._verify(block)
            with self._condition:
                self._condition.wait_for(lambda: block in self._outcomes or block not in self._claimed)
        return self._outcomes[block]

    def _verify(self, block: Block) -> None:
        """Verify a block, unless a thread has begun to verify it. If this thread is interrupted, another thread may verify the block."""
        is_mine = False
        try:
            with self._condition:
                is_mine = block not in self._claimed
                self._claimed.add(block)
            if is_mine:
                outcome = self._check(block)
                with self._condition:
                    self._outcomes[block] = outcome
        except BaseException:  # such as KeyboardInterrupt
            if is_mine:
                self._claimed.discard(block)
            raise
        finally:
            with self._condition:
                self._condition.notify_all()

    def _check(self, block: Block) -> str:
        name, index = block
        expected = self._manifest["blocks"][name][index], min(BLOCK, self._manifest["files"][name]["bytes"] - index * BLOCK)
        try:
            return "" if block_checksum(self._files[name], index * BLOCK) == expected else "its checksum is wrong"
        except OSError as error:
            return f"it cannot be read ({type(error).__name__}: {error})"

    def _error(self, block: Block, why: str, key: str | None = None) -> CheckpointError:
        self._has_raised = True
        held = [other for other, blocks in self._blocks_of.items() if block in blocks and other != key]
        return damaged(self._step, block[0], f"{why}{naming([*([key] if key is not None else []), *held])}")
