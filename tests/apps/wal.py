# sqlite3 in WAL mode: a process that writes, and two that read all the time, by shared memory and locks on files. Every
# transaction keeps the sum of all accounts. One line per turn of the writer.
# wal.py prepare: makes the database. wal.py append [TURNS]: the log is only appended to while it runs, so that a
# restart that puts files back to their lengths is enough. wal.py rewind [TURNS]: the log goes into the database and is
# written from its beginning again, every few turns, and the database is made by the program itself.
import os, sqlite3, sys, time

HOW = sys.argv[1]
TURNS = int(sys.argv[2]) if len(sys.argv) > 2 else 250
ACCOUNTS, SUM = 100, 100000


def connect():
    connection = sqlite3.connect("bank.db", timeout=60, isolation_level=None)
    connection.execute("pragma wal_autocheckpoint=%d" % (0 if HOW == "append" else 20))
    return connection


def read(end):
    connection = connect()
    looks = last = 0
    while not os.path.exists(end):
        total, newest = connection.execute("select sum(amount), (select max(turn) from moves) from accounts").fetchone()
        assert total == SUM and (newest or 0) >= last, (total, newest, last)
        looks, last = looks + 1, newest or 0
        time.sleep(0.001)
    connection.close()
    os._exit(0 if looks > 0 else 3)


def write():
    connection = connect()
    for turn in range(1, TURNS + 1):
        connection.execute("begin immediate")
        for i in range(20):
            move = (turn * 31 + i) % 17
            connection.execute("update accounts set amount = amount - ? where id = ?",
                               (move, (turn * 7 + i) % ACCOUNTS))
            connection.execute("update accounts set amount = amount + ? where id = ?",
                               (move, (turn * 13 + i * 3) % ACCOUNTS))
        connection.execute("insert into moves values (?, ?)", (turn, "x" * (turn * 97 % 3000)))
        connection.execute("commit")
        most, size = connection.execute(
            "select max(amount), (select sum(length(text)) from moves) from accounts").fetchone()
        print(turn, most, size, flush=True)
        time.sleep(0.008)
    assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    connection.close()


def prepare():
    first = sqlite3.connect("bank.db", isolation_level=None)
    assert first.execute("pragma journal_mode=wal").fetchone() == ("wal",)
    first.execute("create table accounts (id integer primary key, amount integer)")
    first.execute("create table moves (turn integer, text text)")
    first.executemany("insert into accounts values (?, ?)", [(i, SUM // ACCOUNTS) for i in range(ACCOUNTS)])
    first.close()


if HOW != "append":
    prepare()
if HOW == "prepare":
    sys.exit()
readers = []
for _ in range(2):
    readers.append(os.fork())
    if readers[-1] == 0:
        read("enough")
write()
open("enough", "w").close()
for reader in readers:
    assert os.waitpid(reader, 0) == (reader, 0)
os.unlink("enough")
print("PASS", flush=True)
