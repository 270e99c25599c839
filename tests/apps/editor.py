# vim in a terminal of its own, driven as by a person at the keyboard; its text is shown line by line. editor.py [TURNS]
import fcntl, os, pty, select, struct, sys, termios, time

# Not the file that it edits: it would ask before it overwrites one that is newer than it knows, as after a restart.
NAME = "copy.txt"


def lines():
    try:
        with open(NAME) as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


class Editor:
    def __init__(self):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv("/usr/bin/vim", ["vim", "-u", "NONE", "-i", "NONE", "-N", "notes.txt"])
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))

    def look(self, seconds):
        """What it draws is read and forgotten."""
        ready, _, _ = select.select([self.terminal], [], [], seconds)
        if ready:
            return os.read(self.terminal, 65536)
        return b""

    def type(self, keys):
        os.write(self.terminal, keys.encode())

    def wait(self, right):
        end = time.monotonic() + 20
        while not right():
            self.look(0.01)
            if time.monotonic() > end:
                raise SystemExit(f"vim does not do what it was told: {lines()[-3:]}")


def main(turns):
    if os.path.exists(NAME):
        os.unlink(NAME)
    editor = Editor()
    while not editor.look(0.2):
        pass
    # The output of shells by pipe: a file that is deleted after a checkpoint is not there after the restart.
    editor.type(":set noshelltemp columns=90\r")
    for turn in range(turns):
        # A line, a number that it counts up itself, an undo and a redo, the output of a shell.
        editor.type(f"Gocount {turn}\x1b{turn % 7 + 1}\x01yyp:s/count/again/\ruu\x12\x12:w! copy.txt\r")
        editor.wait(lambda: lines()[-1:] == [f"again {turn + turn % 7 + 1}"])
        if turn % 5 == 0:
            editor.type(f":$r !expr {turn} + 1\r:w! copy.txt\r")
            editor.wait(lambda: lines()[-1:] == [f"{turn + 1}"])
        print(turn, len(lines()), lines()[-1], flush=True)
        time.sleep(0.01)
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
