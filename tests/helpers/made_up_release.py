"""A PyTorch that nobody has seen yet: the installed one, by links, with another version and other headers."""

from pathlib import Path

PROGRAM = """
import contextlib, io, sys
sys.path.insert(0, {place!r})
said = io.StringIO()
with contextlib.redirect_stderr(said):
    import allotment.torch
    allotment.torch.install({arguments})
import torch
print(torch.__version__, allotment.torch.installed_mode(), torch.ones(3, device={device!r}).sum().item())
print(said.getvalue())
"""
"""Says which release it has, and what `install` said."""


class Release:
    """The installed PyTorch under another place, made of links: a file that is changed is a copy."""

    def __init__(self, place: Path, original: Path) -> None:
        """`original`: the folder of the installed package."""
        self.place, self.original = place, original
        place.mkdir()
        for name in ("torch", "nvidia"):
            if (original.parent / name).exists():
                (place / name).symlink_to(original.parent / name)

    def change(self, name: str, old: str, new: str) -> None:
        path = self.place
        for part in Path("torch", name).parts:
            path = path / part
            if path.is_symlink():
                self._open(path)
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    def add_a_pure_virtual_method(self) -> None:
        known = "virtual void init(int device_count) = 0;"
        self.change("include/c10/cuda/CUDACachingAllocator.h", known, f"{known}\n  virtual int grown() = 0;")

    def program(self, arguments: str = "", device: str = "cuda") -> str:
        return PROGRAM.format(place=str(self.place), arguments=arguments, device=device)

    def _open(self, link: Path) -> None:
        """A link becomes a folder of links, or a copy of the file."""
        target = link.resolve()
        link.unlink()
        if target.is_dir():
            link.mkdir()
            for entry in target.iterdir():
                (link / entry.name).symlink_to(entry)
        else:
            link.write_bytes(target.read_bytes())
