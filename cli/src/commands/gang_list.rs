//! `holdfast list` of a gang: its images, each with those of its members.

use super::gang::jobs_of;
use crate::exit::Failure;
use crate::gang::folder::GangFolder;
use crate::gang::image::{GangImage, MemberImage};
use crate::gang::waiting::members;
use crate::report;
use crate::table::Table;
use holdfast_tiers::Store;
use serde::Serialize;

/// One image.
#[derive(Debug, Serialize)]
struct Row {
    image: u64,
    /// RFC 3339.
    created: Option<String>,
    created_ns: Option<u64>,
    /// Why it cannot be restarted, if it cannot.
    broken: Option<String>,
    /// Members whose part this host does not have, where each host has a store of its own.
    not_here: Vec<u32>,
    /// What other hosts have of it, as `--protect` has it.
    protected: Option<String>,
    members: Vec<MemberImage>,
}

fn remark(row: &Row) -> String {
    if let Some(why) = &row.broken {
        return why.clone();
    }
    let protected = row.protected.as_ref().map(|protection| format!("protected: {protection}"));
    let elsewhere =
        (!row.not_here.is_empty()).then(|| format!("not on this host: {}", members(&row.not_here)));
    protected.into_iter().chain(elsewhere).collect::<Vec<_>>().join("; ")
}

/// Lists them.
///
/// # Errors
/// Of the store.
pub fn run(store: &Store, folder: &GangFolder, json: bool) -> Result<(), Failure> {
    let name = folder.name();
    let mut rows = Vec::new();
    let protections = folder.protections()?;
    let protected = |image: &GangImage| {
        let found = protections.get(&image.image).filter(|one| one.set == image.id())?;
        Some(found.protection.to_string())
    };
    for number in folder.images()? {
        rows.push(match folder.image(number) {
            Ok(image) => {
                let checked = image.check(store, folder.is_shared());
                Row {
                    image: number,
                    created: Some(report::utc(image.created_ns)),
                    created_ns: Some(image.created_ns),
                    not_here: checked.as_ref().cloned().unwrap_or_default(),
                    broken: checked.err(),
                    protected: protected(&image),
                    members: image.members,
                }
            }
            Err(failure) => Row {
                image: number,
                created: None,
                created_ns: None,
                broken: Some(failure.message),
                not_here: Vec::new(),
                protected: None,
                members: Vec::new(),
            },
        });
    }
    let jobs = jobs_of(store, name)?;
    if json {
        let value = serde_json::json!({ "gang": name, "jobs": jobs, "images": rows });
        return report::print_json("gang", value);
    }
    let mut text = format!("gang {name}: {} members here: {}\n", jobs.len(), jobs.join(", "));
    if folder.is_shared() {
        text.push_str(&format!(
            "each host has a store of its own; the gang's folder is {}\n",
            folder.path().display()
        ));
    }
    if rows.is_empty() {
        return report::print(&(text + "no image of the gang\n"));
    }
    let cells = |row: &Row| {
        let parts = row.members.iter().map(|one| format!("{name}.{}@{}", one.member, one.epoch));
        vec![
            row.image.to_string(),
            row.created_ns.map_or_else(|| "-".to_owned(), report::age),
            parts.collect::<Vec<_>>().join(" "),
            remark(row),
        ]
    };
    let table = Table {
        head: vec!["IMAGE", "AGE", "MEMBERS", "REMARK"],
        rows: rows.iter().map(cells).collect(),
        right: &["IMAGE", "AGE"],
        elastic: &["MEMBERS"],
        optional: &["AGE"],
        below: true,
    };
    text.push_str(&table.shown());
    report::print(&text)
}
