//! Mappings as the record has them, and which of their files are stored whole.
//!
//! [`replaced`] runs before the stop, [`stored_whole`] inside it, [`regions`] after it.

use super::files::unlinked;
use super::identity::{Identities, SharedFiles};
use super::map_flags::kept_flags;
use super::maps::{Flags, Kind, Mapped, PRIVATE_NAME, SHARED_NAME, flags_at, path_of};
use super::mounts::Insides;
use holdfast_image::Addr;
use holdfast_image::attributes::MemoryPolicy;
use holdfast_image::bytes::Name;
use holdfast_image::record::{Backing, FileIdentity, FileTable, Inside, NamelessFile, Region};
use holdfast_sys::procfs::Mapping;
use std::collections::{HashMap, HashSet};

/// What [`regions`] needs to know of files.
pub struct Files<'a> {
    /// Those that are mapped shared, as they were inside the stop.
    pub shared: &'a SharedFiles,
    /// All others.
    pub identities: &'a mut Identities,
    /// The process, which runs.
    pub pid: i32,
    /// All are to be stored whole.
    pub self_contained: bool,
    /// What the job has once: files without a name and segments.
    pub once: &'a FileTable,
    /// What files are called in its mount namespace.
    pub insides: &'a Insides,
}

/// What the image says of a file that a process has in its mount namespace. One that is nowhere else has no other path.
pub fn inside(file: FileIdentity, inside: Option<Inside>) -> FileIdentity {
    match inside {
        Some(Inside { path, only: true }) => {
            FileIdentity { path: path.clone(), inside: Some(Inside { path, only: true }), ..file }
        }
        inside => FileIdentity { inside, ..file },
    }
}

/// The regions of the record, the files behind them, and which file mappings must be stored whole (deleted or
/// replaced files; all, if the image is to be self-contained). `policies`: one for each mapping, or none. After the
/// stop.
pub fn regions(
    all: &[Mapped],
    flags: &Flags,
    policies: &[Option<MemoryPolicy>],
    known: Files<'_>,
) -> (Vec<Region>, Vec<FileIdentity>, Vec<bool>) {
    let Files { shared, identities, pid, self_contained, once, insides } = known;
    let nameless = &once.nameless[..];
    let mut files: Vec<FileIdentity> = Vec::new();
    let mut index_of: HashMap<(Vec<u8>, bool), Option<u32>> = HashMap::new();
    let mut regions = Vec::with_capacity(all.len());
    let mut stored_whole = Vec::with_capacity(all.len());
    let mut policies = policies.iter();
    for mapped in all {
        let mapping = &mapped.mapping;
        let mut file = || {
            *index_of.entry((mapping.name.clone(), mapping.shared)).or_insert_with(|| {
                let path = path_of(&mapping.name);
                let mut own = || {
                    let others = all.iter().map(|mapped| &mapped.mapping);
                    identities.of(path, Some(mapping.inode), (pid, others))
                };
                let file = if mapping.shared { shared.identity(mapping)? } else { own()? };
                files.push(inside(file, insides.get(&mapping.name).cloned()));
                u32::try_from(files.len() - 1).ok()
            })
        };
        let (backing, whole) = match mapped.kind {
            Kind::Kernel => {
                let name =
                    String::from_utf8_lossy(mapping.name.trim_ascii()).trim_matches(['[', ']']).to_owned();
                (Backing::Kernel { name }, false)
            }
            Kind::Anonymous { .. } | Kind::Huge | Kind::Served | Kind::Aio => (Backing::Anonymous, false),
            Kind::PrivateFile if unlinked::is_known(nameless, mapping) => {
                (of_nameless(nameless, mapping, &[]), false)
            }
            Kind::PrivateFile if unlinked::end_in(nameless, mapping).is_some() => {
                (of_nameless(nameless, mapping, &[]), true)
            }
            Kind::PrivateFile => match (self_contained, file()) {
                (false, Some(file)) => (Backing::PrivateFile { file, offset: mapping.offset }, false),
                _ => (Backing::Anonymous, true),
            },
            Kind::SharedFile => match file() {
                Some(file) => {
                    let writable = may_write(mapping, flags_at(flags, mapping.start));
                    (Backing::SharedFile { file, offset: mapping.offset, writable }, false)
                }
                None => (shared_anonymous(mapping), false),
            },
            Kind::SharedNameless | Kind::SharedAnonymous => {
                (of_nameless(nameless, mapping, flags_at(flags, mapping.start)), false)
            }
            Kind::SystemV => (system_v(once, mapping, flags_at(flags, mapping.start)), false),
        };
        let vm_flags = kept_flags(flags_at(flags, mapping.start)).cloned().collect();
        let (start, end) = (Addr(mapping.start), Addr(mapping.end));
        let (name, memory_policy) = (given_name(mapping), policies.next().cloned().flatten());
        regions.push(Region { start, end, prot: mapping.prot, backing, vm_flags, name, memory_policy });
        stored_whole.push(whole);
    }
    (regions, files, stored_whole)
}

/// The name that the program gave to memory without a file.
fn given_name(mapping: &Mapping) -> Option<Name> {
    let name = mapping.name.strip_prefix(PRIVATE_NAME).or_else(|| mapping.name.strip_prefix(SHARED_NAME))?;
    name.strip_suffix(b"]").map(|name| Name(name.to_vec()))
}

