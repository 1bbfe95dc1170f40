"""Settings: one frozen record, and the only place that reads them from text or from the environment.

A settings string is `key:value,key:value,...`, PyTorch's own form. One parser reads it in one of two modes:

- strict (`parse`), for everything a user of Allotment writes: whatever is not plainly right is refused, and
  the error names the key, the value and what is allowed; nothing is half applied.
- lenient (`parse_leniently`), for strings that were written for PyTorch: read exactly as PyTorch reads them,
  which means unchecked separators, numbers by their leading digits, negative numbers that wrap, and, when the
  string is wrong, everything that stood before the fault.

In both modes some settings return to their default with every string and others stay until named again;
`_Key.sticky` says which.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, NoReturn

from allotment.errors import SettingsError

__all__ = [
    "RUNTIME_CHANGEABLE",
    "UNLIMITED",
    "Settings",
    "from_environment",
    "parse",
    "parse_leniently",
    "parse_size",
    "pytorch_caching_disabled",
    "pytorch_environment",
    "settings_of",
]

UNLIMITED = 2**64 - 1
"""The `max_split_size` that no block reaches."""

_MIB = 1 << 20
_MOST_MIB = UNLIMITED // _MIB
_INTERVALS = 16


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting with its value in force. Sizes are in bytes."""

    max_split_size: int = UNLIMITED
    """Blocks of this size and above are never split."""
    max_non_split_rounding: int = 20 * _MIB
    """How much larger than the request an unsplittable block may be."""
    garbage_collection_threshold: float = 0.0
    """Share of the limit above which idle blocks are released; 0 is never."""
    large_segment_size: int = 20 * _MIB
    """Segment for requests of medium size; also the page of large expandable segments."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * _INTERVALS
    """Steps between two powers of two that sizes are rounded to; entry i is for sizes from 2**i MiB, 0 is none."""
    expandable_segments: bool = False
    """Grow segments in place by mapping pages, where the device can."""
    pinned_use_background_threads: bool = False
    backend: str = "native"
    """Who keeps the cache: we ("native"), or the device in a pool of its own ("cudaMallocAsync")."""
    release_lock_on_device_malloc: bool = False
    """Let other threads in while the device allocates a segment."""
    pinned_use_host_register: bool = False
    pinned_num_register_threads: int = 1
    pinned_reserve_segment_size: int = 0
    """Pinned memory set aside at the first pinned request; 0 is none."""
    graph_capture_record_stream_reuse: bool = False
    """During a graph capture, reuse blocks once the captured work itself orders their use."""
    per_process_memory_fraction: float = 1.0
    """Share of the device's memory that may be reserved, applied when the allocator is made."""
    text: str = ""
    """The last settings string, verbatim."""

    def as_pytorch_dict(self) -> dict[str, Any]:
        """The `allocator_settings` of a PyTorch snapshot."""
        signed_split_size = self.max_split_size - 2**64 if self.max_split_size >= 2**63 else self.max_split_size
        return {
            "PYTORCH_CUDA_ALLOC_CONF": self.text,
            "max_split_size": signed_split_size,
            "garbage_collection_threshold": self.garbage_collection_threshold,
            "expandable_segments": self.expandable_segments,
            "pinned_num_register_threads": self.pinned_num_register_threads,
            "release_lock_on_cudamalloc": self.release_lock_on_device_malloc,
            "pinned_use_cuda_host_register": self.pinned_use_host_register,
            "graph_capture_record_stream_reuse": self.graph_capture_record_stream_reuse,
            "roundup_power2_divisions": {
                str(1 << interval): divisions for interval, divisions in enumerate(self.roundup_power2_divisions)
            },
        }


def parse(text: str, previous: Settings | None = None) -> Settings:
    """The settings after `text`, read strictly.

    `previous` are the settings in force: what `text` leaves alone is kept from them, and the backend cannot
    change any more. Without them this is the first string, on top of the defaults.

    Raises SettingsError.
    """
    parser = _Parser(text, previous, strict=True)
    parser.run()
    return parser.settings


