"""What passed and what failed."""

import sys
import time
import traceback


class Report:
    """Counts checks and prints one line for each."""

    def __init__(self):
        self.passed = 0
        self.failures = []
        self._started = time.monotonic()

    def check(self, name, body):
        """Runs `body`, which raises if the promise `name` is broken; what it returns is printed."""
        try:
            detail = body()
        except Exception as error:
            self.fail(name, error)
            return False
        self.passed += 1
        self._print("ok  ", name, detail)
        return True

    def fail(self, name, error):
        """Counts a failure; the trace goes to standard error, for whoever looks for the cause."""
        self.failures.append((name, error))
        self._print("FAIL", name, error)
        traceback.print_exception(error, file=sys.stderr)

    def _print(self, verdict, name, detail):
        elapsed = time.monotonic() - self._started
        suffix = f"  [{detail}]" if detail else ""
        print(f"{elapsed:6.1f} s  {verdict}  {name}{suffix}", flush=True)

    def finish(self):
        """Prints what failed and why, then the closing line, and returns the exit code."""
        for name, error in self.failures:
            print(f"failed: {name}  [{error}]")
        print(f"{self.passed} passed, {len(self.failures)} failed", flush=True)
        return 1 if self.failures or self.passed == 0 else 0
