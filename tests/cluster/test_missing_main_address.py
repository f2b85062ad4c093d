"""Where no variable says where to meet: a warning for each, that names the variable which the environment reads."""

from __future__ import annotations

import warnings

import accelkit
from accelkit.cluster.detection import make_environment

MPICH = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def asked(environment):
    """Where it would meet the others, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (place,) = {(environment.main_address, environment.main_port) for _ in range(3)}
    return place, caught


def test_a_missing_address_is_this_machine_with_one_warning():
    place, caught = asked(make_environment("mpi", MPICH))
    assert place == ("127.0.0.1", 12910)
    assert [str(warning.message) for warning in caught] == [
        "MASTER_ADDR is not set; the cluster environment 'mpi' uses 127.0.0.1, which other machines cannot reach. "
        "Set MASTER_ADDR to the same value in every process of the job.",
        "MASTER_PORT is not set; the cluster environment 'mpi' uses 12910, which another job on rank 0's machine may also use. "
        "Set MASTER_PORT to the same value in every process of the job.",
    ]
    assert {warning.filename for warning in caught} == {__file__}, "the warning points at who asked"


def test_the_warning_names_what_the_environment_reads():
    class Acme(accelkit.ClusterEnvironment):
        """Acme's scheduler has variables of its own."""

        name = "acme"

        @property
        def main_address(self):
            return self.address("ACME_HEAD", "ACME_FIRST_HOST")

        @property
        def main_port(self):
            return self.port("ACME_PORT")

    _, caught = asked(Acme({}))
    said = [str(warning.message) for warning in caught]
    assert [text.partition(" is not set; ")[0] for text in said] == ["ACME_HEAD", "ACME_PORT"]
    assert [text.rpartition(". Set ")[2] for text in said] == [
        f"{name} to the same value in every process of the job." for name in ("ACME_HEAD", "ACME_PORT")
    ]
    assert "MASTER" not in "".join(said)
    assert asked(Acme({"ACME_FIRST_HOST": "h1", "ACME_PORT": "4000"})) == (("h1", 4000), [])
