"""Runs accelkit's conformance suite in pytest. Without the device, only tests that need no device are run."""

from accelkit_conformance.pytest_api import conformance

{% if cookiecutter.__has_accelerator %}
test_{{ cookiecutter.accelerator }} = conformance("{{ cookiecutter.accelerator }}", profile="smoke")
{% endif %}
{% if cookiecutter.__has_precision %}
test_{{ cookiecutter.accelerator }}_precision = conformance("{{ cookiecutter.accelerator }}-bf16", kind="precision", profile="smoke")
{% endif %}
{% if cookiecutter.__has_cluster %}
test_{{ cookiecutter.accelerator }}_cluster = conformance("{{ cookiecutter.accelerator }}_cluster", kind="cluster", profile="smoke")
{% endif %}
{% if cookiecutter.__has_strategy %}
test_{{ cookiecutter.accelerator }}_strategy = conformance("{{ cookiecutter.accelerator }}_parallel", kind="strategy", profile="smoke")
{% endif %}
{% if cookiecutter.__has_hooks %}
test_{{ cookiecutter.accelerator }}_hooks = conformance("{{ cookiecutter.accelerator }}_hooks", kind="hooks", profile="smoke")
{% endif %}
