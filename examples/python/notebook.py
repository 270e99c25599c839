#!/usr/bin/env python3
"""A notebook that is executed to its end, by nbclient; its kernel is a child process, as under Jupyter itself.

    pip install nbclient ipykernel           # and holdfast's module: pip install ./python
    holdfast run --name notebook -- python3 notebook.py
    kill -9 PID                              # the kernel dies with it
    holdfast restart notebook                # the notebook goes on from its cell with %checkpoint

The same cells work in a server: `holdfast run --name lab -- jupyter lab`. A browser's connections lead outside the job:
an image of that takes `holdfast checkpoint --outside close`, and the page connects again by itself after a restart.
"""

import nbclient
import nbformat

CELLS = [
    "%load_ext holdfast.jupyter",
    "squares = [n * n for n in range(100_000)]",
    "%checkpoint",
    "print(sum(squares))",
    "total = 0\nfor n in range(20):\n    total += squares[n * 1000]\n    print(n, total, flush=True)",
]


def main():
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    for cell in notebook.cells:
        for output in cell.outputs:
            print(output.get("text", output.get("data", {}).get("text/plain", "")).rstrip(), flush=True)


if __name__ == "__main__":
    main()
