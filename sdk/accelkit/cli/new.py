"""``accelkit new``: create a complete, tested vendor plugin from the template that comes with accelkit."""

from __future__ import annotations

import difflib
import json
import runpy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from accelkit.cli.output import say
from accelkit.errors import UnavailableError, UsageError

_PACKAGE = Path(__file__).parents[1]
_PLACES = (_PACKAGE / "template", _PACKAGE.parents[1] / "templates" / "accelerator_plugin")  # in a wheel, in a source tree
_NEXT = "cd {folder}; pip install --editable '.[dev]'; pytest"


@click.command("new")
@click.argument("answers", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--no-input", is_flag=True, help="Ask no questions; use the default for every answer that is not given.")
@click.option(
    "--output-dir", type=click.Path(path_type=Path), default=".", metavar="DIR", help="The folder in which to create the package's folder."
)
def command(answers: tuple[str, ...], no_input: bool, output_dir: Path) -> None:
    """Create a plugin package that works immediately, with tests and CI. Asks nine questions, which docs/new-plugin.md explains.

    Pass KEY=VALUE to answer a question in advance; a question that is answered in this way is not asked. The keys are vendor, distribution,
    accelerator, torch_device, components, author, email, licence and oldest_accelkit. Nothing is written unless all answers are valid.
    Prints the path of the new folder.
    """
    template = find_template()
    given = _given(answers, _questions(template))
    context = _context(template, given, no_input=no_input)
    folder = output_dir / str(context["distribution"])
    check(template, context, folder)
    _write(template, context, output_dir)
    click.echo(folder)
    say(f"accelkit new: wrote {sum(path.is_file() for path in folder.rglob('*'))} files. Next: {_NEXT.format(folder=folder)}")


def find_template() -> Path:
    """Return the folder of the template, in an installed accelkit or in a source tree.

    Raises:
        UsageError: If the template is in neither place.
    """
    found = next((place for place in _PLACES if (place / "cookiecutter.json").is_file()), None)
    if found is None:
        raise UsageError(
            "the template for plugins was not found",
            why=f"it is in neither {' nor '.join(map(str, _PLACES))}",
            hint="pip install --force-reinstall --no-deps accelkit",
        )
    return found


def check(template: Path, context: Mapping[str, Any], folder: Path) -> None:
    """Check that the answers in ``context`` follow the template's rules, and that ``folder`` does not exist yet.

    Raises:
        UsageError: If an answer is invalid or the folder exists. The error names each invalid answer and the reason.
    """
    objections: Callable[[Mapping[str, Any]], list[str]] = runpy.run_path(str(template / "hooks" / "pre_gen_project.py"))["objections"]
    if found := objections(context):
        raise UsageError(
            f"{len(found)} answer{'s are' if len(found) > 1 else ' is'} invalid; nothing was written",
            why="\n    ".join(found),
            hint="give another answer with accelkit new KEY=VALUE; docs/new-plugin.md explains the questions",
        )
    if folder.exists():
        raise UsageError(f"{folder} exists already; nothing was written", hint="move it away, or use another --output-dir or distribution=")


def _questions(template: Path) -> list[str]:
    return [name for name in json.loads((template / "cookiecutter.json").read_text("utf-8")) if not name.startswith("_")]


def _given(answers: Sequence[str], questions: Sequence[str]) -> dict[str, str]:
    given = {}
    for answer in answers:
        name, equals, value = answer.partition("=")
        if not equals or name not in questions:
            near = difflib.get_close_matches(name, questions, n=1)
            why = f"did you mean {near[0]}?" if near and equals else f"KEY must be one of {', '.join(questions)}"
            raise UsageError(f"{answer!r:.80} is not an answer to a question", why=why, hint="write KEY=VALUE, for example vendor=Acme")
        given[name] = _without_braces(name, value)
    return given


def _without_braces(name: str, value: str) -> str:
    """Check that ``value``, the answer to the question ``name``, contains no brace, and return ``value``.

    Raises:
        UsageError: If ``value`` contains a brace, because cookiecutter would render the answer as a Jinja template.
    """
    if "{" in value or "}" in value:
        raise UsageError(f"{name}={value!r:.80} is invalid; nothing was written", why="an answer must not contain braces")
    return value


def _context(template: Path, given: Mapping[str, str], *, no_input: bool) -> dict[str, Any]:
    """Return the value of every variable of the template.

    The user is asked for the values that are not in ``given``, and can accept or replace the default of each. The default may depend on the
    earlier answers. If ``no_input`` is True, the user is not asked, and the defaults are used.

    Raises:
        UnavailableError: If cookiecutter is not installed.
        UsageError: If the user enters a value with braces.
    """
    try:
        from cookiecutter.generate import generate_context
        from cookiecutter.prompt import prompt_for_config, read_user_variable
    except ImportError as error:
        hint = "pip install 'accelkit[template]'"
        raise UnavailableError("accelkit new needs the package cookiecutter", why=str(error), hint=hint) from error
    file, answers = template / "cookiecutter.json", dict(given)

    def with_defaults() -> dict[str, Any]:
        return dict(prompt_for_config(generate_context(str(file), extra_context=answers), no_input=True))

    asked = [] if no_input else [question for question in _questions(template) if question not in given]
    texts = json.loads(file.read_text("utf-8"))["__prompts__"]
    for number, question in enumerate(asked, 1):
        answer = read_user_variable(question, with_defaults()[question], texts, f"  [dim][{number}/{len(asked)}][/] ")
        answers[question] = _without_braces(question, answer)
    return with_defaults()


def _write(template: Path, context: Mapping[str, Any], output_dir: Path) -> None:
    from cookiecutter.generate import generate_files

    with tempfile.TemporaryDirectory(prefix="accelkit-new-") as folder:  # cookiecutter leaves behind a file for each hook
        previous, tempfile.tempdir = tempfile.tempdir, folder
        try:
            generate_files(str(template), {"cookiecutter": dict(context)}, str(output_dir))
        except OSError as error:
            raise UsageError(f"the package cannot be written into {output_dir}", why=str(error), hint="use another --output-dir") from error
        finally:
            tempfile.tempdir = previous
