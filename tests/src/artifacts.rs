//! The binary, the library and the test programs, in a folder that every user may read.
//!
//! The tests run as root and as uid 1000, and the checkout may lie in a home that uid 1000 cannot enter; so
//! everything that is executed is copied to `/tmp/holdfast-kit-…`, one folder per checkout. It is brought up to date
//! by whoever comes first, under a lock; a file is replaced by rename, so programs that run from the old one are not
//! disturbed.

use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

/// Where everything is that the tests execute.
pub struct Kit {
    root: PathBuf,
}

/// The kit of this checkout, made if need be.
///
/// # Panics
/// If it cannot be made: nothing could be tested.
#[allow(clippy::panic)]
pub fn kit() -> &'static Kit {
    static KIT: OnceLock<Kit> = OnceLock::new();
    KIT.get_or_init(|| Kit::make().unwrap_or_else(|error| panic!("the test kit cannot be made: {error:#}")))
}

/// Programs that are there statically linked, too, as `NAME-static`: in them there is no libholdfast.
const STATIC: &[&str] = &[
    "castoffs",
    "clocks",
    "detached",
    "files",
    "handling",
    "ipc",
    "mainless",
    "members",
    "pingpong",
    "pipes",
    "plain",
    "queued",
    "registers",
    "sleeps",
    "sockets",
    "timers",
    "toucher",
    "tree_bare",
    "tree_churn",
    "tree_futex",
    "tree_groups",
    "tree_daemons",
    "tree_memory",
    "tree_orphans",
    "tree_spawn",
    "tree_threads",
    "tree_zombies",
    "waits",
];

/// Those that are there with AddressSanitizer, too, as `NAME-asan`.
const SANITIZED: &[&str] = &["heap"];

/// Not programs but libraries, as `NAME.so` for the program `NAME`, from `NAME_library.c`.
const LIBRARY: &str = "_library";

/// Those that are there for another C library, too, as `NAME-musl`: into them libholdfast is loaded, but does not
/// speak.
const MUSL: &[&str] = &["pingpong", "tree_spawn"];

impl Kit {
    /// The folder with `holdfast` and `libholdfast.so`.
    pub fn bin(&self) -> PathBuf {
        self.root.join("bin")
    }
    /// The folder with the headers of the libraries in [`Kit::bin`].
    pub fn include(&self) -> PathBuf {
        self.root.join("include")
    }
    /// The binary under test.
    pub fn holdfast(&self) -> PathBuf {
        self.root.join("bin/holdfast")
    }
    /// The library under test.
    pub fn library(&self) -> PathBuf {
        self.root.join("bin/libholdfast.so")
    }
    /// A C program of `tests/programs`.
    pub fn program(&self, name: &str) -> PathBuf {
        self.root.join("programs").join(name)
    }
    /// A CUDA program of `tests/programs/cuda`, on mini-cudart.
    pub fn cuda_program(&self, name: &str) -> PathBuf {
        self.root.join("programs/cuda").join(name)
    }
    /// The folder with the stand-in driver, for LD_LIBRARY_PATH.
    ///
    /// # Errors
    /// It is not built.
    pub fn stand_in(&self) -> Result<PathBuf> {
        let folder = self.root.join("stand-in");
        ensure!(
            folder.join("libcuda.so.1").exists(),
            "there is no stand-in driver: build it first, `make stand-in`"
        );
        Ok(folder)
    }
    /// The stand-in for nvCOMP, for HOLDFAST_NVCOMP.
    pub fn nvcomp(&self) -> PathBuf {
        self.root.join("stand-in/libnvcomp-stand-in.so")
    }
    /// A script of `tests/apps`, `classes` for the compiled Java program, or `hasher`, `hasher-static` for the one in
    /// Go.
    pub fn app(&self, name: &str) -> PathBuf {
        self.root.join("apps").join(name)
    }

    /// The folder with `libcuda.so.1`, the driver of `tests/driver`.
    pub fn driver(&self) -> PathBuf {
        self.root.join("driver")
    }

    fn make() -> Result<Kit> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        let checkout = source.parent().context("the tests folder has a parent")?;
        let name: String = checkout
            .to_string_lossy()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let root = std::env::temp_dir().join(format!("holdfast-kit{name}"));
        for folder in
            ["", "bin", "programs", "programs/cuda", "stand-in", "apps", "driver", "include", "include/veloc"]
        {
            let path = root.join(folder);
            fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        let lock = File::create(root.join("lock"))?;
        lock.lock().context("locking the test kit")?;
        let kit = Kit { root };
        kit.copy_binaries()?;
        kit.copy_headers(checkout)?;
        kit.copy_apps(&source.join("apps"))?;
        kit.build_driver(&source.join("driver/libcuda.c"))?;
        kit.build_programs(&source.join("programs"), checkout)?;
        kit.build_cuda_programs(&source.join("programs/cuda"), checkout)?;
        Ok(kit)
    }

