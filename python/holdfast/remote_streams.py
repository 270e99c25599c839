"""Streams of another host, by `holdfast cat --from`: TLS, the key and what is checked are the command's.

Made by `streams.open(name, server="ADDRESS:PORT", key=FILE)`. Invariant: arrays have all of their bytes, as the server
had them, and are of one version. Fails by: `streams.Error` with what the command has said.
"""

import json
import os
import subprocess

from . import _binary, _outside
from .streams import Arrays, Error, NotFound

#: `holdfast cat`: there is no such stream, version or object.
_EXIT_NOT_FOUND = 66


class RemoteStream(Arrays):
    """A reader of a stream on another host; it stands at the newest version that may be read, until it moves.

    What it has not asked for may be gone: it holds versions only in `follow`."""

    def __init__(self, name, server, key):
        super().__init__()
        self._name, self._from = name, ["cat", "--from", server, "--key", os.path.expanduser(os.fspath(key))]
        self._bytes = {}
        self.version = 0
        self.seek()

    def _command(self, *words):
        command = [_binary(), *self._from, *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_outside())

    def _fail(self, process, said):
        kind = NotFound if process.returncode == _EXIT_NOT_FOUND else Error
        raise kind(said.decode(errors="replace").strip() or "holdfast cat has ended by %d" % process.returncode)

    def _say(self, *words):
        process = self._command(*words)
        out, said = process.communicate()
        if process.returncode:
            self._fail(process, said)
        return out

    def _at(self):
        if self.version is None:
            raise ValueError("the stream is closed")
        return "%s@%d" % (self._name, self.version)

    def seek(self, version=0):
        """Goes to a version that there is; 0: the newest. Returns its number."""
        where = "%s@%d" % (self._name, version) if version else self._name
        listed = json.loads(self._say(where, "--json"))
        self._objects = {each["object"]: each["bytes"] for each in listed["objects"]}
        self.version, self._bytes = listed["stream_version"], {}
        return self.version

    def objects(self):
        """Names and bytes of the objects of this version."""
        self._at()
        return dict(self._objects)

    def memory(self, name):
        """The bytes of an object at this version: a memoryview that is read-only. They come once."""
        if name not in self._bytes:
            self._bytes[name] = self._say(self._at(), name)
        return memoryview(self._bytes[name])

    def follow(self, name):
        """An iterator over the versions of an object from the oldest on, as they come, until the producer has ended:
        the stream stands at each, with this object alone. What was not taken yet stays in the log, within its bound."""
        self._at()
        process = self._command(self._name, "--follow", "--numbered", name)
        try:
            while True:
                line = process.stdout.readline()
                if not line:
                    break
                version, size = map(int, line.split())
                data = process.stdout.read(size)
                if len(data) < size:
                    break
                self.version, self._objects, self._bytes = version, {name: size}, {name: data}
                yield version
            said = process.stderr.read()
            if process.wait():
                self._fail(process, said)
        finally:
            process.stdout.close()
            process.stderr.close()
            process.kill()
            process.wait()

    def close(self):
        self.version, self._bytes = None, {}
