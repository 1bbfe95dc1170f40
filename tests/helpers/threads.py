"""Code that has to run on another thread."""

import threading


def in_a_thread(function):
    """What `function` returns, or the exception it raised."""
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
