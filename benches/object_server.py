"""An object server in a process of its own, for the measurements whose lower tier is one; what differs is the handler.

Used by tiers.py and remote_lazy.py. It answers as S3 does, as far as Holdfast asks.
"""

import http.server
import os
import socketserver


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


def serve(handler, nice=0):
    """A server in a process of its own; its port and its id."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        server = Server(("127.0.0.1", 0), handler)
        os.write(told, str(server.server_address[1]).encode())
        os.nice(nice)
        server.serve_forever()
        os._exit(0)
    return int(os.read(ready, 16)), pid


def environment(port):
    """By which commands know a server."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "test",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
