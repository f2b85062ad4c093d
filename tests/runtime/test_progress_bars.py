"""Progress bars, drawn in a real terminal."""

from __future__ import annotations

import os
import pty
import re
import threading
from pathlib import Path

import preloaded
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

PROGRAM = Path(__file__).with_name("progress_program.py")


class Terminal:
    """A terminal that keeps what is written to it. Use as a context manager; ``text`` is complete after it."""

    def __enter__(self):
        self._screen, keyboard_and_screen = pty.openpty()
        self.file = os.fdopen(keyboard_and_screen, "w")
        self.text = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def _read(self):
        try:
            while data := os.read(self._screen, 4096):
                self.text += data.decode()
        except OSError:  # Linux ends the output of a terminal that nobody holds open with an error
            pass

    def __exit__(self, *_):
        self.file.close()
        self._reader.join()
        os.close(self._screen)
        self.text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text)


def test_bars_in_a_terminal(tmp_path):
    with Terminal() as terminal, (tmp_path / "out").open("w+") as out:
        environ = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm", "COLUMNS": "80"}
        process = preloaded.Process([str(PROGRAM)], environ, out, terminal.file, modules=())
        code = process.wait(100)
        out.seek(0)
        printed = out.read()
    assert code == 0, terminal.text
    assert printed == "batch 6.0\nbatch 22.0\n" * 3, "what the program prints goes where it went before"
    # What other libraries print when the interpreter ends, as triton 3.9 does, is no bar.
    last = [line for line in re.split(r"[\r\n]+", terminal.text) if line.startswith(("epoch", "unknown"))]
    epochs = [line for line in last if line.startswith("epochs")]
    assert re.search(r" 3/3 ", epochs[-1])
    assert any(re.match(r"epoch \[2\] .* [01]/2 ", line) for line in last), "the inner bar"
    assert last.index(epochs[-1]) > max(index for index, line in enumerate(last) if line.startswith("epoch [")), "which is removed"
    assert re.search(r"unknown .* 4/4 ", last[-1])


def test_without_a_terminal_nothing_is_drawn(rt, capsys):
    loader = rt.prepare(DataLoader(torch.arange(4.0), batch_size=2))
    bar = rt.progress(loader, "epoch 0")
    assert [batch.tolist() for batch in bar] == [[0.0, 1.0], [2.0, 3.0]]
    assert len(bar) == 2
    assert capsys.readouterr() == ("", "")


def test_a_loader_without_a_length(rt):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    bar = rt.progress(DataLoader(Stream()))
    assert [int(batch) for batch in bar] == [0, 1, 2]
    with pytest.raises(TypeError):
        len(bar)
