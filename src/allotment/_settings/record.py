"""The settings: one frozen record. Each field declares the key that sets it, so this is the table of all keys.

A new key is only a new field here: the parser, the checks, the error texts and the test of `docs/settings.md` follow
from its `Key`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final

from allotment._rules import NEWEST, VERSIONS
from allotment._settings import pytorch_form
from allotment._settings.grammar import Malformed, entries
from allotment._settings.keys import Change, Key, Rule
from allotment._settings.parser import Parser
from allotment._settings.sizes import MIB, UNLIMITED
from allotment._settings.values import (
    INTERVALS,
    ByteSize,
    Choice,
    CountOrOff,
    Divisions,
    Mebibytes,
    Name,
    RealNumber,
    Reserve,
    ReserveSize,
    ReserveSizes,
    Switch,
    Version,
    WholeNumber,
    is_power_of_two,
)
from allotment.errors import SettingsError

_TRUE_OR_FALSE: Final = "True or False"
_PINNED: Final = "those with pinned memory, through `PinnedAllocator`; an `Allocator` accepts it"


def _key(**columns: Any) -> Mapping[str, Key]:
    return {"key": Key(**columns)}


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting with its current value. Sizes are in bytes. Raises SettingsError for a value out of range.

    `docs/settings.md` lists all of them, with the key that sets each in a settings string. `text` is the last such
    string, verbatim. A record is immutable, so threads may share it.
    """

    large_segment_size: int = field(
        default=20 * MIB,
        metadata=_key(
            names=("large_segment_size_mb",),
            kind=Mebibytes(),
            values="a whole number of MiB above 10",
            does="Segment for requests of 1 to 10 MiB; also the page of large expandable segments.",
            rules=(
                Rule(lambda size: size > 10 * MIB, "CachingAllocator option large_segment_size_mb must be > 10 MB"),
            ),
        ),
    )
    max_split_size: int = field(
        default=UNLIMITED,
        metadata=_key(
            names=("max_split_size_mb",),
            kind=Mebibytes(),
            values="a whole number of MiB, at least large_segment_size_mb, which is {at_least_mb}",
            does="Blocks of this size and above are never split.",
            at_least="large_segment_size",
            placements=("torch",),
            sticky=False,
        ),
    )
    max_non_split_rounding: int = field(
        default=20 * MIB,
        metadata=_key(
            names=("max_non_split_rounding_mb",),
            kind=Mebibytes(),
            values="a whole number of MiB, at least large_segment_size_mb, which is {at_least_mb}",
            does="How much larger than the request a block may be that is not split. "
            "A string that does not name it sets it to large_segment_size_mb.",
            at_least="large_segment_size",
            placements=("torch",),
            sticky=False,
        ),
    )
    garbage_collection_threshold: float = field(
        default=0.0,
        metadata=_key(
            names=("garbage_collection_threshold",),
            kind=RealNumber(),
            values="a number between 0 and 1, both excluded",
            does="Share of the limit above which idle segments are released; 0, the default, is never.",
            rules=(Rule(lambda share: 0 < share < 1, "garbage_collect_threshold is invalid, set it in (0.0, 1.0)"),),
            sticky=False,
        ),
    )
    roundup_power2_divisions: tuple[int, ...] = field(
        default=(0,) * INTERVALS,
        metadata=_key(
            names=("roundup_power2_divisions",),
            kind=Divisions(),
            values="a power of two, or a list of size in MiB (a power of two, or `>` for all above) and divisions"
            " (a power of two, or 0) such as [256:1,512:2,>:4]",
            does="Steps between two powers of two that sizes are rounded up to. Entry i of the record is for sizes"
            " from `2**i` MiB; 0 and 1 mean none.",
            sticky=False,
        ),
    )
    expandable_segments: bool = field(
        default=False,
        metadata=_key(
            names=("expandable_segments",),
            kind=Switch(),
            values=_TRUE_OR_FALSE,
            does="Grow segments in place by mapping pages.",
            devices="those with virtual memory; others allocate plain segments",
            placements=("torch",),
        ),
    )
    pinned_use_background_threads: bool = field(
        default=False,
        metadata=_key(
            names=("pinned_use_background_threads",),
            kind=Switch(),
            values=_TRUE_OR_FALSE,
            does="Wait for pinned memory on separate threads.",
            devices=_PINNED,
        ),
    )
    backend: str = field(
        default="native",
        metadata=_key(
            names=("backend",),
            kind=Choice(
                ("native", "cudaMallocAsync"),
                "Unknown allocator backend, options are native and cudaMallocAsync",
            ),
            values="native or cudaMallocAsync, and the same as at the start",
            does="Which cache serves requests: Allotment's own, or the device's own pool.",
            devices="those with their own pool; others only have native",
            family=True,
            change=Change.FIXED,
            fixed_complaint="Allocator backend parsed at runtime != allocator backend parsed at load time,"
            " {value} != {in_force}",
        ),
    )
    release_lock_on_device_malloc: bool = field(
        default=False,
        metadata=_key(
            names=("release_lock_on_cudamalloc", "release_lock_on_hipmalloc"),
            kind=Switch(),
            values=_TRUE_OR_FALSE,
            does="Release the lock, so that other threads can enter, while the device allocates a segment.",
            family=True,
        ),
    )
    pinned_use_host_register: bool = field(
        default=False,
        metadata=_key(
            names=("pinned_use_cuda_host_register", "pinned_use_hip_host_register"),
            kind=Switch(),
            values=_TRUE_OR_FALSE,
            does="Allocate ordinary memory and pin it, instead of allocating pinned memory.",
            devices=_PINNED,
            family=True,
        ),
    )
    pinned_num_register_threads: int = field(
        default=1,
        metadata=_key(
            names=("pinned_num_register_threads",),
            kind=WholeNumber(),
            values="a power of two, at most 128",
            does="Threads that touch the pages of memory before it is pinned.",
            rules=(
                Rule(is_power_of_two, "Number of register threads has to be power of 2, got {value}"),
                Rule(
                    lambda threads: threads <= 128,
                    "Number of register threads should be less than or equal to 128, got {value}",
                ),
            ),
            devices=_PINNED,
            family=True,
        ),
    )
    pinned_reserve_segment_size: int = field(
        default=0,
        metadata=_key(
            names=("pinned_reserve_segment_size_mb",),
            kind=Mebibytes(),
            values="a whole number of MiB above 0",
            does="Pinned memory allocated ahead at the first pinned request; 0, the default, is none.",
            rules=(Rule(lambda size: size > 0, "Pinned reserve segment size has to be greater than 0"),),
            devices=_PINNED,
            family=True,
            change=Change.ONCE,
        ),
    )
    graph_capture_record_stream_reuse: bool = field(
        default=False,
        metadata=_key(
            names=("graph_capture_record_stream_reuse",),
            kind=Switch(),
            values=_TRUE_OR_FALSE,
            does="During a graph capture, reuse blocks once the captured work itself orders their uses.",
            devices="those that can capture",
            family=True,
        ),
    )
    per_process_memory_fraction: float = field(
        default=1.0,
        metadata=_key(
            names=("per_process_memory_fraction",),
            kind=RealNumber(),
            values="a number from 0 to 1",
            does="Share of the device's memory that may be reserved.",
            rules=(
                Rule(lambda share: 0 <= share <= 1, "per_process_memory_fraction is invalid, set it in [0.0, 1.0]"),
            ),
            devices="those that report their memory size",
            family=True,
            change=Change.ONCE,
        ),
    )
    placement: str = field(
        default="torch",
        metadata=_key(
            names=("placement",),
            kind=Name(),
            values="torch, dense, or the name of another registered placement, and the same as at the start",
            does="How memory is divided, for pools that name no placement: torch decides as PyTorch does, dense has one"
            " arena that makes free memory contiguous before it grows (`docs/dense.md`).",
            devices="dense: those with virtual memory that report their memory size; others refuse it",
            torch=None,
            change=Change.FIXED,
        ),
    )
    dense_grain: int = field(
        default=96,
        metadata=_key(
            names=("dense_grain",),
            kind=WholeNumber(),
            values="a whole number from 12 to 256",
            does="Chunks are about this fraction of the memory held: more chunks waste less and cost more driver time.",
            rules=(Rule(lambda grain: 12 <= grain <= 256),),
            placements=("dense",),
            torch=None,
        ),
    )
    dense_slack: float = field(
        default=0.01,
        metadata=_key(
            names=("dense_slack",),
            kind=RealNumber(),
            values="a number from 0 to 1",
            does="How far reserved memory may exceed peak use, as a share of it, before free memory is made contiguous"
            " instead of growing.",
            rules=(Rule(lambda share: 0 <= share <= 1),),
            placements=("dense",),
            torch=None,
        ),
    )
    dense_wait_reuse: int = field(
        default=2,
        metadata=_key(
            names=("dense_wait_reuse",),
            kind=CountOrOff(),
            values="a whole number up to 1000000, or off",
            does="How many freed blocks of a stream that still wait for other streams are left alone when memory is"
            " needed; older ones are reused, after the requesting stream has waited for them. off is -1 in the record.",
            rules=(Rule(lambda count: -1 <= count <= 1_000_000),),
            placements=("dense",),
            torch=None,
        ),
    )
    dense_share_streams: bool = field(
        default=True,
        metadata=_key(
            names=("dense_share_streams",),
            kind=Switch(),
            values=_TRUE_OR_FALSE,
            does="Let a stream wait for another, on the device, to reuse memory that the other freed.",
            placements=("dense",),
            torch=None,
        ),
    )
    dense_start: int = field(
        default=0,
        metadata=_key(
            names=("dense_start",),
            kind=ByteSize(),
            values="a size, such as 20GiB, or a whole number of bytes",
            does="Memory allocated at the first request, in 64 chunks; 0 is none. A known peak less a few percent saves"
            " driver time.",
            placements=("dense",),
            torch=None,
            change=Change.ONCE,
        ),
    )
    dense_views: int = field(
        default=8,
        metadata=_key(
            names=("dense_views",),
            kind=WholeNumber(),
            values="a whole number from 1 to 1024",
            does="Mappings per chunk before the least recently used one is dropped. With 1 a chunk is mapped once, and"
            " free memory is never made contiguous.",
            rules=(Rule(lambda views: 1 <= views <= 1024),),
            placements=("dense",),
            torch=None,
        ),
    )
    throw_on_cudamalloc_oom: bool = field(
        default=False,
        metadata=_key(
            names=("throw_on_cudamalloc_oom",),
            kind=Switch(),
            values=_TRUE_OR_FALSE,
            does="A request that would take more than per_process_memory_fraction of the device fails before the device"
            " is asked: nothing is released for it, and it counts in `num_oom_rejections`, not in `num_ooms`.",
            devices="those that report their memory size",
            torch="2.12",
            family=True,
        ),
    )
    pinned_free_catch_all: bool = field(
        default=False,
        metadata=_key(
            names=("pinned_free_catch_all",),
            kind=Switch(),
            values=_TRUE_OR_FALSE,
            does="Treat pinned memory as freed even if the device reports an error for the free.",
            devices=_PINNED,
            torch="2.12",
            family=True,
        ),
    )
    pinned_max_round_threshold: int = field(
        default=UNLIMITED,
        metadata=_key(
            names=("pinned_max_round_threshold_mb",),
            kind=Mebibytes(),
            values="a whole number of MiB",
            does="Pinned requests above this are not rounded up to a power of two.",
            devices=_PINNED,
            torch="2.13",
        ),
    )
    pinned_max_cached_size: int = field(
        default=UNLIMITED,
        metadata=_key(
            names=("pinned_max_cached_size_mb",),
            kind=Mebibytes(),
            values="a whole number of MiB",
            does="Pinned blocks above this are not cached when they are freed.",
            devices=_PINNED,
            torch="2.13",
        ),
    )
    expandable_segments_reserve: Reserve | None = field(
        default=None,
        metadata=_key(
            names=("expandable_segments_reserve",),
            kind=ReserveSize(),
            values="a share of the device's memory such as 0.5, or a number of GiB such as 40G",
            does="Addresses that a new expandable segment reserves: it cannot serve a larger request. The default, and"
            " the maximum, is nine eighths of the device's memory.",
            devices="those with virtual memory",
            placements=("torch",),
            torch="2.15",
            family=True,
        ),
    )
    expandable_segments_reserve_by_class: tuple[tuple[str, Reserve], ...] = field(
        default=(),
        metadata=_key(
            names=("expandable_segments_reserve_by_class",),
            kind=ReserveSizes(),
            values="a list of names and such values, [serving:0.25,side:8G]",
            does="The same for streams of a class, which `Pools.set_reserve_class` assigns.",
            devices="those with virtual memory",
            placements=("torch",),
            torch="2.15",
            family=True,
        ),
    )
    shareable: bool = field(
        default=False,
        metadata=_key(
            names=("shareable",),
            kind=Switch(),
            values=f"{_TRUE_OR_FALSE}, and the same as at the start",
            does="Give each segment, and each page of an expandable one, its own memory file, so that other processes"
            " can open blocks (`docs/sharing.md`). Costs a descriptor each.",
            devices="host memory; other devices share without it",
            torch=None,
            change=Change.FIXED,
        ),
    )
    nvtx: bool = field(
        default=False,
        metadata=_key(
            names=("nvtx",),
            kind=Switch(),
            values=f"{_TRUE_OR_FALSE}, and the same as at the start",
            does="Report each slow device call to a profiler such as Nsight Systems, as NVTX ranges, and the bytes"
            " reserved and allocated, as counters (`docs/watching.md`). Does nothing if no profiler listens.",
            devices="all, through the package `nvtx`; a driver's pool (backend:cudaMallocAsync) has no such calls",
            torch=None,
            change=Change.FIXED,
        ),
    )
    monitor: bool = field(
        default=False,
        metadata=_key(
            names=("monitor",),
            kind=Switch(),
            values=f"{_TRUE_OR_FALSE}, and the same as at the start",
            does="Let other processes of this user ask for the allocator's figures: `allotment top` shows it"
            " (`docs/watching.md`). `ALLOTMENT_MONITOR=1` in the environment does it for every allocator.",
            devices="all, on Linux",
            torch=None,
            change=Change.FIXED,
        ),
    )
    compat: str = field(
        default=NEWEST,
        metadata=_key(
            names=("compat",),
            kind=Version(),
            values=f"{', '.join(VERSIONS)} or newest",
            does="The PyTorch version whose rules decide, and whose format statistics, histories and snapshots use."
            " The shared allocators (`allotment.current`) and the PyTorch adapter begin with the version of the"
            " installed PyTorch.",
            torch=None,
            change=Change.EMPTY,
        ),
    )
    text: str = ""
    """The last settings string, verbatim."""

    def __post_init__(self) -> None:
        for setting, key in KEYS.items():
            value, default = getattr(self, setting), DEFAULTS[setting]
            if (type(value) is not type(default) or value != default) and not key.admits(value):
                least = getattr(self, key.at_least) // MIB if key.at_least else 0
                allowed = key.values.format(at_least_mb=least)
                unit = ", in bytes" if isinstance(key.kind, Mebibytes) else ""
                message = f"{setting} must be {allowed}{unit}; {value!r} is not"
                raise SettingsError(message, key=key.names[0], value=str(value), allowed=allowed)
        if not isinstance(self.text, str):
            raise SettingsError(f"text must be a settings string, not {type(self.text).__name__}", key="text")

    @classmethod
    def parse(cls, text: str, previous: Settings | None = None, *, compat: str = NEWEST) -> Settings:
        """Return the settings after the settings string `text`, read strictly.

        `previous` are the current settings: what `text` does not name is kept from them, and what is fixed when an
        allocator is created cannot change any more. Without them this is the first string, on top of the defaults.
        `compat` is the version for a first string that does not name one.

        Raises SettingsError, which names the key, the value and what is allowed.
        """
        settings, error = _read(text, previous, compat, strict=True)
        if error is not None:
            raise error
        return settings

    def as_pytorch_dict(self) -> dict[str, Any]:
        """Return the `allocator_settings` of a PyTorch snapshot."""
        return pytorch_form.stated_by(self, text_in_force(self))