/// Whether a shared mapping is writable, or may become so.
fn may_write(mapping: &Mapping, flags: &[String]) -> bool {
    mapping.prot & 2 != 0 || flags.iter().any(|flag| flag == "mw")
}

fn of_nameless(nameless: &[NamelessFile], mapping: &Mapping, flags: &[String]) -> Backing {
    let Some(file) = unlinked::of_mapping(nameless, mapping) else { return shared_anonymous(mapping) };
    let writable = may_write(mapping, flags);
    Backing::Nameless { file, offset: mapping.offset, shared: mapping.shared, writable }
}

/// The maps file gives the id of a segment as its inode (ipc/shm.c, newseg).
fn system_v(once: &FileTable, mapping: &Mapping, flags: &[String]) -> Backing {
    let is = |id: i32| i64::from(id) == mapping.inode.cast_signed();
    let segment = once.segments.iter().position(|segment| is(segment.kernel_id()));
    let writable = may_write(mapping, flags);
    match segment.and_then(|segment| u32::try_from(segment).ok()) {
        Some(segment) => Backing::SystemV { segment, offset: mapping.offset, writable },
        None => shared_anonymous(mapping),
    }
}

fn shared_anonymous(mapping: &Mapping) -> Backing {
    let object_size = mapping.offset + (mapping.end - mapping.start);
    Backing::SharedAnonymous { object: mapping.inode, offset: mapping.offset, object_size }
}

/// Which mappings of files are to be stored whole: all, if the image is to be self-contained, else those whose file was
/// deleted, or replaced (`replaced`: name and inode, looked up before the stop); not those whose file is in the image.
pub fn stored_whole(
    all: &[Mapped],
    self_contained: bool,
    replaced: &HashSet<(Vec<u8>, u64)>,
    nameless: &[NamelessFile],
) -> Vec<bool> {
    all.iter()
        .map(|mapped| {
            let mapping = &mapped.mapping;
            mapped.kind == Kind::PrivateFile
                && !unlinked::is_known(nameless, mapping)
                && (self_contained
                    || mapping.name.ends_with(b" (deleted)")
                    || replaced.contains(&(mapping.name.clone(), mapping.inode)))
        })
        .collect()
}

/// The files among the mappings that are not the ones at their path any more. Before the stop.
pub fn replaced(pid: i32, maps: &[Mapping], identities: &mut Identities) -> HashSet<(Vec<u8>, u64)> {
    let mut seen = HashSet::new();
    maps.iter()
        .filter(|mapping| !mapping.shared && mapping.name.first() == Some(&b'/'))
        .filter(|mapping| seen.insert((&mapping.name, mapping.inode)))
        .filter(|mapping| {
            identities.of(path_of(&mapping.name), Some(mapping.inode), (pid, maps.iter())).is_none()
        })
        .map(|mapping| (mapping.name.clone(), mapping.inode))
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::maps::classify;
    use super::*;
    use crate::mapped_files::MappedFiles;
    use holdfast_sys::procfs::{self, parse_maps};
    use std::sync::LazyLock;

    fn known<'a>(shared: &'a SharedFiles, identities: &'a mut Identities, once: &'a FileTable) -> Files<'a> {
        static NONE: LazyLock<Insides> = LazyLock::new(Insides::new);
        Files { shared, identities, pid: 0, self_contained: false, once, insides: &NONE }
    }

    #[test]
    fn sizes_of_huge_pages_have_the_same_names_here_and_in_images() {
        let text = b"40000000-80000000 rw-p 00000000 00:00 0 \n";
        let nothing = (FileTable::default(), SharedFiles::default());
        for (flag, shift) in procfs::HUGE_PAGES {
            let flags = vec![(0x4000_0000, 0x8000_0000, vec!["rd".to_owned(), flag.to_owned()])];
            let all = classify(parse_maps(text).unwrap(), &flags, &MappedFiles::default()).unwrap();
            let (regions, _, _) =
                regions(&all, &flags, &[], known(&nothing.1, &mut Identities::default(), &nothing.0));
            assert_eq!(
                (regions[0].huge_shift(), &regions[0].vm_flags[..]),
                (Some(shift), &[flag.to_owned()][..])
            );
        }
    }

    #[test]
    fn a_shared_file_is_one_in_the_image_though_it_is_removed_after_the_stop() {
        let path = std::env::temp_dir().join(format!("holdfast-shared-{}", std::process::id()));
        std::fs::write(&path, [1; 4096]).unwrap();
        let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&path).unwrap());
        let text = format!("1000-2000 rw-s 00000000 00:01 {inode} {}\n", path.display());
        let all =
            classify(parse_maps(text.as_bytes()).unwrap(), &Vec::new(), &MappedFiles::default()).unwrap();
        let shared = SharedFiles::of(&all);
        let backing = |shared: &SharedFiles| {
            let (none, table) = (Vec::new(), FileTable::default());
            let (regions, files, _) =
                regions(&all, &none, &[], known(shared, &mut Identities::default(), &table));
            (regions[0].backing.clone(), files.first().map(|file| (file.path.clone(), file.size)))
        };
        let there = backing(&shared);
        assert_eq!(there.1, Some((Name::from(path.as_path()), 4096)));
        // Grown, removed, replaced.
        std::fs::write(&path, [2; 8192]).unwrap();
        assert_eq!(backing(&shared), there);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(backing(&shared), there);
        assert!(
            matches!(backing(&SharedFiles::of(&all)).0, Backing::SharedAnonymous { .. }),
            "gone at the stop"
        );
    }
}
