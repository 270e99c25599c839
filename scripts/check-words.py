#!/usr/bin/env python3
"""The words that docs/glossary.md forbids are in no name, no message and no comment.

Why: one word per thing, and the field's word, so that a reader who knows CRIU or DMTCP finds what is meant.

Reads the forbidden words from the table of the glossary whose first heading cell has "forbidden" or "not" in it, or
else its second table: every `word` in backticks in the first column. Looked at are
- names: folders and files under version control (but the programs of the tests), and every name in a Rust source,
  public or not (not in tests), cut into its words (`let_go`, `LetGo` -> let go);
- messages: every string of a Rust source (not in tests) that has a space in it, `#[error("...")]` among them;
- comments of Rust sources, line by line. A name in one, as `task_dump_owner` of the kernel, is one word.
ORDINARY has what a forbidden word is a part of without meaning what is forbidden; EXCEPTIONS what may stay, with the
reason.

Run: scripts/check-words.py             what `make check` does
     scripts/check-words.py --report    the same, and exits with 0: for a look
"""
import re
import sys

from check_common import ROOT, code_only, comments, finish, line_of, read, strings, tracked, without_tests

GLOSSARY = "docs/glossary.md"
# Folders whose names and messages are those of programs that are tested, not ours.
NOT_OURS = ("tests/", "benches/", "examples/", "fuzz/", "docs/", "scripts/", "tiers/tests/", "preload/tests/", ".ci/")
# (file or "*", what is found there, why it may stay)
EXCEPTIONS = [
    (
        "preload/src/message.rs",
        "hello",
        "a word of the protocol: the agent must know what libraries in older images say",
    ),
    ("sys/src/sock_diag.rs", "NLM_F_DUMP", "a name of the kernel"),
    ("compat/nvstream/src/api.rs", "nvs_snapshot", "a name of NVStream"),
]
# In comments.
ORDINARY = re.compile(r"\bby\s+hand\b|\blife cycle\b|\bsigns? of life\b|[\w-]+/[\w-]+#\d+", re.IGNORECASE)


def forbidden(glossary):
    """The forbidden words, as lists of words."""
    tables, rows = [], []
    for line in glossary.split("\n") + [""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
        elif rows:
            tables.append(rows)
            rows = []
    named = [t for t in tables if re.search(r"forbidden|\bnot\b", t[0][0], re.IGNORECASE)]
    chosen = named[0] if named else (tables[1] if len(tables) > 1 else [])
    found = []
    for row in chosen[2:]:
        for word in re.findall(r"`([^`]+)`", row[0]):
            words = [part.lower() for part in re.findall(r"\w+", word)]
            if words and words not in found:
                found.append(words)
    return found


def words_of(name):
    """`LetGo_now` -> let go now"""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def contains(words, term):
    """Whether a list of words has the words of a term one after the other."""
    return any(words[i:i + len(term)] == term for i in range(len(words) - len(term) + 1))


def check(root, terms, exceptions=None):
    """Findings."""
    findings = []
    known = EXCEPTIONS if exceptions is None else exceptions
    any_term = re.compile("|".join(f" {' '.join(term)} " for term in terms))  # the quick look, at hundreds of thousands

    def look(file, line, words, what):
        if not any_term.search(f" {' '.join(words)} "):
            return
        for term in terms:
            text = " ".join(term)
            if contains(words, term) and not any(f in ("*", file) and t in (text, what) for f, t, _ in known):
                findings.append((file, line, f"`{text}` ({GLOSSARY} has the word to use): {what}"))

    for file in tracked(root):
        ours = not file.startswith(NOT_OURS)
        if not file.startswith(("tests/programs/", "tests/apps/", "tiers/tests/golden/")):
            for part in file.split("/"):
                look(file, 1, words_of(part), part)
        if not (ours and file.endswith(".rs")):
            continue
        text = read(root, file)
        code = without_tests(code_only(text))
        seen = set()
        for match in re.finditer(r"\b[A-Za-z_]\w*", code):
            if match.group() not in seen:
                seen.add(match.group())
                look(file, line_of(code, match.start()), words_of(match.group()), match.group())
        for line, comment in comments(text):
            plain = ORDINARY.sub(" ", comment)
            look(file, line, re.findall(r"[a-z_][a-z_0-9]*", plain.lower()), comment.strip()[:90])
        product = code.split("\n")
        for line, string in strings(text):
            if " " in string and product[line - 1].strip():
                joined = re.sub(r"\\\n\s*", "", string)
                look(file, line, re.findall(r"[a-z]+", joined.lower()), joined[:90])
    return findings


def main(arguments):
    if not (ROOT / GLOSSARY).is_file():
        print(f"{GLOSSARY}:1: is missing, it has the list of forbidden words", file=sys.stderr)
        return 1
    terms = forbidden(read(ROOT, GLOSSARY))
    if not terms:
        print(f"{GLOSSARY}:1: has no table of forbidden words", file=sys.stderr)
        return 1
    clean = f"none of the {len(terms)} forbidden words in names, messages and comments"
    status = finish("check-words", check(ROOT, terms), clean)
    return 0 if arguments == ["--report"] else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
