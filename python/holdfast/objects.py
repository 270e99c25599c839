"""Versions of a program's own arrays in a Holdfast store: for programs that checkpoint themselves.

    import numpy
    from holdfast import objects

    field, step = numpy.zeros((1000, 1000)), numpy.zeros(1, dtype=int)
    with objects.open("heat", keep=3) as heat:
        heat.region("field", field)
        heat.region("step", step)
        version = heat.newest()
        if version is not None:
            heat.restore(version)
        while step[0] < 1000:
            ...
            step[0] += 1
            heat.put(int(step[0]))     # copies the arrays, and returns
        heat.wait()                    # until all is on disk

It needs libholdfast-client.so (`holdfast.h`, part "Objects", says what holds of each call) and no `holdfast run`.
Regions are numpy arrays, or anything else that has memory which can be written: bytearray, array.array, ctypes arrays,
tensors of PyTorch by `.numpy()`. The set keeps them alive until they are unregistered.
"""

import ctypes
import ctypes.util
import os
import shutil
import sys

__all__ = ["Error", "NotFound", "Objects", "open"]

#: As in holdfast.h.
_ANY = 2**64 - 1


class Error(Exception):
    """A call has failed: its message, and its number (HOLDFAST_E_...) as `number`."""

    def __init__(self, number, message):
        super().__init__(message)
        self.number = number


class NotFound(Error):
    """There is no such version, or no such object in it."""


#: HOLDFAST_E_NOT_FOUND
_NOT_FOUND = -7


def load(name):
    """The library libNAME.so: as the loader finds it (LD_LIBRARY_PATH), else of this environment, else beside the
    binary `holdfast` in PATH."""
    file = "lib%s.so" % name
    binary = shutil.which("holdfast")
    folders = [os.path.join(sys.prefix, "lib")]
    if binary:
        bin_folder = os.path.dirname(os.path.realpath(binary))
        folders += [os.path.join(bin_folder, "..", "lib"), bin_folder]
    found = [path for path in (os.path.join(folder, file) for folder in folders) if os.path.exists(path)]
    for path in [file, ctypes.util.find_library(name), *found]:
        try:
            if path:
                return ctypes.CDLL(path)
        except OSError:
            pass
    raise ImportError("%s was not found: install Holdfast, or set LD_LIBRARY_PATH to the folder that has it" % file)


def memory_of(buffer):
    """The address and size of memory that can be written, size of an element, and what keeps it where it is."""
    view = memoryview(buffer)
    if view.readonly or not view.c_contiguous:
        raise TypeError("a region is memory in one piece that can be written: numpy.ascontiguousarray() makes one")
    if view.nbytes == 0:
        return None, 0, view.itemsize, view
    held = (ctypes.c_char * view.nbytes).from_buffer(buffer)
    return ctypes.addressof(held), view.nbytes, view.itemsize, held


_library = None


def _client():
    """The library, with the types of its functions."""
    global _library
    if _library is None:
        library = load("holdfast-client")
        handle, text, number, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_ulonglong, ctypes.c_size_t
        types = {
            "open": (handle, [text, ctypes.c_uint, ctypes.c_uint, text]),
            "close": (None, [handle]),
            "error": (text, [handle]),
            "region": (ctypes.c_int, [handle, text, handle, size, size]),
            "unregister": (ctypes.c_int, [handle, text]),
            "newest": (ctypes.c_longlong, [handle, number]),
            "size": (ctypes.c_longlong, [handle, number, text]),
            "restore_into": (ctypes.c_int, [handle, number, text, handle, size]),
        }
        types.update((name, (ctypes.c_int, [handle, number])) for name in
                     ("put", "begin", "restore", "will_restore", "discard"))
        types.update((name, (ctypes.c_int, [handle])) for name in
                     ("put_rest", "end", "abandon", "wait", "finished", "restored", "start", "drop"))
        for name, (result, arguments) in types.items():
            function = getattr(library, "holdfast_" + name)
            function.restype, function.argtypes = result, arguments
        put_some = library.holdfast_put_some
        put_some.restype, put_some.argtypes = ctypes.c_int, [handle, ctypes.POINTER(text), size]
        _library = library
    return _library


