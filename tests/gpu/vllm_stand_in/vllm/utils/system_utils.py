from pathlib import Path


def find_loaded_library(name: str) -> str | None:
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line[line.find("/") :] if "/" in line else ""
        if path.rpartition("/")[2].startswith((f"{name}.", f"{name}-")):
            return path
    return None
