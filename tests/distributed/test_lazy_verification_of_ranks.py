"""``load_state(verify="lazy")`` in a job: each process verifies what it reads, and damage that one process finds ends them all."""

from __future__ import annotations

import ranks
from damaged_files import invert_byte


def test_no_process_uses_a_damaged_tensor(tmp_path):
    helpers = {"PYTHONPATH": str(ranks.HERE.parent)}
    ranks.run("lazy_verification_program.py", 2, str(tmp_path), environ=helpers, seconds=150)


def test_a_part_that_no_process_reads_is_verified(tmp_path):
    ranks.run("unread_part_program.py", 3, str(tmp_path), "save")
    invert_byte(tmp_path / "step-0/data/__2_0.distcp", 100)
    ranks.run("unread_part_program.py", 2, str(tmp_path), "load")
