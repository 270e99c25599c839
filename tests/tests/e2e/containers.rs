//! Inside a container as Docker, Podman and Kubernetes make it by default (`programs/container.c`): no user namespaces,
//! no chosen ids, no kcmp(2), pidfd_getfd(2), userfaultfd(2), clone3(2); a filter on every process that is the host's.
//! A job is stopped in one container and goes on in a second one; its output is that of an undisturbed run. As root of
//! the container and as uid 1000 of it.

use anyhow::{Context, Result, ensure};
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, User, each_user_by_root};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Waits until a command succeeds, as long as the job is there.
const AWAIT: &str = r#"await() { until eval "$1"; do kill -0 $! || exit 9; sleep 0.02; done; };"#;

/// One life of a container with this shell script, in `work/`. `$H` is holdfast.
fn life(bed: &Bed, script: &str) -> Result<Ended> {
    let root = bed.dir().join("root");
    fs::create_dir_all(&root)?;
    let user = if bed.user() == User::Root { "0" } else { "1000" };
    let mut container = Command::new(bed.kit().program("container"));
    let kit = bed.kit().holdfast();
    let kit = kit.parent().and_then(Path::parent).context("the kit's folder")?;
    let shared = format!("{}:{}", bed.dir().display(), kit.display());
    container.args([root.as_os_str(), user.as_ref(), shared.as_ref()]);
    container.args(["/bin/bash", "-c", &format!("{AWAIT} cd work; {script}")]);
    container.env("H", bed.kit().holdfast()).env("HOLDFAST_STORE", bed.store()).env("LC_ALL", "C.UTF-8");
    container.env_remove("LD_PRELOAD").env_remove("HOLDFAST_SOCKET").process_group(0);
    container.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    bed.output(container, PATIENCE)
}

/// Runs `command` (a shell's words) until `out` has `lines` lines, stops it, and lets a second container end it. It
/// does not end before there is a file `go`.
fn moves(bed: &Bed, command: &str, lines: usize) -> Result<String> {
    let first = life(
        bed,
        &format!(
            "$H run --name j -- {command} >out 2>err & \
             await '[ $(wc -l <out) -ge {lines} ]'; \
             $H check j && $H checkpoint j && $H checkpoint j --stop; code=$?; \
             [ $code = 0 ] || kill %1; wait; cat err; exit $code"
        ),
    )?;
    ensure!(first.code() == 0, "status {}: {}{}", first.code(), first.stdout, first.stderr);
    let second = life(bed, "touch go; $H restart j --stdio keep")?;
    ensure!(second.code() == 0, "status {}: {}{}", second.code(), second.stdout, second.stderr);
    Ok(bed.text("out"))
}

fn is_here(program: &str) -> bool {
    let found = Path::new("/usr/bin").join(program).exists();
    if !found {
        println!("{program} is not here");
    }
    found
}

/// Processes that share a pipe and have children all the time.
#[test]
fn a_pipeline_moves_to_a_second_container() {
    each_user_by_root(|bed| {
        let command = "bash -c 'seq 1 60 | while read x; do echo $x; [ $x = 30 ] && \
                       until [ -e go ]; do sleep 0.02; done; sleep 0.01; done'";
        let all: String = (1..=60).map(|n| format!("{n}\n")).collect();
        let out = moves(bed, command, 20)?;
        ensure!(out == all, "{out}");
        Ok(())
    });
}

/// A thread, whose id is another one afterwards, a database that is written in place, a memory file and a socket pair.
#[test]
fn a_database_moves_to_a_second_container() {
    const PROGRAM: &str = "
import os, socket, sqlite3, threading, time
base = sqlite3.connect('base', check_same_thread=False)
base.execute('create table t(x)')
memory = os.memfd_create('m')
here, there = socket.socketpair()
turn, ids = threading.Semaphore(0), []
def other():
    ids.append(threading.get_native_id())
    while turn.acquire():
        here.send(there.recv(8))
threading.Thread(target=other, daemon=True).start()
for i in range(60):
    base.execute('insert into t values(?)', (i,)); base.commit()
    os.write(memory, b'%d ' % i)
    here.send(b'%d' % i); turn.release()
    found = base.execute('select sum(x), count(*) from t').fetchone()
    print(found, there.recv(8), os.lseek(memory, 0, 1), len(ids), flush=True)
    while i == 30 and not os.path.exists('go'):
        time.sleep(0.01)
";
    each_user_by_root(|bed| {
        fs::write(bed.work().join("program.py"), PROGRAM)?;
        let out = moves(bed, "python3 program.py", 20)?;
        let mut plain = bed.command(Path::new("/usr/bin/python3"));
        plain.arg("program.py").stdout(Stdio::piped());
        fs::remove_file(bed.work().join("base"))?;
        let plain = bed.output(plain, PATIENCE)?.success()?.stdout;
        ensure!(out == plain, "{out}, not {plain}");
        Ok(())
    });
}

#[test]
fn redis_moves_to_a_second_container() {
    each_user_by_root(|bed| {
        if !is_here("redis-server") {
            return Ok(());
        }
        let first = "$H run --name r -- redis-server --port 7777 --save '' >out 2>&1 & \
                     await '[ \"$(redis-cli -p 7777 set key value 2>/dev/null)\" = OK ]'; \
                     $H checkpoint r --stop";
        life(bed, first)?.success()?;
        let second = "$H restart r >again 2>&1 & \
                      await 'redis-cli -p 7777 get key >found 2>/dev/null'; cat found; \
                      redis-cli -p 7777 shutdown nosave; wait";
        let ended = life(bed, second)?;
        ensure!(ended.stdout == "value\n", "{}{}", ended.stdout, ended.stderr);
        Ok(())
    });
}

/// Processes that know each other by their ids, with threads of their own.
#[test]
fn an_mpi_job_moves_to_a_second_container() {
    each_user_by_root(|bed| {
        // Debian's mpicc comes without the headers, too.
        let header = Path::new("/usr/lib/x86_64-linux-gnu/openmpi/include/mpi.h");
        if !(is_here("mpirun.openmpi") && header.exists()) {
            return Ok(());
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("apps/ring.c");
        let mut compiler = Command::new("mpicc.openmpi");
        compiler.arg("-O2").arg("-o").arg(bed.work().join("ring")).arg(source);
        ensure!(compiler.status().context("mpicc")?.success());
        let out = moves(bed, "mpirun.openmpi --allow-run-as-root --oversubscribe -np 2 ./ring 60 go", 20)?;
        ensure!(out.lines().count() == 61 && out.ends_with("PASS\n"), "{out}");
        Ok(())
    });
}

/// What a program has put over itself, over the container's filter, as libholdfast has noted it.
#[test]
fn filters_of_its_own_move_to_a_second_container() {
    each_user_by_root(|bed| {
        let program = format!("{} forked 60", bed.kit().program("filters").display());
        let out = moves(bed, &program, 20)?;
        ensure!(out.lines().count() == 61 && out.ends_with("PASS\n"), "{out}");
        Ok(())
    });
}
