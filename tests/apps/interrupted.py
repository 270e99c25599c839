# A database whose transaction stands half done in its file, with a journal beside it that says how to undo it, from the
# moment when there is a file `go` until there is a file `end`: whoever is killed then leaves that journal behind.
import os, sqlite3, time


def wait(name):
    while not os.path.exists(name):
        time.sleep(0.01)


database = sqlite3.connect("data.db", isolation_level=None)
database.execute("pragma cache_size=5")
database.execute("create table rows (id integer primary key, text text)")
database.executemany("insert into rows values (?, ?)", [(i, "x" * 500) for i in range(400)])
print("ready", flush=True)
wait("go")
for turn in range(2):
    database.execute("begin immediate")
    database.execute("update rows set text = ?", ("%d" % turn * 400,))
    print("inside", turn, os.path.exists("data.db-journal"), flush=True)
    wait("end")
    database.execute("commit")
assert database.execute("pragma integrity_check").fetchone() == ("ok",)
assert database.execute("select count(*), min(text) = max(text) from rows").fetchone() == (400, 1)
print("PASS", flush=True)
