"""Load checkpoints. The module ``checkpoint`` describes the files of a checkpoint.

``load`` and ``load_with_source`` verify everything before they return. ``load_unverified`` may return while some tensors are still
unverified; each of these tensors is verified before its values are used.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from pickle import PickleError
from typing import Any

from accelkit.errors import CheckpointError
from accelkit.runtime.checkpoints import dcp_metadata, step_dirs
from accelkit.runtime.checkpoints.atomic_io import BLOCK
from accelkit.runtime.checkpoints.block_verification import BlockVerification
from accelkit.runtime.checkpoints.coordinator import Ranks
from accelkit.runtime.checkpoints.dcp_io import Layout, TensorReader, no_layout
from accelkit.runtime.checkpoints.index import Index
from accelkit.runtime.checkpoints.manifest import DATA, check_contents, check_sizes, damaged, data_files, read_manifest
from accelkit.runtime.checkpoints.state_codec import decode, keys_only_of, references
from accelkit.runtime.checkpoints.step_dirs import MANIFEST, find
from accelkit.runtime.checkpoints.unverified_tensors import UnverifiedTensors

CheckJob = Callable[[Path, Mapping[str, Any]], None]


def accept_any(step: Path, manifest: Mapping[str, Any]) -> None:
    """Accept every checkpoint, whichever job saved it. This function does nothing."""


def load(path: Path, *, layout: Layout = no_layout, ranks: Ranks | None = None) -> dict[str, Any]:
    """Like ``load_with_source``, but return only the checkpoint's parts, without the step's folder."""
    return load_with_source(path, layout=layout, ranks=ranks)[1]


def load_with_source(
    path: Path,
    *,
    layout: Layout = no_layout,
    ranks: Ranks | None = None,
    check_job: CheckJob = accept_any,
    copied: tuple[str, ...] = (),
) -> tuple[Path, dict[str, Any]]:
    """Load a checkpoint and verify every byte of it. Return the step's folder and its parts.

    All processes of ``ranks`` must call this together. Each of them verifies some of the files.

    Args:
        path: A step, or the folder that holds the steps. ``step_dirs.find`` chooses the step.
        layout: A function that takes the path (``model_0.layer.weight``) and the global size of a tensor. If it returns a DTensor, the
            tensor gets the layout of the DTensor, and only this process's shard is read. If it returns None, the whole tensor is read
            into main memory.
        ranks: The processes that load. The default is this process alone. The number of processes may differ from the number that saved the
            checkpoint.
        check_job: A function that raises CheckpointError if this job cannot load what was saved. It is called before anything is
            verified, with the step's folder and the manifest.
        copied: The kinds of parts whose tensors the caller copies, as ``mapped_tensors.copied_kinds`` returns them. If possible, these
            tensors are mapped tensors, which take no main memory.

    Returns:
        The step's folder, and the parts: state dicts by name. A part that each process saved separately is a dict with one item. The value
        of the item is the state of one of the saving processes: if possible, of a process whose share of the samples was the one that the
        loading process has now. The key of the item is the index of the saving process's share (usually its rank). The part of an engine
        (``engine_0``) is the folder of its files.

    Raises:
        CheckpointError: On every process, if there is no checkpoint, or if the checkpoint is damaged (the error names the file) or was
            written by a newer accelkit.
    """
    ranks, blame = ranks or Ranks(), _blame(path)
    with _opened(path, ranks, check_job) as (step, manifest):
        parts: dict[str, Any] = {}
        errors: list[Exception] = []
        with _verifying(step, manifest, _share(manifest, ranks)) as verifying:
            try:
                parts = _read(step, manifest, _reader(step, manifest, ranks), ranks, copied, layout=layout)
            except Exception as error:  # raised below, unless a damaged file explains it
                errors.append(error)
            try:
                ranks.each(blame, lambda: _raise_first(verifying.result()))
            except BaseException:
                errors.clear()
                raise
        ranks.each(blame, lambda: _raise_first(errors))
        return step, parts | {name: step / name for name in manifest["engines"]}


def load_unverified(
    path: Path, *, ranks: Ranks, check_job: CheckJob = accept_any, copied: tuple[str, ...] = ()
) -> tuple[Path, dict[str, Any], UnverifiedTensors | None]:
    """Load a checkpoint of models that are not sharded, without waiting until the tensors of models and optimizers are verified.

    All processes of ``ranks`` must call this together. The returned ``UnverifiedTensors`` object verifies the rest of the checkpoint
    later. Each process verifies the blocks that it has read, and some of the other blocks. For the arguments, see ``load_with_source``.

    Returns:
        The step's folder and its parts, like ``load_with_source``, and the tensors that have not been verified. If the checkpoint has no
        checksums of blocks, or if the operating system is Windows, this function verifies whole files, and the last item is None.

    Raises:
        CheckpointError: In the same cases as ``load_with_source``. Damage to blocks that are verified later is reported later, by the
            ``UnverifiedTensors`` object.
    """
    with _opened(path, ranks, check_job) as (step, manifest):
        if _has_blocks(manifest) and hasattr(os, "preadv"):
            parts, unverified = ranks.each(_blame(path), lambda: _read_unverified(step, manifest, ranks, copied))
            return step, parts, unverified
    return *load_with_source(path, ranks=ranks, check_job=check_job, copied=copied), None


def _blame(path: Path) -> Callable[[Exception], CheckpointError]:
    what = f"the checkpoint {path} could not be loaded"
    return lambda error: CheckpointError(what, why=f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def _opened(path: Path, ranks: Ranks, check_job: CheckJob) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the folder of the step to load and its manifest, once every process has read and checked the manifest.

    Until the end of the ``with`` block, rank 0 holds a lock on the step for all processes.

    Raises:
        CheckpointError: On every process, if there is no step, or if a process cannot see the step or finds that it cannot load the step.
    """
    blame = _blame(path)
    with contextlib.ExitStack() as stack:
        name, main_path = ranks.from_main(blame, lambda: (str(_find_and_hold(path, stack).relative_to(path)), str(path.absolute())))
        yield path / name, ranks.each(blame, lambda: _check(path, name, Path(main_path), ranks, check_job))


