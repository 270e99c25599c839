//! Checks of the program that is to be run: everything that can be known to fail is refused before anything starts.
//!
//! Called by `holdfast run`, and [`gives_back_by_itself`] by `holdfast restart`. LD_PRELOAD needs the dynamic linker,
//! and the linker ignores it where the kernel sets AT_SECURE (ld.so(8), "Secure-execution mode"): set-user-id,
//! set-group-id and file capabilities.

use crate::exit::{Exit, Failure};
use holdfast_process::loads_libraries;
use holdfast_sys::elf;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Most bytes of a `#!` line that the kernel looks at (BINPRM_BUF_SIZE, include/uapi/linux/binfmts.h).
const SCRIPT_LINE: usize = 256;
/// Deepest nesting of interpreters (fs/exec.c, `exec_binprm`).
const SCRIPT_DEPTH: usize = 5;

/// Finds the program as execvp(3) does and checks that it can be run under Holdfast.
///
/// # Errors
/// Not found (127), cannot be executed (126), or cannot be checkpointed and why (69).
pub fn find_and_check(program: &OsStr) -> Result<Program, Failure> {
    let path = find(program, std::env::var_os("PATH"))?;
    let loads_libraries = check(&path, SCRIPT_DEPTH)?;
    Ok(Program { path, loads_libraries })
}

/// A program that can be run under Holdfast.
#[derive(Debug)]
pub struct Program {
    /// Its file.
    pub path: PathBuf,
    /// Whether libholdfast can be loaded into it, or into the interpreter that it begins with.
    pub loads_libraries: bool,
}

fn is_executable_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn find(program: &OsStr, search: Option<OsString>) -> Result<PathBuf, Failure> {
    let shown = program.to_string_lossy();
    if program.as_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(Failure::new(Exit::NotExecutable, format!("{shown}: {error}")))
            }
            Err(error) => Err(Failure::new(Exit::NoProgram, format!("{shown}: {error}{}", remedy(&shown)))),
            Ok(_) if is_executable_file(&path) => Ok(path),
            Ok(found) if found.is_dir() => {
                Err(Failure::new(Exit::NotExecutable, format!("{shown} is a folder, no program")))
            }
            Ok(_) => Err(Failure::new(
                Exit::NotExecutable,
                format!("{shown} is not an executable file; chmod +x it, or name its interpreter"),
            )),
        };
    }
    let search = search.unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    search
        .as_bytes()
        .split(|&c| c == b':')
        .map(|folder| if folder.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(folder)) })
        .map(|folder| folder.join(program))
        .find(|path| is_executable_file(path))
        .ok_or_else(|| {
            Failure::new(Exit::NoProgram, format!("{shown}: no such program in PATH{}", remedy(&shown)))
        })
}

/// What to do about a program that is not where it is looked for.
fn remedy(program: &str) -> String {
    if program.contains(' ') {
        return "; quote the program and its arguments separately, or use sh -c '...'".to_owned();
    }
    let here = Path::new(".").join(program);
    match program.contains('/') {
        false if is_executable_file(&here) => format!("; the one of this folder is {}", here.display()),
        true if Path::new(program).is_relative() => {
            let folder = std::env::current_dir().unwrap_or_default();
            format!("; give its path, or the one from this folder, which is {}", folder.display())
        }
        _ => "; give its path".to_owned(),
    }
}

fn refused(path: &Path, why: &str) -> Failure {
    Failure::new(Exit::Refused, format!("{}: {why}", path.display()))
}

/// Whether libraries can be loaded into what the kernel executes.
fn check(path: &Path, depth: usize) -> Result<bool, Failure> {
    let file = File::open(path).map_err(|error| {
        refused(path, &format!("cannot be read ({error}), and a checkpoint has to read it"))
    })?;
    let meta =
        file.metadata().map_err(|error| Failure::system(format_args!("{}", path.display()), &error))?;
    let mut head = [0_u8; SCRIPT_LINE];
    let len = read_head(&file, &mut head)
        .map_err(|error| Failure::system(format_args!("reading {}", path.display()), &error))?;
    let head = &head[..len];
    if let Some(line) = head.strip_prefix(b"#!") {
        // Set-user-id bits of scripts are ignored by the kernel (fs/exec.c uses the interpreter's file).
        return check_script(path, line, depth);
    }
    if !head.starts_with(b"\x7fELF") {
        return Err(Failure::new(
            Exit::NotExecutable,
            format!("{}: neither an ELF program nor a script that begins with #!", path.display()),
        ));
    }
    if meta.mode() & (libc::S_ISUID | libc::S_ISGID) != 0 {
        return Err(refused(
            path,
            "is set-user-id or set-group-id: the dynamic linker ignores LD_PRELOAD for it; run a copy \
             without these bits",
        ));
    }
    if has_capabilities(path) {
        return Err(refused(
            path,
            "has file capabilities (see getcap): the dynamic linker ignores LD_PRELOAD for it; run a copy without them",
        ));
    }
    loads_libraries(&file).map_err(|why| refused(path, &why.to_string()))
}

