"""The checks of `make check` find what they are for: each has to report what is wrong in a small repository made here,
and nothing in one that is in order. Run: python3 -m unittest discover -q -s scripts
"""
import importlib.util
import pathlib
import subprocess
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent


def load(name):
    """A check as a module (their names have hyphens)."""
    spec = importlib.util.spec_from_file_location(name.replace("-", "_"), HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Repository(unittest.TestCase):
    """A test with a repository of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        subprocess.run(["git", "-C", folder.name, "init", "-q"], check=True)

    def write(self, **files):
        """Files by name: `__` stands for /, and the ending is .rs where none is given."""
        for name, text in files.items():
            self.put(name.replace("__", "/") + ".rs", text)

    def put(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Effects(Repository):
    effects = load("check-effects")

    def found(self, row="a file is made", names="`create`"):
        self.put("docs/security.md", f"{self.effects.TABLE}\n\n| effect | where |\n| --- | --- |\n| {row} | {names} |\n"
                 "| a lock | `locks.rs` |\n")
        beside = [("a lock", "locks.rs", "SYS_flock", "its own")]
        return [message for _, _, message in self.effects.check(self.root, beside, ["find"])]

    def setUp(self):
        super().setUp()
        self.folder = self.effects.FOLDER
        self.put(f"{self.folder}paths/mod.rs", "pub fn find() {}\npub fn create() { at::open(); }\n")
        self.put(f"{self.folder}locks.rs", "fn lock() { call(libc::SYS_flock); }\n")

    def test_what_is_in_order(self):
        self.assertEqual(self.found(), [])

    def test_past_the_door(self):
        self.put(f"{self.folder}x.rs", "use fs::write;\nfn x() { fs::write(a, b); }\n"
                 "#[cfg(test)]\nmod tests { fn y() { fs::rename(a, b); } }\n")
        self.assertEqual(len(self.found()), 1)
        self.assertIn("fs::write past", self.found()[0])

    def test_rows_and_functions(self):
        self.assertIn("does not name `create`", self.found(names="")[0])
        self.assertTrue(any("no function `made`" in one for one in self.found(names="`create`, `made`")))
        self.put(f"{self.folder}locks.rs", "")
        self.assertTrue(any("is not there" in one for one in self.found()))


class Cycles(Repository):
    cycles = load("check-cycles")

    def found(self):
        return [(file, message) for file, _, message in self.cycles.check(self.root, "k")]

    def test_between_folders(self):
        self.write(k__src__lib="mod a;\nmod b;\n", k__src__a__mod="pub mod x;\n", k__src__b__mod="pub mod y;\n",
                   k__src__a__x="use crate::b::y::Y;\npub struct X(Y);\n",
                   k__src__b__y="pub struct Y;\nfn f(_: crate::a::x::X) {}\n")
        self.assertEqual(len(self.found()), 1)
        self.assertIn("2 files of different folders", self.found()[0][1])

    def test_through_a_reexport_and_super(self):
        self.write(k__src__lib="mod a;\nmod b;\n", k__src__a__mod="mod x;\npub use self::x::X;\n",
                   k__src__b__mod="pub mod y;\n",
                   k__src__a__x="use crate::b;\npub struct X(b::y::Y);\n",
                   k__src__b__y="use super::super::a::X;\npub struct Y(X);\n")
        self.assertEqual(len(self.found()), 1)

    def test_not_by_declarations_tests_comments_or_strings(self):
        self.write(k__src__lib="pub mod a;\npub mod b;\npub use a::x::X;\n",
                   k__src__a__mod="pub mod x;\npub use x::X;\n",
                   k__src__b__mod="use crate::X;\npub struct B(X);\n",
                   k__src__a__x='// crate::b::B\npub struct X;\nconst S: &str = "crate::b::B";\n'
                                "#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n#[cfg(test)]\n"
                                "fn f(_: crate::b::B) {}\n")
        self.assertEqual(self.found(), [])

    def test_a_large_one_within_a_folder(self):
        names = "pqrstu"
        self.write(k__src__lib="".join(f"mod {name};\n" for name in names))
        for name, following in zip(names, names[1:] + names[:1]):
            self.put(f"k/src/{name}.rs", f"pub fn {name}() {{ super::{following}::{following}() }}\n")
        self.assertEqual(len(self.found()), 1)
        self.put("k/src/u.rs", "pub fn u() {}\n")
        self.assertEqual(self.found(), [])

    def test_crates_within_crates_and_how_many_cycles_all_have(self):
        self.put("fuzz/Cargo.toml", "[workspace]\n")
        for number in range(self.cycles.MOST_CYCLES + 1):
            crate = f"k/part{number}" if number else "k"
            self.put(f"{crate}/Cargo.toml", "[package]\n")
            self.put(f"{crate}/src/lib.rs", "mod a;\nmod b;\n")
            self.put(f"{crate}/src/a.rs", "pub struct A(super::b::B);\n")
            self.put(f"{crate}/src/b.rs", "pub struct B(super::a::A);\n")
            self.put("fuzz/src/lib.rs", "")
            self.assertEqual(len(self.cycles.crates(self.root)), number + 1)
            self.assertEqual(len(self.cycles.check_all(self.root)), int(number == self.cycles.MOST_CYCLES))


class Folders(Repository):
    folders = load("check-folders")
    table = {"agent": (["keeper"], ["mod.rs"]), "keeper": ([], ["client.rs"])}

    def found(self, beside=()):
        return [message for _, _, message in self.folders.check(self.root, self.table, list(beside))]

    def test(self):
        self.put("cli/src/main.rs", "mod agent;\nmod keeper;\nmod name;\nfn main() { keeper::bank::run() }\n")
        self.put("cli/src/agent/mod.rs", "use crate::keeper::client::ask;\nfn run() { ask() }\n")
        self.put("cli/src/keeper/mod.rs", "pub mod bank;\npub mod client;\n")
        self.put("cli/src/keeper/client.rs", "pub fn ask() {}\n")
        self.put("cli/src/keeper/bank.rs", "pub fn run() {}\n")
        self.put("cli/src/name.rs", "pub fn name() {}\n")
        self.assertEqual(self.found(), [])
        self.put("cli/src/agent/mod.rs", "use crate::keeper::bank::run;\nfn f() { run() }\n")
        self.assertIn("entered by client.rs alone", self.found()[0])
        self.put("cli/src/agent/mod.rs", "pub fn run() {}\n")
        self.put("cli/src/keeper/client.rs", "pub fn ask() { crate::agent::run() }\n")
        self.put("cli/src/name.rs", "pub fn name() { crate::agent::run() }\n")
        self.assertEqual(len(self.found()), 2)
        self.assertEqual(len(self.found([("name.rs", "agent/mod.rs", "why")])), 1)
        self.assertIn("is not there", self.found([("name.rs", "keeper/bank.rs", "why")])[-1])


class Columns(Repository):
    def test(self):
        columns = load("check-columns")
        self.put("a.rs", "// " + "word " * 23 + "1\n")
        self.put("b.md", "| " + "cell | " * 30 + "\n" + "x" * 200 + "\n")
        self.assertEqual(columns.check(self.root), [])
        self.put("a.rs", "// " + "word " * 23 + "12\n" + "\n// " + "word " * 24 + "\n")
        self.assertEqual([(file, line) for file, line, _ in columns.check(self.root)], [("a.rs", 3)])


class Words(Repository):
    words = load("check-words")
    glossary = ("| word | is |\n|---|---|\n| `page` | 4 KiB |\n\n| forbidden | use |\n|---|---|\n"
                "| `let go`, `room` | resumed |\n")

    def test_terms(self):
        self.assertEqual(self.words.forbidden(self.glossary), [["let", "go"], ["room"]])

    def test_found(self):
        self.write(cli__src__room="fn let_go() {}\npub struct LetGoNow;\nfn f() { say(\"is let \\\n"
                                  "   go\") }\n// was let go\nlet room = 1;\n")
        found = self.words.check(self.root, [["let", "go"], ["room"]], [])
        self.assertEqual([(line, message.split("`")[1]) for _, line, message in found],
                         [(1, "room"), (1, "let go"), (2, "let go"), (6, "room"), (5, "let go"), (3, "let go")])

    def test_not_found(self):
        self.write(cli__src__mushroom="// task_room_owner, by hand\npub fn letter_going() {}\n"
                                      "#[cfg(test)]\nmod tests {\n"
                                      "    const A: &str = \"let go\";\n}\n")
        self.assertEqual(self.words.check(self.root, [["let", "go"], ["room"], ["hand"]], []), [])
        self.write(cli__src__a="const A: &str = \"no room left\";\n")
        self.assertEqual(self.words.check(self.root, [["room"]], [("cli/src/a.rs", "room", "why")]), [])


class Links(Repository):
    def test(self):
        links = load("check-links")
        self.put("docs/a.md", "# One `two` three\n")
        self.put("README.md", "[a](docs/a.md#one-two-three) `docs/a.md` [web](https://example.org/x.md)\n")
        self.write(k__src__stop__resume="// as in stop/resume.rs, docs/a.md, kernel/fork.c and a.md\n"
                                        "const P: &str = \"docs/gone.md\";\n")
        self.assertEqual(links.check(self.root), [])
        self.put("README.md", "[a](docs/b.md)\n[a](docs/a.md#two)\n`docs/c.md`\n")
        self.write(k__src__stop__resume="// as in stop/gone.rs\n//! (gone.md)\n")
        found = [(file, line) for file, line, _ in links.check(self.root)]
        self.assertEqual(found, [("README.md", 1), ("README.md", 2), ("README.md", 3),
                                 ("k/src/stop/resume.rs", 1), ("k/src/stop/resume.rs", 2)])


class Licences(unittest.TestCase):
    licences = load("check-licences")

    def test_expressions(self):
        allowed = {"MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"}
        for text in ("MIT", "GPL-3.0 OR MIT", "GPL-3.0/MIT", "(MIT OR GPL-3.0) AND Unicode-3.0",
                     "Apache-2.0 WITH LLVM-exception"):
            self.assertTrue(self.licences.fits(text, allowed), text)
        for text in ("GPL-3.0", "MIT AND GPL-3.0", "MIT WITH LLVM-exception", "(MIT OR GPL-3.0) AND NCSA"):
            self.assertFalse(self.licences.fits(text, allowed), text)

    def test_found(self):
        good = {"name": "a", "version": "1", "source": None, "license": "MIT"}
        bad = [{**good, "license": "GPL-3.0"}, {**good, "license": None}, {**good, "source": "git+https://example.org"}]
        self.assertEqual(len(list(self.licences.check([good], {"MIT"}, "Cargo.lock"))), 0)
        self.assertEqual(len(list(self.licences.check(bad, {"MIT"}, "Cargo.lock"))), 3)

    def test_the_list_is_read(self):
        self.assertIn("Apache-2.0", self.licences.allowed(self.licences.ROOT))


class Unused(Repository):
    def test(self):
        unused = load("check-unused")
        self.put("Cargo.toml", '[workspace.dependencies]\nlibc = "0.2"\nserde-json = "1"\nrand = "1"\n')
        self.put("k/Cargo.toml", "[dependencies]\nlibc.workspace = true\n[dev-dependencies]\n"
                 "serde-json.workspace = true\n")
        self.put("k/src/lib.rs", "// libc\nfn f() {}\n")
        self.put("k/tests/t.rs", "use serde_json::Value;\n")
        found = [(file, line) for file, line, _ in unused.check(self.root)]
        self.assertEqual(found, [("k/Cargo.toml", 2), ("Cargo.toml", 4)])


if __name__ == "__main__":
    unittest.main()
