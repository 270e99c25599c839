//! `holdfast streams`: the streams of a user on this host, their versions, and who holds what.

use crate::args::StreamsArgs;
use crate::exit::{Exit, Failure};
use crate::report;
use holdfast_streams::Error;
use holdfast_streams::place;
use holdfast_streams::reader::{Holder, Reader};
use serde::Serialize;

/// A failed look at a stream, with the exit code that fits.
pub fn failure(error: Error) -> Failure {
    let exit = match &error {
        Error::Argument(_) => Exit::Usage,
        Error::NoStream { .. } | Error::NoVersion { .. } | Error::NoObject { .. } => Exit::NotFound,
        Error::NotALog { .. } | Error::Damaged { .. } => Exit::BadImage,
        Error::System { why, .. } if why.kind() == std::io::ErrorKind::PermissionDenied => Exit::Permission,
        _ => Exit::Internal,
    };
    Failure::new(exit, error.to_string())
}

/// A stream as `--json` has it.
#[derive(Serialize)]
struct Stream {
    stream: String,
    is_written: bool,
    oldest_version: Option<u64>,
    newest_version: Option<u64>,
    versions: usize,
    log_bytes: u64,
    newest_put: Option<String>,
    readers: Vec<Reading>,
}

/// A reader of it.
#[derive(Serialize)]
struct Reading {
    process: u64,
    name: String,
    holds_from_version: u64,
    holds_bytes: u64,
}

impl From<Holder> for Reading {
    fn from(holder: Holder) -> Reading {
        let Holder { process, name, version, bytes } = holder;
        Reading { process, name, holds_from_version: version, holds_bytes: bytes }
    }
}

/// See the head of the file.
///
/// # Errors
/// The folder cannot be read. A stream that cannot be read is told of, and the others are listed.
pub fn run(args: &StreamsArgs) -> Result<(), Failure> {
    let folder = place::folder(args.streams.as_deref());
    let mut streams = Vec::new();
    let mut failed = None;
    for place in place::all(&folder).map_err(failure)? {
        let name = place.to_string();
        if args.name.as_deref().is_some_and(|wanted| name.split('/').next() != Some(wanted)) {
            continue;
        }
        match Reader::open(&place, "holdfast streams").and_then(|reader| look(&name, reader)) {
            Ok(stream) => streams.push(stream),
            // It went meanwhile.
            Err(Error::NoStream { .. }) => {}
            Err(error) => {
                let error = failure(error);
                report::warn(&error.to_string());
                failed = Some(error);
            }
        }
    }
    if args.json {
        report::print_json("streams", serde_json::json!({ "streams": streams }))?;
    } else {
        print(&streams)?;
    }
    failed.map_or(Ok(()), Err)
}

fn look(name: &str, mut reader: Reader) -> Result<Stream, Error> {
    let versions = reader.versions()?;
    Ok(Stream {
        stream: name.to_owned(),
        is_written: reader.has_writer()?,
        oldest_version: versions.first().map(|version| version.number),
        newest_version: versions.last().map(|version| version.number),
        versions: versions.len(),
        log_bytes: reader.capacity(),
        newest_put: versions.last().map(|version| report::utc(version.time_ns)),
        readers: reader.holders()?.into_iter().map(Reading::from).collect(),
    })
}

fn print(streams: &[Stream]) -> Result<(), Failure> {
    let row = |stream: &Stream| {
        let number = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
        let reader = |reader: &Reading| {
            let Reading { process, name, holds_from_version: version, holds_bytes } = reader;
            format!("{name} ({process}) from {version} on, {}", report::size(*holds_bytes))
        };
        let readers: Vec<String> = stream.readers.iter().map(reader).collect();
        vec![
            stream.stream.clone(),
            if stream.is_written { "open" } else { "ended" }.to_owned(),
            number(stream.oldest_version),
            number(stream.newest_version),
            report::size(stream.log_bytes),
            if readers.is_empty() { "-".to_owned() } else { readers.join("; ") },
        ]
    };
    let rows: Vec<Vec<String>> = streams.iter().map(row).collect();
    report::print(&report::table(
        &["STREAM", "PRODUCER", "OLDEST", "NEWEST", "LOG", "READERS"],
        &rows,
        &[2, 3, 4],
    ))
}