fn read_head(mut file: &File, head: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < head.len() {
        match file.read(&mut head[len..])? {
            0 => break,
            n => len += n,
        }
    }
    Ok(len)
}

fn check_script(path: &Path, line: &[u8], depth: usize) -> Result<bool, Failure> {
    let end = line.iter().position(|&c| c == b'\n').unwrap_or(line.len());
    let mut words = line[..end].split(|c| c.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let Some(interpreter) = words.next() else {
        return Err(refused(path, "its #! line names no interpreter"));
    };
    if depth == 0 {
        return Err(refused(path, "too many interpreters in a row"));
    }
    let interpreter = PathBuf::from(OsString::from_vec(interpreter.to_vec()));
    if !is_executable_file(&interpreter) {
        return Err(Failure::new(
            Exit::NotExecutable,
            format!(
                "{}: its interpreter {} is not an executable file",
                path.display(),
                interpreter.display()
            ),
        ));
    }
    let loads_libraries = check(&interpreter, depth - 1)?;
    // `#!/usr/bin/env NAME`: what env will execute is what must be checked. Options and assignments are left to it.
    if interpreter.file_name() == Some(OsStr::new("env"))
        && let Some(name) = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))
    {
        let found = find(OsStr::from_bytes(name), std::env::var_os("PATH"))
            .map_err(|error| Failure::new(error.exit, format!("{}: {error}", path.display())))?;
        check(&found, depth - 1)?;
    }
    Ok(loads_libraries)
}

/// Whether an executable or library has code of the Go language in it: Go makes its system calls itself, past
/// libholdfast. Its linker leaves a note with owner "Go" (cmd/link/internal/ld/elf.go, `ELF_NOTE_GO_NAME`). What cannot
/// be read has none.
fn has_go(path: &Path) -> bool {
    /// Notes are a few hundred bytes.
    const LONGEST: u64 = 1 << 16;
    let notes = || -> Option<Vec<Vec<u8>>> {
        let file = File::open(path).ok()?;
        let mut all = Vec::new();
        for segment in elf::segments(&file).ok()?.iter().filter(|segment| segment.kind == elf::PT_NOTE) {
            let mut notes = vec![0_u8; usize::try_from(segment.len.min(LONGEST)).ok()?];
            file.read_exact_at(&mut notes, segment.offset).ok()?;
            all.push(notes);
        }
        Some(all)
    };
    notes().is_some_and(|all| all.iter().any(|notes| has_note_of(notes, b"Go\0")))
}

/// Whether a list of notes has one of that owner: lengths of owner and content, a type, then both, each filled up to
/// four bytes.
fn has_note_of(mut notes: &[u8], owner: &[u8]) -> bool {
    loop {
        let length = |at| elf::word(notes, at).map(|bytes| u32::from_le_bytes(bytes) as usize);
        let (Some(owner_len), Some(content_len)) = (length(0), length(4)) else { return false };
        let Some(rest) = notes.get(12..) else { return false };
        if rest.get(..owner_len).is_some_and(|found| found.starts_with(owner)) {
            return true;
        }
        let padded = |len: usize| len.checked_next_multiple_of(4);
        let next = padded(owner_len).zip(padded(content_len)).and_then(|(a, b)| a.checked_add(b));
        let Some(rest) = next.and_then(|next| rest.get(next..)) else { return false };
        notes = rest;
    }
}

/// Whether a library is the runtime of a sanitizer, which gives memory back to the kernel by system calls of its own
/// (compiler-rt, sanitizer_posix_libcdep.cpp, ReleaseMemoryPagesToOS; gcc has the same sources). A runtime that is
/// linked into the executable is not found.
fn is_sanitizer(path: &Path) -> bool {
    const RUNTIMES: [&str; 5] = ["libasan.so", "libhwasan.so", "liblsan.so", "libtsan.so", "libclang_rt."];
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    RUNTIMES.iter().any(|runtime| name.starts_with(runtime))
}

/// Whether an executable or library gives memory back to the kernel past libholdfast.
pub fn gives_back_by_itself(path: &Path) -> bool {
    is_sanitizer(path) || has_go(path)
}

