"""The installed PyTorch as a release that nobody has seen yet: deep mode is taken if a check passes, else hooks.

    python tests/gpu/made_up_release.py [--version V]

The made-up release is made of links to the installed one, with another version. It is installed three times: as it is,
which compiles and checks; again, which says nothing; and with a method more in its interface. Ends with 1 if one of
them does not end as it should.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from helpers.made_up_release import Release


def install(release: Release, cache: str) -> tuple[str, float]:
    began = time.monotonic()
    environment = os.environ | {"XDG_CACHE_HOME": cache}
    done = subprocess.run([sys.executable, "-c", release.program()], env=environment, capture_output=True, text=True)
    said = done.stdout if done.returncode == 0 else f"ended with {done.returncode}: {done.stderr[-500:]}"
    return said, time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", default="2.16.0+made.up")
    options = parser.parse_args()
    import torch

    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        release = Release(Path(folder) / "site", Path(torch.__file__).parent)
        release.change("version.py", torch.version.__version__, options.version)
        for title, mode, words, cache in (
            ("the first time", "deep", "the check passed", "cache"),
            ("again", "deep", "", "cache"),
            ("with a pure virtual method more", "hooks", "does not compile", "another cache"),
        ):
            if mode == "hooks":
                release.add_a_pure_virtual_method()
            said, seconds = install(release, str(Path(folder) / cache))
            told = [line for line in said.splitlines() if line.strip()]
            fine = said.startswith(f"{options.version} {mode} ") and (words in said if words else len(told) == 1)
            wrong += not fine
            print(f"{'as it should' if fine else 'WRONG'}, {title}, {seconds:.1f} s:", *told, sep="\n    ", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
