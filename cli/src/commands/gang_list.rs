//! `holdfast list` of a gang: its images, each with those of its members.

use super::gang::{jobs_of, place_of};
use crate::exit::Failure;
use crate::gang::folder::{GangFolder, Protections};
use crate::gang::guard::state::why_not_whole;
use crate::gang::image::{Found, GangImage, MemberImage};
use crate::gang::waiting::members;
use crate::report;
use crate::table::Table;
use holdfast_image::Epoch;
use holdfast_tiers::redundancy::{SetState, sets};
use holdfast_tiers::{Job, Store, StoreError};
use serde::Serialize;
use std::collections::BTreeMap;

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
    /// Why it was protected and is not any more, as far as this host knows.
    unprotected: Option<String>,
    members: Vec<MemberImage>,
}

fn remark(row: &Row) -> String {
    if let Some(why) = &row.broken {
        return why.clone();
    }
    let protected = row.protected.as_ref().map(|protection| format!("protected: {protection}"));
    let unprotected = row.unprotected.as_ref().map(|why| format!("{NO_MORE}: {why}"));
    let elsewhere =
        (!row.not_here.is_empty()).then(|| format!("not on this host: {}", members(&row.not_here)));
    protected.into_iter().chain(unprotected).chain(elsewhere).collect::<Vec<_>>().join("; ")
}

/// Begins what is said of an image that was protected.
const NO_MORE: &str = "not protected any more";

/// A job and its sets; or why that is not known.
type OfJob = Result<(Job, Vec<SetState>), String>;

/// What jobs of members have of sets: each is read once, for all images.
struct Jobs<'a> {
    store: &'a Store,
    read: BTreeMap<String, Option<OfJob>>,
}

impl<'a> Jobs<'a> {
    fn new(store: &'a Store) -> Jobs<'a> {
        Jobs { store, read: BTreeMap::new() }
    }

    /// None: the job is not here.
    fn of(&mut self, name: &str) -> Option<&OfJob> {
        let store = self.store;
        let read = || match store.job(name) {
            Err(StoreError::NotAJob { .. }) => None,
            Err(error) => Some(Err(error.to_string())),
            Ok(job) => Some(sets(&job).map_err(|error| error.to_string()).map(|all| (job, all))),
        };
        self.read.entry(name.to_owned()).or_insert_with(read).as_ref()
    }
}

/// How an image is protected; or why it is not any more, as far as this host knows.
fn protection(
    image: &GangImage,
    known: &Protections,
    jobs: &mut Jobs<'_>,
) -> (Option<String>, Option<String>) {
    let found = match known.get(&image.image) {
        None => return (None, None),
        Some(Err(why)) => return (None, Some(why.clone())),
        // It is that of another image of this number.
        Some(Ok(found)) if found.set != image.id() => return (None, None),
        Some(Ok(found)) => found,
    };
    let mut why_not = |part: &MemberImage| {
        let why = match jobs.of(&part.job(&image.gang))? {
            Err(why) => why.clone(),
            Ok((job, sets)) => why_not_whole((job, sets), part.epoch.0, &found.set)?,
        };
        Some(format!("member {}: {why}", part.member))
    };
    match image.members.iter().find_map(&mut why_not) {
        None => (Some(found.protection.to_string()), None),
        why => (None, why),
    }
}

/// Of which image of a gang an image of a job is a part.
#[derive(Debug, Serialize)]
pub struct PartOf {
    name: String,
    member: u32,
    image: Option<u64>,
    protected: Option<String>,
    unprotected: Option<String>,
}

impl PartOf {
    /// For people.
    pub fn line(&self) -> String {
        let PartOf { name, member, image, .. } = self;
        let image = match image {
            Some(image) => format!("image {image} of gang {name}"),
            None => format!("in no image of gang {name}"),
        };
        let protected = self.protected.as_ref().map(|protection| format!("; protected: {protection}"));
        let not = self.unprotected.as_ref().map(|why| format!("; {NO_MORE}: {why}"));
        format!("member {member}, {image}{}", protected.or(not).unwrap_or_default())
    }
}

/// What `show` tells of the gang of a job.
///
/// # Errors
/// The job's settings or the folder of the gang cannot be read.
pub fn part_of(store: &Store, job: &Job, epoch: Epoch) -> Result<Option<PartOf>, Failure> {
    let Some(place) = place_of(job)? else { return Ok(None) };
    let (name, member) = (place.name.clone(), place.member);
    let mut part = PartOf { name, member, image: None, protected: None, unprotected: None };
    let Some(folder) = GangFolder::open(store, &place.name)? else { return Ok(Some(part)) };
    for number in folder.images()?.into_iter().rev() {
        // One that cannot be read `list` tells of.
        let Ok(image) = folder.image(number) else { continue };
        let own = image.members.iter().find(|one| one.member == place.member && one.epoch == epoch);
        if own.is_some_and(|own| matches!(own.find(store, &image.gang), Ok(Found::AsItWas))) {
            part.image = Some(number);
            (part.protected, part.unprotected) =
                protection(&image, &folder.protections()?, &mut Jobs::new(store));
            break;
        }
    }
    Ok(Some(part))
}

/// Numbers of images of a job whose sets were whole, with those of the gang's images, and why they are not.
///
/// # Errors
/// As [`part_of`].
pub fn lost_sets(store: &Store, job: &Job) -> Result<Vec<(u64, u64, String)>, Failure> {
    let Some(place) = place_of(job)? else { return Ok(Vec::new()) };
    let Some(folder) = GangFolder::open(store, &place.name)? else { return Ok(Vec::new()) };
    let (known, there) = (folder.protections()?, folder.images()?);
    let (mut lost, sets) = (Vec::new(), sets(job)?);
    for (number, protected) in known.iter().filter(|(number, _)| there.contains(number)) {
        let Ok(protected) = protected else { continue };
        let image = folder.image(*number)?;
        let part = image.part_of(place.member).filter(|_| protected.set == image.id());
        let why = part
            .and_then(|epoch| Some((epoch, *number, why_not_whole((job, &sets), epoch, &protected.set)?)));
        lost.extend(why);
    }
    Ok(lost)
}

/// Lists them.
///
/// # Errors
/// Of the store.
pub fn run(store: &Store, folder: &GangFolder, json: bool) -> Result<(), Failure> {
    let name = folder.name();
    let mut rows = Vec::new();
    let (protections, mut of_sets) = (folder.protections()?, Jobs::new(store));
    for number in folder.images()? {
        rows.push(match folder.image(number) {
            Ok(image) => {
                let checked = image.check(store, folder.is_shared());
                let (protected, unprotected) = protection(&image, &protections, &mut of_sets);
                Row {
                    image: number,
                    created: Some(report::utc(image.created_ns)),
                    created_ns: Some(image.created_ns),
                    not_here: checked.as_ref().cloned().unwrap_or_default(),
                    broken: checked.err(),
                    protected,
                    unprotected,
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
                unprotected: None,
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
