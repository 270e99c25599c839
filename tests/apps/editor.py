# vim in a terminal of its own, driven as by a person at the keyboard; its text is shown line by line. editor.py [TURNS]
import fcntl, os, pty, re, select, struct, sys, termios, time

# What vim has done it says on the terminal, which is part of the image. A file that it writes is not: after a restart
# it may tell of things that are still to come. It is written once, at the end; not the one that it edits: it would ask
# before it overwrites one that is newer than it knows.
NAME = "copy.txt"


class Editor:
    def __init__(self):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            # A swap file that it made after the checkpoint is there after the restart: it takes another one and does
            # not ask.
            asks = ["--cmd", "set shortmess+=A"]
            os.execv("/usr/bin/vim", ["vim", "-u", "NONE", "-i", "NONE", "-N", *asks, "notes.txt"])
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))

    def look(self, seconds):
        """What it draws is read and forgotten."""
        ready, _, _ = select.select([self.terminal], [], [], seconds)
        if ready:
            return os.read(self.terminal, 65536)
        return b""

    def type(self, keys):
        os.write(self.terminal, keys.encode())

    def answer(self, step):
        """What it tells of a step (`echo`): number of lines, and the last one. Nothing is typed meanwhile: a shell
        would get it."""
        end, seen = time.monotonic() + 20, b""
        while time.monotonic() < end:
            seen += self.look(0.01)
            found = re.search(b"<%s:([0-9]+):([^>]*)>" % step.encode(), seen)
            if found:
                return int(found[1]), found[2].decode()
        raise SystemExit(f"vim does not do what it was told: {step}: {seen[-500:]}")


def echo(step):
    return f'redraw | echo printf("<%s:%d:%s>", "{step}", line("$"), getline("$"))\r'


def main(turns):
    editor = Editor()
    while not editor.look(0.2):
        pass
    # The output of shells by pipe: a file that is deleted after a checkpoint is not there after the restart.
    editor.type(":set noshelltemp columns=90\r")
    for turn in range(turns):
        # A line, a number that it counts up itself, an undo and a redo, the output of a shell.
        editor.type(f"Gocount {turn}\x1b{turn % 7 + 1}\x01yyp:s/count/again/\ruu\x12\x12:{echo(f'keys {turn}')}")
        told = editor.answer(f"keys {turn}")
        assert told[1] == f"again {turn + turn % 7 + 1}", told
        if turn % 5 == 0:
            editor.type(f":exe '$r !expr {turn} + 1' | {echo(f'shell {turn}')}")
            told = editor.answer(f"shell {turn}")
            assert told[1] == f"{turn + 1}", told
        print(turn, *told, flush=True)
        time.sleep(0.01)
    editor.type(f":w! {NAME} | {echo('written')}")
    editor.answer("written")
    editor.type(":q!\r")
    while True:
        try:
            if not editor.look(1):
                continue
        except OSError:  # the terminal is closed
            break
    assert os.waitpid(editor.pid, 0)[1] == 0
    print(open(NAME).read() + "PASS", flush=True)


main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
