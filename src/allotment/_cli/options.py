"""Arguments that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

SnapshotArgument = Annotated[
    str,
    typer.Argument(
        metavar="SNAPSHOT",
        help="A file from torch.cuda.memory._dump_snapshot, gzipped or not;"
        ' "-" is standard input, "sample" a recording that comes with the package.',
        show_default=False,
    ),
]
SnapshotsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SNAPSHOT...",
        help="Files from torch.cuda.memory._dump_snapshot, gzipped or not, folders of them, or patterns: the ranks of a"
        ' job. "-" is standard input, "sample" a recording that comes with the package.',
        show_default=False,
    ),
]
DeviceOption = Annotated[
    int | None,
    typer.Option(help="The device, in every file; by default the one with the longest history."),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        help='A Dask scheduler whose workers do the work, such as "tcp://10.0.0.1:8786"; local processes otherwise.'
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
