import functools
import os
import sys
import traceback


def create_new_process_for_each_test(method="fork"):
    def wrap(function):
        @functools.wraps(function)
        def in_child(*arguments, **options):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    function(*arguments, **options)
                except BaseException as error:
                    traceback.print_exc()
                    os.write(write, f"{type(error).__name__}: {error}".encode()[:4000])
                    sys.stderr.flush()
                    os._exit(1)
                os._exit(0)
            os.close(write)
            with os.fdopen(read, "rb") as words:
                found = words.read().decode()
            assert os.waitpid(child, 0)[1] == 0, found or "the child ended"

        return in_child

    return wrap
