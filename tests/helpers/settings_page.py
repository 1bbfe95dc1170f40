"""Makes the list of keys in docs/settings.md from the table of settings; --write puts it into the page."""

import sys
from pathlib import Path

from allotment._settings import DEFAULTS, KEYS
from allotment._settings.keys import Key
from allotment._settings.sizes import MIB, UNLIMITED

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
HEADING = "## Keys\n"


def list_of_keys() -> str:
    """Return the part of the page after the heading and the comment that names the source."""
    return "".join(section(setting, key) for setting, key in sorted(KEYS.items(), key=lambda item: item[1].names[0]))


def section(setting: str, key: Key) -> str:
    name, *others = key.names
    values = key.values.format(at_least_mb=f"{DEFAULTS[key.at_least] // MIB} by default" if key.at_least else "")
    facts = [
        ("Values", values),
        ("Default", shown_default(setting)),
        ("In the record", f"`Settings.{setting}`" + (", in bytes" if name.endswith("_mb") else "")),
        ("Also written", ", ".join(f"`{other}`" for other in others)),
        ("Devices", key.devices),
        ("Placements", ", ".join(key.placements) or "all"),
        ("PyTorch", since(key)),
        ("Changes", key.change.value),
        ("In a later text that does not name it", "stays" if key.sticky else "returns to its default"),
    ]
    lines = "".join(f"| {what} | {how} |\n" for what, how in facts if how)
    return f"\n### `{name}`\n\n{key.does}\n\n| | |\n|---|---|\n{lines}"


def shown_default(setting: str) -> str:
    value = DEFAULTS[setting]
    if value == UNLIMITED:
        return "no limit"
    if isinstance(value, tuple):
        return "none"
    if KEYS[setting].names[0].endswith("_mb"):
        return str(value // MIB)
    return str(value)


def since(key: Key) -> str:
    if key.torch is None:
        return "not there: a key of ours"
    return "all versions that Allotment follows" if key.torch == "2.11" else f"since {key.torch}"


def page() -> str:
    """Return the whole page with the current list."""
    text = PAGE.read_text()
    start = text.index("-->\n", text.index(HEADING)) + len("-->\n")
    return text[:start] + list_of_keys()


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(page())
