"""A hook plugin works together with other hook plugins. The plugin's wrappers call each wrapped hook once, and pass on the hook's results
and errors. If another plugin fails, the error names that plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelkit_conformance.checks import check
from accelkit_conformance.oracle.hook_calls import SECOND_PLUGIN, HookCalls, inner_result

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


@check("smoke", needs_hardware=False, kind="hooks")
def wrappers_pass_results_on(subject: Subject) -> None:
    """A hook wrapper returns a result of the same type as the result of the wrapped hook. If the result of the wrapped hook is a list, the
    wrapper returns at least as many items. If a wrapper did not pass results on, the results of other plugins, such as a precision or
    device statistics, would be lost."""
    calls = HookCalls(subject)
    for hook in calls.wrapped():
        inner = inner_result(hook)
        found = calls.call_around(hook, lambda inner=inner: inner)
        if calls.is_first_result(hook):
            assert inner is None or isinstance(found, type(inner)), (
                f"the wrapper of {hook} returned {found!r:.60} instead of the wrapped hook's result {inner!r:.60}: "
                "return the result of yield"
            )
        else:
            is_right = isinstance(found, list) and len(found) >= (inner is not None)
            assert is_right, f"the wrapper of {hook} returned {found!r:.60} instead of the list of results: return the result of yield"


@check("smoke", needs_hardware=False, kind="hooks")
def wrappers_pass_errors_on(subject: Subject) -> None:
    """If a hook that the plugin wraps raises an error, the wrapper passes the error on. If the plugin caught the error, a program would go
    on with a device that could not be set up."""
    calls = HookCalls(subject)

    def fail() -> object:
        raise RuntimeError("the wrapped hook fails")

    for hook in calls.wrapped():
        try:
            found = calls.call_around(hook, fail)
        except RuntimeError as error:
            assert "the wrapped hook fails" in str(error), f"the wrapper of {hook} replaced the error by {error}"  # noqa: PT017
        else:
            raise AssertionError(f"the wrapper of {hook} swallowed the error of the wrapped hook and returned {found!r:.60}")


@check("smoke", needs_hardware=False, kind="hooks")
def wrapped_hooks_are_called_once(subject: Subject) -> None:
    """Each hook wrapper that the plugin implements calls the wrapped hook exactly once."""
    calls = HookCalls(subject)
    for hook in calls.wrapped():
        count: list[int] = []
        calls.call_around(hook, lambda count=count, hook=hook: count.append(1) or inner_result(hook))
        assert len(count) == 1, f"the wrapper of {hook} called the wrapped hook {len(count)} times"


@check("smoke", needs_hardware=False, kind="hooks")
def errors_name_the_hook_plugin_that_failed(subject: Subject) -> None:
    """If a hook fails because of another hook plugin, the error names the hook and that plugin, but not the plugin under test."""
    from accelkit import HookError

    calls = HookCalls(subject)
    for hook in calls.implemented(("runtime_created", "checkpoint_saved", "checkpoint_loaded", "setup_device", "teardown")):
        try:
            calls.call_with_failing_plugin(hook)
        except HookError as error:
            what, named = error.what, error.plugin or "no plugin"
            assert hook in what, f"the error of {hook} does not name the hook: {what}"
            assert named == SECOND_PLUGIN, f"another plugin's failing {hook} is blamed on {named}"
        else:
            raise AssertionError(f"with the plugin, the error of another plugin's {hook} is lost")
