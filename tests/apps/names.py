"""Looks names up until `enough` is there, ten times a second. The C library keeps the databases of nscd mapped."""
import grp
import os
import pwd
import time

turn = 0
while turn < 5 or not os.path.exists("enough"):
    print(turn, pwd.getpwnam("daemon").pw_uid, grp.getgrgid(4).gr_name, flush=True)
    turn += 1
    time.sleep(0.1)
print("PASS", flush=True)