class Objects:
    """One rank of a set of objects. `open` makes it; usable in `with`."""

    def __init__(self, name, rank, ranks, options):
        self._regions = {}
        self._handle = None
        self._handle = _client().holdfast_open(name.encode(), rank, ranks, options.encode())
        if not self._handle:
            raise self._error(0)

    def _error(self, number):
        text = _client().holdfast_error(self._handle).decode(errors="replace")
        return (NotFound if number == _NOT_FOUND else Error)(number, text)

    def _call(self, name, *arguments):
        if not self._handle:
            raise Error(0, "the set is closed")
        result = getattr(_client(), "holdfast_" + name)(self._handle, *arguments)
        if result < 0:
            raise self._error(result)
        return result

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Closes it; versions stay. It does not wait."""
        handle, self._handle = self._handle, None
        if handle:
            _client().holdfast_close(handle)
        self._regions.clear()

    def __del__(self):
        if getattr(self, "_handle", None):
            self.close()

    def region(self, key, buffer):
        """Registers memory as the object `key`, in place of what had that key."""
        address, size, element, held = memory_of(buffer)
        self._call("region", key.encode(), address, size, element)
        self._regions[key] = held

    def unregister(self, key):
        """Ends that."""
        self._call("unregister", key.encode())
        self._regions.pop(key, None)

    def put(self, version):
        """Copies all regions: they are a version, and may be changed again. One that is there already is replaced."""
        self._call("put", version)

    def begin(self, version):
        """Begins a version that is put in parts: `put_some`, `put_rest`, and then `end` or `abandon`."""
        self._call("begin", version)

    def put_some(self, *keys):
        """Copies these regions into the version that was begun."""
        names = (ctypes.c_char_p * len(keys))(*(key.encode() for key in keys))
        self._call("put_some", names, len(keys))

    def put_rest(self):
        """Copies all others."""
        self._call("put_rest")

    def end(self):
        """The version is there."""
        self._call("end")

    def abandon(self):
        """There is no such version."""
        self._call("abandon")

    def wait(self):
        """Returns when all that was put is on disk; raises Error if something is not."""
        self._call("wait")

    def finished(self):
        """Whether `wait` would return at once."""
        return self._call("finished") == 1

    def newest(self, below=None):
        """The newest version that all ranks have, below this one if one is said; None: there is none."""
        try:
            return self._call("newest", _ANY if below is None else below)
        except NotFound:
            return None

    def size(self, version, key):
        """Bytes of an object of a version. Raises NotFound."""
        return self._call("size", version, key.encode())

    def restore(self, version):
        """Copies a version into all regions. Raises NotFound, or Error where a region is too small: nothing was copied
        then."""
        self._call("restore", version)

    def restore_into(self, version, key, buffer):
        """Copies one object into memory, registered or not."""
        address, size, _, _held = memory_of(buffer)
        self._call("restore_into", version, key.encode(), address, size)

    def read(self, version, key):
        """The bytes of one object."""
        data = bytearray(self.size(version, key))
        self.restore_into(version, key, data)
        return bytes(data)

    def restored(self):
        """After `size`, `restore_into`, `read`: the version is not needed at hand any more."""
        self._call("restored")

    def will_restore(self, *versions):
        """Hints: these will be restored, in this order."""
        for version in versions:
            self._call("will_restore", version)

    def start(self):
        """What was hinted at may be fetched from now on."""
        self._call("start")

    def discard(self, version):
        """This version is not needed once it was restored."""
        self._call("discard", version)

    def drop(self):
        """All versions of this rank go."""
        self._call("drop")


def open(name, rank=0, ranks=1, store=None, tiers=(), keep=None, holdfast=None):
    """Opens a set of objects. `store`: a folder [$HOLDFAST_STORE, else the user's default store]; `tiers`: lower ones,
    as `holdfast run --tier` has them, the fastest first; `keep`: so many of the newest whole versions stay in the store
    [all]; `holdfast`: path of the binary. Raises Error."""
    options = [("store", store), *(("tier", tier) for tier in tiers), ("keep", keep), ("holdfast", holdfast)]
    text = ";".join("%s=%s" % (key, value) for key, value in options if value is not None)
    return Objects(name, rank, ranks, text)
