"""Arrays that another program puts into a stream (`nvs.h`), read beside it: as numpy arrays, without a copy.

    import numpy
    from holdfast import streams

    with streams.open("sim/0") as stream:
        for version in stream:                                   # as they come, until the producer has ended
            field = stream.array("temperature", numpy.float64, shape=(1000, 1000))
            print(version, field.mean())

An array shows the log itself where the object is there in one piece, else what it is composed of; it is read-only,
and to be used until the stream moves to the next version: copy what is to stay. The producer keeps what the reader may
still read, so a reader that stops reading stops the producer once its log is full. It needs libnvstream.so.

Of a stream on another host, where `holdfast serve --listen` runs, arrays are copies:

    with streams.open("sim/0", server="10.0.0.1:7070", key="~/sim.key") as stream:
        for version in stream.follow("temperature"):
            print(version, stream.array("temperature", numpy.float64).mean())

What an object is can be said once, and all that are known are one xarray.Dataset then, where xarray is installed:

    stream.register("temperature", numpy.float64, shape=(1000, 1000), dims=("y", "x"))
    stream.dataset().temperature.mean("x")
"""

import ctypes

from .objects import load

__all__ = ["Arrays", "Error", "NotFound", "Stream", "open"]

#: Milliseconds between two looks whether the producer has ended.
_LOOK = 200
#: NVS_NOT_FOUND
_NOT_FOUND = -7


class Error(Exception):
    """A call has failed: its message."""


class NotFound(Error):
    """There is no such stream, version or object."""


_library = None


def _calls():
    global _library
    if _library is None:
        library = load("nvstream")
        library.nvs_open.restype = library.nvs_map.restype = ctypes.c_void_p
        library.nvs_error.restype = ctypes.c_char_p
        pointer, number = ctypes.c_void_p, ctypes.c_uint64
        library.nvs_open.argtypes = [ctypes.c_char_p]
        library.nvs_next.argtypes = [pointer, ctypes.c_int, ctypes.POINTER(number)]
        library.nvs_seek.argtypes = [pointer, number]
        library.nvs_at.argtypes, library.nvs_at.restype = [pointer], number
        library.nvs_map.argtypes = [pointer, ctypes.c_char_p, ctypes.POINTER(ctypes.c_size_t)]
        key, size = ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_size_t)
        library.nvs_object.argtypes = [pointer, ctypes.c_size_t, key, size]
        library.nvs_has_producer.argtypes = library.nvs_close.argtypes = [pointer]
        _library = library
    return _library


class Arrays:
    """What readers have in common: arrays of the bytes of objects."""

    def __init__(self):
        self._known = {}

    def register(self, name, dtype="uint8", shape=None, dims=None):
        """Says what an object is: for `array` and `dataset`. dims: names of its dimensions."""
        self._known[name] = (dtype, shape, dims)

    def array(self, name, dtype=None, shape=None):
        """An object at this version as a numpy array, which is read-only; without a copy where `memory` has none."""
        import numpy

        known = self._known.get(name, ("uint8", None, None))
        array = numpy.frombuffer(self.memory(name), dtype=dtype or known[0])
        shape = shape if shape is not None or dtype else known[1]
        return array if shape is None else array.reshape(shape)

    def dataset(self):
        """All objects of this version that were registered, as an xarray.Dataset of these arrays. It needs xarray."""
        import xarray

        arrays = {}
        for name in self.objects():
            if name in self._known:
                array, dims = self.array(name), self._known[name][2]
                dims = dims or ["%s_%d" % (name, number) for number in range(array.ndim)]
                arrays[name] = xarray.DataArray(array, dims=dims)
        return xarray.Dataset(arrays, attrs={"version": self.version})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()


class Stream(Arrays):
    """A reader of a stream; it stands before the oldest version at first."""

    def __init__(self, name):
        self._reader = None
        super().__init__()
        self._reader = _calls().nvs_open(name.encode())
        if not self._reader:
            self._fail(_NOT_FOUND if "no such" in self._said() else -1)
        #: Number of the version at which it stands; 0: at none.
        self.version = 0

    def _said(self):
        return _calls().nvs_error().decode(errors="replace")

    def _fail(self, code):
        raise (NotFound if code == _NOT_FOUND else Error)(self._said())

    def _open(self):
        if not self._reader:
            raise ValueError("the stream is closed")
        return self._reader

    def step(self, seconds=0.0):
        """Goes to the next version, waiting for it for so long at most; its number, or None."""
        number = ctypes.c_uint64()
        done = _calls().nvs_next(self._open(), int(seconds * 1000), ctypes.byref(number))
        if done < 0:
            self._fail(done)
        if done == 0:
            return None
        self.version = number.value
        return self.version

    def seek(self, version=0):
        """Goes to a version that there is; 0: the newest. Returns its number."""
        done = _calls().nvs_seek(self._open(), version)
        if done < 0:
            self._fail(done)
        self.version = _calls().nvs_at(self._open())
        return self.version

    def __iter__(self):
        while True:
            is_over = _calls().nvs_has_producer(self._open()) == 0
            version = self.step(0 if is_over else _LOOK / 1000)
            if version is not None:
                yield version
            elif is_over:
                return

    def objects(self):
        """Names and bytes of the objects of this version."""
        found, key, size = {}, ctypes.c_char_p(), ctypes.c_size_t()
        while _calls().nvs_object(self._open(), len(found), ctypes.byref(key), ctypes.byref(size)) == 0:
            found[key.value.decode()] = size.value
        return found

    def memory(self, name):
        """The bytes of an object at this version: a memoryview that is read-only."""
        size = ctypes.c_size_t()
        address = _calls().nvs_map(self._open(), name.encode(), ctypes.byref(size))
        if address is None:
            self._fail(_NOT_FOUND if "has no object" in self._said() else -1)
        return memoryview((ctypes.c_char * size.value).from_address(address)).cast("B").toreadonly()

    def close(self):
        reader, self._reader = self._reader, None
        if reader:
            _calls().nvs_close(reader)


def open(name, server=None, key=None):
    """Opens the stream "NAME/RANK" for reading. server: "ADDRESS:PORT" of `holdfast serve --listen` on another host,
    and key the file with its key."""
    if server is None:
        return Stream(name)
    if key is None:
        raise ValueError("a server needs a key: a copy of the file that `holdfast serve --key` has made")
    from .remote_streams import RemoteStream

    return RemoteStream(name, server, key)
