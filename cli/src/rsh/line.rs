//! The words of `holdfast rsh`: those of ssh(1), as launchers use them.
//!
//! Used by the client. Fails by: what is missing.

/// Options of ssh(1) with a value.
const WITH_VALUE: &str = "BbcDEeFIiJLlmOopPQRSWw";
/// Its options without one.
const FLAGS: &str = "46AaCfGgKkMNnqsTtVvXxYy";

/// See the head of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Where.
    pub host: String,
    /// Options, which ssh gets that starts the member there.
    pub options: Vec<String>,
    /// Standard input is empty.
    pub no_input: bool,
    /// What a shell there is given.
    pub command: String,
}

/// Reads them.
///
/// # Errors
/// What is missing, or not understood.
pub fn parse(words: &[String]) -> Result<Line, String> {
    let (mut options, mut no_input, mut at) = (Vec::new(), false, 0);
    while let Some(word) = words.get(at).and_then(|word| word.strip_prefix('-')) {
        at += 1;
        if word == "-" {
            break;
        }
        options.push(format!("-{word}"));
        let Some(first) = word.chars().find(|letter| !FLAGS.contains(*letter)) else {
            no_input |= word.contains(['n', 'f']);
            continue;
        };
        if !WITH_VALUE.contains(first) {
            return Err(format!("-{word} is no option of ssh"));
        }
        if word.ends_with(first) {
            let value = words.get(at).ok_or_else(|| format!("-{word} needs a value"))?;
            options.push(value.clone());
            at += 1;
        }
    }
    let Some((host, command)) = words.get(at..).and_then(<[String]>::split_first) else {
        return Err("name a host, and a command".into());
    };
    if command.is_empty() {
        return Err(format!("name a command for {host}: there are no terminals on other hosts"));
    }
    check_host(host)?;
    Ok(Line { host: host.clone(), options, no_input, command: command.join(" ") })
}

/// Whether ssh would take it for a host.
///
/// # Errors
/// It would not.
pub fn check_host(host: &str) -> Result<(), String> {
    let is_odd = |letter: char| letter.is_control() || letter.is_whitespace();
    match host.is_empty() || host.starts_with('-') || host.len() > 1024 || host.contains(is_odd) {
        true => Err(format!("{host:?} is no host")),
        false => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Line, String> {
        parse(&text.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn lines_of_launchers_are_read() {
        let line = read("-x b orted -mca ess env").unwrap();
        assert_eq!((line.host.as_str(), line.command.as_str()), ("b", "orted -mca ess env"));
        assert_eq!((line.options, line.no_input), (vec!["-x".to_owned()], false));
        let line = read("-qn -p 22 -oBatchMode=yes -l me -- b true").unwrap();
        assert_eq!(line.options, ["-qn", "-p", "22", "-oBatchMode=yes", "-l", "me"]);
        assert!(line.no_input && line.host == "b" && line.command == "true");
        for wrong in ["-x", "b", "-p", "-Z b true", "-- -b true", " true"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
