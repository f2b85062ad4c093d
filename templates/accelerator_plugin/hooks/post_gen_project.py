"""Runs after all files are written: removes the files of components that were not chosen, and records the answers."""

import json
import pathlib
import shutil

FILES = {
    "accelerator": ("src/*/accelerator.py", "src/*/expected_failures.toml", "tests/test_contract.py", "tests/test_probe.py"),
    "backend": (
        *(f"src/*/{name}" for name in ("build.py", "device_module.py", "process_group.py", "torch_backend.py", "csrc")),
        "hatch_build.py",
        "tests/test_backend.py",
    ),
    "precision": ("src/*/precision.py", "tests/test_precision.py"),
    "cluster": ("src/*/cluster.py", "src/*/sample_jobs", "tests/test_cluster.py"),
    "strategy": ("src/*/strategy.py", "tests/test_strategy.py", "tests/training.py"),
    "hooks": ("src/*/hooks.py", "tests/test_hooks.py"),
}
DIRECTORY = "templates/accelerator_plugin"


def clean(components):
    """Remove the files of components that were not chosen, and ``__pycache__`` folders that pip may have created in the template."""
    for component, patterns in FILES.items():
        for path in [path for pattern in patterns for path in pathlib.Path().glob(pattern) if component not in components]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in list(pathlib.Path().rglob("__pycache__")):
        shutil.rmtree(path)


def record(answers):
    """Write ``.cruft.json``, which cruft needs to update the package to a newer template, unless cruft itself writes this file."""
    if "_commit" in answers:
        return
    context = {name: value for name, value in answers.items() if name not in ("_output_dir", "_repo_dir", "_checkout", "_template")}
    state = {
        "template": answers["_accelkit_repository"],
        "commit": f"v{answers['_accelkit_version']}",
        "checkout": None,
        "context": {"cookiecutter": context},
        "directory": DIRECTORY,
    }
    pathlib.Path(".cruft.json").write_text(json.dumps(state, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    answers = json.loads(r'{{ cookiecutter | tojson }}')  # fmt: skip
    clean([component.strip() for component in answers["components"].split(",")])
    record(answers)
