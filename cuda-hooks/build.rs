//! Makes the rows and the wrappers of the table: `functions.txt` says what is done with each function, and
//! `header/symbols.txt` which symbols it has and how their arguments are passed.
//!
//! Output: `$OUT_DIR/rows.rs`, included by `src/table.rs` and `src/wrappers.rs`. Rows are sorted by symbol: `table.rs`
//! looks names up by bisection. Invariants: every symbol of the header has a row; every name of the table is one of the
//! header. Fails by: a message and status 1.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;

/// What `functions.txt` says of a name or symbol.
#[derive(Clone)]
struct Verdict {
    class: String,
    effect: Vec<String>,
    /// Called once more where there is no memory.
    again: bool,
    /// What may be answered without the driver.
    served: Option<String>,
    reason: String,
}

/// A line of `header/symbols.txt`.
struct Symbol<'a> {
    symbol: &'a str,
    name: &'a str,
    version: u32,
    variant: &'a str,
    /// One letter per argument: w, f, s (header/list.py).
    arguments: &'a str,
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=functions.txt");
    println!("cargo:rerun-if-changed=header/symbols.txt");
    let table = std::fs::read_to_string("functions.txt")?;
    let header = std::fs::read_to_string("header/symbols.txt")?;
    let verdicts = read_table(&table)?;
    let mut symbols = read_header(&header)?;
    symbols.sort_by_key(|symbol| symbol.symbol);
    for key in verdicts.keys() {
        let known = symbols.iter().any(|symbol| match key.strip_prefix('=') {
            Some(exact) => symbol.symbol == exact,
            None => symbol.name == key,
        });
        if !known {
            return Err(format!("functions.txt: {key} is not in header/symbols.txt").into());
        }
    }
    let out = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&out).join("rows.rs"), rows(&symbols, &verdicts)?)?;
    std::fs::write(Path::new(&out).join("wrappers.rs"), wrappers(&symbols, &verdicts)?)?;
    Ok(())
}

fn read_table(text: &str) -> Result<BTreeMap<String, Verdict>, Box<dyn Error>> {
    let mut verdicts = BTreeMap::new();
    let mut current: Option<Verdict> = None;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some(rest) = line.strip_prefix('[') {
            let (inner, reason) = rest.split_once(']').ok_or_else(|| format!("functions.txt: {line}"))?;
            let again = inner.split_whitespace().any(|word| word == "again");
            let mut words = inner.split_whitespace().filter(|word| *word != "again").map(str::to_owned);
            let class = words.next().ok_or("functions.txt: an empty class")?;
            if !["forward", "resolve", "gate", "work", "track", "refuse"].contains(&class.as_str()) {
                return Err(format!("functions.txt: {class} is no class").into());
            }
            let (served, effect): (Vec<String>, Vec<String>) =
                words.partition(|word| word.starts_with("served="));
            let served = served.first().map(|word| word.trim_start_matches("served=").to_owned());
            current = Some(Verdict { class, effect, again, served, reason: reason.trim().to_owned() });
            continue;
        }
        for name in line.split_whitespace() {
            let verdict = current.clone().ok_or("functions.txt: a name before the first class")?;
            if verdicts.insert(name.to_owned(), verdict).is_some() {
                return Err(format!("functions.txt: {name} is there twice").into());
            }
        }
    }
    Ok(verdicts)
}

fn read_header(text: &str) -> Result<Vec<Symbol<'_>>, Box<dyn Error>> {
    let mut symbols = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [symbol, _, name, version, variant, arguments] = words.as_slice() else {
            return Err(format!("header/symbols.txt: {line}").into());
        };
        let name = if *name == "=" { symbol } else { name };
        symbols.push(Symbol { symbol, name, version: version.parse()?, variant, arguments });
    }
    Ok(symbols)
}

fn verdict<'a>(
    symbol: &Symbol<'_>,
    verdicts: &'a BTreeMap<String, Verdict>,
) -> Result<&'a Verdict, Box<dyn Error>> {
    verdicts
        .get(&format!("={}", symbol.symbol))
        .or_else(|| verdicts.get(symbol.name))
        .ok_or_else(|| format!("functions.txt does not have {}", symbol.symbol).into())
}

