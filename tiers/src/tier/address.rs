//! Addresses of tiers, as users write them.
//!
//! ```text
//! dir=/nvme/ckpt  /nvme/ckpt         a folder: a disk, or a file system of several hosts (NFS, Lustre)
//! file:///nvme/ckpt                  the same, as a URL
//! s3://bucket/prefix                 an object store: S3 and its like, gs:// (Google), az:// (Azure)
//! https://host:8443/path             a WebDAV server
//! ```
//! Called by [`crate::stack::Place`], for what is neither the store nor memory; here nothing is touched but the text.
//! Invariants: an address never holds credentials, and no message shows what was given as such; `Address::parse` takes
//! what `Display` writes, and both mean the same place.

use super::TierError;
pub use super::opening::open;
use std::fmt;
use std::path::{Path, PathBuf};

/// Most bytes of an address.
const MAX_ADDRESS: usize = 4096;

/// What an address says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A folder of a file system; absolute.
    Folder(PathBuf),
    /// A bucket or container of an object store.
    Bucket {
        /// Which kind of store.
        cloud: Cloud,
        /// Name of the bucket or container.
        bucket: String,
        /// What all keys begin with; no '/' at either end; may be empty.
        prefix: String,
    },
    /// A WebDAV server; no '/' at the end.
    Http {
        /// Whether by TLS.
        secure: bool,
        /// Host and port.
        host: String,
        /// No '/' at either end; may be empty.
        path: String,
    },
}

/// Kinds of object stores.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cloud {
    /// Amazon S3, and what has its protocol: Garage, Ceph, MinIO.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
}

impl Cloud {
    fn scheme(self) -> &'static str {
        match self {
            Cloud::S3 => "s3",
            Cloud::Google => "gs",
            Cloud::Azure => "az",
        }
    }
}

impl Address {
    /// Understands an address.
    ///
    /// # Errors
    /// [`TierError::Settings`], with what would be right.
    pub fn parse(address: &str) -> Result<Address, TierError> {
        parse(address).map_err(|why| refused(address, &why))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = |rest: &str| if rest.is_empty() { String::new() } else { format!("/{rest}") };
        match self {
            Address::Folder(path) => write!(out, "dir={}", path.display()),
            Address::Bucket { cloud, bucket, prefix } => {
                write!(out, "{}://{bucket}{}", cloud.scheme(), slash(prefix))
            }
            Address::Http { secure, host, path } => {
                write!(out, "http{}://{host}{}", if *secure { "s" } else { "" }, slash(path))
            }
        }
    }
}

fn refused(address: &str, why: &str) -> TierError {
    TierError::Settings { object: without_secrets(address), why: why.to_owned() }
}

/// An address as a message may show it: what may be a user and a password is left out, control characters too.
fn without_secrets(address: &str) -> String {
    let shown = match (address.split_once("://"), address.rfind('@')) {
        (Some((scheme, _)), Some(at)) => format!("{scheme}://***{}", &address[at..]),
        _ => address.to_owned(),
    };
    let shown = shown.split(['?', '#']).next().unwrap_or_default();
    let clean: String = shown.chars().filter(|c| !c.is_control()).take(200).collect();
    if clean.is_empty() { "address of a tier".to_owned() } else { clean }
}

fn parse(address: &str) -> Result<Address, String> {
    if address.len() > MAX_ADDRESS {
        return Err(format!("the address has {} bytes; at most {MAX_ADDRESS} are possible", address.len()));
    }
    if address.chars().any(char::is_control) {
        return Err("the address has a control character in it".to_owned());
    }
    if let Some((scheme, rest)) = address.split_once("://") {
        return parse_url(scheme, rest);
    }
    match address.split_once('=') {
        Some(("dir", path)) => absolute(path).map(Address::Folder),
        _ if address.starts_with('/') => absolute(address).map(Address::Folder),
        _ => Err("this is no address of a tier; write dir=/path, s3://bucket/prefix, gs://bucket/prefix, \
             az://container/prefix or https://host/path"
            .to_owned()),
    }
}

fn parse_url(scheme: &str, rest: &str) -> Result<Address, String> {
    if scheme == "file" {
        let path = rest.strip_prefix("localhost").unwrap_or(rest);
        return absolute(&unescaped(path)?).map(Address::Folder);
    }
    if rest.contains('@') {
        return Err(
            "credentials do not belong into an address, where others can see them; give them by the \
                    environment or by the files of docs/remote.md"
                .to_owned(),
        );
    }
    if rest.contains(['?', '#']) {
        return Err("an address has no ? and no #".to_owned());
    }
    let (first, path) = rest.split_once('/').unwrap_or((rest, ""));
    let cloud = match scheme {
        "s3" => Cloud::S3,
        "gs" => Cloud::Google,
        "az" => Cloud::Azure,
        "http" | "https" => {
            let host = checked_host(first)?;
            return Ok(Address::Http { secure: scheme == "https", host, path: checked_path(path)? });
        }
        _ => return Err("no tier has this scheme; possible are s3, gs, az, http, https and file".to_owned()),
    };
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    if !(1..=255).contains(&first.len()) || !first.bytes().all(plain) || first.starts_with(['.', '-']) {
        return Err(format!("{}:// needs the name of a bucket: {}://BUCKET/PREFIX", scheme, scheme));
    }
    Ok(Address::Bucket { cloud, bucket: first.to_owned(), prefix: checked_path(path)? })
}

