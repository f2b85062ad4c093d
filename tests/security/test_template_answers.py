"""Answers to ``accelkit new`` are data: what looks like a template is refused before anything is rendered."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from accelkit.cli.new import command
from accelkit.errors import UsageError

RUN = "{{ cycler.__init__.__globals__.os.mkdir('ran') }}"


@pytest.mark.parametrize("question", ["vendor", "distribution", "accelerator", "torch_device", "components", "author", "email", "licence"])
@pytest.mark.parametrize("answer", [RUN, "{{", "{{ 1/0 }}", "{% for x in range(10**9) %}{% endfor %}", "{#"])
def test_no_answer_is_rendered(tmp_path, monkeypatch, question, answer, error_text):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, ["--no-input", f"{question}={answer}"])
    assert isinstance(done.exception, UsageError)
    assert question in done.exception.what
    if answer == RUN and question == "author":
        assert done.exception == error_text
    assert not list(tmp_path.iterdir())


def test_an_answer_that_is_typed_is_not_rendered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, [], input=f"{RUN}\n" + "\n" * 8)
    assert isinstance(done.exception, UsageError)
    assert not list(tmp_path.iterdir())
