//! The files in which the tools of S3 keep credentials and settings: ~/.aws/credentials and ~/.aws/config.
//!
//! Called when an S3 tier is opened and the environment has no credentials. Only what such a file says outright is
//! taken: what a program or a log-in would have to supply (`credential_process`, `sso_*`, `role_arn`) is named in the
//! error instead. The format: "Configuration and credential file settings", AWS CLI user guide.
//! Invariants: nothing of a file's content gets into a message but the name of a profile; a file in a home folder that
//! another user may have written is not believed ([`trust`]), for it names the server that images come from.

use crate::trust::{self, Untrusted};
use std::collections::BTreeMap;
use std::path::Path;

/// Most bytes of such a file.
const MAX_FILE: u64 = 1 << 20;

/// What the files say of a profile.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Profile {
    pub(super) key_id: Option<String>,
    pub(super) secret: Option<String>,
    pub(super) token: Option<String>,
    pub(super) region: Option<String>,
    pub(super) endpoint: Option<String>,
}

type Section = BTreeMap<String, String>;

/// The profile that the environment names, or "default". None: no such profile, and none was asked for.
pub(super) fn profile(env: impl Fn(&str) -> Option<String>) -> Result<Option<Profile>, String> {
    let file = |variable: &str, name: &str| -> Result<String, String> {
        if let Some(path) = env(variable) {
            return Ok(read(&path).unwrap_or_default());
        }
        let Some(home) = env("HOME") else { return Ok(String::new()) };
        let path = format!("{home}/.aws/{name}");
        match trust::judge(Path::new(&path), Path::new(&home)) {
            Ok(Some(Untrusted::Anothers(why) | Untrusted::Open(why))) => {
                Err(format!("{path} is not used: {why}; {variable} names the one to use"))
            }
            _ => Ok(read(&path).unwrap_or_default()),
        }
    };
    let chosen = env("AWS_PROFILE").or_else(|| env("AWS_DEFAULT_PROFILE"));
    let credentials = file("AWS_SHARED_CREDENTIALS_FILE", "credentials")?;
    let config = file("AWS_CONFIG_FILE", "config")?;
    let found = of(&credentials, &config, chosen.as_deref().unwrap_or("default"))?;
    match (found, chosen) {
        (None, Some(name)) => Err(format!("AWS_PROFILE is {name:?}, and no file has such a profile")),
        (found, _) => Ok(found),
    }
}

fn read(path: &str) -> Option<String> {
    let small = std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_FILE);
    if small { std::fs::read_to_string(path).ok() } else { None }
}

/// The profile `name` of the text of both files.
fn of(credentials: &str, config: &str, name: &str) -> Result<Option<Profile>, String> {
    let mut both = section(credentials, name);
    let header = if name == "default" { name.to_owned() } else { format!("profile {name}") };
    for (key, value) in section(config, &header).unwrap_or_default() {
        both.get_or_insert_default().entry(key).or_insert(value);
    }
    let Some(mut found) = both else { return Ok(None) };
    let mut take = |key: &str| found.remove(key).filter(|value| !value.is_empty());
    let profile = Profile {
        key_id: take("aws_access_key_id"),
        secret: take("aws_secret_access_key"),
        token: take("aws_session_token"),
        region: take("region"),
        endpoint: take("endpoint_url"),
    };
    if profile.key_id.is_some() != profile.secret.is_some() {
        return Err(format!("the profile {name:?} has only one half of a key"));
    }
    let elsewhere = ["credential_process", "sso_session", "sso_start_url", "role_arn", "source_profile"];
    if profile.key_id.is_none() && elsewhere.iter().any(|key| found.contains_key(*key)) {
        return Err(format!(
            "the profile {name:?} takes its credentials from elsewhere; put them into the environment by: eval \
             \"$(aws configure export-credentials --profile {name} --format env)\""
        ));
    }
    Ok(Some(profile))
}

/// The keys and values of a section; if it is there twice, of both. Indented lines are settings inside a setting.
fn section(text: &str, name: &str) -> Option<Section> {
    let (mut found, mut inside) = (None, false);
    for line in text.lines() {
        if let Some(header) = line.strip_prefix('[') {
            inside = header.split(']').next().is_some_and(|header| header.trim() == name);
            if inside {
                found.get_or_insert_with(Section::new);
            }
        } else if let (true, false, Some((key, value))) =
            (inside, line.starts_with(char::is_whitespace), line.split_once('='))
            && !line.starts_with(['#', ';'])
        {
            let value = value.trim().to_owned();
            found.get_or_insert_with(Section::new).insert(key.trim().to_ascii_lowercase(), value);
        }
    }
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CREDENTIALS: &str = "# mine\n[default]\naws_access_key_id = A\naws_secret_access_key=S=/+\n\n[ other ]\n\
                               aws_access_key_id=B\naws_secret_access_key=T\naws_session_token = X\nregion=there\n\
                               [half]\naws_access_key_id=C\n";
    const CONFIG: &str = "[default]\nregion = here\ns3 =\n  endpoint_url = http://nested\n;endpoint_url = no\n\
                          [profile other]\nregion=here\nendpoint_url = http://h:1\n[profile login]\nsso_session = x\n";

    #[test]
    fn both_files_make_a_profile() {
        let text = |value: &str| Some(value.to_owned());
        let default = of(CREDENTIALS, CONFIG, "default").unwrap();
        let expected =
            Profile { key_id: text("A"), secret: text("S=/+"), region: text("here"), ..Default::default() };
        assert_eq!(default, Some(expected));
        let other = of(CREDENTIALS, CONFIG, "other").unwrap().unwrap();
        assert_eq!(
            (other.token, other.region, other.endpoint),
            (text("X"), text("there"), text("http://h:1"))
        );
        assert_eq!(of(CREDENTIALS, CONFIG, "none"), Ok(None));
        for (name, words) in [("half", "half"), ("login", "aws configure export-credentials")] {
            let message = of(CREDENTIALS, CONFIG, name).unwrap_err();
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn the_environment_says_which_files_and_which_profile() {
        let folder = std::env::temp_dir().join(format!("holdfast-aws-{}", std::process::id()));
        std::fs::create_dir_all(folder.join(".aws")).unwrap();
        std::fs::write(folder.join(".aws/credentials"), CREDENTIALS).unwrap();
        std::fs::write(folder.join("config"), CONFIG).unwrap();
        let home = folder.to_str().unwrap().to_owned();
        let found = |chosen: &str| {
            profile(|name| match name {
                "HOME" => Some(home.clone()),
                "AWS_CONFIG_FILE" => Some(format!("{home}/config")),
                "AWS_PROFILE" if !chosen.is_empty() => Some(chosen.to_owned()),
                _ => None,
            })
        };
        assert_eq!(found("").unwrap().unwrap().region.as_deref(), Some("here"));
        assert_eq!(found("other").unwrap().unwrap().key_id.as_deref(), Some("B"));
        assert!(found("missing").is_err());
        assert_eq!(profile(|_| None), Ok(None));
        std::fs::remove_dir_all(folder).unwrap();
    }

    proptest! {
        #[test]
        fn any_text_is_read(
            credentials in "(\\[default\\]|aws_access_key_id|[ =\n\\[\\]a-z#]){0,40}",
            config in ".{0,80}",
        ) {
            let _ = of(&credentials, &config, "default");
        }
    }
}
