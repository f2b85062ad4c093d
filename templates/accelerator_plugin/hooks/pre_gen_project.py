"""What is wrong with the answers, before a file is written. Cookiecutter runs it; ``accelkit new`` asks ``objections``.

Needs nothing but Python: whoever bakes with plain cookiecutter may not have accelkit. A test holds RESERVED against accelkit's own names.
"""

import importlib.metadata
import json
import re
import sys

FACETS = ("accelerator", "precision", "cluster", "strategy")
LICENCES = ("Apache-2.0", "BSD-3-Clause", "MIT", "LicenseRef-Proprietary")
RESERVED = (
    *("auto", "gpu", "tpu", "torch", "cpu", "cuda", "mps", "xla"),
    *("32-true", "64-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed", "fp8"),
    *("transformer-engine", "transformer-engine-float16", "bitsandbytes-4bit", "bitsandbytes-8bit"),
    *("torchelastic", "slurm", "lsf", "kubeflow", "mpi", "ray", "local"),
    *("single_device", "ddp", "fsdp", "deepspeed"),
)
TAKEN_PACKAGES = {"accelkit", "accelkit_builtin", "accelkit_conformance", "accelkit_fake_xpu", "torch", *sys.stdlib_module_names}
_TEXT = re.compile(r"\w[\w .,&'()+-]*")
_DISTRIBUTION = re.compile(r"[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_EMAIL = re.compile(r"[\w.+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", re.ASCII)
LONGEST = {"vendor": 40, "distribution": 50, "accelerator": 30, "torch_device": 70, "author": 60, "email": 80}
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")


def objections(answers):
    """A line for each answer that cannot be used: what was said, and what is expected."""
    checks = {
        "vendor": _vendor, "distribution": _distribution, "accelerator": _accelerator, "torch_device": _torch_device, "facets": _facets,
        "author": _author, "email": _email, "licence": _licence, "oldest_accelkit": _oldest_accelkit,
    }  # fmt: skip
    found = {name: _length(name, answers) or check(str(answers[name]), answers) for name, check in checks.items()}
    return [f"{name}={str(answers[name])!r:.80}: {problem}" for name, problem in found.items() if problem]


def _length(name, answers):
    longest = LONGEST.get(name, 1000)
    return f"at most {longest} characters are expected" if len(str(answers[name])) > longest else ""


def _vendor(said, answers):
    return "" if _TEXT.fullmatch(said) else "a name of letters, digits, spaces and . , & ' ( ) + - is expected"


def _distribution(said, answers):
    if not _DISTRIBUTION.fullmatch(said):
        return "letters, digits, and - _ . between them are expected, as in accelkit-acme"
    package = re.sub(r"[-.]", "_", said.lower())
    if package in TAKEN_PACKAGES:
        return f"its package would be named {package}, which is another's; accelkit-{said.lower()} would do"
    return ""


def _accelerator(said, answers):
    if not _NAME.fullmatch(said):
        return "lower-case letters, digits and _ are expected, a letter first, as in acme"
    if said in RESERVED:
        return f"{said} is a name of accelkit's own, which no plugin may take"
    return ""


def _torch_device(said, answers):
    package, colon, device_type = said.partition(":")
    if not (colon and _MODULE.fullmatch(package) and _NAME.fullmatch(device_type)):
        return "PACKAGE:TYPE is expected, as torch:cpu, torch_acme:acme or torch_xla:xla"
    if device_type == "xla" and package == "torch":
        return "the device type xla is not torch's own; name the package that adds it, as torch_xla:xla"
    if package.partition(".")[0] == re.sub(r"[-.]", "_", str(answers["distribution"]).lower()):
        return "this is the plugin's own package, which does not exist yet; name the one that adds the device to torch"
    return ""


def _facets(said, answers):
    chosen = [one.strip() for one in said.split(",")]
    unknown = [one for one in chosen if one not in FACETS]
    if unknown:
        return f"{', '.join(map(repr, unknown))} is none of {', '.join(FACETS)}; several are separated by commas"
    return "" if len(set(chosen)) == len(chosen) else "one of them stands there twice"


def _author(said, answers):
    return "" if _TEXT.fullmatch(said) else "a name of letters, digits, spaces and . , & ' ( ) + - is expected"


def _email(said, answers):
    return "" if _EMAIL.fullmatch(said) else "an address is expected, as in opensource@acme.example"


def _licence(said, answers):
    return "" if said in LICENCES else f"one of {', '.join(LICENCES)} is expected (SPDX)"


def _oldest_accelkit(said, answers):
    if not _VERSION.fullmatch(said):
        return "a version is expected, as in 0.1"
    try:
        installed = importlib.metadata.version("accelkit")
    except importlib.metadata.PackageNotFoundError:
        return ""  # nothing to compare it with
    release = _VERSION.match(installed)
    if release and _parts(said) > _parts(release[0]):
        return f"it is newer than the accelkit that is installed ({installed}), with which the package could not be tested"
    return ""


def _parts(version):
    numbers = [int(part) for part in version.split(".")]
    return numbers + [0] * (8 - len(numbers))


if __name__ == "__main__":
    problems = objections(json.loads(r'{{ cookiecutter | tojson }}'))  # fmt: skip
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    sys.exit(1 if problems else 0)
