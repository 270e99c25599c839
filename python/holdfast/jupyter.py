"""The magic `%checkpoint` for IPython and Jupyter: `%load_ext holdfast.jupyter`, in a kernel or a server that
`holdfast run` has started. `%checkpoint --no-wait` returns when the image is caught, not when it is safe."""

import holdfast


def load_ipython_extension(ipython):
    """Called by `%load_ext`."""

    def checkpoint(line):
        if not holdfast.loaded():
            return "no image: this kernel was not started by `holdfast run`"
        if holdfast.checkpoint(wait="--no-wait" not in line.split()) == holdfast.RESTARTED:
            return "restarted"
        return "image taken"

    ipython.register_magic_function(checkpoint, "line", "checkpoint")