    fn copy_binaries(&self) -> Result<()> {
        let from = match std::env::var_os("HOLDFAST_TEST_BIN") {
            Some(folder) => PathBuf::from(folder),
            // target/PROFILE/deps/TEST, target/PROFILE/support -> target/PROFILE
            None => std::env::current_exe()?
                .ancestors()
                .skip(1)
                .find(|folder| !folder.ends_with("deps"))
                .context("where the test lies")?
                .to_owned(),
        };
        for name in ["holdfast", "libholdfast.so"] {
            let path = from.join(name);
            ensure!(path.exists(), "{} is missing: build it first, `make build`", path.display());
            install(&path, &self.bin().join(name))?;
        }
        for name in ["holdfast", "veloc"] {
            let path = from.join(format!("lib{name}_client.so"));
            ensure!(path.exists(), "{} is missing: build it first, `make build`", path.display());
            install(&path, &self.bin().join(format!("lib{name}-client.so")))?;
        }
        let path = from.join("libnvstream.so");
        ensure!(path.exists(), "{} is missing: build it first, `make build`", path.display());
        install(&path, &self.bin().join("libnvstream.so"))?;
        let driver = from.join("libholdfast_stand_in.so");
        if !driver.exists() {
            return Ok(()); // only tests of CUDA need it
        }
        install(&driver, &self.root.join("stand-in/libcuda.so.1"))?;
        // It is its own NVML.
        let nvml = self.root.join("stand-in/libnvidia-ml.so.1");
        if !nvml.is_symlink() {
            std::os::unix::fs::symlink("libcuda.so.1", nvml)?;
        }
        // Under a name that no loader finds by itself: tests that are to have it name it.
        install(&from.join("libholdfast_stand_in_nvcomp.so"), &self.nvcomp())
    }

    /// What programs that checkpoint themselves include.
    fn copy_headers(&self, checkout: &Path) -> Result<()> {
        for (from, to) in [
            ("preload/include/holdfast.h", "holdfast.h"),
            ("compat/veloc/include/veloc.h", "veloc.h"),
            ("compat/veloc/include/veloc.hpp", "veloc.hpp"),
            ("compat/nvstream/include/nvs.h", "nvs.h"),
            ("compat/native/fortran/holdfast_objects.f90", "holdfast_objects.f90"),
            ("compat/veloc/include/veloc/defs.h", "veloc/defs.h"),
        ] {
            install(&checkout.join(from), &self.include().join(to))?;
        }
        Ok(())
    }

