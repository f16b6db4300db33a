import os
import signal
import threading

import pytest

from attemper.training.stop import asked_to_stop


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_stops(number):
    before = signal.signal(number, signal.default_int_handler)
    try:
        with asked_to_stop() as stop:
            assert not stop()
            os.kill(os.getpid(), number)
            assert stop()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_signals_are_left_alone_where_they_are_another_s():
    handler = signal.getsignal(signal.SIGINT)
    with asked_to_stop(unless=True) as stop:
        assert signal.getsignal(signal.SIGINT) is handler
        assert not stop()
    found = []

    def elsewhere():
        with asked_to_stop() as stop:
            found.append((stop(), signal.getsignal(signal.SIGINT) is handler))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [(False, True)]


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with asked_to_stop() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert not stop()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
