import operator

from allotment._settings import parse_size
from allotment.errors import SettingsError, SizeError


cdef object size_of_any(object given):
    if isinstance(given, str):
        try:
            return parse_size(given)
        except SettingsError as error:      # one function reads the sizes of settings and of requests
            raise SizeError(str(error), given) from None
    if not hasattr(given, "__index__"):
        raise TypeError(f'a size must be an int or text such as "1MiB", not {type(given).__name__}')
    return operator.index(given)