def _find_and_hold(path: Path, stack: contextlib.ExitStack) -> Path:
    step = find(path)
    stack.enter_context(step_dirs.in_use(step))
    return step if step.exists() else _find_and_hold(path, stack)  # if the step has just been removed, there is a newer one


def _check(path: Path, name: str, main_path: Path, ranks: Ranks, check_job: CheckJob) -> dict[str, Any]:
    """Return the manifest of the step ``path / name``, which rank 0 has found in ``main_path``, once this process has checked it."""
    step = path / name
    if not step.exists():
        step_dirs.check_same_folder(path, main_path, ranks.rank)
        hint = "load from a folder that all machines of the job share"
        raise CheckpointError(f"this process cannot see the checkpoint {step}", why="only rank 0 can see it", hint=hint)
    manifest = read_manifest(step)
    check_job(step, manifest)
    check_sizes(step, _share(manifest, ranks))
    index = f"{DATA}/{dcp_metadata.NAME}"
    if index in manifest["files"]:  # the index is verified before it is read, because it determines how much memory is allocated
        check_contents(step, manifest, [index])
    return manifest


def _share(manifest: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Return the entries of the manifest's dict ``files`` for the files that this process verifies."""
    return dict(sorted(manifest["files"].items())[ranks.rank :: ranks.size])


@contextlib.contextmanager
def _verifying(step: Path, manifest: dict[str, Any], names: Iterable[str]) -> Iterator[Future[list[Exception]]]:
    """Verify files in a thread while the ``with`` block reads them for loading.

    Because of the page cache, the disk is read only once. The result of the yielded future is a list that contains the error, or an empty
    list if there was no error. If the verification has not finished when the block ends, it stops and reports no damage.
    """
    is_left = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="accelkit_checkpoint") as pool:
        try:
            yield pool.submit(_errors_of, lambda: check_contents(step, manifest, names, lambda: not is_left.is_set()))
        finally:
            is_left.set()


def _errors_of(work: Callable[[], None]) -> list[Exception]:
    try:
        work()
    except Exception as error:
        return [error]
    return []


def _raise_first(errors: list[Exception]) -> None:
    """If the list contains an error, remove the error from the list and raise it.

    Frames of the error's traceback refer to the list. If the list kept the error, this reference cycle would keep tensors in memory.
    """
    if errors:
        raise errors.pop()


def _has_blocks(manifest: dict[str, Any]) -> bool:
    files, blocks = manifest["files"], manifest.get("blocks", {})
    return all(len(blocks.get(name, ())) == _num_blocks(files[name]["bytes"]) for name in files if name != f"{DATA}/{dcp_metadata.NAME}")


