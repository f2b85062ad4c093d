"""Files that an engine strategy writes into a checkpoint: one folder ``engine_N`` for each engine, next to the folder ``data``.

N is the index of the engine's module among all prepared modules. The strategy's methods ``save_engine`` and ``load_engine`` write and read
the files. The manifest lists the files with their sizes and checksums, like all other files of a checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from accelkit.atomic_file import flush_folder
from accelkit.errors import BrokenPluginError, CheckpointError, UnsupportedError
from accelkit.plugin_calls import call
from accelkit.regular_file import is_regular
from accelkit.runtime.checkpoints import step_dirs
from accelkit.runtime.checkpoints.atomic_io import checksum, disk_error
from accelkit.runtime.checkpoints.coordinator import Blame, Ranks
from accelkit.specs.engine_strategy import EngineStrategy
from accelkit.specs.overrides import overrides
from accelkit.specs.strategy import Strategy


class Engine:
    """A module that an engine strategy has wrapped together with an optimizer. The strategy saves and loads the state of both."""

    def __init__(self, strategy: EngineStrategy, module: torch.nn.Module) -> None:
        self._strategy, self._module = strategy, module

    @property
    def saver(self) -> str:
        """The name of the class that writes and reads the engine's files. See ``saver_of``."""
        return saver_of(self._strategy)

    def save(self, folder: Path) -> None:
        """Write the state of the module and the optimizer into a folder. All processes call this together.

        Raises:
            OSError: If a file cannot be written, for example because the disk is full. This is not the plugin's fault.
            BrokenPluginError: If the strategy's ``save_engine`` fails for another reason (see ``accelkit.plugin_calls.call``).
        """
        try:
            call(self._strategy, "save_engine", self._module, folder)
        except BrokenPluginError as error:
            if (cause := disk_error(error)) is not None:
                raise cause from None
            raise

    def load_state_dict(self, folder: Path) -> None:
        """Restore the state of the module and the optimizer from a folder. All processes call this together.

        Raises:
            BrokenPluginError: If the strategy's ``load_engine`` fails (see ``accelkit.plugin_calls.call``).
        """
        with step_dirs.in_use(folder.parent):
            call(self._strategy, "load_engine", self._module, folder)


def saver_of(strategy: Strategy) -> str:
    """Return the name of the class in which a strategy overrides ``save_engine`` or ``load_engine``.

    Return "" if the strategy has no engines, or overrides neither method and so leaves saving to the Runtime.
    """
    if not isinstance(strategy, EngineStrategy) or not overrides(strategy, EngineStrategy, "save_engine", "load_engine"):
        return ""
    return next(cls.__qualname__ for cls in type(strategy).__mro__ if vars(cls).keys() & {"save_engine", "load_engine"})


def refuse_background(strategy: Strategy) -> None:
    """Raise an UnsupportedError which says that ``strategy`` cannot save in the background.

    This function does not check anything. Call it only for a strategy that saves its engines itself (``saver_of`` does not return "").
    """
    raise UnsupportedError(
        f"strategy {strategy.name!r} does not support save_state(is_async=True)",
        plugin=strategy.plugin,
        why="its engine writes its own state, which cannot be copied to main memory first",
        hint="leave is_async out",
    )


def check_saver(step: Path, saved: str, strategy: Strategy) -> None:
    """Check that the strategy of this job can read the models and optimizers of a checkpoint.

    Args:
        step: The folder of the checkpoint.
        saved: The result of ``saver_of`` in the job that saved the checkpoint.
        strategy: The strategy of this job.

    Raises:
        CheckpointError: If ``saved`` is not the result of ``saver_of`` for the strategy of this job.
    """
    current = saver_of(strategy)
    if saved == current:
        return
    here = f"strategy {strategy.name!r}"
    if not current:
        why = f"its models and optimizers are in files that only {saved} can read"
    elif not saved:
        why = f"{here} loads models and optimizers only from files that {current} wrote, and the checkpoint has no such files"
    else:
        why = f"its models and optimizers are in files that {saved} wrote, and {here} reads only those of {current}"
    raise CheckpointError(
        f"{step} cannot be loaded under {here}",
        why=why,
        hint="use the strategy that saved it. To reuse only the weights, export them with that strategy: rt.save_model(model, folder), and "
        "load them into the model before rt.prepare: safetensors.torch.load_model(model, 'folder/model.safetensors')",
    )


def write(step: Path, engines: Mapping[str, Engine], ranks: Ranks, blame: Blame) -> dict[str, dict[str, int]]:
    """Write the files of all engines. All processes of ``ranks`` must call this together.

    The files and their folders are on disk when this function returns, but the entries in ``step`` itself are not flushed. Each process
    flushes some of the files and reads them again for their checksums, regardless of which process wrote them.

    Args:
        step: The folder of the checkpoint, which exists.
        engines: The engines, by the name of their folder.
        ranks: The processes that save.
        blame: A function that converts an exception to the error that is raised.

    Returns:
        The size and checksum of each file that this process flushed, by the name of the file relative to ``step``.

    Raises:
        CheckpointError: On every process, if a process fails, or if an engine wrote something that is not a regular file.
    """
    if not engines:  # no other process has engines either, because they are prepared together
        return {}
    for name, engine in engines.items():
        ranks.each(blame, lambda name=name: (step / name).mkdir(exist_ok=True))  # type: ignore[misc]
        ranks.each(blame, lambda name=name, engine=engine: engine.save(step / name))  # type: ignore[misc]
    names = ranks.through_main(blame, lambda: _files(step, engines), _divided)
    return ranks.each(blame, lambda: {name: _flush(step, name) for name in names})


def _files(step: Path, engines: Mapping[str, Engine]) -> list[str]:
    """Return the names of the engines' files that this process sees, relative to ``step``."""
    return [path.relative_to(step).as_posix() for name in engines for path in _walk(step / name)]


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        for path in (Path(root, name) for name in [*names, *(name for name in folders if Path(root, name).is_symlink())]):
            if not is_regular(path):
                raise CheckpointError("a checkpoint could not be saved", why=f"the engine wrote {path}, which is not a regular file")
            yield path


def _divided(lists: list[list[str]]) -> list[list[str]]:
    """Divide all files among the processes, and return a list of file names for each process.

    Each process gets only files that it sees, because a network file system may show a new file late.

    Args:
        lists: For each process, the names of the files that it sees.
    """
    seen, shares = [set(names) for names in lists], [list[str]() for _ in lists]
    for number, name in enumerate(sorted(set().union(*seen))):
        ranks = [rank for rank, names in enumerate(seen) if name in names]
        shares[ranks[number % len(ranks)]].append(name)
    return shares


def _flush(step: Path, name: str) -> dict[str, int]:
    """Flush the file ``step / name`` and its parent folders below ``step`` to disk. Return the size and the CRC-32 of the file."""
    path = step / name
    with path.open("r+b") as file:
        os.fsync(file.fileno())
    folder = path.parent
    while folder != step:
        flush_folder(folder)
        folder = folder.parent
    return checksum(path)


def is_valid_name(name: str, engines: Mapping[str, object]) -> bool:
    """Return whether ``name`` is the path of a file in a folder whose name is a key of ``engines``.

    A path with ``..`` is not valid.
    """
    folder, *parts = name.split("/")
    forbidden = {"", ".", ".."}
    return folder in engines and bool(parts) and not any(part in forbidden or "\\" in part or "\0" in part for part in parts)
