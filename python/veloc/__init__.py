"""VELOC's Python interface, over that in C of Holdfast (libveloc-client.so; docs/veloc.md).

    import veloc

    ckpt = veloc.Ckpt(0, "veloc.cfg")
    ckpt.mem_protect(1, field)                    # a numpy array: its memory as it is
    ckpt.protected = (step, parameters)           # anything that pickle takes
    version = ckpt.restart_test("heat", 0)
    if version >= 0:
        ckpt.restart("heat", version)
        step, parameters = ckpt.protected
    ckpt.checkpoint("heat", step)

`Ckpt(id, cfg)`, `protected`, `checkpoint`, `restart_test` and `restart` are VELOC's; the others are not in its module.
`protected` is region 0, so that files of both libraries are the same (`holdfast import --veloc`). Why a call has failed
is on standard error.
"""

import ctypes
import pickle

from holdfast.objects import load, memory_of

__all__ = ["Ckpt"]

_SUCCESS = 0


class Ckpt:
    """One process, under an id of its own, with this configuration (None: VELOC_... in the environment)."""

    def __init__(self, id, cfg):
        self.lib = None
        library = load("veloc-client")
        number, size, text, memory = ctypes.c_int, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p
        for name, arguments in {
            "Init_single": [ctypes.c_uint, text], "Finalize": [number], "Mem_protect": [number, memory, size, size],
            "Mem_unprotect": [number], "Checkpoint": [text, number], "Checkpoint_wait": [], "Checkpoint_finished": [],
            "Restart_test": [text, number], "Restart_begin": [text, number], "Recover_mem": [], "Restart_end": [number],
            "Prefetch_enqueue": [text, number], "Prefetch_start": [], "Cleanup": [text],
        }.items():
            function = getattr(library, "VELOC_" + name)
            function.restype, function.argtypes = number, arguments
        library.HOLDFAST_recover_size.restype = ctypes.c_int64
        library.HOLDFAST_recover_size.argtypes = [number]
        self.protected = None
        self._regions = {}
        self._must(library.VELOC_Init_single(id, None if cfg is None else cfg.encode()), "initialization", id, cfg)
        self.lib = library

    @staticmethod
    def _must(result, what, *of):
        if result != _SUCCESS:
            raise RuntimeError("VELOC-Python: %s failure; %s" % (what, ", ".join(map(str, of))))

    def mem_protect(self, id, buffer):
        """Registers memory that can be written, a numpy array for one, as region `id`, from 1 on."""
        if id == 0:
            raise ValueError("region 0 is what `protected` has")
        address, size, element, held = memory_of(buffer)
        self._must(self.lib.VELOC_Mem_protect(id, address, size // element, element), "protect", id)
        self._regions[id] = held

    def mem_unprotect(self, id):
        """Ends that."""
        self._must(self.lib.VELOC_Mem_unprotect(id), "unprotect", id)
        self._regions.pop(id, None)

    def _protect_own(self, data):
        """Region 0; until the call that it is for has ended."""
        self._regions[0] = data
        address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p) if isinstance(data, bytes) else data
        self._must(self.lib.VELOC_Mem_protect(0, address, len(data), 1), "protect", 0)

    def _unprotect_own(self):
        if self._regions.pop(0, None) is not None:
            self.lib.VELOC_Mem_unprotect(0)

    def checkpoint(self, name, version):
        """A checkpoint of `protected`, if it is not None, and of all registered memory."""
        if self.protected is None and not self._regions:
            raise RuntimeError("VELOC-Python: checkpoint failure: no data structures protected")
        try:
            if self.protected is not None:
                self._protect_own(pickle.dumps(self.protected))
            self._must(self.lib.VELOC_Checkpoint(name.encode(), version), "checkpoint", name, version)
        finally:
            self._unprotect_own()

    def wait(self):
        """Returns when all checkpoints are on disk."""
        self._must(self.lib.VELOC_Checkpoint_wait(), "wait")

    def finished(self):
        """Whether `wait` would return at once."""
        return self.lib.VELOC_Checkpoint_finished() == 1

    def restart_test(self, name, version):
        """The newest version, below this one (0: of all); -1: there is none."""
        return self.lib.VELOC_Restart_test(name.encode(), version)

    def restart(self, name, version):
        """Restores a version: registered memory, and `protected`."""
        self._must(self.lib.VELOC_Restart_begin(name.encode(), version), "restart begin", name, version)
        try:
            size = self.lib.HOLDFAST_recover_size(0)
            own = ctypes.create_string_buffer(size) if size > 0 else None
            if own is not None:
                self._protect_own(own)
            self._must(self.lib.VELOC_Recover_mem(), "recover", name, version)
            self.protected = None if own is None else pickle.loads(own.raw)
        finally:
            self._unprotect_own()
            self.lib.VELOC_Restart_end(1)

    def prefetch_enqueue(self, name, version):
        """Hint: this version will be restored, after those that were hinted at before."""
        self._must(self.lib.VELOC_Prefetch_enqueue(name.encode(), version), "hint", name, version)

    def prefetch_start(self):
        """What was hinted at may be fetched from now on."""
        self._must(self.lib.VELOC_Prefetch_start(), "prefetch")

    def cleanup(self, name):
        """Checkpoints of this name are not needed any more."""
        self._must(self.lib.VELOC_Cleanup(name.encode()), "cleanup", name)

    def finalize(self):
        """Ends; checkpoints reach the disk behind the program's back."""
        library, self.lib = self.lib, None
        if library is not None:
            library.VELOC_Finalize(0)

    def __del__(self):
        if getattr(self, "lib", None) is not None:
            self.finalize()
