# A Python program that speaks to Holdfast by the module of python/: one checkpoint, and what it learns after a restart.
import sys
import time

import numpy

import holdfast


@holdfast.on_checkpoint
def before():
    print("before", flush=True)


@holdfast.on_restart
def after():
    print("after a restart", flush=True)


field = holdfast.protect(numpy.arange(1000.0))
if not holdfast.loaded():
    try:
        holdfast.checkpoint()
    except holdfast.NoAgent:
        print("nobody takes checkpoints:", holdfast.restarted(), float(field.sum()), flush=True)
    sys.exit()
if holdfast.checkpoint() == holdfast.CHECKPOINTED:
    print("taken", flush=True)
    while True:  # until it is killed
        time.sleep(0.1)
own = holdfast.job()
print(holdfast.restarted(), float(field.sum()), own.job, [image.epoch for image in own.images], flush=True)
print(own.images[0].name, own.images[0].show()["job"], own.images[0].verify(), flush=True)
try:
    holdfast.job("absent")
except holdfast.CommandFailed as failed:
    print(failed.status, len(holdfast.jobs()), flush=True)