fn has_capabilities(path: &Path) -> bool {
    holdfast_sys::fd::has_attribute(path, c"security.capability")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LINKER: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";

    /// An ELF file with one program header of the given type, for the linker of the C library.
    fn elf(class: u8, machine: u8, header_type: u8) -> Vec<u8> {
        let mut file = vec![0_u8; 64 + 56];
        file[72] = 120;
        file[96] = LINKER.len() as u8;
        file[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1]);
        file[18] = machine;
        file[32] = 64;
        file[54] = 56;
        file[56] = 1;
        file[64] = header_type;
        file.extend(LINKER);
        file
    }

    struct Folder(PathBuf);
    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("program-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }
        fn file(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        }
    }
    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn elf_programs() {
        let folder = Folder::new("elf");
        let verdict = |name: &str, content: &[u8], mode: u32| {
            check(&folder.file(name, content, mode), SCRIPT_DEPTH).map_err(|failure| failure.message)
        };
        assert!(verdict("dynamic", &elf(2, 62, 3), 0o755).unwrap());
        assert!(!verdict("static", &elf(2, 62, 1), 0o755).unwrap());
        let other = String::from_utf8(elf(2, 62, 3)).unwrap().replace("/ld-linux-x86-64", "/ld-musl-x86_64-");
        assert!(!verdict("other", other.as_bytes(), 0o755).unwrap());
        assert!(verdict("arm", &elf(2, 183, 3), 0o755).unwrap_err().contains("another processor"));
        assert!(verdict("small", &elf(1, 3, 3), 0o755).unwrap_err().contains("32-bit"));
        assert!(verdict("setuid", &elf(2, 62, 3), 0o4755).unwrap_err().contains("set-user-id"));
        assert!(verdict("setgid", &elf(2, 62, 3), 0o2755).unwrap_err().contains("set-user-id"));
        let whole = elf(2, 62, 3);
        for len in 4..whole.len() {
            assert!(verdict("cut", &whole[..len], 0o755).is_err(), "{len}");
        }
    }

    #[test]
    fn code_of_go_is_known_by_its_note() {
        let folder = Folder::new("go");
        let note = |owner: &[u8], content: &[u8]| {
            let mut note = Vec::new();
            note.extend(u32::try_from(owner.len()).unwrap().to_le_bytes());
            note.extend(u32::try_from(content.len()).unwrap().to_le_bytes());
            note.extend([3, 0, 0, 0]);
            for part in [owner, content] {
                note.extend(part);
                note.resize(note.len().next_multiple_of(4), 0);
            }
            note
        };
        let file = |name: &str, notes: &[u8]| {
            let mut content = elf(2, 62, 4);
            content.truncate(120);
            content[72] = 120;
            content[96..104].copy_from_slice(&(notes.len() as u64).to_le_bytes());
            content.extend(notes);
            folder.file(name, &content, 0o755)
        };
        let (gnu, go) = (note(b"GNU\0", b"12345"), note(b"Go\0\0", b"abcdefg"));
        assert!(has_go(&file("go", &go)));
        assert!(has_go(&file("both", &[gnu.clone(), go.clone()].concat())));
        assert!(!has_go(&file("c", &gnu)));
        assert!(!has_go(&file("empty", &[])));
        assert!(!has_go(&folder.file("text", b"Go", 0o644)) && !has_go(&folder.0.join("absent")));
        let mut endless = go;
        endless[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(!has_go(&file("endless", &endless)));
        assert!(!has_go(&std::env::current_exe().unwrap()));
        assert!(gives_back_by_itself(Path::new("/usr/lib/x86_64-linux-gnu/libasan.so.8.0.0")));
        assert!(!gives_back_by_itself(&file("c", &gnu)));
    }

    #[test]
    fn scripts_are_judged_by_their_interpreter() {
        let folder = Folder::new("script");
        let good = folder.file("good", &elf(2, 62, 3), 0o755);
        let alone = folder.file("alone", &elf(2, 62, 1), 0o755);
        let bad = folder.file("bad", &elf(1, 3, 3), 0o755);
        let script = |line: String| check(&folder.file("script", line.as_bytes(), 0o755), SCRIPT_DEPTH);
        assert!(script(format!("#!{}\n", good.display())).unwrap());
        assert!(script(format!("#! {} -x y\n", good.display())).is_ok());
        assert!(!script(format!("#!{}\n", alone.display())).unwrap());
        assert_eq!(script(format!("#!{}\n", bad.display())).unwrap_err().exit, Exit::Refused);
        assert_eq!(script("#!/nonexistent/x\n".into()).unwrap_err().exit, Exit::NotExecutable);
        assert_eq!(script("#!\n".into()).unwrap_err().exit, Exit::Refused);
        assert_eq!(script("echo hi\n".into()).unwrap_err().exit, Exit::NotExecutable);
        let own = folder.0.join("script");
        assert_eq!(script(format!("#!{}\n", own.display())).unwrap_err().exit, Exit::Refused);
    }

    #[test]
    fn programs_are_found_as_execvp_does() {
        let folder = Folder::new("path");
        folder.file("tool", b"", 0o755);
        folder.file("plain", b"", 0o644);
        let search = Some(OsString::from(format!("/nonexistent:{}", folder.0.display())));
        assert_eq!(find(OsStr::new("tool"), search.clone()).unwrap(), folder.0.join("tool"));
        assert_eq!(find(OsStr::new("plain"), search.clone()).unwrap_err().exit, Exit::NoProgram);
        assert_eq!(find(OsStr::new("absent"), search).unwrap_err().exit, Exit::NoProgram);
        assert_eq!(find(OsStr::new("/nonexistent/x"), None).unwrap_err().exit, Exit::NoProgram);
        assert_eq!(find(folder.0.join("plain").as_os_str(), None).unwrap_err().exit, Exit::NotExecutable);
        assert_eq!(find(folder.0.as_os_str(), None).unwrap_err().exit, Exit::NotExecutable);
    }
}
