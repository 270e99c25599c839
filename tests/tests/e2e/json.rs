//! What `--json` prints is what docs/json.md says: every field is there with its type, and no other.

use crate::plain_job;
use anyhow::{Context, Result, bail, ensure};
use holdfast_tests::sandbox::{Bed, PATIENCE, User, wait};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Stdio;

const DOCUMENT: &str = include_str!("../../../docs/json.md");

/// Type of each field, by the heading that it is under; what all objects have is under "".
fn documented() -> BTreeMap<String, BTreeMap<String, String>> {
    let mut kinds: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let mut kind = String::new();
    for line in DOCUMENT.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            kind = heading.to_owned();
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let ["", field, of, _, ""] = cells[..]
            && let Some(field) = field.strip_prefix('`').and_then(|field| field.strip_suffix('`'))
        {
            kinds.entry(kind.clone()).or_default().insert(field.to_owned(), of.to_owned());
        }
    }
    kinds
}

fn fits(value: &Value, of: &str) -> bool {
    of.split(" or ").any(|of| match (of, value) {
        ("any", _) => true,
        ("number", value) => value.is_u64(),
        ("string", value) => value.is_string(),
        ("bool", value) => value.is_boolean(),
        ("null", value) => value.is_null(),
        ("array", Value::Array(_)) => true,
        (of, Value::Array(values)) => {
            of.strip_prefix("array of ").is_some_and(|of| values.iter().all(|value| fits(value, of)))
        }
        _ => false,
    })
}

/// Whether a value, and all that is in it, is as the fields below `path` say.
fn check(value: &Value, path: &str, fields: &BTreeMap<String, String>) -> Result<()> {
    match (fields.get(path), value) {
        (Some(of), value) if !fits(value, of) => bail!("{path} is no {of}: {value}"),
        (Some(of), Value::Array(values)) if of == "array" => {
            values.iter().try_for_each(|value| check(value, &format!("{path}[]"), fields))
        }
        (Some(_), _) => Ok(()),
        (None, Value::Object(object)) => {
            let at = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            for (name, value) in object {
                check(value, &at(name), fields)?;
            }
            let below = if path.is_empty() { String::new() } else { format!("{path}.") };
            for field in fields.keys() {
                let Some(rest) = field.strip_prefix(&below) else { continue };
                let first = rest.split(['.', '[']).next().unwrap_or_default();
                ensure!(object.contains_key(first), "{field} is missing: {value}");
            }
            Ok(())
        }
        (None, _) => bail!("{path} is not in docs/json.md: {value}"),
    }
}

/// What a command prints is as documented under `kind`.
pub fn agrees(text: &str, kind: &str) -> Result<Value> {
    let value: Value = serde_json::from_str(text).with_context(|| format!("{kind}: {text}"))?;
    let kinds = documented();
    let mut fields = kinds.get(kind).with_context(|| format!("no heading {kind}"))?.clone();
    fields.extend(kinds.get("").context("what all have")?.clone());
    check(&value, "", &fields).with_context(|| kind.to_owned())?;
    ensure!(value["kind"] == kind && value["version"] == 1, "{kind}: {value}");
    Ok(value)
}

#[test]
fn json_is_as_documented() {
    let Some(bed) = Bed::new(User::Ordinary) else { return };
    all_kinds(&bed).unwrap_or_else(|error| panic!("{error:#}"));
}

fn all_kinds(bed: &Bed) -> Result<()> {
    let tier = format!("dir={}", bed.work().join("tier").display());
    let (mut front, _) = plain_job::start(bed, &["--tier", &tier])?;
    let mut watch = bed.holdfast(&["watch", "j", "--json"]);
    let mut watch = watch.stdin(Stdio::null()).stdout(bed.create("watch")?).spawn()?;
    let say = |arguments: &[&str]| bed.say(arguments).map(|ended| ended.stdout);
    agrees(&say(&["checkpoint", "j", "--json"])?, "checkpoint")?;
    agrees(&say(&["checkpoint", "j", "--no-wait", "--json"])?, "checkpoint")?;
    agrees(&say(&["rollback", "j", "--json"])?, "rollback")?;
    agrees(&say(&["check", "j", "--json"])?, "check")?;
    agrees(&say(&["doctor", "--json"])?, "host")?;
    let doctor = agrees(&say(&["doctor", "--job", "j", "--json"])?, "host")?;
    ensure!(doctor["program"]["job"] == "j", "{doctor}");
    let refused = agrees(&say(&["prune", "j", "--all", "--json"])?, "error")?;
    ensure!(refused["exit"] == 69, "{refused}");
    bed.may_end()?;
    ensure!(wait(&mut front, PATIENCE)?.success());
    let listed = agrees(&say(&["list", "--json"])?, "jobs")?;
    let image = &listed["jobs"][0]["images"][0];
    let created = image["created"].as_str().unwrap_or_default();
    ensure!(created.len() == "2026-01-01T00:00:00Z".len() && created.ends_with('Z'), "{image}");
    ensure!(agrees(&say(&["list", "j", "--json"])?, "jobs")?["jobs"][0]["tiers"][0]["tier"] == tier);
    agrees(&say(&["list", "--tier", &tier, "--json"])?, "tier")?;
    agrees(&say(&["show", "j", "--json"])?, "image")?;
    agrees(&say(&["verify", "j", "--all-tiers", "--json"])?, "verify")?;
    agrees(&say(&["verify", "--json"])?, "verify")?;
    agrees(&say(&["sync", "j", "--json"])?, "sync")?;
    let fetched = agrees(&say(&["fetch", "j", "--json"])?, "fetch")?;
    ensure!(fetched["fetched"]["from"] == tier && fetched["tiers"][0]["tier"] == tier, "{fetched}");
    agrees(&say(&["prune", "j", "--keep", "1", "--dry-run", "--json"])?, "prune")?;
    let unknown = agrees(&say(&["show", "absent", "--json"])?, "error")?;
    ensure!(unknown["exit"] == 66 && unknown["message"].is_string(), "{unknown}");
    let wrong = agrees(&say(&["list", "--json", "--no-such-option"])?, "error")?;
    ensure!(wrong["exit"] == 64, "{wrong}");
    wait(&mut watch, PATIENCE)?;
    let lines = bed.text("watch");
    ensure!(lines.lines().count() > 0, "nothing was watched");
    lines.lines().try_for_each(|line| agrees(line, "status").map(drop))
}
