# nginx with two workers and its clients in one job: connections that last and new ones in every turn, ranges of a large
# file; in the middle it takes its configuration anew and gets other workers. One line per turn. nginx_client.py [TURNS]
import hashlib, http.client, os, signal, subprocess, sys, time
from ports import free_port

TURNS = int(sys.argv[1]) if len(sys.argv) > 1 else 140

CONFIGURATION = """
{user}
daemon off; worker_processes {workers}; pid {here}/nginx.pid; error_log {here}/nginx.err warn;
events {{ worker_connections 64; }}
http {{
    access_log {here}/nginx.log; keepalive_timeout 600s; keepalive_requests 100000; sendfile on;
    client_body_temp_path {here}/t1; proxy_temp_path {here}/t2; fastcgi_temp_path {here}/t3;
    uwsgi_temp_path {here}/t4; scgi_temp_path {here}/t5;
    server {{
        listen 127.0.0.1:{port}; root {here}/pages;
        location /proxy/ {{ proxy_pass http://127.0.0.1:{port}/; }}
    }}
}}
"""


def configure(port, workers):
    with open("nginx.conf", "w") as file:
        user = "user root;" if os.getuid() == 0 else ""
        file.write(CONFIGURATION.format(user=user, here=os.getcwd(), port=port, workers=workers))


def get(connection, path, start, end):
    connection.request("GET", path, headers={"Range": f"bytes={start}-{end}"})
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 206 and len(body) == end - start + 1, (answer.status, len(body))
    return body


def connect(port, server):
    """Waits for the server, as long as it lives: how long it takes to begin says nothing."""
    while server.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.connect()
            return connection
        except OSError:
            time.sleep(0.01)
    raise SystemExit(f"no server: it has ended with {server.returncode}")


def reload(server):
    """Returns when all old workers have ended: as long as they live they may take a connection, and close it."""
    with open(f"/proc/{server.pid}/task/{server.pid}/children") as file:
        old = file.read().split()
    server.send_signal(signal.SIGHUP)
    while any(os.path.exists(f"/proc/{pid}") for pid in old):
        time.sleep(0.01)


def main():
    # The image may be of before, and the folder of after.
    os.makedirs("pages", exist_ok=True)
    data = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(40000))
    with open("pages/large", "wb") as file:
        file.write(data)
    port = free_port()
    configure(port, 2)
    server = subprocess.Popen(["nginx", "-p", os.getcwd(), "-c", "nginx.conf", "-e", "nginx.err"])
    lasting = [connect(port, server) for _ in range(4)]
    for turn in range(TURNS):
        digest = hashlib.sha256()
        for number, connection in enumerate([*lasting, connect(port, server)]):
            start, path = (turn * 9973 + number * 77777) % 1000000, "/proxy/large" if number % 2 else "/large"
            body = get(connection, path, start, start + 60000)
            assert body == data[start : start + 60001]
            digest.update(body)
            if number == len(lasting):
                connection.close()
        print(turn, digest.hexdigest()[:16], flush=True)
        time.sleep(0.01)
        if turn == TURNS // 2:
            configure(port, 3)
            reload(server)
            lasting = [connect(port, server) for _ in range(4)]
    server.send_signal(signal.SIGQUIT)
    [connection.close() for connection in lasting]
    assert server.wait() == 0
    print("PASS", flush=True)


main()
