//! What commands do with gangs: `run --gang`, `restart --gang`, `checkpoint`, `list` and `rm` of one.
//!
//! Invariant: a gang is never taken for a job, nor a member for a job of its own. Fails by: what to write instead.

use super::meet;
use crate::args::{CheckpointArgs, RestartArgs, RunArgs};
use crate::client::accepted_of;
use crate::exit::{Exit, Failure};
use crate::gang::choice::choose;
use crate::gang::command;
use crate::gang::folder::{GangFolder, Needed, shared_of};
use crate::gang::image::GangImage;
use crate::names::ImageName;
use crate::report;
use crate::settings::{GangChoice, GangPlace, Recipe, Settings, member_job};
use holdfast_image::control::Reply;
use holdfast_tiers::{Job, Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

fn usage(what: impl Into<String>) -> Failure {
    Failure::new(Exit::Usage, what)
}

/// Which member of a gang `run` is to start.
///
/// # Errors
/// What does not go with `--gang`, or is in its way.
pub fn place_of_run(
    args: &RunArgs,
    store: &Store,
    settings: &Settings,
) -> Result<Option<GangPlace>, Failure> {
    let name = args.name.as_deref();
    let Some(choice) = args.gang.gang else {
        return match name.map(|name| store.gang_folder(name)).transpose()?.flatten() {
            Some(_) => Err(is_a_gang(name.unwrap_or_default(), "run --gang MEMBER/MEMBERS")),
            None => Ok(None),
        };
    };
    let Some(name) = name else { return Err(usage("--gang needs --name: the name of the gang")) };
    let against = [
        (args.only_protected, "--only-protected"),
        (args.resume.is_some(), "--resume"),
        (settings.tiers.memory().is_some(), "--tier memory"),
    ];
    if let Some((_, option)) = against.iter().find(|(is_given, _)| *is_given) {
        return Err(usage(format!("{option} is not supported together with --gang")));
    }
    let place = place(store, name, choice, &args.gang)?;
    match store.job(name) {
        Err(StoreError::NotAJob { .. }) => Ok(Some(place)),
        Ok(_) => {
            let what = format!("{} has a job {name}; give the gang another name", store.root().display());
            Err(Failure::new(Exit::Refused, what))
        }
        Err(error) => Err(error.into()),
    }
}

fn place(
    store: &Store,
    name: &str,
    choice: GangChoice,
    args: &crate::args::GangArgs,
) -> Result<GangPlace, Failure> {
    let (member, members) = choice.place(|variable| std::env::var(variable).ok()).map_err(usage)?;
    let (listen, wait_s) = (args.gang_listen.clone(), args.wait_s());
    let absolute = |path: &PathBuf| {
        std::path::absolute(path)
            .map_err(|error| Failure::system(format_args!("--gang-folder {}", path.display()), &error))
    };
    // What was said once holds.
    let folder = match &args.gang_folder {
        Some(path) => Some(absolute(path)?),
        None => shared_of(store, name)?,
    };
    if choice.is_open() && folder.is_some() {
        return Err(usage("--gang ssh needs one store that all hosts reach, and no --gang-folder"));
    }
    let protect = args.protect;
    if protect.is_some() && folder.is_none() {
        return Err(usage("--protect is for hosts with stores of their own: give --gang-folder as well"));
    }
    let (name, open, start, hosts) = (name.to_owned(), choice.is_open(), args.gang_start, Vec::new());
    Ok(GangPlace { name, member, members, open, start, hosts, listen, wait_s, folder, protect })
}

/// What `restart` of a gang is to restart.
pub struct OfRestart {
    /// Which member.
    pub place: GangPlace,
    /// Its image.
    pub part: ImageName,
    /// The number of the gang's image.
    pub image: u64,
    /// The others are started, by ssh.
    pub starts: bool,
}

/// What `restart --gang` is to restart.
///
/// # Errors
/// There is no whole image of the gang, or it has another number of members.
pub fn of_restart(
    args: &RestartArgs,
    image: &ImageName,
    store: &Store,
) -> Result<Option<OfRestart>, Failure> {
    let (gang, number) = (&image.job, image.epoch.map(|number| number.0));
    let (choice, known) = match args.gang.gang {
        Some(choice) => (choice, None),
        None => match open_image(store, gang, number)? {
            Some(image) => (GangChoice::Ssh, Some(image)),
            None if args.hosts.is_empty() => return Ok(None),
            None => return Err(usage("--hosts is for a gang that was run with --gang ssh")),
        },
    };
    let against = [(args.name.is_some(), "--name"), (args.fallback, "--fallback")];
    if let Some((_, option)) = against.iter().find(|(is_given, _)| *is_given) {
        return Err(usage(format!("{option} is not supported together with --gang")));
    }
    let mut place = place(store, gang, choice, &args.gang)?;
    let chosen = match (known, &place.folder) {
        (Some(image), _) => image,
        (None, Some(_)) => meet::ask(store, &place, number)?,
        (None, None) => choose(store, gang, number)?,
    };
    let members = chosen.members.len();
    place.open = chosen.is_open();
    let starts = choice == GangChoice::Ssh;
    if choice.is_open() && !(starts && place.open) {
        let what =
            format!("image {} of gang {gang} is not of one that was run with --gang ssh", chosen.image);
        return Err(Failure::new(Exit::Refused, what));
    }
    if starts {
        place.members = u32::try_from(members).unwrap_or(u32::MAX);
        place.hosts.clone_from(&args.hosts);
    }
    if !args.hosts.is_empty() && (!starts || args.hosts.len() != members) {
        let what = format!(
            "--hosts names the hosts of all {members} members of gang {gang}, in their order, for --gang ssh; {} are \
             named",
            args.hosts.len()
        );
        return Err(usage(what));
    }
    let own = usize::try_from(place.member).ok().and_then(|member| chosen.members.get(member));
    let Some(own) = own.filter(|_| members == place.members as usize) else {
        let number = chosen.image;
        let what = format!("image {number} of gang {gang} has {members} members, not {}", place.members);
        return Err(Failure::new(Exit::Refused, what));
    };
    let part = ImageName { job: place.job_of(place.member), epoch: Some(own.epoch) };
    Ok(Some(OfRestart { place, part, image: chosen.image, starts }))
}

/// The image of a gang that is restarted by its leader alone.
///
/// # Errors
/// It is one whose members are restarted one by one; it has no whole image.
fn open_image(store: &Store, gang: &str, number: Option<u64>) -> Result<Option<GangImage>, Failure> {
    if !matches!(store.job(gang), Err(StoreError::NotAJob { .. })) {
        return Ok(None);
    }
    let Some(folder) = GangFolder::open(store, gang)? else { return Ok(None) };
    if !folder.is_shared() && !folder.images()?.is_empty() {
        let image = choose(store, gang, number)?;
        if image.is_open() {
            return Ok(Some(image));
        }
    }
    Err(is_a_gang(gang, "restart --gang MEMBER/MEMBERS"))
}

/// The settings of a member that is added: those of the leader, but for what that does for all.
///
/// # Errors
/// The store has no leader.
pub fn as_leader(store: &Store, place: GangPlace) -> Result<Settings, Failure> {
    let (leader, name) = (place.job_of(0), &place.name);
    let none = |why: &dyn std::fmt::Display| {
        let what = format!(
            "{} has no job {leader}, the leader of gang {name}: it must be one folder that all hosts reach ({why})",
            store.root().display()
        );
        Failure::new(Exit::NotFound, what)
    };
    let job = store.job(&leader).map_err(|error| none(&error))?;
    let recipe = Recipe::read(&job)?;
    if recipe.settings.gang.as_ref().is_none_or(|leader| !leader.open || leader.name != *name) {
        return Err(none(&"it is another job"));
    }
    let (every_s, planned, exec_after, gang) = (None, None, None, Some(place));
    Ok(Settings { every_s, planned, exec_after, gang, ..recipe.settings })
}

/// A member without the others.
pub fn needs_place(place: &GangPlace) -> Failure {
    let GangPlace { name, member, members, .. } = place;
    let what = format!(
        "job {} is a member of gang {name}: `holdfast restart {name} --gang {member}/{members}`, and all other \
         members, go on together; `holdfast restart --name NEW` makes a copy of it alone",
        place.job_of(*member)
    );
    Failure::new(Exit::Refused, what)
}

/// A gang where a job was meant.
pub fn is_a_gang(name: &str, instead: &str) -> Failure {
    let first = member_job(name, 0);
    let what = format!(
        "{name} is a gang, whose members are jobs: {first} and so on; `holdfast {instead}`, or name one of them"
    );
    Failure::new(Exit::Refused, what)
}

/// The gang of this name, if it is not that of a job.
///
/// # Errors
/// Of the store.
pub fn named(store: &Store, name: &str) -> Result<Option<GangFolder>, Failure> {
    if store.job(name).is_ok() { Ok(None) } else { GangFolder::open(store, name) }
}

/// The gang of this name, or that of which the job of this name is a member.
///
/// # Errors
/// Of the store.
pub fn of_name(store: &Store, name: &str) -> Result<Option<GangFolder>, Failure> {
    let Ok(job) = store.job(name) else { return GangFolder::open(store, name) };
    let gang = Recipe::read(&job).ok().and_then(|recipe| recipe.settings.gang);
    gang.map_or(Ok(None), |place| GangFolder::open(store, &place.name))
}

/// `holdfast checkpoint` of a gang.
///
/// # Errors
/// There is no image; the programs run on.
pub fn checkpoint(args: &CheckpointArgs, folder: &GangFolder) -> Result<(), Failure> {
    let name = folder.name();
    let reply = command::checkpoint(folder, args.stop, !args.no_wait, args.changes.wishes())?;
    let reply = accepted_of(&member_job(name, 0), reply)?;
    let Reply::Checkpointed { epoch, stop_ns, committed, gang_image } = reply else {
        return Err(Failure::new(Exit::Internal, format!("unexpected answer of the leader: {reply:?}")));
    };
    let image = gang_image.map(|number| folder.image(number)).transpose()?;
    if args.json {
        return report::print_json(
            "gang_checkpoint",
            serde_json::json!({
                "gang": name,
                "image": gang_image,
                "epoch": epoch,
                "stop_ns": stop_ns,
                "committed": committed,
                "members": image.as_ref().map(|image| &image.members),
            }),
        );
    }
    let stop = report::short_time(stop_ns);
    report::result(&match image {
        Some(GangImage { image, members, .. }) => {
            let members = members.len();
            format!("image {image} of gang {name}: {members} members, stop time of the leader {stop}\n")
        }
        None => format!("gang {name}: stop time of the leader {stop}, the images are being written\n"),
    })
}

/// The jobs of a gang that are there.
///
/// # Errors
/// The store cannot be listed, or a job's recipe cannot be read.
pub fn jobs_of(store: &Store, gang: &str) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    for name in store.jobs()? {
        let is_named_so = name.strip_prefix(gang).is_some_and(|rest| rest.starts_with('.'));
        let Ok(job) = store.job(&name) else { continue };
        if is_named_so
            && job.has_recipe()?
            && Recipe::read(&job)?.settings.gang.is_some_and(|p| p.name == gang)
        {
            found.push(name);
        }
    }
    found.sort_by_key(|name| name.rsplit('.').next().and_then(|number| number.parse::<u32>().ok()));
    Ok(found)
}

