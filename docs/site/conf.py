"""The documentation as a site: the Markdown that a code host shows, built by Sphinx with MyST and the Furo theme.

    make docs

The source folder is the repository, so links between README, pages and folders are the same in both places. A link that
leads nowhere and a page that the navigation does not list fail the build. The site loads nothing from a network.
"""

import shutil
from pathlib import Path

from sphinx.application import Sphinx

project = html_title = "Allotment"
author = "The Allotment authors"
extensions = ["myst_parser"]
root_doc = "README"
exclude_patterns = [".*", "build", "dist"]
myst_heading_anchors = 4
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = html_use_index = False
html_show_copyright = False

NAVIGATION = {
    "Start": ["Overview <self>", "docs/explain", "docs/replay", "docs/viewer"],
    "Guides": [
        "docs/streams",
        "docs/threads",
        "docs/command",
        "docs/pools",
        "docs/dense",
        "docs/driver-pool",
        "docs/pluggable",
        "docs/pinned",
        "docs/cpu",
        "docs/sharing",
        "docs/watching",
        "docs/writing-a-backend",
    ],
    "Frameworks": [
        "docs/pytorch",
        "docs/sleep",
        "docs/cupy",
        "docs/numba",
        "docs/cuda-core",
        "docs/jax",
        "docs/numpy",
        "docs/c",
        "docs/preload",
    ],
    "How it works": [
        "docs/an-allocation",
        "docs/deep-mode",
        "docs/walks",
        "src/allotment/README",
        "src/allotment/_core/README",
        "src/allotment/torch/_deep/README",
        "docs/differences",
    ],
    "Reference": ["docs/reference", "docs/settings", "docs/glossary", "CHANGELOG"],
    "Working on it": [
        "CONTRIBUTING",
        "tests/golden/README",
        "tests/traces/README",
        "tests/gpu/README",
        "benchmarks/gpu/README",
    ],
    "Measured": [
        "benchmarks/gpu/results/h200",
        "benchmarks/gpu/results/h200-deep",
        "benchmarks/gpu/results/h200-dense",
        "benchmarks/gpu/results/h200-explain",
        "benchmarks/gpu/results/h200-pinned",
        "benchmarks/gpu/results/h200-sleep",
        "benchmarks/gpu/results/h200-torch-functions",
        "benchmarks/gpu/results/h200-tuned",
        "benchmarks/dense/results/recorded",
        "benchmarks/dense/results/perturbed",
        "benchmarks/dense/results/week",
        "benchmarks/dense/results/trainings",
        "benchmarks/dense/results/shortage",
        "benchmarks/dense/results/programs",
        "benchmarks/results/explain_and_tune",
        "benchmarks/results/history",
        "benchmarks/results/hot_path",
        "benchmarks/results/numpy_arrays",
        "benchmarks/results/top",
        "benchmarks/results/viewer",
    ],
}
include_patterns = [
    "*.md",
    "docs/*.md",
    "src/allotment/README.md",
    "src/allotment/**/README.md",
    "benchmarks/**/*.md",
    "tests/**/README.md",
]


def add_navigation(app: Sphinx, name: str, text: list[str]) -> None:
    """Append the navigation to the README, which has none on a code host."""
    if name == root_doc:
        for group, pages in NAVIGATION.items():
            text[0] += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {group}", "", *pages, "```", ""])


def add_index(app: Sphinx, failure: Exception | None) -> None:
    """Make the README the page that a web server shows for the folder."""
    if failure is None:
        shutil.copyfile(Path(app.outdir, "README.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_index)