    fn copy_apps(&self, from: &Path) -> Result<()> {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            // Who has run one of them by hand has a folder __pycache__ beside them.
            if entry.file_type()?.is_file() {
                install(&entry.path(), &self.app(&entry.file_name().to_string_lossy()))?;
            }
        }
        let class = self.app("classes/Main.class");
        if newer(&from.join("Main.java"), &class) && Path::new("/usr/bin/javac").exists() {
            compile(Command::new("javac").arg("-d").arg(self.app("classes")).arg(from.join("Main.java")))?;
        }
        for (name, other, with_c) in [("hasher", "hasher_c.go", "1"), ("hasher-static", "hasher_go.go", "0")]
        {
            let (source, other, program) = (from.join("hasher.go"), from.join(other), self.app(name));
            if newer(&source, &program) && Path::new("/usr/bin/go").exists() {
                let mut go = Command::new("/usr/bin/go");
                go.env("CGO_ENABLED", with_c).env("GOCACHE", self.root.join("go")).env("GO111MODULE", "off");
                compile(go.args(["build", "-o"]).args([&program, &source, &other]))?;
            }
        }
        Ok(())
    }

    fn build_driver(&self, source: &Path) -> Result<()> {
        let to = self.driver().join("libcuda.so.1");
        if !newer(source, &to) {
            return Ok(());
        }
        let fresh = to.with_extension("new");
        let flags =
            ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-fPIC", "-shared"];
        let hidden = ["-fvisibility=hidden", "-Wl,-soname,libcuda.so.1", "-o"];
        compile(Command::new("cc").args(flags).args(hidden).args([&fresh, source]))?;
        fs::rename(&fresh, &to).with_context(|| format!("putting {} in place", to.display()))
    }

    fn build_programs(&self, from: &Path, checkout: &Path) -> Result<()> {
        let sources: Vec<PathBuf> =
            fs::read_dir(from)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        let is_header = |path: &&PathBuf| path.extension().is_some_and(|e| e == "h");
        let headers = sources.iter().filter(is_header).max_by_key(|path| modified(path));
        let header = headers.context("a header")?;
        let mut wanted = Vec::new();
        for source in sources.iter().filter(|path| path.extension().is_some_and(|e| e == "c")) {
            let stem = source.file_stem().context("a source file has a name")?.to_string_lossy().into_owned();
            if STATIC.contains(&stem.as_str()) {
                wanted.push((source, format!("{stem}-static"), &["cc", "-fopenmp", "-static"][..]));
            }
            if SANITIZED.contains(&stem.as_str()) {
                wanted.push((source, format!("{stem}-asan"), &["cc", "-fopenmp", "-fsanitize=address"]));
            }
            if MUSL.contains(&stem.as_str()) && Path::new("/usr/bin/musl-gcc").exists() {
                wanted.push((source, format!("{stem}-musl"), &["musl-gcc"]));
            }
            match stem.strip_suffix(LIBRARY) {
                Some(program) => wanted.push((source, format!("{program}.so"), &["cc", "-shared", "-fPIC"])),
                None => wanted.push((source, stem, &["cc", "-fopenmp"])),
            }
        }
        in_parallel(&wanted, |(source, name, by)| self.build(source, header, name, by, checkout))
    }

    /// The host part of each, around the PTX beside its source; nvcc is not needed.
    fn build_cuda_programs(&self, from: &Path, checkout: &Path) -> Result<()> {
        let runtime = checkout.join("cuda-hooks/stand-in/mini-cudart");
        let shared = [
            runtime.join("mini_cudart.c"),
            runtime.join("mini_cudart.h"),
            from.join("cuda_program.h"),
            from.with_file_name("common.h"),
        ];
        let sources: Vec<PathBuf> =
            fs::read_dir(from)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        let is_source = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "cu");
        let sources: Vec<PathBuf> = sources.into_iter().filter(is_source).collect();
        in_parallel(&sources, |source| self.build_cuda_program(source, &shared))
    }

    /// `shared` are the sources and headers of all, the runtime's first.
    fn build_cuda_program(&self, source: &Path, shared: &[PathBuf]) -> Result<()> {
        let name = source.file_stem().context("a source file has a name")?.to_string_lossy().into_owned();
        let (ptx, to) = (source.with_extension("ptx"), self.cuda_program(&name));
        let parts = shared.iter().map(PathBuf::as_path).chain([source, &ptx]);
        if !parts.into_iter().any(|part| newer(part, &to)) {
            return Ok(());
        }
        let runtime = shared.first().context("the runtime")?;
        let fresh = to.with_file_name(format!(".{name}.new"));
        compile(
            Command::new("cc")
                .args([
                    "-std=gnu11",
                    "-O2",
                    "-g",
                    "-Wall",
                    "-Wextra",
                    "-Werror",
                    "-pthread",
                    "-ffp-contract=off",
                ])
                .arg(format!("-DPTX_FILE=\"{}\"", ptx.display()))
                .arg("-I")
                .args(runtime.parent())
                .args(["-x", "c"])
                .args([source, runtime])
                .arg("-o")
                .arg(&fresh)
                .args(["-ldl", "-lm"]),
        )?;
        fs::rename(&fresh, &to).with_context(|| format!("putting {} in place", to.display()))
    }

    fn build(&self, source: &Path, header: &Path, name: &str, by: &[&str], checkout: &Path) -> Result<()> {
        let to = self.program(name);
        if !newer(source, &to) && !newer(header, &to) {
            return Ok(());
        }
        let fresh = self.root.join(format!("programs/.{name}.new"));
        let flags = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"];
        compile(
            Command::new(by[0])
                .args(&by[1..])
                .args(flags)
                .arg("-I")
                .arg(checkout.join("preload/include"))
                .arg("-o")
                .args([&fresh, source])
                .args(["-ldl", "-lm"]),
        )?;
        fs::rename(&fresh, &to).with_context(|| format!("putting {} in place", to.display()))
    }
}

/// One compiler per processor: all tests wait for the last program.
fn in_parallel<T: Sync>(items: &[T], build: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    let workers = std::thread::available_parallelism()?.get();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            build(item)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

fn compile(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|m| m.modified()).ok()
}

fn newer(source: &Path, product: &Path) -> bool {
    modified(source) > modified(product)
}

/// Copies `from` to `to` when it is newer, with its mode, by rename.
fn install(from: &Path, to: &Path) -> Result<()> {
    if !newer(from, to) {
        return Ok(());
    }
    let fresh = to.with_extension("new");
    fs::copy(from, &fresh).with_context(|| format!("copying {} to {}", from.display(), fresh.display()))?;
    let executable = fs::metadata(from)?.permissions().mode() & 0o111 != 0;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(if executable { 0o755 } else { 0o644 }))?;
    fs::rename(&fresh, to).with_context(|| format!("putting {} in place", to.display()))
}
