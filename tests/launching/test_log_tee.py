"""Several processes' output on one screen."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import time

import pytest

from accelkit.launching.log_tee import Screen, Streams


def test_lines_of_two_processes_are_not_torn():
    out = io.BytesIO()
    screen = Screen(out)
    screen.write(b"a ")
    screen.write_lines(b"one\ntwo", b"[1]: ")
    assert out.getvalue() == b"a ", "rank 0 is shown at once, and its line is waited for"
    screen.write(b"line\nand ")
    assert out.getvalue() == b"a line\n[1]: one\n[1]: two\nand "
    screen.write(b"on\n")
    screen.write_lines(b"three", b"[2]: ")
    assert out.getvalue().endswith(b"and on\n[2]: three\n")


def test_a_line_that_ends_as_in_windows_is_shown():
    out = io.BytesIO()
    Screen(out).write_lines(b"hello\r\n 1%\r 9%\r", b"[1]: ")
    assert out.getvalue() == b"[1]: hello\n[1]:  9%\n"


def test_a_progress_bar_is_not_waited_for_long():
    out = io.BytesIO()
    screen = Screen(out)
    screen.write(b"\r 10%")
    screen.write_lines(b"\r 1%\r 9%", b"[1]: ")
    screen.flush()
    assert out.getvalue() == b"\r 10%"
    time.sleep(0.35)
    screen.flush()
    assert out.getvalue() == b"\r 10%\n[1]:  9%\n"
    screen.write(b"\r 20%")
    screen.write_lines(b"end", b"[1]: ")
    screen.flush(has_to_end=True)
    assert out.getvalue().endswith(b"\r 20%\n[1]: end\n")


def test_a_reader_that_has_gone_stops_nothing():
    out = io.BytesIO()
    screen = Screen(out)
    out.close()
    screen.write(b"more\n")
    screen.write_lines(b"and more", b"[1]: ")


@pytest.mark.smoke
@pytest.mark.parametrize("is_held_open", [False, True])
def test_what_a_process_wrote_last_is_shown_and_kept_without_a_newline(tmp_path, is_held_open):
    """A daemon that a process has left behind may hold its pipe open for ever."""
    out, streams = io.BytesIO(), Streams()
    screen = Screen(out)
    pipes = [os.pipe(), os.pipe()]
    for rank, (reading, _) in enumerate(pipes):
        streams.add(reading, tmp_path / f"{rank}.log", screen, rank)
    streams.start()
    for rank, (_, writing) in enumerate(pipes):
        os.write(writing, b"rank %d\nthe end" % rank)
        if not is_held_open:
            os.close(writing)
    streams.close()
    assert sorted(out.getvalue().splitlines()) == [b"[1]: rank 1", b"[1]: the end", b"rank 0", b"the end"]
    assert [(tmp_path / f"{rank}.log").read_bytes() for rank in (0, 1)] == [b"rank 0\nthe end", b"rank 1\nthe end"]
    if is_held_open:
        with pytest.raises(BrokenPipeError):
            os.write(pipes[0][1], b"nobody reads this")
        for _, writing in pipes:
            os.close(writing)


@pytest.mark.timeout(60)
def test_a_daemon_that_prints_without_end_does_not_keep_the_launcher_from_ending(tmp_path):
    out, streams = io.BytesIO(), Streams()
    reading, writing = os.pipe()
    streams.add(reading, tmp_path / "0.log", Screen(out), 0)
    streams.start()
    with subprocess.Popen(["yes"], stdout=writing) as daemon:
        os.close(writing)
        streams.close()
        assert daemon.wait() == -signal.SIGPIPE  # it could not write any more
    assert out.getvalue().startswith(b"y\ny\n")


def test_a_long_line_that_is_cut_on_the_screen_says_so_and_is_whole_in_the_log_file(tmp_path):
    out, streams = io.BytesIO(), Streams()
    reading, writing = os.pipe()
    streams.add(reading, tmp_path / "1.log", Screen(out), 1)
    streams.start()
    line = b"begin" + b"-" * 200_000 + b"end\n"
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(line + b"short\n")
    streams.close()
    first, second = out.getvalue().splitlines()
    assert first.startswith(b"[1]: [...]---")
    assert first.endswith(b"---end")
    assert second == b"[1]: short"
    assert (tmp_path / "1.log").read_bytes() == line + b"short\n"
