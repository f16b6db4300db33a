"""Stopping a training where it can be gone on from."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def asked_to_stop(unless: bool = False) -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether Ctrl-C or SIGTERM has come; a second one stops at once.

    Signals are left alone where `unless` is true, and outside the main thread, which alone may handle them.
    """
    asked = False
    if unless or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: it was set by no Python code

    # one that is ignored, as Ctrl-C is in a script's background, stays so
    heard = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in heard}
    try:
        yield lambda: asked
    finally:
        restore()
