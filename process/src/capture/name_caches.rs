//! What a process has of a cache for names of users and hosts: mappings of nscd's databases, which the C library gets
//! as descriptors (nscd/nscd_helper.c), or of SSSD's (src/sss_client/nss_mc_common.c), and a connection to the server.
//!
//! Neither could be had again by who may not open those files, and nothing of it is the program's own: the library does
//! without, or asks anew. So a mapping is in the image as private memory, with what was in it at the cut (a lookup may
//! be in the middle of it), marked as out of date; and a connection is one whose other end was closed. Called by
//! `maps` and `files::sockets`. Invariants: pure.

use holdfast_sys::procfs::Mapping;

/// Folders of nscd: Debian's, that of the C library's sources, and that of databases that are not kept.
const NSCD: [&[u8]; 4] = [b"/var/cache/nscd/", b"/var/db/nscd/", b"/run/nscd/", b"/var/run/nscd/"];
const SSSD: &[u8] = b"/var/lib/sss/mc/";
/// Where the servers listen.
const SERVERS: [&[u8]; 4] =
    [b"/var/run/nscd/socket", b"/run/nscd/socket", b"/var/run/.nscd_socket", b"/var/lib/sss/pipes/nss"];

/// Whether it is one that can only be read: a server's own can be written.
pub fn is_of_client(mapping: &Mapping, may_write: bool) -> bool {
    let name = mapping.name.as_slice();
    mapping.shared && !may_write && (is_of_nscd(name) || name.starts_with(SSSD))
}

fn is_of_nscd(name: &[u8]) -> bool {
    NSCD.iter().any(|folder| name.starts_with(folder))
}

/// Whether a server has this address (struct sockaddr_un).
pub fn is_server(address: &[u8]) -> bool {
    let path = address.get(2..).unwrap_or_default().split(|byte| *byte == 0).next().unwrap_or_default();
    SERVERS.contains(&path)
}

/// Marks what was copied of a mapping, from its first byte on, so that no client trusts it any longer.
pub fn mark(mapping: &Mapping, bytes: &mut [u8]) {
    if mapping.offset != 0 {
        return;
    }
    if is_of_nscd(&mapping.name) {
        // nscd_certainly_running and timestamp of struct database_pers_head (nscd/nscd-client.h): a client asks for
        // another mapping where the first is 0 and the other long ago.
        set(bytes, 12, &[0; 12]);
    } else {
        // The status in struct sss_mc_header (src/util/mmap_cache.h): SSS_MC_HEADER_RECYCLED.
        set(bytes, 12, &2_u32.to_ne_bytes());
    }
}

fn set(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(field) = bytes.get_mut(at..at + value.len()) {
        field.copy_from_slice(value);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_sys::procfs::parse_maps;

    fn mapping(line: &str) -> Mapping {
        parse_maps(line.as_bytes()).unwrap().remove(0)
    }

    #[test]
    fn only_mappings_and_connections_of_clients_are_theirs() {
        let nscd = mapping("1000-9000 r--s 00000000 fe:01 7 /var/cache/nscd/passwd\n");
        assert!(is_of_client(&nscd, false) && !is_of_client(&nscd, true));
        assert!(is_of_client(&mapping("1000-9000 r--s 00000000 fe:01 7 /run/nscd/dbx (deleted)\n"), false));
        assert!(!is_of_client(&mapping("1000-9000 r--p 00000000 fe:01 7 /var/cache/nscd/passwd\n"), false));
        assert!(!is_of_client(
            &mapping("1000-9000 r--s 00000000 fe:01 7 /srv/var/cache/nscd/passwd\n"),
            false
        ));
        let address = |path: &str| [&1_u16.to_ne_bytes()[..], path.as_bytes(), &[0]].concat();
        assert!(is_server(&address("/var/run/nscd/socket")) && is_server(&address("/var/lib/sss/pipes/nss")));
        assert!(!is_server(&address("/var/run/nscd/socket2")) && !is_server(b"") && !is_server(&[1, 0]));
    }

    #[test]
    fn what_was_copied_is_out_of_date() {
        let mut bytes: Vec<u8> = (1..=64).collect();
        mark(&mapping("1000-9000 r--s 00000000 fe:01 7 /var/db/nscd/hosts\n"), &mut bytes);
        assert_eq!(
            (&bytes[11..25], &bytes[25..27]),
            (&[12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 25][..], &[26, 27][..])
        );
        let mut bytes = vec![1; 32];
        mark(&mapping("1000-9000 r--s 00000000 fe:01 7 /var/lib/sss/mc/passwd\n"), &mut bytes);
        assert_eq!(&bytes[11..17], &[1, 2, 0, 0, 0, 1]);
        mark(&mapping("1000-9000 r--s 00001000 fe:01 7 /var/lib/sss/mc/passwd\n"), &mut bytes);
        mark(&mapping("1000-9000 r--s 00000000 fe:01 7 /var/lib/sss/mc/passwd\n"), &mut []);
    }
}
