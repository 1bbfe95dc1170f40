from enum import IntEnum

from allotment._core.edge.walk cimport STATE_ALLOCATED, STATE_INACTIVE, STATE_PENDING_FREE, STATE_UNMAPPED
from allotment._core.edge.words cimport FIRST_ACTION, WORD_COUNT
from allotment._core.records.stats cimport LARGE as LARGE_CLASS
from allotment._core.records.stats cimport SMALL as SMALL_CLASS
from allotment._core.records.trace cimport (
    ACTION_ALLOC, ACTION_ANNOTATE, ACTION_COUNT, ACTION_FREE_COMPLETED, ACTION_FREE_REQUESTED, ACTION_OOM,
    ACTION_SEGMENT_ALLOC,
    ACTION_SEGMENT_FREE, ACTION_SEGMENT_MAP, ACTION_SEGMENT_UNMAP, ACTION_SNAPSHOT)


class Action(IntEnum):
    """The event that a trace entry reports."""

    ALLOC = ACTION_ALLOC
    FREE_REQUESTED = ACTION_FREE_REQUESTED
    FREE_COMPLETED = ACTION_FREE_COMPLETED
    SEGMENT_ALLOC = ACTION_SEGMENT_ALLOC
    SEGMENT_FREE = ACTION_SEGMENT_FREE
    SEGMENT_MAP = ACTION_SEGMENT_MAP
    SEGMENT_UNMAP = ACTION_SEGMENT_UNMAP
    SNAPSHOT = ACTION_SNAPSHOT
    OOM = ACTION_OOM
    ANNOTATE = ACTION_ANNOTATE
    USER_DEFINED = ACTION_COUNT             # from here on: only in foreign files; an engine never reports it
    UNKNOWN = ACTION_COUNT + 1


class BlockState(IntEnum):
    """State of a block in a snapshot."""

    INACTIVE = STATE_INACTIVE
    ACTIVE_ALLOCATED = STATE_ALLOCATED
    ACTIVE_PENDING_FREE = STATE_PENDING_FREE
    UNMAPPED = STATE_UNMAPPED               # only in arrangements of whole ranges
    UNKNOWN = STATE_UNMAPPED + 1


class SegmentType(IntEnum):
    """The size class that a segment serves."""

    SMALL = SMALL_CLASS
    LARGE = LARGE_CLASS
    UNKNOWN = LARGE_CLASS + 1


def word_of(member: IntEnum) -> str:
    """Return the name of an action, a state or a type in a snapshot."""
    return member.name.lower()


# The actions that an engine reports, indexed by number, and the fields that its entries can have.
ACTIONS: tuple[str, ...] = tuple([word_of(Action(number)) for number in range(ACTION_COUNT)])
ENTRY_FIELDS: tuple[str, ...] = (
    "action", "addr", "device_free", "size", "stream", "time_us", "compile_context", "user_metadata", "pool_id",
    "frames", "tenant", "internal_metadata")

WORDS = (*ENTRY_FIELDS, *ACTIONS)
STATES = tuple([word_of(BlockState(number)) for number in range(STATE_UNMAPPED)])
NO_CONTEXT = "N/A"
HISTORY_MAGIC: bytes = b"allotment history"  # first bytes of a history file: see history_codes
assert len(ENTRY_FIELDS) == FIRST_ACTION and len(WORDS) == WORD_COUNT


cdef str action_name(int action):
    return WORDS[FIRST_ACTION + action]


cdef int action_number(str name) except -2:
    """Return -1 for an unknown name."""
    return ACTIONS.index(name) if name in ACTIONS else -1