/// Host, or host and port.
fn checked_host(host: &str) -> Result<String, String> {
    let wrong = || "http:// and https:// need a host, or HOST:PORT".to_owned();
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    if port
        .is_some_and(|port| !port.bytes().all(|c| c.is_ascii_digit()) || !matches!(port.parse(), Ok(1u16..)))
    {
        return Err(wrong());
    }
    let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let right = match inner {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_');
            (1..=253).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with(['.', '-'])
        }
    };
    if right { Ok(host.to_owned()) } else { Err(wrong()) }
}

/// The part of an address behind the host or the bucket, without '/' at its end.
fn checked_path(path: &str) -> Result<String, String> {
    let path = path.trim_end_matches('/');
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-' | b'=' | b'+');
    let right = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(plain);
    if path.is_empty() || path.split('/').all(right) {
        return Ok(path.to_owned());
    }
    Err("the part behind the bucket or host may have letters, digits and . _ - = + between single /"
        .to_owned())
}

pub(crate) fn absolute(path: &str) -> Result<PathBuf, String> {
    if !path.starts_with('/') {
        return Err("a path has to begin with /: a relative path depends on the working folder".to_owned());
    }
    // By its components: // and /./ and a / at the end mean nothing.
    Ok(Path::new(path).components().collect())
}

/// Undoes %XX (RFC 3986, 2.1).
fn unescaped(text: &str) -> Result<String, String> {
    let wrong = || "a file:// address with a % that is not followed by two digits of a character".to_owned();
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|c| char::from(c).to_digit(16)).ok_or_else(wrong);
        bytes.push(u8::try_from(digit()? * 16 + digit()?).map_err(|_| wrong())?);
    }
    let path = String::from_utf8(bytes).map_err(|_| wrong())?;
    if path.chars().any(char::is_control) { Err(wrong()) } else { Ok(path) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bucket(cloud: Cloud, bucket: &str, prefix: &str) -> Option<Address> {
        Some(Address::Bucket { cloud, bucket: bucket.into(), prefix: prefix.into() })
    }

    fn http(secure: bool, host: &str, path: &str) -> Option<Address> {
        Some(Address::Http { secure, host: host.into(), path: path.into() })
    }

    #[test]
    fn what_users_write_is_understood() {
        let folder = |path: &str| Some(Address::Folder(path.into()));
        for (text, address) in [
            ("dir=/nvme/ckpt/", folder("/nvme/ckpt")),
            ("/nvme//ckpt/.", folder("/nvme/ckpt")),
            ("dir=/a=b,c d", folder("/a=b,c d")),
            ("file:///a%20b/c", folder("/a b/c")),
            ("file://localhost/a", folder("/a")),
            ("s3://bucket", bucket(Cloud::S3, "bucket", "")),
            ("s3://bucket/a/b.c/", bucket(Cloud::S3, "bucket", "a/b.c")),
            ("gs://b_1/x=1", bucket(Cloud::Google, "b_1", "x=1")),
            ("az://c/p", bucket(Cloud::Azure, "c", "p")),
            ("http://[::1]:8080/dav", http(false, "[::1]:8080", "dav")),
            ("https://files.example.org/", http(true, "files.example.org", "")),
        ] {
            assert_eq!(Address::parse(text).ok(), address, "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            "",
            "dir=",
            "dir=ckpt",
            "ckpt",
            "dir:/x",
            "memory",
            "memory:/x",
            "file://host/x",
            "file://x",
            "file:///a%2",
            "file:///a%ff",
            "file:///a%00b",
            "/a\0b",
            "s3://",
            "s3:///prefix",
            "s3://-b",
            "s3://b/../c",
            "s3://b//c",
            "s3://b/ä",
            "s3://b/c?x=y",
            "S3://b",
            "ftp://b/c",
            "http://",
            "http://host:0/",
            "http://host:70000/",
            "http://host:+80/",
            "http://[::1/",
            "https://a b/",
        ] {
            assert!(matches!(Address::parse(text), Err(TierError::Settings { .. })), "{text}");
        }
    }

    #[test]
    fn a_password_in_an_address_is_in_no_message() {
        for text in [
            "s3://KEY:SECRET@bucket/prefix",
            "https://user:SECRET@host/path",
            "https://user:SECRET@at@host",
            "nonsense://user:SECRET@host",
            "s3://bucket/prefix?signature=SECRET",
            "s3://bucket/SECRET@x",
        ] {
            let message = Address::parse(text).map_err(|error| error.to_string());
            assert!(message.as_ref().is_err_and(|text| !text.contains("SECRET")), "{message:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_or_an_error(text in "\\PC{0,40}|[a-z]{1,5}://[ -~]{0,30}|dir=/.{0,20}") {
            if let Ok(address) = Address::parse(&text) {
                prop_assert_eq!(Address::parse(&address.to_string()).ok(), Some(address));
            }
        }

        #[test]
        fn what_is_displayed_is_understood(
            cloud in prop_oneof![Just(Cloud::S3), Just(Cloud::Google), Just(Cloud::Azure)],
            bucket in "[a-z0-9][a-z0-9._-]{0,20}",
            parts in proptest::collection::vec("[A-Za-z0-9_=+-][A-Za-z0-9._=+-]{0,8}", 0..4),
        ) {
            let address = Address::Bucket { cloud, bucket, prefix: parts.join("/") };
            prop_assert_eq!(Address::parse(&address.to_string()).ok(), Some(address));
        }
    }
}
