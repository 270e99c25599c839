//! Real programs that are trees of processes, as root and as ordinary user: chained checkpoint, kill -9 of all of them,
//! restart, three times at random moments; output and files must be those of an undisturbed run. In the short form each
//! is run as one of the two, and the longest take a quarter of the turns.
//!
//! What is not installed is not run, and that is printed: `scripts/install-deps.sh trees` has it all.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::{App, PYTHON};
use holdfast_tests::artifacts::kit;
use holdfast_tests::full;
use holdfast_tests::restart_chain::{Plan, alone, chain_in_turn, turn_of, turns};
use holdfast_tests::sandbox::{Bed, PATIENCE, User, am_root, each_user_by_root, shell_code, wait};
use std::path::Path;
use std::process::Command;

/// Checkpoints of each.
const ROUNDS: u32 = 3;

/// A program, and the files without which it cannot run.
struct Case {
    app: App,
    needs: Vec<&'static str>,
    /// In the long form only.
    is_long: bool,
    /// Why only root can have it restarted.
    root: Option<&'static str>,
}

impl Case {
    fn of(name: &str, argv: &[&str], needs: &[&'static str]) -> Case {
        Case { app: App::real(name, argv), needs: needs.to_vec(), is_long: false, root: None }
    }

    /// A line of shell.
    fn line(name: &str, line: &str, needs: &[&'static str]) -> Case {
        Case::of(name, &["/bin/bash", "-c", line], needs)
    }

    fn prepared(mut self, script: &str) -> Case {
        self.app = self.app.prepared(script);
        self
    }

    fn renaming(mut self) -> Case {
        self.app = self.app.renaming();
        self
    }

    fn emptied(mut self, folder: &'static str) -> Case {
        self.app.emptied = Some(folder);
        self
    }

    fn leaving(mut self, results: &[&str]) -> Case {
        self.app = self.app.leaving(results);
        self
    }

    /// Open MPI listens at the first ports above 1024 that are free: at those of a job that is just being restarted,
    /// too.
    fn alone(mut self) -> Case {
        self.app.alone = true;
        self
    }

    fn long(mut self) -> Case {
        self.is_long = true;
        self
    }

    /// Only root's restarts are right.
    fn of_root(mut self, why: &'static str) -> Case {
        self.root = Some(why);
        self
    }

    fn run(self, user: User) {
        if let Some(why) = self.root.filter(|_| user == User::Ordinary) {
            return println!("not run: {why}");
        }
        if self.is_long && !full() {
            return println!("not run: HOLDFAST_TEST_FULL=1");
        }
        if is_missing(&self.needs) {
            return;
        }
        let turn = match &self.app {
            App { refuses_root: true, .. } => User::Ordinary,
            App { alone: true, name, .. } if name.contains("openmpi") => User::Root,
            App { alone: true, .. } => User::Ordinary,
            App { name, .. } => turn_of(name),
        };
        chain_in_turn(&self.app, user, turn, Plan::of(ROUNDS));
    }
}

/// Says so if one of these files is not there.
fn is_missing(needs: &[impl AsRef<Path>]) -> bool {
    let missing = needs.iter().map(AsRef::as_ref).find(|path| !path.exists());
    if let Some(missing) = missing {
        println!("not run: {} is missing; scripts/install-deps.sh trees", missing.display());
    }
    missing.is_some()
}

fn app_file(name: &str) -> String {
    kit().app(name).to_string_lossy().into_owned()
}

fn make() -> Case {
    let line = "make -C project -s -j2 && cat project/result.txt";
    let prepare = format!("sh {}", app_file("project.sh"));
    Case::line("make -j2", line, &["/usr/bin/make"]).prepared(&prepare).leaving(&["project/program"])
}

/// An archive of generated files, compressed and summed by three processes.
fn archive() -> Case {
    let prepare = format!(
        "mkdir data; for f in 1 2 3 4 5 6 7 8; do i=0; while [ $i -lt {} ]; do \
         echo \"$((i * 7919 % 100003)) line $i of $f $((i * f * 31 % 9973))\"; i=$((i + 1)); done > data/$f; done",
        turns(40_000)
    );
    let line = "tar --sort=name --mtime=@0 --owner=0 --group=0 --mode=644 -cf - data | xz -T1 -6 | \
                tee out.xz | sha256sum";
    Case::line("tar | xz | sha256sum", line, &["/usr/bin/xz"]).prepared(&prepare).leaving(&["out.xz"])
}

fn parallel() -> Case {
    let line = "seq 60 | parallel --will-cite -j3 -k 'sleep 0.03; seq {}00 | sha256sum'";
    Case::line("GNU parallel", line, &["/usr/bin/parallel"])
}

/// An image that has nothing of its own but a program.
fn charliecloud() -> Case {
    let prepare = format!(
        "umask 022; mkdir -p image/usr image/dev image/proc image/sys image/tmp image/etc image/home image/root \
         image/mnt data; for name in bin lib lib64; do [ -h /$name ] && ln -s usr/$name image/$name; done; \
         touch image/etc/hosts image/etc/resolv.conf image/etc/passwd image/etc/group; cp {} image/inside.py",
        app_file("inside.py")
    );
    let line = format!(
        "export USER=me HOME=/; exec ch-run -b /usr:/usr -b \"$PWD/data\":/mnt image -- {PYTHON} /inside.py \
         /mnt {}",
        turns(200)
    );
    Case::line("ch-run", &line, &["/usr/bin/ch-run"]).prepared(&prepare)
}

fn python(name: &str, arguments: &[&str], needs: &[&'static str]) -> Case {
    Case::of(name, &[&[PYTHON], arguments].concat(), needs)
}

/// sqlite in WAL mode: see the program.
fn wal(how: &str) -> Case {
    let case = python("sqlite in WAL mode", &["@wal.py", how], &[]);
    match how {
        "append" => case.prepared(&format!("{PYTHON} {} prepare", app_file("wal.py"))),
        _ => case,
    }
}

/// Four ranks of a program under `mpirun`; `kind`: openmpi, mpich.
fn mpi(kind: &str, turns: &str, needs: &[&'static str]) -> Case {
    let line = ranks(4, kind, &format!("./ring {turns}"));
    Case::line(&format!("{kind} ring"), &line, needs).prepared(&ring_built(kind)).alone()
}

/// The same when its folder for temporary files, in which Open MPI keeps what its processes share, is emptied.
fn emptied_mpi(kind: &str, turns: &str, needs: &[&'static str]) -> Case {
    let line = format!("TMPDIR=$PWD/temporary {}", ranks(4, kind, &format!("./ring {turns}")));
    let case = Case::line(&format!("{kind} ring, emptied"), &line, needs);
    let prepare = format!("mkdir temporary; {}", ring_built(kind));
    case.prepared(&prepare).emptied("temporary").alone().long()
}

/// What compilers need: `mpicc` is installed without it, too.
const OPEN_MPI: &str = "/usr/lib/x86_64-linux-gnu/openmpi/include/mpi.h";
const MPICH: &str = "/usr/include/x86_64-linux-gnu/mpich/mpi.h";

/// Debian's, without CUDA.
const TORCH: &str = "/usr/lib/python3/dist-packages/torch";

fn ring_built(kind: &str) -> String {
    format!("mpicc.{kind} -O2 -w -o ring {}", app_file("ring.c"))
}

/// Where `scripts/install-deps.sh trees` puts what Debian does not build for MPICH.
const WHEELS: &str = "/opt/holdfast-tests";

/// A line under so many ranks of Open MPI or MPICH, whose ranks wait by computing: no more than processors for long
/// programs. The wheels find MPICH as libmpi.so.12.
fn ranks(count: u32, kind: &str, line: &str) -> String {
    match kind {
        "openmpi" => format!("mpirun.openmpi --allow-run-as-root --oversubscribe -np {count} {line}"),
        _ => format!("env LD_LIBRARY_PATH={WHEELS}/lib mpirun.mpich -np {count} {line}"),
    }
}

fn lammps(count: u32, kind: &str, program: &'static str, needs: &'static str) -> Case {
    let words = format!("{program} -log none -in {} > /dev/null && echo done", app_file("melt.lammps"));
    Case::line(&format!("LAMMPS, {kind}"), &ranks(count, kind, &words), &[program, needs])
        .leaving(&["melt.dump"])
        .alone()
}

fn mpi4py(count: u32, kind: &str, needs: &'static str) -> Case {
    let line = ranks(count, kind, &format!("{WHEELS}/bin/python {} 350", app_file("heat.py")));
    let line = format!("MPI4PY_MPIABI={kind} {line}");
    Case::line(&format!("mpi4py, {kind}"), &line, &["/opt/holdfast-tests/bin/python", needs]).alone()
}

/// The HPC Challenge benchmark: what it says of its results, without their times.
fn hpcc(kind: &str, program: &'static str, needs: &'static str) -> Case {
    let input = app_file("hpccinf.txt");
    let line = format!(
        "{} && grep -E '^Found|^max.[|]|Ax-b.*PASSED|tests completed' hpccoutf.txt",
        ranks(2, kind, program)
    );
    Case::line(&format!("HPC Challenge, {kind}"), &line, &[program, needs])
        .prepared(&format!("cp {input} ."))
        .alone()
}

/// A C++ program of `tests/apps`.
fn cpp(name: &str, file: &str, turns: &str) -> Case {
    let prepare = format!("g++ -O2 -pthread -o program {}", app_file(file));
    Case::of(name, &["./program", turns], &["/usr/bin/g++"]).prepared(&prepare)
}

/// The same under AddressSanitizer, and under valgrind.
fn checked(name: &str, words: &[&str], options: &str, needs: &[&'static str]) -> Case {
    let prepare = format!("g++ -O1 -g {options} -pthread -o program {}", app_file("exceptions.cpp"));
    Case::of(name, words, needs).prepared(&prepare).long()
}

macro_rules! cases {
    ($($(#[$attribute:meta])? $test:ident: $case:expr;)*) => {
        mod root {
            use super::*;
            $(#[test] $(#[$attribute])? fn $test() { $case.run(User::Root); })*
        }
        mod ordinary {
            use super::*;
            $(#[test] $(#[$attribute])? fn $test() { $case.run(User::Ordinary); })*
        }
    };
}

cases! {
    bash: Case::of("bash", &["/bin/bash", "@jobs.sh", &turns(60)], &[]);
    tar_xz: archive();
    make_j2: make();
    multiprocessing_fork: python("multiprocessing, fork", &["@pool.py", "fork", &turns(150)], &[]).renaming();
    multiprocessing_spawn: python("multiprocessing, spawn", &["@pool.py", "spawn", &turns(150)], &[]).renaming();
    multiprocessing_forkserver: python("multiprocessing, forkserver", &["@pool.py", "forkserver", &turns(150)],
        &[]).renaming();
    gnu_parallel: parallel();
    sqlite_wal: wal("append");
    sqlite_wal_rewound: wal("rewind");
    redis: python("redis and its clients", &["@redis_client.py"], &["/usr/bin/redis-server"]).renaming();
    nginx: python("nginx and its clients", &["@nginx_client.py"], &["/usr/sbin/nginx"]);
    node_cluster: Case::of("node cluster", &["/usr/bin/node", "@cluster.js", &turns(80)], &["/usr/bin/node"]);
    r_parallel: Case::of("R parallel", &["/usr/bin/Rscript", "@parallel.R", &turns(60)], &["/usr/bin/Rscript"]);
    open_mpi: mpi("openmpi", "150", &["/usr/bin/mpirun.openmpi", OPEN_MPI]);
    open_mpi_with_an_emptied_folder: emptied_mpi("openmpi", "150", &["/usr/bin/mpirun.openmpi", OPEN_MPI]);
    mpich_with_an_emptied_folder: emptied_mpi("mpich", "40", &["/usr/bin/mpirun.mpich", MPICH]);
    mpich: mpi("mpich", "40", &["/usr/bin/mpirun.mpich", MPICH]);
    open_mpi_lammps: lammps(4, "openmpi", "/usr/bin/lmp", "/usr/bin/mpirun.openmpi");
    mpich_lammps: lammps(2, "mpich", "/opt/holdfast-tests/bin/lmp", "/usr/bin/mpirun.mpich");
    open_mpi_python: mpi4py(4, "openmpi", "/usr/bin/mpirun.openmpi");
    mpich_python: mpi4py(2, "mpich", "/usr/bin/mpirun.mpich");
    open_mpi_hpcc: hpcc("openmpi", "/opt/holdfast-tests/bin/hpcc-openmpi", "/usr/bin/mpirun.openmpi");
    mpich_hpcc: hpcc("mpich", "/opt/holdfast-tests/bin/hpcc-mpich", "/usr/bin/mpirun.mpich");
    exceptions: cpp("C++ exceptions", "exceptions.cpp", &turns(300));
    vim: python("vim in a terminal", &["@editor.py"], &["/usr/bin/vim"]);
    address_sanitizer: checked("an ASan program", &["./program", "250"], "-fsanitize=address", &["/usr/bin/g++"]);
    // It takes the last descriptors below the hard limit.
    valgrind: checked("valgrind", &["/usr/bin/valgrind", "-q", "./program", "40"], "", &["/usr/bin/valgrind"]);
    fakeroot: Case::of("fakeroot", &["/usr/bin/fakeroot", "/bin/bash", "@owners.sh"], &["/usr/bin/fakeroot"])
        .of_root("in a user namespace chown(2) to an unknown id fails with EINVAL: it ignores EPERM only").long();
    pytorch: python("PyTorch DataLoader", &["@loader.py"], &[TORCH]).long();
    bwrap: Case::of("bwrap", &["/usr/bin/bwrap", "--bind", "/", "/", "--ro-bind", "/usr", "/usr", "--dev", "/dev",
        "--unshare-net", "--tmpfs", "/mnt", PYTHON, "@inside.py", "/mnt", &turns(200)], &["/usr/bin/bwrap"]);
    ch_run: charliecloud();
    tmux: Case::of("tmux", &["/bin/bash", "@terminal.sh", "tmux"], &["/usr/bin/tmux"]);
    tmux_with_an_emptied_folder: Case::of("tmux", &["/bin/bash", "@terminal.sh", "tmux", "40", "temporary"],
        &["/usr/bin/tmux"]).prepared("mkdir temporary").emptied("temporary").long();
    screen: Case::of("screen", &["/bin/bash", "@terminal.sh", "screen"], &["/usr/bin/screen"]);
}

/// Its server refuses to run as root.
#[test]
fn postgres() {
    let prepare = format!("bash {} prepare", app_file("bank.sh"));
    let case = Case::of("PostgreSQL", &["/bin/bash", "@bank.sh", &turns(5000)], &["/usr/lib/postgresql"]);
    let mut case = case.prepared(&prepare);
    case.app = case.app.refusing_root();
    case.run(User::Ordinary);
}

/// Each rank starts Holdfast, and all of them are one job.
fn ranks_chain(bed: &Bed, kind: &str) -> Result<()> {
    let shell = |line: &str| {
        let mut command = bed.command(Path::new("/bin/bash"));
        command.args(["-c", &format!("exec {line}")]).stderr(bed.create("err")?);
        anyhow::Ok(command)
    };
    let line = |program: &str| ranks(4, kind, program);
    bed.output(shell(&ring_built(kind))?, PATIENCE)?.success()?;
    let holdfast = kit().holdfast();
    let under = |name: &str| line(&format!("{} run --name {name} -- ./ring 150", holdfast.display()));
    let plain = bed.output(shell(&line("./ring 150"))?, PATIENCE)?.success()?.stdout;
    let whole = bed.output(shell(&under("whole"))?, PATIENCE)?.success()?.stdout;
    ensure!(whole == plain, "--- plain\n{plain}--- under Holdfast\n{whole}");
    let mut launcher = shell(&under("j"))?.stdout(bed.create("out")?).spawn()?;
    bed.wait_live("j", &mut launcher)?.with_context(|| format!("ended at once: {}", bed.text("err")))?;
    bed.until("the first lines", PATIENCE, || bed.text("out").lines().count() > 3)?;
    bed.say(&["checkpoint", "--stop", "j"])?.success()?;
    let code = shell_code(wait(&mut launcher, PATIENCE)?);
    ensure!(code == 75, "the launcher ends with {code}: {}", bed.text("err"));
    let before = bed.text("out");
    let after = bed.output(bed.holdfast(&["restart", "j"]), PATIENCE)?.success()?.stdout;
    ensure!(format!("{before}{after}") == plain, "--- before\n{before}--- after\n{after}");
    bed.check_clean("j")
}

/// As on another host, or after a reboot: the folder for temporary files and /dev/shm are other file systems, empty.
fn fresh_namespace(bed: &Bed, kind: &str) -> Result<()> {
    let temporary = bed.work().join("temporary");
    let line = format!("TMPDIR={} exec {}", temporary.display(), ranks(4, kind, "./ring 150"));
    let mut prepare = bed.command(Path::new("/bin/sh"));
    prepare.args(["-ec", &format!("mkdir temporary; {}", ring_built(kind))]);
    bed.output(prepare, PATIENCE)?.success()?;
    let mut front = bed.run_command("j", &[], &["/bin/sh", "-c", &line])?.spawn()?;
    bed.wait_live("j", &mut front)?.with_context(|| format!("ended at once: {}", bed.text("err")))?;
    bed.until("the first lines", PATIENCE, || bed.text("out").lines().count() > 3)?;
    bed.say(&["checkpoint", "--stop", "j"])?.success()?;
    wait(&mut front, PATIENCE)?;
    let before = bed.text("out");
    let restart = bed.holdfast(&["restart", "j"]);
    let mount = "mount -t tmpfs none \"$1\" && chmod 1777 \"$1\" && mount -t tmpfs none /dev/shm && \
                 chmod 1777 /dev/shm && shift && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "/bin/sh", "-c", mount, "sh"]).arg(&temporary);
    command.arg(restart.get_program()).args(restart.get_args()).current_dir(bed.work());
    command.envs(restart.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let after = bed.output(command, PATIENCE)?.success()?;
    let all = format!("{before}{}", after.stdout);
    let lines: Vec<&str> = all.lines().collect();
    let is_right = |(turn, line): (usize, &&str)| line.starts_with(&format!("{turn} of 4: "));
    let (last, turns) = lines.split_last().context("no line")?;
    ensure!(
        *last == "PASS" && turns.len() == 150 && turns.iter().enumerate().all(is_right),
        "--- before\n{before}--- after\n{}{}",
        after.stdout,
        after.stderr
    );
    bed.check_clean("j")
}

#[test]
fn mpi_in_a_fresh_namespace() {
    if !full() {
        return println!("not run: HOLDFAST_TEST_FULL=1");
    }
    for kind in ["openmpi", "mpich"] {
        let header = if kind == "mpich" { MPICH } else { OPEN_MPI };
        if !is_missing(&[format!("/usr/bin/mpirun.{kind}"), header.to_owned()]) {
            let _alone = alone();
            each_user_by_root(|bed| fresh_namespace(bed, kind).context(kind));
        }
    }
}

#[test]
fn ranks_that_start_holdfast() {
    let turns = [("openmpi", User::Root), ("mpich", User::Ordinary)];
    let others = [("openmpi", User::Ordinary), ("mpich", User::Root)];
    for (kind, user) in turns.into_iter().chain(others.into_iter().filter(|_| full() || !am_root())) {
        let header = if kind == "mpich" { MPICH } else { OPEN_MPI };
        let needs = [format!("/usr/bin/mpirun.{kind}"), header.to_owned()];
        let Some(bed) = Bed::new(user) else { continue };
        if is_missing(&needs) {
            continue;
        }
        let _alone = alone();
        ranks_chain(&bed, kind).unwrap_or_else(|error| panic!("{kind} as {user:?}: {error:#}"));
    }
}
