//! Readers of a stream on another host (`serve --listen`, `cat --from`): the same bytes, of what was exported alone,
//! for who has the key; a reader that has gone holds nothing.

use super::json::agrees;
use super::nvstream::{line, producer, python_module, with_logs};
use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::PYTHON;
use holdfast_tests::hosts::Hosts;
use holdfast_tests::own::{build, shell};
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, each_user_by_root, wait};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

/// A server on the first host; where it listens.
struct Server(Child, String);

impl Server {
    fn start(bed: &Bed, hosts: &Hosts, export: &str) -> Result<Server> {
        let words = ["serve", "--listen", "10.77.0.1:0", "--key", "key", "--export", export];
        let mut command = bed.holdfast(&words);
        let mut command = hosts.on(0, with_logs(bed, &mut command), &bed.work());
        let child = command.stdout(bed.create("address")?).stderr(bed.create("err")?).spawn()?;
        let has_begun = || bed.text("address").ends_with('\n');
        bed.until("an address", PATIENCE, has_begun).with_context(|| bed.text("err"))?;
        let said = bed.text("address");
        let at = said.trim().strip_prefix("listening at ").context("an address")?;
        Ok(Server(child, at.to_owned()))
    }

    fn end(mut self) -> Result<()> {
        self.0.kill()?;
        wait(&mut self.0, PATIENCE)?;
        Ok(())
    }

    /// A line of a shell on the second host; `CAT`: asks this server.
    fn asked(&self, bed: &Bed, hosts: &Hosts, line: &str) -> Result<Ended> {
        let cat = format!("{} cat --from {} --key key", bed.kit().holdfast().display(), self.1);
        let command = shell(bed, &line.replace("CAT", &cat));
        bed.output(hosts.on(1, &command, &bed.work()), PATIENCE)
    }

    fn answer(&self, bed: &Bed, hosts: &Hosts, line: &str) -> Result<String> {
        Ok(self.asked(bed, hosts, line)?.success()?.stdout)
    }
}

#[test]
fn a_reader_on_another_host_gets_the_same_bytes_and_what_is_not_exported_it_does_not() {
    each_user_by_root(|bed| {
        build(bed, "cc -std=gnu11", "stream.c", "nvstream")?;
        line(bed, "./stream put 5")?;
        let hosts = Hosts::up()?;
        let server = Server::start(bed, &hosts, "sim@2-4")?;
        ensure!(bed.text("err").contains("key was made"), "{}", bed.text("err"));
        let sum = "| sha256sum";
        let here = line(bed, &format!("{} cat sim@3 field {sum}", bed.kit().holdfast().display()))?;
        ensure!(server.answer(bed, &hosts, &format!("CAT sim@3 field {sum}"))? == here, "other bytes");
        let list = agrees(&server.answer(bed, &hosts, "CAT sim --json")?, "stream")?;
        ensure!(list["stream_version"] == 4, "the newest that is exported: {list}");
        let numbers = server.answer(bed, &hosts, "CAT -f sim step | od -An -v -t d8 -w8")?;
        ensure!(numbers.split_whitespace().eq(["2", "3", "4"]), "each once: {numbers}");
        for (wrong, code, says) in [
            ("CAT sim@5 step", 69, "version 5 of stream sim/0 is not exported"),
            ("CAT other step", 69, "stream other/0 is not exported"),
            ("CAT sim other", 66, "has no object"),
            ("CAT sim/1 step", 66, "no such stream"),
            ("CAT ../sim step", 64, "names no stream"),
            ("CAT --key none sim step", 64, "--key"),
            ("cp key open && chmod 644 open && X sim step --key open", 77, "chmod 600"),
            ("(umask 077; echo 0 > short) && X sim step --key short", 64, "is no key"),
            (
                "(umask 077; sed y/0123/1230/ key > other) && X sim step --key other",
                69,
                "does not have the key",
            ),
            ("X sim step --key none", 66, "copy it from the host"),
        ] {
            let cat = format!("{} cat --from {}", bed.kit().holdfast().display(), server.1);
            let ended = server.asked(bed, &hosts, &wrong.replace('X', &cat))?;
            ensure!(
                ended.code() == code && ended.stderr.contains(says),
                "{wrong}: {} {}",
                ended.code(),
                ended.stderr
            );
        }
        let numbered = server.answer(bed, &hosts, "CAT -f --numbered sim step | head -n 1")?;
        ensure!(numbered == "2 8\n", "{numbered}");
        python_module(bed)?;
        fs::write(bed.work().join("remote.py"), REMOTE)?;
        let path = format!("PATH={}:$PATH PYTHONPATH=.", bed.kit().bin().display());
        let python = format!("{path} {PYTHON} remote.py {}", server.1);
        let said = server.answer(bed, &hosts, &python)?;
        ensure!(said.trim() == "right", "{said}");
        let nothing = bed.say(&["serve", "--listen", "127.0.0.1:0", "--key", "key"])?;
        ensure!(nothing.code() == 64 && nothing.stderr.contains("--export"), "{}", nothing.stderr);
        let words = ["serve", "--listen", "127.0.0.1:0", "--export", "sim", "--key", "/no/key"];
        let nowhere = bed.say(&words)?;
        let words = "the key /no/key cannot be made: /no: ";
        ensure!(nowhere.code() == 66 && nowhere.stderr.contains(words), "{}", nowhere.stderr);
        server.end()
    });
}