/// Gangs among the names of jobs become their members; their names.
///
/// # Errors
/// As [`jobs_of`]; an image of a gang is named.
pub fn spread(
    store: &Store,
    jobs: &mut BTreeMap<String, BTreeSet<u64>>,
) -> Result<BTreeSet<String>, Failure> {
    let mut gangs = BTreeSet::new();
    for name in jobs.keys().cloned().collect::<Vec<_>>() {
        let is_job = !matches!(store.job(&name), Err(StoreError::NotAJob { .. }));
        if is_job || store.gang_folder(&name)?.is_none() {
            continue;
        }
        if jobs.remove(&name).is_some_and(|images| !images.is_empty()) {
            return Err(is_a_gang(&name, "prune MEMBER"));
        }
        jobs.extend(jobs_of(store, &name)?.into_iter().map(|job| (job, BTreeSet::new())));
        gangs.insert(name);
    }
    Ok(gangs)
}

/// What the members of gangs have in common goes: their images are those of jobs alone from now on, and go next.
///
/// # Errors
/// A member runs; a folder cannot be deleted.
pub fn remove_folders(store: &Store, gangs: &BTreeSet<String>) -> Result<(), Failure> {
    for gang in gangs {
        let jobs = jobs_of(store, gang)?;
        if let Some(job) = jobs.iter().find(|job| store.job(job).is_ok_and(|job| job.is_live())) {
            let what = format!("job {job} of gang {gang} is running; end all members first");
            return Err(Failure::new(Exit::Refused, what));
        }
        let shared = shared_of(store, gang)?;
        let shared = shared.map(|shared| GangFolder::shared(&shared, gang)).transpose()?.flatten();
        if let Some(shared) = &shared
            && command::runs(shared)?
        {
            let what = format!("gang {gang} is running on other hosts; end all members first");
            return Err(Failure::new(Exit::Refused, what));
        }
        // What tells of the other one goes last.
        let folders =
            shared.map(|shared| shared.path().to_owned()).into_iter().chain(store.gang_folder(gang)?);
        for folder in folders {
            std::fs::remove_dir_all(&folder)
                .map_err(|error| Failure::system(format_args!("deleting {}", folder.display()), &error))?;
        }
    }
    Ok(())
}

/// The place of a job in its gang, if it is of one.
///
/// # Errors
/// Its settings cannot be read.
pub fn place_of(job: &Job) -> Result<Option<GangPlace>, Failure> {
    Ok(if job.has_recipe()? { Recipe::read(job)?.settings.gang } else { None })
}

/// The images of a job that its gang needs. `all`: the job is to go; `going`: these gangs are, too.
///
/// # Errors
/// It is a member, and is to go by itself; what the gang needs is not known.
pub fn needed_of(store: &Store, job: &Job, all: bool, going: &BTreeSet<String>) -> Result<Needed, Failure> {
    let Some(place) = place_of(job)? else { return Ok(Needed::default()) };
    let folder =
        if all && going.contains(&place.name) { None } else { GangFolder::open(store, &place.name)? };
    let Some(folder) = folder else { return Ok(Needed::default()) };
    if all {
        let (job, name) = (job.name(), &place.name);
        let what = format!(
            "job {job} is a member of gang {name}; `holdfast rm {name}` deletes the gang, with all of it"
        );
        return Err(Failure::new(Exit::Refused, what));
    }
    folder.needed_of(place.member)
}