def parse_leniently(
    text: str, previous: Settings | None = None, *, compat: str = NEWEST
) -> tuple[Settings, SettingsError | None]:
    """Return the settings after `text` as PyTorch reads it, and its complaint, if any.

    After a complaint the settings hold what came before the fault. `previous` and `compat` are as in `Settings.parse`.
    """
    return _read(text, previous, compat, strict=False)


def settings_of(given: str | Settings, previous: Settings | None = None, *, compat: str = NEWEST) -> Settings:
    """Return a record, checked again, or a text read by `Settings.parse`. Raises TypeError for anything else."""
    if not isinstance(given, Settings):
        return Settings.parse(given, previous, compat=compat)
    try:
        return replace(given)  # an unpickled record, or one built in another way, was not checked
    except AttributeError as error:
        raise SettingsError(f"the Settings lack a value: {error}; make them with Settings(...)") from None


def text_in_force(settings: Settings) -> str:
    """Return the last settings string; for a placement other than PyTorch's, with what that string lacks.

    The last string may be PyTorch's, which cannot name a placement, and may name keys that the placement does not use.
    """
    if settings.placement == DEFAULTS["placement"]:
        return settings.text
    try:
        named = {entry.key: entry.shown for entry in entries(settings.text, strict=False)}
    except Malformed:
        named = {}
    missing = {}
    for setting, key in KEYS.items():
        value = getattr(settings, setting)
        if key.placements and settings.placement not in key.placements:
            for name in key.names:
                named.pop(name, None)
        elif (
            (key.placements or setting == "placement")
            and value != DEFAULTS[setting]
            and named.keys().isdisjoint(key.names)
        ):
            missing[key.names[0]] = key.kind.word(value) if isinstance(key.kind, CountOrOff | ByteSize) else str(value)
    return ",".join(f"{key}:{value}" for key, value in {**missing, **named}.items())


