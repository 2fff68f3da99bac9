"""How far a long run is and how long it will take, for whoever waits."""

import math
import sys
import time

_QUIET_SECONDS = 2.0
_SECONDS_PER_DRAWING = 0.25


def remaining(elapsed, done, total):
    """"17 s", "3 min": what is left, the rest taking as long; "?" at first."""
    if done <= 0:
        return "?"
    left = math.ceil(elapsed * (total - done) / done)
    return f"{left} s" if left < 120 else f"{math.ceil(left / 60)} min"


class ProgressLine:
    """One line on stderr, from the third second on; none without a terminal."""

    def __init__(self, stream=None):
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._start = time.monotonic()
        self._drawn = 0.0
        self._visible = False

    def update(self, what, done, total):
        now = time.monotonic()
        elapsed = now - self._start
        if not self._terminal or elapsed < _QUIET_SECONDS:
            return
        if self._visible and now - self._drawn < _SECONDS_PER_DRAWING:
            return
        percent = 100 * done / total if total else 100
        self._stream.write(f"\r\033[K{what}: {percent:.0f} %, "
                           f"{remaining(elapsed, done, total)} left")
        self._stream.flush()
        self._drawn = now
        self._visible = True

    def clear(self):
        if self._visible:
            self._stream.write("\r\033[K")
            self._stream.flush()
            self._visible = False
