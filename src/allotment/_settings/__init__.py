"""Settings: the record, the text that asks for it, the environment, and PyTorch's form of it.

| Module | What it is |
|---|---|
| `sizes` | sizes as text |
| `grammar` | the form of a settings string |
| `values` | the kinds of values |
| `keys` | what is known about a key |
| `parser` | one parser, strict or lenient |
| `pytorch_form` | settings as a PyTorch snapshot states them |
| `record` | `Settings`, whose fields are the table of all keys |
| `environment` | settings from environment variables |
"""

from allotment._settings.environment import (
    from_environment,
    monitor_requested,
    pytorch_caching_disabled,
    pytorch_environment,
)
from allotment._settings.record import (
    DEFAULTS,
    KEYS,
    RUNTIME_CHANGEABLE,
    Settings,
    parse_leniently,
    settings_of,
    settings_stated,
)
from allotment._settings.sizes import UNLIMITED, parse_size, shortest_size

__all__ = [
    "DEFAULTS",
    "KEYS",
    "RUNTIME_CHANGEABLE",
    "UNLIMITED",
    "Settings",
    "from_environment",
    "monitor_requested",
    "parse_leniently",
    "parse_size",
    "pytorch_caching_disabled",
    "pytorch_environment",
    "settings_of",
    "settings_stated",
    "shortest_size",
]
