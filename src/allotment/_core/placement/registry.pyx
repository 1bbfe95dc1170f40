from allotment._core.model.model cimport Placement
from allotment._core.placement.pytorch.policy cimport torch_placement

from allotment.errors import SettingsError

cdef dict tables = {}       # name -> address of the table


cdef int placement_register(const Placement* placement) except -1:
    """Make a placement known by its name. Raises ValueError if another has it."""
    name = (<bytes> placement.name).decode()
    if tables.setdefault(name, <size_t> placement) != <size_t> placement:
        raise ValueError(f"there is a placement {name!r} already")
    return 0


cdef const Placement* placement_named(str name) except NULL:
    """Raises SettingsError for a name that no placement has."""
    if name not in tables:
        known = ", ".join(sorted(tables))
        raise SettingsError(
            f"there is no placement {name!r}; there are {known}", key="placement", value=name, allowed=known)
    return <const Placement*> <size_t> tables[name]


placement_register(torch_placement())