def settings_of(given: str | Settings, previous: Settings | None = None) -> Settings:
    """A record as it is, a text as `parse` reads it. Raises TypeError for anything else."""
    if isinstance(given, Settings):
        return given
    if not isinstance(given, str):
        raise TypeError(f"settings are a text or a Settings, not {type(given).__name__}")
    return parse(given, previous)


def parse_leniently(text: str, previous: Settings | None = None) -> tuple[Settings, SettingsError | None]:
    """The settings after `text` as PyTorch reads it, and what it complains about, if anything.

    After a complaint the settings hold what stood before the fault. `previous` is as in `parse`.
    """
    parser = _Parser(text, previous, strict=False)
    try:
        parser.run()
    except SettingsError as error:
        return parser.settings, error
    return parser.settings, None


def from_environment(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings that ALLOTMENT_CONF asks for, else the defaults. Raises SettingsError."""
    try:
        return parse(environ.get("ALLOTMENT_CONF", ""))
    except SettingsError as error:
        raise SettingsError(
            f"ALLOTMENT_CONF: {error}", key=error.key, value=error.value, allowed=error.allowed
        ) from error


def pytorch_environment(environ: Mapping[str, str] = os.environ) -> tuple[Settings, SettingsError | None]:
    """The settings that PyTorch's variables ask for; the first one that exists counts, alone."""
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if variable in environ:
            return parse_leniently(environ[variable])
    return Settings(), None


def pytorch_caching_disabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether PyTorch's variables ask for every request to go straight to the device."""
    return "1" in (environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"), environ.get("PYTORCH_NO_HIP_MEMORY_CACHING"))


# -- Sizes -----------------------------------------------------------------------------------------------------------

_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "pib": 1 << 50}
# Bounded lengths keep the arithmetic in range of any value that could be meant.
_SIZE = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,20}))?\s*([a-z]*)", re.IGNORECASE | re.ASCII)


def parse_size(size: str | int) -> int:
    """Bytes in `size`: a whole number, or text such as "1024", "512MiB" or "1.5GiB". Raises SettingsError."""
    number = size if type(size) is int else _size_of_text(str(size))
    if number is None or not 0 <= number <= UNLIMITED:
        allowed = "a whole number of bytes, or a number with one of the units B, KiB, MiB, GiB, TiB, PiB"
        raise SettingsError(f"{size!r} is not a size; write {allowed}", value=str(size), allowed=allowed)
    return number


def _size_of_text(text: str) -> int | None:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    whole, fraction, unit = match[1], match[2] or "", match[3].lower()
    if unit not in _UNITS or (fraction and _UNITS[unit] == 1):
        return None
    decimals: int = 10 ** len(fraction)
    return int(whole + fraction) * _UNITS[unit] // decimals


# -- Keys ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Key:
    """What a key of a settings string means."""

    setting: str
    """The field of Settings that it sets."""
    read: Callable[[_Parser, _Entry], Any]
    """Takes the value from the text, in the unit of the setting."""
    allowed: str
    rules: tuple[tuple[Callable[[Any, Settings], bool], str], ...] = ()
    """What must hold of the value, each with PyTorch's complaint if it does not."""
    sticky: bool = True
    """Stays until named again; else every string that does not name it sets the default."""
    device_only: bool = False
    """Known to one device family: applied after, and only if, all common keys were right."""
    live: bool = True
    """A change takes effect at run time."""


