"""Arguments that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

SnapshotArgument = Annotated[
    str,
    typer.Argument(
        metavar="SNAPSHOT",
        help="A file from torch.cuda.memory._dump_snapshot, gzipped or not;"
        ' "-" is standard input, "sample" one that comes along.',
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
