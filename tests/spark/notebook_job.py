"""A notebook, run cell by cell in a kernel of Jupyter's: `python notebook_job.py NOTEBOOK EXECUTED`."""

import sys
from pathlib import Path

import nbformat  # pyright: ignore[reportMissingImports]
from nbclient import NotebookClient  # pyright: ignore[reportMissingImports]

CELL_S_MAX = 900


def main(notebook: Path, executed: Path) -> None:
    cells = nbformat.read(notebook, as_version=4)
    try:
        NotebookClient(cells, timeout=CELL_S_MAX, startup_timeout=CELL_S_MAX, kernel_name="python3").execute()
    finally:
        nbformat.write(cells, executed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