def _key_table() -> dict[str, _Key]:
    def switch(setting: str, *, device_only: bool = True) -> _Key:
        return _Key(setting, _Parser.read_boolean, "True or False", device_only=device_only)

    def at_least_large_segment(key: str) -> _Key:
        return _Key(
            key.removesuffix("_mb"),
            _Parser.read_mebibytes,
            "a whole number of MiB, at least large_segment_size_mb, which is {large_mb}",
            (
                (
                    lambda size, settings: size >= settings.large_segment_size,
                    f"CachingAllocator option {key} too small, must be >= {{large_mb}}",
                ),
            ),
            sticky=False,
        )

    release_lock = switch("release_lock_on_device_malloc")
    host_register = switch("pinned_use_host_register")
    return {
        "large_segment_size_mb": _Key(
            "large_segment_size",
            _Parser.read_mebibytes,
            "a whole number of MiB above 10",
            (
                (
                    lambda size, _: size > 10 * _MIB,
                    "CachingAllocator option large_segment_size_mb must be > 10 MB",
                ),
            ),
        ),
        "max_split_size_mb": at_least_large_segment("max_split_size_mb"),
        "max_non_split_rounding_mb": at_least_large_segment("max_non_split_rounding_mb"),
        "garbage_collection_threshold": _Key(
            "garbage_collection_threshold",
            _Parser.read_real_number,
            "a number between 0 and 1, both excluded",
            ((lambda share, _: 0 < share < 1, "garbage_collect_threshold is invalid, set it in (0.0, 1.0)"),),
            sticky=False,
        ),
        "roundup_power2_divisions": _Key(
            "roundup_power2_divisions",
            _Parser.read_divisions,
            "a power of two, or a list of size in MiB (a power of two, or '>' for all above) and divisions"
            " (a power of two, or 0) such as [256:1,512:2,>:4]",
            sticky=False,
        ),
        "expandable_segments": switch("expandable_segments", device_only=False),
        "pinned_use_background_threads": switch("pinned_use_background_threads", device_only=False),
        "backend": _Key(
            "backend",
            _Parser.read_backend,
            "native or cudaMallocAsync, and the same as at the start",
            device_only=True,
            live=False,
        ),
        "release_lock_on_cudamalloc": release_lock,
        "release_lock_on_hipmalloc": release_lock,
        "pinned_use_cuda_host_register": host_register,
        "pinned_use_hip_host_register": host_register,
        "pinned_num_register_threads": _Key(
            "pinned_num_register_threads",
            _Parser.read_whole_number,
            "a power of two, at most 128",
            (
                (
                    lambda threads, _: _is_power_of_two(threads),
                    "Number of register threads has to be power of 2, got {value}",
                ),
                (
                    lambda threads, _: threads <= 128,
                    "Number of register threads should be less than or equal to 128, got {value}",
                ),
            ),
            device_only=True,
        ),
        "pinned_reserve_segment_size_mb": _Key(
            "pinned_reserve_segment_size",
            _Parser.read_mebibytes,
            "a whole number of MiB above 0",
            ((lambda size, _: size > 0, "Pinned reserve segment size has to be greater than 0"),),
            device_only=True,
            live=False,
        ),
        "graph_capture_record_stream_reuse": switch("graph_capture_record_stream_reuse"),
        "per_process_memory_fraction": _Key(
            "per_process_memory_fraction",
            _Parser.read_real_number,
            "a number from 0 to 1",
            ((lambda share, _: 0 <= share <= 1, "per_process_memory_fraction is invalid, set it in [0.0, 1.0]"),),
            device_only=True,
            live=False,
        ),
    }


def _is_power_of_two(number: int) -> bool:
    return number.bit_count() == 1


# -- The parser ------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"[,:\[\]]|[^,:\[\]]+")
_BLANKS = " \t\n\v\f\r"
_FORM = "key:value,key:value,..."


@dataclass(frozen=True, slots=True)
class _Entry:
    """One `key:value` of a settings string. The value is one token, or all tokens from "[" to "]"."""

    key: str
    value: tuple[str, ...]
    value_index: int
    """Where the value begins among all tokens: PyTorch's messages count them."""

    @property
    def shown_value(self) -> str:
        return "".join(self.value)


