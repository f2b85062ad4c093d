"""What a plugin cannot do while it is confined."""

import os
import signal
import socket
import subprocess
import threading

import pytest

from accelkit_conformance.oracle.confinement import confined

LOCAL = "127.0.0.1"


@pytest.mark.parametrize(
    ("attempt", "call"),
    [
        ("connect to a service", lambda: socket.create_connection((LOCAL, 9))),
        ("connect to a service", lambda: socket.gethostbyname("localhost")),
        ("connect to a service", lambda: socket.gethostbyaddr(LOCAL)),
        ("connect to a service", lambda: socket.getnameinfo((LOCAL, 9), 0)),
        ("send a signal to a process", lambda: os.kill(os.getpid(), 0)),
        ("send a signal to a process", lambda: signal.pthread_kill(threading.get_ident(), 0)),
        ("start ls", lambda: subprocess.run(["ls"], check=False)),
    ],
)
def test_a_confined_plugin_reaches_nothing(attempt, call):
    with confined() as attempts, pytest.raises(OSError, match="refused|not permitted|No such file"):
        call()
    assert attempts == [attempt]


def test_a_confined_plugin_does_not_ask_for_the_name_of_its_machine():
    with confined() as attempts:
        assert socket.getfqdn() == socket.gethostname()
    assert attempts == ["connect to a service"]
