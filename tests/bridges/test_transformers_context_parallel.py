"""Context parallelism with models of the package transformers, which call scaled_dot_product_attention."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "distributed"))
import ranks


@pytest.mark.soak
@pytest.mark.parametrize("accelerator", ["cpu", "fake_xpu"])
def test_gradients_of_models_of_transformers_are_those_of_whole_sequences(accelerator):
    for text in ranks.run("context_program.py", 2, accelerator, "models_of_transformers"):
        assert "done models_of_transformers" in text
