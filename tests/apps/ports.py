# For the servers of nginx_client.py and redis_client.py.
import os, socket


def free_port():
    """Not one that the kernel gives to connections: it must be free at each restart."""
    for port in range(15000 + os.getpid() % 10000, 32000):
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass
    raise SystemExit("no free port")
