# A database of its own that is written all the time, by one process: ledger.py rollback|persist|truncate|wal|mmap.
# What a transaction has changed goes into the file before its end, and a journal, or a log, says how to undo it: who is
# killed there leaves both behind, and whoever opens the file next plays the journal back. At the end all that is in
# the database is printed, and whether it is sound.
import hashlib, sqlite3, sys, time

HOW = sys.argv[1]
ACCOUNTS, SUM = 500, 500000

ledger = sqlite3.connect("ledger.db", isolation_level=None)


def pragma(text):
    return ledger.execute("pragma " + text).fetchone()


mode = {"rollback": "delete", "mmap": "delete"}.get(HOW, HOW)
assert pragma("journal_mode=" + mode) == (mode,), "journal"
pragma("synchronous=off")
pragma("cache_size=5")
pragma("wal_autocheckpoint=20")
if HOW == "mmap":
    assert pragma("mmap_size=%d" % (1 << 28))[0] > 0, "mmap"
# After a restart from an image that was made before this, what it has written since is there.
ledger.execute("drop table if exists accounts")
ledger.execute("drop table if exists moves")
ledger.execute("create table accounts (id integer primary key, amount integer, text text)")
ledger.execute("create table moves (turn integer, text text)")
ledger.execute("begin")
ledger.executemany("insert into accounts values (?, ?, ?)",
                   [(i, SUM // ACCOUNTS, "x" * 300) for i in range(ACCOUNTS)])
ledger.execute("commit")
for turn in range(1, 121):
    ledger.execute("begin immediate")
    for i in range(40):
        move = (turn * 31 + i) % 17
        ledger.execute("update accounts set amount = amount - ?, text = ? where id = ?",
                       (move, "%d " % turn * 60, (turn * 7 + i * 11) % ACCOUNTS))
        ledger.execute("update accounts set amount = amount + ? where id = ?", (move, (turn * 13 + i * 3) % ACCOUNTS))
    time.sleep(0.004)
    ledger.execute("insert into moves values (?, ?)", (turn, "y" * (turn * 97 % 3000)))
    if turn % 10 == 0:
        ledger.execute("delete from moves where turn < ?", (turn - 5,))
    ledger.execute("commit")
    assert ledger.execute("select sum(amount) from accounts").fetchone() == (SUM,), "the sum"
    most = ledger.execute("select max(amount), (select count(*) from moves) from accounts").fetchone()
    print(turn, *most, flush=True)
    time.sleep(0.004)
assert pragma("integrity_check") == ("ok",), "integrity"
print(hashlib.sha256("\n".join(ledger.iterdump()).encode()).hexdigest())
ledger.close()
print("PASS", flush=True)
