"""A server that loads weights onto a device once, and answers questions with a cache that need not be saved.

    holdfast run --name server -- python3 server.py /tmp/server.sock weights.bin
    python3 server.py --ask /tmp/server.sock 7          # "7: 42, 1 cached": a weight, and how many answers are cached
    holdfast checkpoint server; kill -9 ...; holdfast restart server

The first start reads the file and copies it to the device; a restart has it from the image. The cache (here as large as
the weights, and full of noise as real ones are) is left out of images: it stays while the server runs on, and is zero
after a restart, which the server notices by a mark in it. Needs a CUDA driver and nothing else: the driver API by
ctypes. Without Holdfast it is the same server.
"""
import ctypes
import os
import socket
import sys

MARK = 0x686f6c64
MIB = 1 << 20


class Device:
    """Some of the driver API (CUDA Driver API, Memory Management)."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        result = getattr(self.cuda, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: error {result}")

    def allocate(self, size):
        memory = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
        return memory.value

    def write(self, memory, data):
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(memory), data, ctypes.c_size_t(len(data)))

    def read(self, memory, size):
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(memory), ctypes.c_size_t(size))
        return data.raw


def need_not_be_saved(memory, size):
    """False where nobody takes images, or they will have it all the same."""
    try:
        discard = ctypes.CDLL(None).holdfast_cuda_discard
    except AttributeError:
        return False
    return discard(ctypes.c_void_p(memory), ctypes.c_size_t(size)) == 0


class Server:
    def __init__(self, path):
        with open(path, "rb") as file:
            weights = file.read()
        self.device, self.size = Device(), len(weights)
        self.weights = self.device.allocate(self.size)
        self.device.write(self.weights, weights)
        self.cache = self.device.allocate(self.size)
        self.renew()
        if "plain" not in sys.argv:
            print("cache left out of images:", need_not_be_saved(self.cache, self.size), flush=True)

    def renew(self):
        """An empty cache: a mark, a count of answers, noise."""
        noise = os.urandom(MIB)
        for start in range(0, self.size - MIB, MIB):
            self.device.write(self.cache + start, noise)
        self.device.write(self.cache, MARK.to_bytes(4, "little") + bytes(4))

    def answer(self, index):
        head = self.device.read(self.cache, 8)
        if int.from_bytes(head[:4], "little") != MARK:
            self.renew()
            head = self.device.read(self.cache, 8)
        count = int.from_bytes(head[4:], "little") + 1
        self.device.write(self.cache + 4, count.to_bytes(4, "little"))
        weight = self.device.read(self.weights + index % self.size, 1)[0]
        return f"{index}: {weight}, {count} cached"


def serve(path, weights):
    server = Server(weights)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print("ready", flush=True)
    while True:
        client, _ = listener.accept()
        with client:
            client.sendall(server.answer(int(client.recv(64))).encode())


def ask(path, index):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(index.encode())
        print(client.recv(256).decode())


if __name__ == "__main__":
    if sys.argv[1] == "--ask":
        ask(sys.argv[2], sys.argv[3])
    else:
        serve(sys.argv[1], sys.argv[2])