def _num_blocks(num_bytes: int) -> int:
    return -(-num_bytes // BLOCK)


def _read_unverified(
    step: Path, manifest: dict[str, Any], ranks: Ranks, copied: tuple[str, ...]
) -> tuple[dict[str, Any], UnverifiedTensors]:
    check_sizes(step, manifest["files"])
    reader = _reader(step, manifest, ranks)
    blocks_of: dict[str, list[tuple[str, int]]] = {}
    for key, file, offset, length in reader.places():
        name = f"{DATA}/{file}"
        end = min(offset + length, manifest["files"][name]["bytes"])
        blocks_of.setdefault(key, []).extend((name, index) for index in range(offset // BLOCK, _num_blocks(end)))
    parts = manifest["structure"]
    keys = [key for name in manifest["objects"] for _, key in references(parts[name], name)]
    own = f"rank_{ranks.source_of_own_state(manifest['world_size'], manifest.get('data_parallel_size'))[1]}"
    keys += [key for key in blocks_of if key == own or key.startswith(f"{own}.")]
    wanted = [block for key in keys for block in blocks_of.get(key, ())]
    every = sorted((name, index) for name, sums in manifest["blocks"].items() for index in range(len(sums)))
    order = [*wanted, *every[ranks.rank :: ranks.size]]  # the processes together verify every block
    unverified = UnverifiedTensors(BlockVerification(step, {name: manifest[name] for name in ("files", "blocks")}, blocks_of, order))
    try:
        return _read(step, manifest, reader, ranks, copied, unverified=unverified), unverified
    except Exception:
        unverified.wait_for_all()  # damage explains any other error
        raise


def _reader(step: Path, manifest: dict[str, Any], ranks: Ranks) -> TensorReader:
    names = data_files(manifest)
    folder = step / DATA if names else None
    source = ranks.source_of_own_state(manifest["world_size"], manifest.get("data_parallel_size"))[1]
    try:
        return TensorReader(folder, Index(folder, names, (source, 0), lambda name: check_contents(step, manifest, [f"{DATA}/{name}"])))
    except CheckpointError:
        raise
    except Exception as error:  # a damaged pickle may raise any exception
        raise damaged(step, f"{DATA}/{dcp_metadata.NAME}", f"{type(error).__name__}: {error}") from error


def _read(
    step: Path,
    manifest: dict[str, Any],
    reader: TensorReader,
    ranks: Ranks,
    copied: tuple[str, ...],
    *,
    layout: Layout = no_layout,
    unverified: UnverifiedTensors | None = None,
) -> dict[str, Any]:
    """Return the parts of a checkpoint.

    If ``unverified`` is given, tensors that only models and optimizers use are loaded without verification and added to ``unverified``;
    every other tensor is verified before it is loaded. If ``unverified`` is None, the caller has to verify the tensors.
    """

    def read(wanted: list[tuple[str, str]], layout: Layout) -> None:
        if unverified is not None:
            for key in dict.fromkeys(key for _, key in wanted if key not in deferred):
                unverified.wait(key)
        reader.read(wanted, layout, mapped=mapped)
        if unverified is not None:
            for path, key in wanted:
                if key in deferred:
                    unverified.mark(reader.get(path, key, layout), key)

    def tensors_of(structure: Any, path: str, layout: Layout) -> Any:
        read(list(references(structure, path)), layout)
        return decode(structure, lambda where, key: reader.get(where, key, layout), path)

    try:
        whole = {name: manifest["structure"][name] for name in manifest["objects"]}
        mapped, deferred = keys_only_of(copied, whole), keys_only_of(("model_", "optimizer_"), whole)
        parts = {name: tensors_of(structure, name, layout) for name, structure in whole.items()}
        if manifest["per_rank"]:
            index, source = ranks.source_of_own_state(manifest["world_size"], manifest.get("data_parallel_size"))
            key = f"rank_{source}"
            read([(key, key)], no_layout)
            own_state = json.loads(bytes(reader.get(key, key, no_layout).tolist()))
            parts |= {name: {index: tensors_of(own_state[name], name, no_layout)} for name in manifest["per_rank"]}
    except (PickleError, KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError) as error:
        raise damaged(step, MANIFEST, f"it does not match the data ({type(error).__name__}: {error})") from error
    return parts | {name: {0: parts[name]} for name in manifest["was_of_one"]}
