"""Run single tests of the conformance suite in a worker process."""


def results_of(executor, *tests):
    try:
        return {test: executor.run(test) for test in tests}
    finally:
        executor.close()
