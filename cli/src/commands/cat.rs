//! `holdfast cat`: an object of a stream, beside the program that writes it; memory of an image: `memory`.
//!
//! What must hold: the bytes are checked before any is printed. With `--follow` each version is printed once and whole,
//! in their order; the stream keeps them until then.

use crate::args::CatArgs;
use crate::commands::memory;
use crate::commands::streams::failure;
use crate::exit::{Exit, Failure};
use crate::report;
use crate::stream_server::client::{self, Wanted};
use holdfast_streams::place::{self, Place};
use holdfast_streams::reader::{Next, Reader};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Between two looks whether the producer is alive.
const LOOK: Duration = Duration::from_millis(200);

/// See the head of the file.
///
/// # Errors
/// There is no such stream, version or object; its bytes are damaged.
pub fn run(args: &CatArgs, root: Option<&Path>) -> Result<(), Failure> {
    if args.image {
        return memory::run(args, root);
    }
    let (stream, version) = match args.stream.rsplit_once('@') {
        None => (args.stream.as_str(), 0),
        Some((stream, version)) => match version.parse() {
            Ok(version) if version > 0 => (stream, version),
            _ => {
                return Err(Failure::new(
                    Exit::Usage,
                    format!("\"{version}\" is no version: a number from 1 on"),
                ));
            }
        },
    };
    if let (Some(from), Some(key)) = (&args.from, &args.key) {
        let (object, follow) = (args.object.as_deref(), args.follow);
        let wanted = Wanted { from, key, stream, version, object, follow };
        let list = |version, objects: &_| list(version, objects, args.json);
        return client::read(&wanted, &list, &mut |version, bytes| print(args, version, bytes));
    }
    let place = Place::parse(stream, &place::folder(args.streams.as_deref())).map_err(failure)?;
    let mut reader = Reader::open(&place, "holdfast cat").map_err(failure)?;
    let Some(object) = &args.object else {
        reader.seek(version).map_err(failure)?;
        return list(reader.version(), &reader.objects(), args.json);
    };
    if !args.follow {
        reader.seek(version).map_err(failure)?;
        return print(args, 0, &reader.read(object).map_err(failure)?).map(drop);
    }
    if version > 0 {
        reader.seek(version).map_err(failure)?;
        if !print(args, version, &reader.read(object).map_err(failure)?)? {
            return Ok(());
        }
    }
    follow(args, &mut reader, object)
}

/// Prints an object; `false`: nothing reads it any more.
fn print(args: &CatArgs, version: u64, bytes: &[u8]) -> Result<bool, Failure> {
    if args.numbered && !report::print_bytes(format!("{version} {}\n", bytes.len()).as_bytes())? {
        return Ok(false);
    }
    report::print_bytes(bytes)
}

/// Prints the object of each version to come.
fn follow(args: &CatArgs, reader: &mut Reader, object: &str) -> Result<(), Failure> {
    loop {
        match reader.next_with(object, LOOK).map_err(failure)? {
            Next::Version if print(args, reader.version(), &reader.read(object).map_err(failure)?)? => {}
            Next::NotYet => {}
            Next::Version | Next::Over => return Ok(()),
        }
    }
}

fn list(version: u64, objects: &BTreeMap<String, u64>, json: bool) -> Result<(), Failure> {
    if json {
        let objects: Vec<_> =
            objects.iter().map(|(key, bytes)| serde_json::json!({ "object": key, "bytes": bytes })).collect();
        let fields = serde_json::json!({ "stream_version": version, "objects": objects });
        return report::print_json("stream", fields);
    }
    let rows: Vec<Vec<String>> = objects
        .iter()
        .map(|(key, bytes)| vec![key.escape_debug().to_string(), report::size(*bytes)])
        .collect();
    report::print(&report::table(&["OBJECT", "SIZE"], &rows, &[1]))
}
