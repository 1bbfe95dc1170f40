"""Runs code on another thread."""

import threading


def in_a_thread(function):
    """Return what `function` returns, or the exception that it raised."""
    answers = []

    def run():
        try:
            answers.append(function())
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return answers[0]