def settings_stated(stated: Mapping[str, Any], *, compat: str = NEWEST) -> Settings:
    """Return the settings that a PyTorch snapshot states: its last string, corrected by the values that it names.

    Raises SettingsError for an impossible value.
    """
    settings, _ = parse_leniently(str(stated.get(pytorch_form.STRING) or ""), compat=compat)
    return replace(settings, **pytorch_form.values_stated(stated))


def _read(text: str, previous: Settings | None, compat: str, *, strict: bool) -> tuple[Settings, SettingsError | None]:
    if not isinstance(text, str):
        raise TypeError(f"settings must be a text or a Settings, not {type(text).__name__}")
    in_force = None if previous is None else {setting: getattr(previous, setting) for setting in DEFAULTS}
    parser = Parser(KEYS, {**DEFAULTS, "compat": compat}, in_force, strict=strict)
    error = None
    try:
        parser.run(text)
    except SettingsError as refused:
        error = refused
    return Settings(**parser.values), error


KEYS: Final[Mapping[str, Key]] = MappingProxyType(
    {field.name: field.metadata["key"] for field in fields(Settings) if "key" in field.metadata}
)
"""The table: the key of each setting."""

# `help(Settings)` shows the table's description of each.
Settings.__doc__ = f"{Settings.__doc__}\n" + "".join(f"    `{setting}`: {key.does}\n" for setting, key in KEYS.items())

DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType({field.name: field.default for field in fields(Settings)})

RUNTIME_CHANGEABLE: Final = frozenset(setting for setting, key in KEYS.items() if key.change is Change.LIVE)
"""The settings whose change takes effect at run time; the others take effect when their part is created."""
