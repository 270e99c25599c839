//! `holdfast list` of a gang: its images, each with those of its members.

use super::gang::jobs_of;
use crate::exit::Failure;
use crate::gang::folder::GangFolder;
use crate::gang::image::MemberImage;
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
    members: Vec<MemberImage>,
}

/// Lists them.
///
/// # Errors
/// Of the store.
pub fn run(store: &Store, folder: &GangFolder, json: bool) -> Result<(), Failure> {
    let name = folder.name();
    let mut rows = Vec::new();
    for number in folder.images()? {
        rows.push(match folder.image(number) {
            Ok(image) => Row {
                image: number,
                created: Some(report::utc(image.created_ns)),
                created_ns: Some(image.created_ns),
                broken: image.check_whole(store).err(),
                members: image.members,
            },
            Err(failure) => Row {
                image: number,
                created: None,
                created_ns: None,
                broken: Some(failure.message),
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
    if rows.is_empty() {
        return report::print(&(text + "no image of the gang\n"));
    }
    let cells = |row: &Row| {
        let parts = row.members.iter().map(|one| format!("{name}.{}@{}", one.member, one.epoch));
        vec![
            row.image.to_string(),
            row.created_ns.map_or_else(|| "-".to_owned(), report::age),
            parts.collect::<Vec<_>>().join(" "),
            row.broken.clone().unwrap_or_default(),
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
