//! Programs with job control on a terminal: a shell goes on at its prompt after a restart, for any number of commands,
//! under script(1) and tmux; what it runs in the foreground is there again; the terminal is given back at the end.

use crate::plain_job::JOB;
use anyhow::{Context, Result, bail, ensure};
use holdfast_tests::processes;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, shell_code, wait};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A shell, and how it is told to print A42 by itself and 43 by a program of its own.
struct Shell {
    line: &'static str,
    prints: &'static str,
    runs: &'static str,
    leave: &'static str,
}

const SHELLS: [Shell; 4] = [
    Shell { line: "/bin/bash --norc", prints: "echo A$((40+2))", runs: "expr 40 + 3", leave: "exit 7" },
    Shell {
        line: "/usr/bin/python3 -i",
        prints: "print('A%d' % (40+2))",
        runs: "import os; os.system('expr 40 + 3')",
        leave: "exit(7)",
    },
    Shell { line: "/usr/bin/zsh -f", prints: "echo A$((40+2))", runs: "expr 40 + 3", leave: "exit 7" },
    Shell {
        line: "/usr/bin/fish --no-config",
        prints: "echo A(math 40+2)",
        runs: "expr 40 + 3",
        leave: "exit 7",
    },
];

/// A command on a terminal of its own, by script(1).
struct Terminal {
    script: Child,
    log: String,
    seen: usize,
}

impl Terminal {
    fn start(bed: &Bed, command: &str, log: &str) -> Result<Terminal> {
        bed.create(log)?;
        let mut script = bed.command(Path::new("/usr/bin/script"));
        script.args(["-qfec", command, log]).stdin(Stdio::piped()).env("TERM", "dumb");
        let path = format!("{}:/usr/bin:/bin", bed.kit().holdfast().parent().context("a folder")?.display());
        let script = script.env("PATH", path).spawn()?;
        Ok(Terminal { script, log: log.to_owned(), seen: 0 })
    }

    fn types(&mut self, text: &str) -> Result<()> {
        Ok(self.script.stdin.as_mut().context("a terminal")?.write_all(text.as_bytes())?)
    }

    /// Waits for words in what comes from now on.
    fn says(&mut self, bed: &Bed, words: &str) -> Result<()> {
        let mut text = String::new();
        let found = bed.until(words, PATIENCE, || {
            text = bed.text(&self.log);
            text.get(self.seen..).is_some_and(|new| new.contains(words))
        });
        found.with_context(|| text.clone())?;
        self.seen += text[self.seen..].find(words).unwrap_or(0) + words.len();
        Ok(())
    }

    fn ends(&mut self, code: i32, bed: &Bed) -> Result<()> {
        let ended = shell_code(wait(&mut self.script, PATIENCE)?);
        ensure!(ended == code, "status {ended}, not {code}: {}", bed.text(&self.log));
        Ok(())
    }
}

/// Takes an image, and kills all processes of the program.
fn image_and_kill(bed: &Bed, terminal: &mut Terminal) -> Result<()> {
    bed.say(&["checkpoint", JOB])?.success()?;
    let pid = bed.pid(JOB)?.context("a pid")?;
    let mut program = vec![pid];
    while let Some(&last) = program.last() {
        match processes::children(last).first() {
            Some(&child) => program.push(child),
            None => break,
        }
    }
    // The first of them first: it would go on with the next command.
    program.reverse();
    processes::kill(&program);
    terminal.ends(137, bed)?;
    bed.until("the end of all", PATIENCE, || processes::of(bed.dir()).is_empty())
}

fn goes_on(bed: &Bed, shell: &Shell) -> Result<()> {
    let mut terminal = Terminal::start(bed, &format!("holdfast run --name {JOB} -- {}", shell.line), "one")?;
    terminal.types(&format!("{}\n", shell.prints))?;
    terminal.says(bed, "A42")?;
    image_and_kill(bed, &mut terminal)?;
    let mut terminal = Terminal::start(bed, &format!("holdfast restart {JOB}"), "two")?;
    terminal.says(bed, "goes on from image 1")?;
    for _ in 0..2 {
        terminal.types(&format!("{}\n", shell.prints))?;
        terminal.says(bed, "A42")?;
        terminal.types(&format!("{}\n", shell.runs))?;
        terminal.says(bed, "43")?;
    }
    terminal.types(&format!("{}\n", shell.leave))?;
    terminal.ends(7, bed)?;
    bed.check_clean(JOB)?;
    bed.say(&["prune", JOB, "--all"])?.success()?;
    Ok(())
}

#[test]
fn shells_go_on_at_their_prompt() {
    each_user(|bed| {
        for shell in &SHELLS {
            let program = shell.line.split(' ').next().unwrap_or_default();
            if Path::new(program).exists() {
                goes_on(bed, shell).with_context(|| shell.line.to_owned())?;
            } else {
                println!("not run: there is no {program}");
            }
        }
        Ok(())
    });
}

