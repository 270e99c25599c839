//! Streams (`nvs.h`): a producer that is killed at random moments leaves whole versions only, with their contents, and
//! goes on after them; consumers in C, Python and a shell read them beside it; and so after a restart of its job.

use crate::json::agrees;
use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::PYTHON;
use holdfast_tests::full;
use holdfast_tests::own::{build, shell};
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, wait};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The folder of the logs, which is small: it is full after six versions or so.
pub fn with_logs<'a>(bed: &Bed, command: &'a mut Command) -> &'a mut Command {
    command
        .env("HOLDFAST_STREAMS", bed.work().join("logs"))
        .env("HOLDFAST_STREAM_SIZE", "1M")
        .env("HOLDFAST_STREAM_WAIT", "60")
}

pub fn line(bed: &Bed, line: &str) -> Result<String> {
    let mut command = shell(bed, line);
    with_logs(bed, &mut command);
    Ok(bed.output(command, PATIENCE)?.success()?.stdout)
}

pub fn producer(bed: &Bed) -> Result<Child> {
    let mut command = shell(bed, "exec ./stream put");
    Ok(with_logs(bed, &mut command).stdout(Stdio::piped()).spawn()?)
}

/// Numbers without a pattern, the same ones in each run.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    *state >> 33
}

/// The Python module, for programs of the bed.
pub fn python_module(bed: &Bed) -> Result<()> {
    let module = bed.work().join("holdfast");
    fs::create_dir(&module)?;
    for file in ["__init__.py", "objects.py", "streams.py", "remote_streams.py"] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/holdfast").join(file);
        fs::copy(from, module.join(file))?;
    }
    Ok(())
}

#[test]
fn a_producer_that_is_killed_leaves_whole_versions() {
    each_user(|bed| {
        build(bed, "cc -std=gnu11", "stream.c", "nvstream")?;
        let (mut random, mut newest) = (7, 0);
        for _ in 0..if full() { 200 } else { 12 } {
            let mut child = producer(bed)?;
            let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
            for _ in 0..1 + next(&mut random) % 40 {
                newest = lines.next().context("it has ended")??.parse()?;
            }
            child.kill()?;
            wait(&mut child, PATIENCE)?;
            let said = line(bed, "./stream check")?;
            let is: u64 = said.trim().rsplit(' ').next().unwrap_or_default().parse().context(said.clone())?;
            ensure!(said.starts_with("right ") && is >= newest, "{said}, {newest} was said");
        }
        Ok(())
    });
}

#[test]
fn versions_are_read_by_a_shell_and_by_python_beside_their_producer() {
    each_user(|bed| {
        build(bed, "cc -std=gnu11", "stream.c", "nvstream")?;
        let holdfast = bed.kit().holdfast().display().to_string();
        ensure!(line(bed, &format!("{holdfast} streams --json"))?.contains("\"streams\": []"), "none yet");
        line(bed, "./stream put 5")?;
        let listed = line(bed, &format!("{holdfast} cat sim"))?;
        ensure!(listed.contains("field") && listed.contains("step"), "{listed}");
        agrees(&line(bed, &format!("{holdfast} cat sim --json"))?, "stream")?;
        let streams = agrees(&line(bed, &format!("{holdfast} streams --json"))?, "streams")?;
        ensure!(streams["streams"][0]["newest_version"] == 5, "{streams}");
        let numbers = format!("{holdfast} cat -f sim/0 step | od -An -v -t d8 -w8");
        ensure!(line(bed, &numbers)?.split_whitespace().eq(["1", "2", "3", "4", "5"]), "each once");
        let one = line(bed, &format!("{holdfast} cat sim@3 field | head -c 1 | od -An -t u1"))?;
        // Page 0 was written by versions that are multiples of 4, and by the first.
        ensure!(one.trim() == "1", "{one}");
        for (wrong, code, says) in [
            ("cat sim@9 step", 66, "it has 1 to 5"),
            ("cat sim other", 66, "has no object"),
            ("cat none step", 66, "no such stream"),
            ("cat sim@0 step", 64, "is no version"),
            ("cat ../x step", 64, "names no stream"),
        ] {
            let mut command = shell(bed, &format!("{holdfast} {wrong}"));
            let ended = bed.output(
                {
                    with_logs(bed, &mut command);
                    command
                },
                PATIENCE,
            )?;
            ensure!(ended.code() == code && ended.stderr.contains(says), "{wrong}: {}", ended.stderr);
        }
        let errors = line(bed, "./stream errors")?;
        let expected = [
            "-11 nvs_init() has not been called",
            "-5 \"../sim\" names no stream",
            "-7 ",
            "0 ",
            "-5 there is an object \"a\" already",
            "-7 version 0 has no object \"b\"",
            "0 ",
            "-7 there is no version 9 of this stream: it has 1 to 1",
            "-8 \"a\" has 10 bytes in version 1, not 1",
            "-11 nvs_init() was called already",
            "0 ",
            "-7 version 1 has no object \"a\"",
        ];
        ensure!(errors.lines().count() == expected.len(), "{errors}");
        for (said, expected) in errors.lines().zip(expected) {
            ensure!(said.starts_with(expected), "{said}, not {expected}: {errors}");
        }
        // Python, with a producer that is alive: it follows, and is seen.
        python_module(bed)?;
        fs::write(bed.work().join("follow.py"), FOLLOW)?;
        let mut child = producer(bed)?;
        let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        while lines.next().context("it has ended")??.parse::<u64>()? < 20 {}
        // It goes on, until the pipe is full.
        let said =
            line(bed, &format!("PATH={}:$PATH PYTHONPATH=. {PYTHON} follow.py", bed.kit().bin().display()))?;
        child.kill()?;
        wait(&mut child, PATIENCE)?;
        ensure!(said.trim() == "right", "{said}");
        Ok(())
    });
}

