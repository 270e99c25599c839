"""A wave in numpy that checkpoints itself: by holdfast.objects, or by veloc.Ckpt. Started again it goes on with the
newest version. `wave.py objects|veloc STEPS STORE|CONFIGURATION`"""
import sys

import numpy


def advance(now, before):
    """One step, in place."""
    after = 2 * now - before
    after[1:-1] += 0.25 * (now[2:] - 2 * now[1:-1] + now[:-2])
    before[...], now[...] = now, after


def by_objects(steps, store, now, before):
    from holdfast import objects

    step, flags = numpy.zeros((), dtype=numpy.int64), numpy.zeros(3, dtype=bool)
    try:
        objects.open("a/b", store=store)
        raise SystemExit("a name that is none")
    except objects.Error as error:
        assert "a/b" in str(error), error
    with objects.open("wave", store=store, keep=3) as wave:
        for key, array in {"now": now, "before": before, "step": step, "flags": flags}.items():
            wave.region(key, array)
        for wrong in (b"cannot be written", now[::2]):
            try:
                wave.region("wrong", wrong)
                raise SystemExit("not in one piece, or not to be written")
            except (TypeError, ValueError):
                pass
        version = wave.newest()
        if version is not None:
            assert wave.size(version, "now") == now.nbytes and wave.newest(below=1) is None
            raw = numpy.frombuffer(wave.read(version, "now"))
            wave.restore(version)
            assert step == version and flags.all() and (raw == now).all()
            try:
                wave.restore(version + 1)
                raise SystemExit("a version that is not there")
            except objects.NotFound:
                pass
        print("from", step, file=sys.stderr)
        while step < steps:
            advance(now, before)
            step += 1
            if step % 20 == 0:
                flags[:] = True
                wave.put(int(step))
            elif step % 10 == 0:
                wave.begin(int(step))
                wave.put_some("step", "now")
                wave.put_rest()
                wave.end()
        wave.wait()
        assert wave.finished()
        return int(step)


def by_veloc(steps, configuration, now, before):
    import veloc

    ckpt = veloc.Ckpt(0, configuration)
    ckpt.mem_protect(1, now)
    ckpt.mem_protect(2, before)
    version, step = ckpt.restart_test("wave", 0), 0
    if version >= 0:
        ckpt.restart("wave", version)
        step, words = ckpt.protected
        assert step == version and words == {"of": ["a", "program"]}
    print("from", step, file=sys.stderr)
    while step < steps:
        advance(now, before)
        step += 1
        if step % 10 == 0:
            ckpt.protected = (step, {"of": ["a", "program"]})
            ckpt.checkpoint("wave", step)
    ckpt.wait()
    assert ckpt.finished()
    ckpt.finalize()
    return step


def main():
    now = numpy.sin(numpy.arange(20000) * 0.01)
    before = now.copy()
    run = {"objects": by_objects, "veloc": by_veloc}[sys.argv[1]]
    step = run(int(sys.argv[2]), sys.argv[3], now, before)
    total = 0
    for bits in now.view(numpy.uint64)[::7].tolist():
        total = (total * 31 + bits) % 2**64
    print("%d steps: %x" % (step, total))


main()