class _Parser:
    """Reads one settings string; `settings` holds what has been applied so far.

    Three passes: `large_segment_size_mb`, which bounds other values wherever it stands; the other common
    keys; the keys of one device family.
    """

    def __init__(self, text: str, previous: Settings | None, *, strict: bool) -> None:
        self.settings = replace(previous or Settings(), text=text)
        self._backend_in_force = previous.backend if previous else None
        self._strict = strict

    def run(self) -> None:
        for key in _KEYS.values():
            if not key.sticky:
                self._set(key.setting, getattr(_DEFAULTS, key.setting))
        self._set("max_non_split_rounding", self.settings.large_segment_size)
        entries = []
        for entry in self._entries():
            entries.append(entry)
            if entry.key == "large_segment_size_mb":
                self._apply(entry)
                self._set("max_non_split_rounding", self.settings.large_segment_size)
        for entry in entries:
            if entry.key not in _KEYS:
                self._refuse_key(entry)
            if not _KEYS[entry.key].device_only and entry.key != "large_segment_size_mb":
                self._apply(entry)
        for entry in entries:
            if _KEYS[entry.key].device_only:
                self._apply(entry)

    def _apply(self, entry: _Entry) -> None:
        key = _KEYS[entry.key]
        value = key.read(self, entry)
        for holds, complaint in key.rules:
            if not holds(value, self.settings):
                self._refuse(entry, complaint.format(value=value, large_mb=self._large_mb))
        self._set(key.setting, value)

    def _set(self, setting: str, value: object) -> None:
        change: dict[str, Any] = {setting: value}
        self.settings = replace(self.settings, **change)

    @property
    def _large_mb(self) -> int:
        return self.settings.large_segment_size // _MIB

    # Grammar. PyTorch looks only whether a token is there; the strict mode also looks at separators.

    def _tokens(self) -> list[str]:
        text = self.settings.text
        if self._strict:
            return [token for token in (found.strip(_BLANKS) for found in _TOKEN.findall(text)) if token]
        # Also inside words: PyTorch drops every blank before it looks at anything.
        return _TOKEN.findall(text.translate(dict.fromkeys(map(ord, _BLANKS))))

    def _entries(self) -> Iterator[_Entry]:
        tokens = self._tokens()
        named = set()
        position = 0
        while position < len(tokens):
            key = tokens[position]
            if self._strict and key in ",:[]":
                self._refuse_form(None, key, f"a key should stand where {key!r} is")
            if self._strict and key in named:
                self._refuse_form(key, None, f"{key} is named twice")
            named.add(key)
            self._pass_separator(":", tokens, position + 1, key)
            start = position + 2
            end = self._end_of_value(tokens, start, key)
            yield _Entry(key, tuple(tokens[start:end]), start)
            if end < len(tokens):
                self._pass_separator(",", tokens, end, key)
            position = end + 1

    def _end_of_value(self, tokens: list[str], start: int, key: str) -> int:
        if self._token(tokens, start, key) != "[":
            return start + 1
        if "]" not in tokens[start:]:
            complaint = "Expected closing bracket ']' in ConfigTokenizer but reached end of config"
            value = "".join(tokens[start:])
            self._refuse_form(key, value, f"the list {value!r} has no closing ']'", complaint)
        return tokens.index("]", start) + 1

    def _pass_separator(self, separator: str, tokens: list[str], position: int, key: str) -> None:
        found = self._token(tokens, position, key)
        if self._strict and found != separator:
            before = tokens[position - 1]
            self._refuse_form(key, found, f"{separator!r} should stand after {before!r}, not {found!r}")

    def _token(self, tokens: list[str], position: int, key: str) -> str:
        if position >= len(tokens):
            complaint = "Index out of bounds in ConfigTokenizer"
            self._refuse_form(key, None, f"something is missing after {tokens[-1]!r}", complaint)
        return tokens[position]

    # Values: each reader takes an entry's value from the text; whether it is allowed is for the key's rules.

    def read_boolean(self, entry: _Entry) -> bool:
        word = entry.value[0]
        if word not in ("True", "False"):
            place = f"at index {entry.value_index} in ConfigTokenizer"
            self._refuse(entry, f"Expected 'True' or 'False' {place} but got '{word}'")
        return word == "True"

    def read_backend(self, entry: _Entry) -> str:
        name = entry.value[0]
        if name not in ("native", "cudaMallocAsync"):
            self._refuse(entry, "Unknown allocator backend, options are native and cudaMallocAsync")
        if self._backend_in_force not in (None, name):
            self._refuse(
                entry,
                "Allocator backend parsed at runtime != allocator backend parsed at load time,"
                f" {name} != {self._backend_in_force}",
            )
        return name

    def read_real_number(self, entry: _Entry) -> float:
        number = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?"
        form = number if self._strict else rf"[+-]?(?:{number}|inf|nan)"
        return float(self._leading(form, entry, entry.value[0], "stod"))

    def read_mebibytes(self, entry: _Entry) -> int:
        mebibytes = self.read_whole_number(entry)
        if self._strict and mebibytes > _MOST_MIB:
            self._refuse(entry)
        return min(mebibytes, _MOST_MIB) * _MIB

    def read_whole_number(self, entry: _Entry) -> int:
        return self._whole_number(entry, entry.value[0])

    def _whole_number(self, entry: _Entry, token: str) -> int:
        digits = self._leading("[0-9]+" if self._strict else "[+-]?[0-9]+", entry, token, "stoull")
        magnitude = digits.lstrip("+-").lstrip("0") or "0"
        # Twenty digits are enough for 64 bits, and Python refuses to read thousands of them.
        if len(magnitude) > 20 or int(magnitude) >= 2**64:
            self._refuse(entry, "stoull")
        return -int(magnitude) % 2**64 if digits[0] == "-" else int(magnitude)

    def _leading(self, form: str, entry: _Entry, token: str, complaint: str) -> str:
        match = re.match(form, token, re.IGNORECASE | re.ASCII)
        if match is None or (self._strict and match.end() < len(token)):
            self._refuse(entry, complaint)
        return match[0]

    def read_divisions(self, entry: _Entry) -> tuple[int, ...]:
        if entry.value[0] != "[":
            divisions = self.read_whole_number(entry)
            if not _is_power_of_two(divisions):
                self._refuse(entry, "For roundups, the divisions has to be power of 2")
            return (divisions,) * _INTERVALS
        table = list(self.settings.roundup_power2_divisions)
        first, interval = True, 0
        for boundary, divisions in self._division_list(entry):
            if divisions and not _is_power_of_two(divisions):
                self._refuse(entry, "For roundups, the divisions has to be power of 2 or 0 to disable roundup")
            if boundary == ">":
                table[interval + 1 :] = [divisions] * (_INTERVALS - interval - 1)
            else:
                mebibytes = self._whole_number(entry, boundary)
                if not _is_power_of_two(mebibytes):
                    self._refuse(entry, "For roundups, the intervals have to be power of 2")
                interval = min(mebibytes.bit_length(), _INTERVALS) - 1
                if first:
                    table[:interval] = [divisions] * interval
                    first = False
                table[interval] = divisions
            # In place, so that a fault further on leaves what stood before it.
            self._set("roundup_power2_divisions", tuple(table))
        return tuple(table)

    def _division_list(self, entry: _Entry) -> Iterator[tuple[str, int]]:
        tokens = list(entry.value[1:-1])
        position = 0
        while position < len(tokens):
            self._pass_separator(":", tokens, position + 1, entry.key)
            yield tokens[position], self._whole_number(entry, self._token(tokens, position + 2, entry.key))
            if position + 3 < len(tokens):
                self._pass_separator(",", tokens, position + 3, entry.key)
            position += 4

    # Complaints: PyTorch's words in the lenient mode; in the strict one what is wrong, and what is allowed.

    def _refuse(self, entry: _Entry, complaint: str = "") -> NoReturn:
        allowed = _KEYS[entry.key].allowed.format(large_mb=self._large_mb)
        message = f"{entry.key} must be {allowed}; {entry.shown_value!r} is not" if self._strict else complaint
        raise SettingsError(message, key=entry.key, value=entry.shown_value, allowed=allowed)

    def _refuse_key(self, entry: _Entry) -> NoReturn:
        allowed = ", ".join(_KEYS)
        message = f"Unrecognized key '{entry.key}' in Accelerator allocator config."
        if self._strict:
            nearest = get_close_matches(entry.key, _KEYS, n=1, cutoff=0.5)
            hint = f"the nearest is {nearest[0]}" if nearest else f"there are {allowed}"
            message = f"there is no setting {entry.key!r}; {hint}"
        raise SettingsError(message, key=entry.key, value=entry.shown_value, allowed=allowed)

    def _refuse_form(self, key: str | None, value: str | None, strictly: str, complaint: str = "") -> NoReturn:
        message = f"{strictly}; settings are written {_FORM}" if self._strict else complaint
        raise SettingsError(message, key=key, value=value, allowed=_FORM)


_KEYS = _key_table()
_DEFAULTS = Settings()

RUNTIME_CHANGEABLE = frozenset(key.setting for key in _KEYS.values() if key.live)
"""The settings whose change takes effect at run time; the others count when their part is made."""
