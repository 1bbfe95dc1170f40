from logging import getLogger as init_logger  # noqa: F401