/// `"*1x3"` and the like.
fn source(text: &str) -> Result<String, Box<dyn Error>> {
    let wrong = || format!("functions.txt: {text} is no argument");
    Ok(match text.strip_prefix('*') {
        None => format!("Source::Value({})", text.parse::<u8>().map_err(|_| wrong())?),
        Some(rest) => match rest.split_once('x') {
            None => format!("Source::At({})", rest.parse::<u8>().map_err(|_| wrong())?),
            Some((at, by)) => format!("Source::Product({}, {})", at.parse::<u8>()?, by.parse::<u8>()?),
        },
    })
}

/// The expression of what is served: a name of `arena::Served`, and the number that may come with it.
fn served(verdict: &Verdict) -> Result<String, Box<dyn Error>> {
    let word = verdict.served.as_deref().unwrap_or_default();
    let (name, argument) = word.split_once(':').unwrap_or((word, ""));
    let known = match name {
        "alloc" => "Alloc",
        "alloc-pitch" => "AllocPitch",
        "free" => "Free",
        "free-async" => "FreeAsync",
        "address-range" => "AddressRange",
        "attribute" => "Attribute",
        "attributes" => "Attributes",
        "set-attribute" => "SetAttribute",
        "mapping" => return Ok(format!("Served::Mapping({})", argument.parse::<u8>()?)),
        "share" => "Share",
        "peer" => "Peer",
        "peer-end" => "PeerEnd",
        _ => return Err(format!("functions.txt: {word} is not served").into()),
    };
    Ok(format!("Served::{known}"))
}

fn kinds(list: &str) -> String {
    let bits: Vec<String> = list.split(',').map(|kind| format!("1 << CudaKind::{kind}")).collect();
    if bits.is_empty() { "0".to_owned() } else { bits.join(" | ") }
}

/// The expression of an effect.
fn effect(words: &[String]) -> Result<String, Box<dyn Error>> {
    let mut given: BTreeMap<&str, &str> = BTreeMap::new();
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        given.insert(name, value);
    }
    let key = || given.get("key").ok_or("functions.txt: an effect without a key").map(|key| source(key));
    if let Some(kind) = given.get("add") {
        let bytes = match given.get("bytes") {
            Some(bytes) => source(bytes)?,
            None => "Source::Nothing".to_owned(),
        };
        return Ok(format!("Effect::Add {{ kind: CudaKind::{kind}, key: {}, bytes: {bytes} }}", key()??));
    }
    if let Some(kind) = given.get("hold") {
        return Ok(format!("Effect::Hold(CudaKind::{kind})"));
    }
    if given.contains_key("end") || given.contains_key("end-all") {
        let of = |name: &str| given.get(name).map_or_else(|| "0".to_owned(), |list| kinds(list));
        return Ok(format!("Effect::End {{ one: {}, all: {}, key: {} }}", of("end"), of("end-all"), key()??));
    }
    let name = words.first().map_or("", String::as_str);
    Ok(match name {
        "" => "Effect::Nothing",
        "addresses" => "Effect::Addresses",
        "tables" => "Effect::Tables",
        "initialised" => "Effect::Initialised",
        "context-end" => "Effect::ContextEnd",
        "primary-retain" => "Effect::PrimaryRetain",
        "primary-release" => "Effect::PrimaryRelease",
        "primary-reset" => "Effect::PrimaryReset",
        "pool-create" => "Effect::PoolCreate",
        "pool-managed" => "Effect::PoolManaged",
        "release" => "Effect::Release",
        "map" => "Effect::Map",
        "unmap" => "Effect::Unmap",
        "capture-end" => "Effect::CaptureEnd",
        "graph-made" => "Effect::GraphMade",
        "graph-ended" => "Effect::GraphEnded",
        _ => return Err(format!("functions.txt: {name} is no effect").into()),
    }
    .to_owned())
}

