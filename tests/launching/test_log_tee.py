"""Several processes' output on one screen."""

from __future__ import annotations

import io
import time

from accelkit.launching.log_tee import Screen


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