#[test]
fn what_a_shell_runs_in_the_foreground_is_there_again() {
    each_user(|bed| {
        // The first process has no job control; its shell has, and has given the terminal to a program.
        let line =
            format!("holdfast run --name {JOB} -- /bin/sh -c '/bin/bash --norc -i; echo over; exit 5'");
        let mut terminal = Terminal::start(bed, &line, "one")?;
        terminal.types("sed -u s/x/YY/\n")?;
        terminal.types("ax\n")?;
        terminal.says(bed, "aYY")?;
        image_and_kill(bed, &mut terminal)?;
        let mut terminal = Terminal::start(bed, &format!("holdfast restart {JOB}"), "two")?;
        terminal.says(bed, "goes on from image 1")?;
        terminal.types("bx\n")?;
        terminal.says(bed, "bYY")?;
        // Ctrl-C is for the program in the foreground, and for nobody else.
        terminal.types("\u{3}")?;
        // The prompt: what is typed before may be thrown away with the signal.
        terminal.says(bed, "bash-")?;
        terminal.types("echo A$((40+2))\n")?;
        terminal.says(bed, "A42")?;
        terminal.types("exit\n")?;
        terminal.says(bed, "over")?;
        terminal.ends(5, bed)?;
        bed.check_clean(JOB)
    });
}

#[test]
fn the_terminal_is_given_back() {
    each_user(|bed| {
        let read = "; read line; echo got $line";
        let run = format!("holdfast run --name {JOB} -- /bin/bash --norc{read}");
        let mut terminal = Terminal::start(bed, &run, "one")?;
        terminal.types("echo A$((40+2))\n")?;
        terminal.says(bed, "A42")?;
        bed.say(&["checkpoint", JOB])?.success()?;
        processes::signal(bed.pid(JOB)?.context("a pid")?, "KILL");
        bed.until("the end of the program", PATIENCE, || bed.pid(JOB).is_ok_and(|pid| pid.is_none()))?;
        terminal.types("one\n")?;
        terminal.says(bed, "got one")?;
        terminal.ends(0, bed)?;
        let mut terminal = Terminal::start(bed, &format!("holdfast restart {JOB}{read}"), "two")?;
        terminal.says(bed, "goes on from image 1")?;
        terminal.types("echo B$((40+2))\n")?;
        terminal.says(bed, "B42")?;
        terminal.types("exit\n")?;
        bed.until("the end of the program", PATIENCE, || bed.pid(JOB).is_ok_and(|pid| pid.is_none()))?;
        terminal.types("two\n")?;
        terminal.says(bed, "got two")?;
        terminal.ends(0, bed)?;
        bed.check_clean(JOB)
    });
}

/// What is on the screen of the only window.
fn screen(bed: &Bed, tmux: &dyn Fn(&[&str]) -> Command) -> String {
    let shown = bed.output(tmux(&["capture-pane", "-p"]), PATIENCE);
    shown.map(|ended| ended.stdout).unwrap_or_default()
}

#[test]
fn a_shell_goes_on_under_tmux() {
    if !Path::new("/usr/bin/tmux").exists() {
        return println!("not run: there is no tmux");
    }
    each_user(|bed| {
        let socket = bed.work().join("tmux");
        let tmux = |words: &[&str]| {
            let mut command = bed.command(Path::new("/usr/bin/tmux"));
            command.arg("-S").arg(&socket).args(["-f", "/dev/null"]).args(words).env("TERM", "xterm");
            command
        };
        let does = |words: &[&str]| bed.output(tmux(words), PATIENCE)?.success().map(drop);
        let says = |words: &str| {
            let found = bed.until(words, PATIENCE, || screen(bed, &tmux).contains(words));
            found.with_context(|| screen(bed, &tmux))
        };
        let holdfast = bed.kit().holdfast();
        let holdfast = holdfast.to_str().context("a path")?;
        does(&["new-session", "-d", "-x", "100", "-y", "30", "/bin/bash --norc"])?;
        does(&["send-keys", &format!("{holdfast} run --name {JOB} -- /bin/bash --norc"), "Enter"])?;
        if bed.until("the job", PATIENCE, || bed.pid(JOB).is_ok_and(|pid| pid.is_some())).is_err() {
            bail!("{}", screen(bed, &tmux));
        }
        does(&["send-keys", "echo A$((40+2))", "Enter"])?;
        says("A42")?;
        bed.say(&["checkpoint", JOB])?.success()?;
        processes::signal(bed.pid(JOB)?.context("a pid")?, "KILL");
        says("Killed")?;
        // The shell of the window has its terminal, and the restarted one has it then.
        does(&["send-keys", &format!("clear; {holdfast} restart {JOB}"), "Enter"])?;
        says("goes on from image 1")?;
        for n in 1..4 {
            does(&["send-keys", &format!("expr 50 + {n}"), "Enter"])?;
            says(&format!("\n{}\n", 50 + n))?;
        }
        does(&["send-keys", "exit 7", "Enter"])?;
        bed.until("the end of the program", PATIENCE, || bed.pid(JOB).is_ok_and(|pid| pid.is_none()))?;
        does(&["send-keys", "echo status $?", "Enter"])?;
        says("status 7")?;
        does(&["kill-server"])?;
        bed.check_clean(JOB)
    });
}
