"""What the checks of `make check` share: which files there are, Rust text without comments and strings, findings.

No program of its own. A finding is (file, line, message); `finish` prints them and says how the program should exit.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Comments, strings and character literals, in the order in which they have to be tried. A lifetime is none of them.
_PIECE = re.compile(
    r"""//[^\n]*|/\*.*?\*/"""
    r"""|\bb?r(?P<hashes>#*)".*?"(?P=hashes)"""
    r"""|\bb?"(?:\\.|[^"\\])*"|"(?:\\.|[^"\\])*\""""
    r"""|'(?:\\[^'\n]{1,10}|\\'|[^'\\\n])'""",
    re.DOTALL,
)


def tracked(root, *endings):
    """Files that git knows or would take (paths as text, sorted), of these endings or all."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True,
    ).stdout.split("\0")
    there = [name for name in listed if name and (pathlib.Path(root) / name).is_file()]
    return sorted(set(name for name in there if not endings or name.endswith(endings)))


def read(root, name):
    """The text of a file, with unreadable bytes replaced."""
    return (pathlib.Path(root) / name).read_text(encoding="utf-8", errors="replace")


def _blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def code_only(text):
    """Rust text with comments and literals blanked: every line and column stays where it was."""
    return _PIECE.sub(_blank, text)


def comments(text):
    """(line, text) of each comment of a Rust text, one line of it at a time."""
    for match in _PIECE.finditer(text):
        if match.group().startswith(("//", "/*")):
            first = text.count("\n", 0, match.start()) + 1
            for number, line in enumerate(match.group().split("\n")):
                yield first + number, line


def strings(text):
    """(line, content) of each string literal of a Rust text."""
    for match in _PIECE.finditer(text):
        piece = match.group()
        if piece.startswith(('"', "r", "b")):
            yield text.count("\n", 0, match.start()) + 1, piece[piece.index('"') + 1:piece.rindex('"')]


def line_of(text, position):
    """The number of the line at a position."""
    return text.count("\n", 0, position) + 1


def block_end(text, start):
    """Where the block that opens at `start` (a brace) ends: the position behind its closing brace."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.end()
    return len(text)


def without_tests(code):
    """Code (of `code_only`) with every item blanked that is compiled for tests only (`test` or `loom` in its cfg)."""
    attribute = re.compile(r"#\[cfg\(([^\]]*)\)\]")
    pieces, position = [], 0
    for match in attribute.finditer(code):
        condition = match.group(1)
        if match.start() < position or "not(" in condition or not re.search(r"\b(test|loom)\b", condition):
            continue
        end = _item_end(code, match.end())
        pieces.append(code[position:match.start()])
        pieces.append(re.sub(r"[^\n]", " ", code[match.start():end]))
        position = end
    return "".join(pieces) + code[position:]


def _item_end(code, start):
    item = re.compile(r"\s*(?:#\[[^\]]*\]\s*)*(\w*)").match(code, start)
    keywords = "pub mod use fn impl struct enum trait const static type extern unsafe async macro_rules let".split()
    ends = "{;" if item.group(1) in keywords else "{;,"
    depth = 0
    for position in range(item.end(), len(code)):
        char = code[position]
        if depth == 0 and char in ends:
            return block_end(code, position) if char == "{" else position + 1
        depth += (char in "([") - (char in ")]")
    return len(code)


def finish(name, findings, clean):
    """Prints the findings, or one line that there are none; the exit status."""
    for file, line, message in findings:
        print(f"{file}:{line}: {message}", file=sys.stderr)
    if findings:
        print(f"{name}: {len(findings)} findings", file=sys.stderr)
        return 1
    print(f"{name}: {clean}")
    return 0
