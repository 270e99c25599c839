//! What an epoll instance watches: it knows files by the number that they were added with, which may be closed by
//! now, or another file's (epoll(7), questions 6 and 9: as long as a duplicate lives, somewhere in the job).
//!
//! Inside the stop, when all descriptions are known. The inode in fdinfo tells mostly that the number is still the
//! file's; where it does not, kcmp(2) does.

use super::{FileReader, Found};
use holdfast_image::record::{Description, FileTable, Object};
use holdfast_sys::clone;
use std::collections::HashMap;

/// `ino:` of a `tfd:` line (fs/eventpoll.c, ep_show_fdinfo).
fn inode_of(line: &str) -> Option<u64> {
    let word = line.split_whitespace().find_map(|word| word.strip_prefix("ino:"))?;
    u64::from_str_radix(word, 16).ok()
}

impl FileReader<'_> {
    /// Tells for all epoll instances which entries are of other files than those that have their numbers. `firsts`:
    /// of each description, one descriptor.
    pub(super) fn find_watched(
        &self,
        descriptions: &mut [Description],
        firsts: &[&Found],
        tables: &[FileTable],
    ) {
        if !descriptions.iter().any(|description| matches!(description.object, Object::Epoll { .. })) {
            return;
        }
        let numbers: HashMap<(usize, i32), &Found> =
            self.found.iter().map(|found| ((found.holder, found.fd), found)).collect();
        for (index, description) in (0_u32..).zip(descriptions) {
            let (Object::Epoll { entries }, Some(epoll)) =
                (&mut description.object, firsts.get(index as usize))
            else {
                continue;
            };
            let holds = |table: &FileTable| table.descriptors.iter().any(|d| d.description == index);
            let holders: Vec<usize> = (0..tables.len()).filter(|&place| holds(&tables[place])).collect();
            let mut times: HashMap<i32, u32> = HashMap::new();
            entries.iter().for_each(|entry| *times.entry(entry.fd).or_default() += 1);
            let mut before: HashMap<i32, u32> = HashMap::new();
            let lines = epoll.info.text.lines().filter(|line| line.starts_with("tfd:"));
            for (entry, line) in entries.iter_mut().zip(lines) {
                let nth = before.entry(entry.fd).or_default();
                let is_it = |found: &&Found| self.is_watched(found, epoll, entry.fd, *nth);
                let own = || holders.iter().filter_map(|&holder| numbers.get(&(holder, entry.fd)).copied());
                let inode = inode_of(line);
                let alike =
                    |found: &Found| !found.target.starts_with(b"anon_inode:") && Some(found.inode) == inode;
                let is_own =
                    times.get(&entry.fd) == Some(&1) && own().any(alike) || own().any(|found| is_it(&found));
                if !is_own {
                    let other = firsts.iter().position(is_it);
                    entry.description = other.and_then(|other| u32::try_from(other).ok());
                }
                *nth += 1;
            }
        }
    }

    /// Whether an epoll instance watches a file under a number: the `nth` that it has under it.
    fn is_watched(&self, found: &Found, epoll: &Found, number: i32, nth: u32) -> bool {
        let pid = |found: &Found| self.leads_from(found).0;
        clone::is_watched((pid(found), found.fd), (pid(epoll), epoll.fd), number, nth).unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inode_of_a_line_is_understood() {
        let line = "tfd:       12 events:       19 data:     deadbeef00c  pos:0 ino:2a sdev:9";
        assert_eq!((inode_of(line), inode_of("tfd: 1"), inode_of("ino:x")), (Some(42), None, None));
    }
}