/// Reads what is exported, of a version and of all, and is refused the rest.
const REMOTE: &str = "
import sys
from holdfast import streams
with streams.open('sim', server=sys.argv[1], key='key') as stream:
    assert stream.version == 4 and stream.objects() == {'field': 163840, 'step': 8}, stream.objects()
    stream.register('step', 'int64')
    stream.register('field', shape=(40, 4096), dims=('page', 'byte'))
    assert stream.array('step')[0] == 4 and stream.seek(3) == 3 and stream.array('step')[0] == 3
    field = stream.array('field')
    assert field.shape == (40, 4096) and (field == field[:, :1]).all() and not field.flags.writeable
    try:
        import xarray
        assert stream.dataset().field.dims == ('page', 'byte') and stream.dataset().version == 3
    except ModuleNotFoundError:
        pass
    assert [(version, stream.array('step')[0]) for version in stream.follow('step')] == [(2, 2), (3, 3), (4, 4)]
    for wrong, error in [(5, streams.Error), ('none', streams.NotFound)]:
        try:
            stream.seek(wrong) if wrong == 5 else stream.memory(wrong)
        except error as said:
            assert 'not exported' in str(said) or 'has no object' in str(said), said
        else:
            raise AssertionError(wrong)
print('right')
";

#[test]
fn a_reader_on_another_host_follows_a_producer_and_holds_nothing_when_it_has_gone() {
    each_user_by_root(|bed| {
        build(bed, "cc -std=gnu11", "stream.c", "nvstream")?;
        let hosts = Hosts::up()?;
        let mut child = producer(bed)?;
        let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        while lines.next().context("it has ended")??.parse::<u64>()? < 20 {}
        let server = Server::start(bed, &hosts, "sim")?;
        let holdfast = bed.kit().holdfast().display().to_string();
        let readers = || -> Result<String> {
            let streams = agrees(&line(bed, &format!("{holdfast} streams --json"))?, "streams")?;
            Ok(streams["streams"][0]["readers"].to_string())
        };
        let cat = format!("exec {holdfast} cat --from {} --key key -f sim step", server.1);
        let command = shell(bed, &cat);
        let mut reader = hosts.on(1, &command, &bed.work());
        let mut reader = reader.stdout(Stdio::piped()).spawn()?;
        let mut bytes = [0; 5 * 8];
        let mut out = reader.stdout.take().context("its output")?;
        std::io::Read::read_exact(&mut out, &mut bytes)?;
        let (numbers, _) = bytes.as_chunks::<8>();
        let numbers: Vec<u64> = numbers.iter().map(|number| u64::from_le_bytes(*number)).collect();
        ensure!(numbers.windows(2).all(|two| two[1] == two[0] + 1), "{numbers:?}");
        let host = format!("a reader on {}-1", hosts.name);
        ensure!(readers()?.contains(&host), "{}", readers()?);
        // Its pipe is closed: it ends by itself.
        drop(out);
        wait(&mut reader, PATIENCE)?;
        bed.until("no reader", PATIENCE, || readers().is_ok_and(|readers| !readers.contains(&host)))?;
        child.kill()?;
        wait(&mut child, PATIENCE)?;
        server.end()
    });
}