/// Holds a version, sees itself as its reader, and follows.
const FOLLOW: &str = "
import json, subprocess, numpy
from holdfast import streams
with streams.open('sim/0') as stream:
    first = stream.step(60)
    held = json.loads(subprocess.run(['holdfast', 'streams', '--json'], capture_output=True).stdout)
    reader, = [s for s in held['streams'] if s['stream'] == 'sim/0'][0]['readers']
    assert reader['holds_from_version'] <= first and reader['name'].startswith('python'), held
    count = 0
    for version in stream:
        assert stream.objects() == {'field': 163840, 'step': 8}, stream.objects()
        assert stream.array('step', 'int64')[0] == version
        stream.register('step', 'int64')
        assert stream.array('step')[0] == version
        field = stream.array('field', shape=(40, 4096))
        assert (field == field[:, :1]).all() and not field.flags.writeable
        count += 1
        if count == 5:
            break
    try:
        stream.memory('none')
    except streams.NotFound:
        print('right')
";

#[test]
fn numbered_versions_and_a_dataset_are_those_that_the_producer_has_put() {
    each_user(|bed| {
        build(bed, "cc -std=gnu11", "stream.c", "nvstream")?;
        line(bed, "./stream put 9")?;
        python_module(bed)?;
        fs::write(bed.work().join("views.py"), VIEWS)?;
        let path = format!("PATH={}:$PATH PYTHONPATH=.", bed.kit().bin().display());
        let said = line(bed, &format!("{path} {PYTHON} views.py"))?;
        ensure!(said.trim() == "right" || said.trim() == "no xarray", "{said}");
        if said.trim() == "no xarray" {
            println!("SKIPPED: a dataset needs Python's xarray (scripts/install-deps.sh)");
        }
        Ok(())
    });
}

/// Versions by `cat --numbered`, and by the module, are the same; a dataset shows the arrays of one version.
const VIEWS: &str = "
import subprocess, numpy
from holdfast import streams

def numbered(name):
    data = subprocess.run(['holdfast', 'cat', '--follow', '--numbered', 'sim/0', name], capture_output=True, check=True)
    data, found = data.stdout, {}
    while data:
        line, _, data = data.partition(b'\\n')
        version, size = map(int, line.split())
        assert len(data) >= size and version not in found, line
        found[version], data = data[:size], data[size:]
    return found

def page(number, version):
    for v in range(version, 1, -1):
        if v % 7 and (v + number) % 4 == 0:
            return (v % 251 + number) % 256
    return 1 + number

with streams.open('sim/0') as stream:
    fields, steps = numbered('field'), numbered('step')
    assert list(fields) == list(steps) == list(range(min(steps), 10)) and len(steps) >= 5, list(steps)
    assert stream.seek() == 9 and stream.version == 9
    stream.register('step', 'int64')
    stream.register('field', shape=(40, 4096), dims=('page', 'byte'))
    for version in fields:
        assert stream.seek(version) == version
        assert bytes(stream.memory('field')) == fields[version]
        assert bytes(stream.memory('step')) == steps[version] and stream.array('step')[0] == version
        expected = numpy.array([page(number, version) for number in range(40)], 'uint8')
        assert (stream.array('field') == expected[:, None]).all(), version
    try:
        import xarray
    except ModuleNotFoundError:
        print('no xarray')
    else:
        for version in fields:
            stream.seek(version)
            data = stream.dataset()
            assert isinstance(data, xarray.Dataset) and set(data) == {'field', 'step'}, data
            assert data.attrs['version'] == version == int(data.step[0])
            assert data.field.dims == ('page', 'byte') and data.step.dims == ('step_0',)
            assert data.field.values.tobytes() == fields[version] and data.field.dtype == 'uint8'
            assert numpy.shares_memory(data.field.values, stream.array('field')), 'a copy'
            assert (data.field.mean('byte') == data.field[:, 0]).all()
        stream.seek()
        assert stream.dataset().version == 9
        print('right')
";

#[test]
fn a_producer_under_run_goes_on_after_a_restart() {
    each_user(|bed| {
        build(bed, "cc -std=gnu11", "stream.c", "nvstream")?;
        let mut command = bed.run_command("j", &[], &["./stream", "put"])?;
        command.env("LD_LIBRARY_PATH", bed.kit().bin());
        let mut front = with_logs(bed, &mut command).spawn()?;
        let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
        bed.until("some versions", PATIENCE, || bed.text("out").lines().count() > 20)?;
        bed.say(&["checkpoint", "j"])?.success()?;
        kill_program(pid, &mut front)?;
        let said = bed.text("out").lines().count();
        let mut front = bed.restart_command("j", &[])?.spawn()?;
        let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
        bed.until("more versions", PATIENCE, || bed.text("out").lines().count() > said + 20)?;
        ensure!(!bed.text("out").contains("wrong"), "{}", bed.text("out"));
        kill_program(pid, &mut front)?;
        let checked = line(bed, "./stream check")?;
        ensure!(checked.starts_with("right "), "{checked}");
        Ok(())
    });
}
