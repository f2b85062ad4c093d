"""Checks the answers before any file is written. Cookiecutter runs this file; ``accelkit new`` calls ``objections``.

It needs only Python, because users of plain cookiecutter may not have accelkit. A test compares RESERVED with accelkit's names.
"""

import importlib.metadata
import json
import re
import sys

COMPONENTS = ("accelerator", "backend", "precision", "cluster", "strategy", "hooks")
LICENCES = ("Apache-2.0", "BSD-3-Clause", "MIT", "LicenseRef-Proprietary")
RESERVED = (
    *("auto", "gpu", "tpu", "torch", "cpu", "cuda", "mps", "xla"),
    *("32-true", "64-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed", "fp8"),
    *("transformer-engine", "transformer-engine-float16", "bitsandbytes-4bit", "bitsandbytes-8bit"),
    *("torchelastic", "slurm", "lsf", "kubeflow", "mpi", "ray", "local"),
    *("single_device", "ddp", "fsdp", "parallel", "deepspeed"),
)
TAKEN_PACKAGES = {"accelkit", "accelkit_builtin", "accelkit_conformance", "accelkit_fake_xpu", "torch", *sys.stdlib_module_names}
TORCHS_DEVICES = (
    *("cpu", "cuda", "ipu", "xpu", "mkldnn", "opengl", "opencl", "ideep", "hip", "ve", "fpga", "maia", "xla", "lazy", "vulkan"),
    *("mps", "meta", "hpu", "mtia", "privateuseone"),
)
_TEXT = re.compile(r"\w[\w .,&'()+-]*")
_DISTRIBUTION = re.compile(r"[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_EMAIL = re.compile(r"[\w.+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", re.ASCII)
LONGEST = {"vendor": 40, "distribution": 50, "accelerator": 30, "torch_device": 70, "author": 60, "email": 80}
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")


def objections(answers):
    """Return a line for each invalid answer, with the answer and what is expected."""
    checks = {
        "vendor": _vendor, "distribution": _distribution, "accelerator": _accelerator, "torch_device": _torch_device,
        "components": _components, "author": _author, "email": _email, "licence": _licence, "oldest_accelkit": _oldest_accelkit,
    }  # fmt: skip
    found = {name: _length(name, answers) or check(str(answers[name]), answers) for name, check in checks.items()}
    return [f"{name}={str(answers[name])!r:.80}: {problem}" for name, problem in found.items() if problem]


def _length(name, answers):
    longest = LONGEST.get(name, 1000)
    return f"it must have at most {longest} characters" if len(str(answers[name])) > longest else ""


def _vendor(answer, answers):
    return "" if _TEXT.fullmatch(answer) else "it must consist of letters, digits, spaces and . , & ' ( ) + -"


def _distribution(answer, answers):
    if not _DISTRIBUTION.fullmatch(answer):
        return "it must consist of letters and digits, with - _ . between them, as in accelkit-acme"
    package = re.sub(r"[-.]", "_", answer.lower())
    if package in TAKEN_PACKAGES:
        return f"its package would have the name {package}, which is taken; use accelkit-{answer.lower()}, for example"
    return ""


def _accelerator(answer, answers):
    if not _NAME.fullmatch(answer):
        return "it must start with a lower-case letter and consist of lower-case letters, digits and _, as in acme"
    if answer in RESERVED:
        return f"the name {answer} is reserved for accelkit"
    return ""


def _torch_device(answer, answers):
    package, colon, device_type = answer.partition(":")
    if not (colon and _MODULE.fullmatch(package) and _NAME.fullmatch(device_type)):
        return "it must have the form PACKAGE:TYPE, as in torch:cpu, torch_acme:acme or torch_xla:xla"
    if device_type == "xla" and package == "torch":
        return "torch itself does not have the device type xla; specify the package that adds it, as in torch_xla:xla"
    if package.partition(".")[0] == re.sub(r"[-.]", "_", str(answers["distribution"]).lower()):
        return "this is the package of the plugin, which does not exist yet; specify the package that adds the device to torch"
    return ""


def _components(answer, answers):
    chosen = [one.strip() for one in answer.split(",")]
    unknown = [one for one in chosen if one not in COMPONENTS]
    if unknown:
        what = f"unknown component{'s' * (len(unknown) > 1)} {', '.join(map(repr, unknown))}"
        return f"{what}; use {', '.join(COMPONENTS)}, separated by commas"
    if "backend" in chosen:
        if "accelerator" not in chosen:
            return "the component backend needs the component accelerator, which selects the device"
        if str(answers["accelerator"]) in TORCHS_DEVICES:
            return f"the component backend adds the device type {answers['accelerator']} to torch, which has one of that name already"
        if str(answers["torch_device"]) != "torch:cpu":
            return "with the component backend, the package itself adds the device to torch; leave torch_device out"
    return "" if len(set(chosen)) == len(chosen) else "a component is given twice"


def _author(answer, answers):
    return "" if _TEXT.fullmatch(answer) else "it must consist of letters, digits, spaces and . , & ' ( ) + -"


def _email(answer, answers):
    return "" if _EMAIL.fullmatch(answer) else "it must be an e-mail address, as in opensource@acme.example"


def _licence(answer, answers):
    return "" if answer in LICENCES else f"it must be one of {', '.join(LICENCES)} (SPDX identifiers)"


def _oldest_accelkit(answer, answers):
    if not _VERSION.fullmatch(answer):
        return "it must be a version, as in 0.1"
    try:
        installed = importlib.metadata.version("accelkit")
    except importlib.metadata.PackageNotFoundError:
        return ""  # there is no version to compare it with
    release = _VERSION.match(installed)
    if release and _parts(answer) > _parts(release[0]):
        return f"it is newer than the installed accelkit {installed}, so the package could not be tested"
    return ""


def _parts(version):
    numbers = [int(part) for part in version.split(".")]
    return numbers + [0] * (8 - len(numbers))


if __name__ == "__main__":
    problems = objections(json.loads(r'{{ cookiecutter | tojson }}'))  # fmt: skip
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    sys.exit(1 if problems else 0)