/// `static NAMES` and `static ROWS`: no pointers, which the loader would have to relocate in every program.
fn rows(symbols: &[Symbol<'_>], verdicts: &BTreeMap<String, Verdict>) -> Result<String, Box<dyn Error>> {
    let mut names = String::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    // Symbols first: the agent finds that of a row by counting.
    let all = symbols.iter().map(|symbol| symbol.symbol).chain(symbols.iter().map(|symbol| symbol.name));
    for text in all {
        places.entry(text).or_insert_with(|| {
            let place = names.len();
            names.push_str(text);
            names.push('\0');
            place
        });
    }
    let place = |text: &str| {
        let place = places.get(text).copied().unwrap_or(usize::MAX);
        u16::try_from(place).map_err(|_| format!("{text}: the names are longer than 64 KiB"))
    };
    let mut text = String::new();
    writeln!(
        text,
        "/// All symbols, in the order of the rows, and all other names, each with a NUL behind it."
    )?;
    writeln!(text, "static NAMES: [u8; {}] = *b\"{}\";", names.len(), names.replace('\0', "\\0"))?;
    writeln!(text, "/// All functions of the header, by symbol.")?;
    writeln!(text, "pub static ROWS: [Row; {}] = [", symbols.len())?;
    for symbol in symbols {
        let verdict = verdict(symbol, verdicts)?;
        let class = match verdict.class.as_str() {
            "forward" => "Forward",
            "resolve" => "Resolve",
            "gate" => "Gate",
            "work" => "Work",
            "track" => "Track",
            _ => "Refuse",
        };
        writeln!(
            text,
            "    Row {{ symbol: {}, name: {}, version: {}, per_thread: {}, class: Class::{class} }},",
            place(symbol.symbol)?,
            place(symbol.name)?,
            symbol.version,
            symbol.variant != "-",
        )?;
    }
    writeln!(text, "];")?;
    writeln!(text, "/// Why, in the same order.")?;
    writeln!(text, "#[cfg(test)]")?;
    writeln!(text, "pub static REASONS: [&str; {}] = [", symbols.len())?;
    for symbol in symbols {
        writeln!(text, "    {:?},", verdict(symbol, verdicts)?.reason)?;
    }
    writeln!(text, "];")?;
    Ok(text)
}

/// The wrappers, and the table of their addresses.
fn wrappers(symbols: &[Symbol<'_>], verdicts: &BTreeMap<String, Verdict>) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    let mut addresses = String::new();
    let mut operands = String::new();
    for (row, symbol) in symbols.iter().enumerate() {
        let verdict = verdict(symbol, verdicts)?;
        if verdict.class == "forward" {
            writeln!(addresses, "    \".long 0\",")?;
            continue;
        }
        let arguments: Vec<String> = symbol
            .arguments
            .chars()
            .filter(|kind| *kind != '-')
            .enumerate()
            .map(|(index, kind)| format!("a{index}: {kind}"))
            .collect();
        let arguments = arguments.join(", ");
        let how = match verdict.class.as_str() {
            "gate" | "track" | "refuse" if verdict.served.is_some() => {
                let again = if verdict.again { "again" } else { "once" };
                format!("served {again} {} => {}", effect(&verdict.effect)?, served(verdict)?)
            }
            "gate" => "gated 0".to_owned(),
            "work" if verdict.served.as_deref() == Some("settle") => {
                format!("settled {}", symbol.variant != "-")
            }
            "work" if verdict.again => "again 1 Effect::Nothing".to_owned(),
            "work" => "gated 1".to_owned(),
            "resolve" => format!("free {}", effect(&verdict.effect)?),
            _ if verdict.again => format!("again 0 {}", effect(&verdict.effect)?),
            _ => format!("tracked {}", effect(&verdict.effect)?),
        };
        writeln!(text, "hook!({row} {} hook_{row} [{arguments}] {how});", symbol.symbol)?;
        writeln!(addresses, "    \".long {{h{row}}} - holdfast_cuda_wrappers\",")?;
        writeln!(operands, "    h{row} = sym hook_{row},")?;
    }
    writeln!(text, "core::arch::global_asm!(")?;
    writeln!(text, "    \".pushsection .rodata.holdfast_cuda_wrappers,\\\"a\\\",@progbits\",")?;
    writeln!(text, "    \".p2align 2\",\n    \".hidden holdfast_cuda_wrappers\",")?;
    writeln!(text, "    \".globl holdfast_cuda_wrappers\",\n    \"holdfast_cuda_wrappers:\",")?;
    text.push_str(&addresses);
    writeln!(text, "    \".popsection\",")?;
    text.push_str(&operands);
    writeln!(text, ");")?;
    Ok(text)
}
