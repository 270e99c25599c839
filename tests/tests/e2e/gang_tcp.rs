//! TCP connections between the members of a gang: a checkpoint in any moment has all that was sent through them, and a
//! restart makes them anew. On one host, and on two that are network namespaces (root).

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::hosts::Hosts;
use holdfast_tests::processes;
use holdfast_tests::random::Random;
use holdfast_tests::sandbox::{
    Bed, PATIENCE, User, each_user, each_user_by_root, each_user_in_turn, shell_code, wait,
};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub const GANG: &str = "g";

/// Two members of the program `members`, or of `addresses`.
#[derive(Clone, Copy)]
pub struct Members<'a> {
    pub bed: &'a Bed,
    /// `gang` is of `addresses`; behind `static `: of `members`, statically linked.
    pub kind: &'a str,
    pub size: &'a str,
    /// Which host has which member.
    pub hosts: Option<(&'a Hosts, [usize; 2])>,
}

impl Members<'_> {
    fn address(&self) -> String {
        self.hosts.map_or_else(|| "127.0.0.1".into(), |(_, on)| format!("10.77.0.{}", on[0] + 1))
    }

    fn words(&self, member: usize, port: &str) -> Vec<String> {
        let port = self.bed.work().join(port).display().to_string();
        let member = member.to_string();
        let (program, kind) = match self.kind.strip_prefix("static ") {
            Some(kind) => ("members-static", kind),
            None if self.kind == "gang" => ("addresses", self.kind),
            None => ("members", self.kind),
        };
        let app = App::program(program, &[kind, &member, &port, self.size, &self.address()]);
        app.words().into_iter().map(str::to_owned).collect()
    }

    /// A command on the host of a member.
    pub fn there(&self, member: usize, command: Command) -> Command {
        let Some((hosts, on)) = self.hosts else { return command };
        hosts.on(on[member], &command, &self.bed.work())
    }

    /// What both print if nothing happens to them.
    pub fn undisturbed(&self) -> Result<[String; 2]> {
        let run = |member: usize| {
            let words = self.words(member, "plain-port");
            let mut command = self.bed.command(Path::new(&words[0]));
            command.args(&words[1..]);
            let mut command = self.there(member, command);
            command.stdout(self.bed.create(&format!("plain{member}"))?).spawn().context("a member")
        };
        let mut both = [run(0)?, run(1)?];
        for member in &mut both {
            ensure!(shell_code(wait(member, PATIENCE)?) == 0, "{}", self.bed.text("plain0"));
        }
        Ok([0, 1].map(|member| self.bed.text(&format!("plain{member}"))))
    }

    fn run(&self, member: usize) -> Result<Child> {
        let (bed, of) = (self.bed, format!("{member}/2"));
        let mut command = bed.holdfast(&["run", "--name", GANG, "--gang", &of, "--"]);
        command.args(self.words(member, "port"));
        command.env("HOLDFAST_TEST_STAY", bed.stay_file());
        let mut command = self.there(member, command);
        command.stdout(bed.create(&out(member))?).stderr(bed.create(&err(member))?);
        command.spawn().context("a member")
    }

    pub fn restart(&self, member: usize, options: &[&str]) -> Result<Child> {
        let of = format!("{member}/2");
        let mut command = self.bed.holdfast(&["restart", GANG, "--gang", &of]);
        command.args(options);
        let mut command = self.there(member, command);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(self.bed.create(&err(member))?).spawn().context("a member")
    }

    /// Both, once they run.
    pub fn start(&self) -> Result<[Child; 2]> {
        let both = [self.run(0)?, self.run(1)?];
        self.running(both)
    }

    pub fn running(&self, mut both: [Child; 2]) -> Result<[Child; 2]> {
        for (member, front) in both.iter_mut().enumerate() {
            let pid = self.bed.wait_live(&format!("{GANG}.{member}"), front)?;
            pid.with_context(|| format!("member {member}: {}", self.said()))?;
        }
        Ok(both)
    }

    pub fn said(&self) -> String {
        [out(0), err(0), out(1), err(1)].map(|name| self.bed.text(&name)).join("\n--\n")
    }

    /// Waits until more has come of it than at this length.
    pub fn until_longer(&self, than: usize) -> Result<()> {
        self.bed.until("a line more", PATIENCE, || self.bed.text(&out(0)).len() > than)
    }

    pub fn checkpoint(&self) -> Result<()> {
        let command = self.there(1, self.bed.holdfast(&["checkpoint", GANG]));
        self.bed.output(command, PATIENCE)?.success().map(drop).with_context(|| self.said())
    }

    /// All processes of both hosts.
    pub fn kill(&self, fronts: [Child; 2]) -> Result<()> {
        processes::kill(&processes::of(self.bed.dir()));
        for mut front in fronts {
            wait(&mut front, PATIENCE)?;
        }
        self.bed.until("the end of all", PATIENCE, || processes::of(self.bed.dir()).is_empty())
    }

    /// Both end, having printed this.
    pub fn end_right(&self, mut both: [Child; 2], expected: &[String; 2]) -> Result<()> {
        self.bed.may_end()?;
        for (member, front) in both.iter_mut().enumerate() {
            let code = shell_code(wait(front, PATIENCE)?);
            ensure!(code == 0, "member {member} has ended with {code}: {}", self.said());
            let said = self.bed.text(&out(member));
            ensure!(said == expected[member], "member {member} has said\n{said}\nnot\n{}", expected[member]);
        }
        Ok(())
    }

    /// Checkpoints at random moments; after each, all are killed and restarted.
    fn chain(&self, rounds: usize, random: &mut Random) -> Result<()> {
        let expected = self.undisturbed()?;
        let mut both = self.start()?;
        self.until_longer(0)?;
        for _ in 0..rounds {
            std::thread::sleep(random.time(Duration::ZERO, Duration::from_millis(150)));
            self.checkpoint()?;
            // It goes on, and what it does then is undone.
            std::thread::sleep(random.time(Duration::ZERO, Duration::from_millis(50)));
            self.kill(both)?;
            both = self.running([self.restart(0, &[])?, self.restart(1, &[])?])?;
        }
        self.end_right(both, &expected)
    }
}

fn out(member: usize) -> String {
    format!("out{member}")
}

fn err(member: usize) -> String {
    format!("err{member}")
}

fn on_one_host(turn: User, kind: &str, size: &str) {
    each_user_in_turn(turn, |bed| Members { bed, kind, size, hosts: None }.chain(3, &mut Random::new()));
}

#[test]
fn messages_and_their_answers() {
    on_one_host(User::Ordinary, "pingpong", "800");
}

#[test]
fn much_to_a_slow_reader() {
    on_one_host(User::Root, "bulk", "40");
}

#[test]
fn both_ways_at_once() {
    on_one_host(User::Ordinary, "both", "24");
}

#[test]
fn connections_made_anew_all_the_time_of_which_one_end_has_sent_its_last() {
    on_one_host(User::Root, "half", "40");
}

#[test]
fn many_connections_in_all_of_which_something_waits() {
    on_one_host(User::Ordinary, "many", "60");
}

/// A member has no image of its own: what waits in its connections the others have.
#[test]
fn a_member_is_neither_restarted_nor_taken_back_alone() {
    each_user(|bed| {
        let members = Members { bed, kind: "pingpong", size: "300", hosts: None };
        let expected = members.undisturbed()?;
        let both = members.start()?;
        members.checkpoint()?;
        let member = format!("{GANG}.1");
        let back = bed.say(&["rollback", &member])?;
        ensure!(back.code() != 0 && back.stderr.contains("gang"), "{} {}", back.code(), back.stderr);
        members.kill(both)?;
        let alone = bed.say(&["restart", &member])?;
        ensure!(alone.code() != 0 && alone.stderr.contains("--gang"), "{} {}", alone.code(), alone.stderr);
        ensure!(processes::of(bed.dir()).is_empty(), "a process is left");
        let both = members.running([members.restart(0, &[])?, members.restart(1, &[])?])?;
        members.end_right(both, &expected)
    });
}

fn on_two_hosts(kind: &str, size: &str) {
    each_user_by_root(|bed| {
        let hosts = Hosts::up()?;
        let members = Members { bed, kind, size, hosts: Some((&hosts, [0, 1])) };
        members.chain(2, &mut Random::new())
    });
}

#[test]
fn messages_between_hosts() {
    on_two_hosts("pingpong", "500");
}

#[test]
fn both_ways_at_once_between_hosts() {
    on_two_hosts("both", "16");
}

/// When the link is cut in the middle of a checkpoint there is none, and the programs go on.
#[test]
fn a_host_that_cannot_be_reached_holds_up_no_program() {
    each_user_by_root(|bed| {
        let hosts = Hosts::up()?;
        let members = Members { bed, kind: "pingpong", size: "400", hosts: Some((&hosts, [0, 1])) };
        let expected = members.undisturbed()?;
        let both = members.start()?;
        members.checkpoint()?;
        hosts.link("down")?;
        let failed = bed.output(members.there(0, bed.holdfast(&["checkpoint", GANG])), PATIENCE)?;
        ensure!(
            failed.code() != 0 && failed.stderr.contains("member 1"),
            "{} {}",
            failed.code(),
            failed.stderr
        );
        hosts.link("up")?;
        members.end_right(both, &expected)
    });
}

/// A server is given time to close what its client, on the host of another member, has closed already.
#[test]
fn what_the_other_end_has_closed_is_waited_for() {
    // Two connections are to the member's host: one lives, one is closed there, and here some time later.
    const SERVES: &str = "import socket, time; s = socket.create_server(('10.77.0.1', 0));\
                          print(s.getsockname()[1], flush=True); live = s.accept()[0]; short = s.accept()[0];\
                          short.recv(1); print('closed', flush=True); time.sleep(2); short.close(); live.recv(1)";
    const ASKS: &str = "import socket, sys; at = ('10.77.0.1', int(sys.argv[1]));\
                        live = socket.create_connection(at); socket.create_connection(at).close();\
                        print('closed', flush=True); sys.stdin.read()";
    each_user_by_root(|bed| {
        let hosts = Hosts::up()?;
        let members = Members { bed, kind: "", size: "", hosts: Some((&hosts, [0, 1])) };
        closed_at_one_end(&members, [SERVES, ASKS])
    });
}

/// So is a client, of the only connection there is, whose server is on another host, or listens on this one.
#[test]
fn a_client_of_the_only_connection_is_given_time_to_close_it() {
    const SERVES: &str = "import socket, sys; s = socket.create_server((sys.argv[2], 0));\
                          print(s.getsockname()[1], flush=True); s.accept()[0].close();\
                          print('closed', flush=True); sys.stdin.read()";
    const ASKS: &str = "import socket, sys, time; c = socket.create_connection((sys.argv[2], int(sys.argv[1])));\
                        c.recv(1); print('closed', flush=True); time.sleep(2); c.close(); sys.stdin.read()";
    each_user(|bed| closed_at_one_end(&Members { bed, kind: "", size: "", hosts: None }, [SERVES, ASKS]));
    each_user_by_root(|bed| {
        let hosts = Hosts::up()?;
        let members = Members { bed, kind: "", size: "", hosts: Some((&hosts, [0, 1])) };
        closed_at_one_end(&members, [SERVES, ASKS])
    });
}

/// Two scripts of Python, told a port (that of the first) and the first's address. When one end of their connection is
/// closed there is a checkpoint, and a restart of it; they end with their standard input.
fn closed_at_one_end(members: &Members<'_>, scripts: [&str; 2]) -> Result<()> {
    let bed = members.bed;
    let run = |member: usize, text: &str| {
        let of = format!("{member}/2");
        let mut command = bed.holdfast(&["run", "--name", GANG, "--gang", &of, "--"]);
        let when = if member == 0 { "" } else { "while [ ! -s out0 ]; do sleep 0.02; done; " };
        let line =
            format!("{when}exec /usr/bin/python3 -c \"$0\" \"$(head -n 1 out0)\" {}", members.address());
        command.args(["/bin/sh", "-c", &line, text]);
        let mut command = members.there(member, command);
        command.stdin(Stdio::piped()).stdout(bed.create(&out(member))?).stderr(bed.create(&err(member))?);
        command.spawn().context("a member")
    };
    let fronts = [run(0, scripts[0])?, run(1, scripts[1])?];
    let is_closed = || bed.text(&out(0)).contains("closed") && bed.text(&out(1)).contains("closed");
    bed.until("a closed connection", PATIENCE, is_closed).with_context(|| members.said())?;
    members.checkpoint()?;
    members.kill(fronts)?;
    // Their standard input ends at once.
    for mut front in [members.restart(0, &[])?, members.restart(1, &[])?] {
        ensure!(shell_code(wait(&mut front, PATIENCE)?) == 0, "{}", members.said());
    }
    Ok(())
}

/// A connection to the outside is none to a member that listens at that port of its own host.
#[test]
fn a_strangers_port_is_not_a_members() {
    const LISTENS: &str = "import socket, sys; s = socket.create_server(('', int(sys.argv[1])));\
                           print(s.getsockname()[1], flush=True); sys.stdin.read()";
    const CONNECTS: &str = "import socket, sys; s = socket.create_connection(('10.77.0.3', int(sys.argv[1])));\
                            print('connected', flush=True); sys.stdin.read()";
    each_user_by_root(|bed| {
        let hosts = Hosts::of("3")?;
        let mut outside = hosts.at(2, &["/usr/bin/python3", "-c", LISTENS, "0"]);
        let mut outside = outside.stdin(Stdio::piped()).stdout(bed.create("port")?).spawn()?;
        bed.until("a port", PATIENCE, || bed.text("port").ends_with('\n'))?;
        let port = bed.text("port").trim().to_owned();
        let members = Members { bed, kind: "", size: "", hosts: Some((&hosts, [0, 1])) };
        let mut fronts = Vec::new();
        for (member, text) in [LISTENS, CONNECTS].into_iter().enumerate() {
            let of = format!("{member}/2");
            let mut command = bed.holdfast(&["run", "--name", GANG, "--gang", &of, "--"]);
            command.args(["/usr/bin/python3", "-c", text, &port]);
            let mut command = members.there(member, command);
            command.stdin(Stdio::piped()).stdout(bed.create(&out(member))?).stderr(bed.create(&err(member))?);
            fronts.push(command.spawn()?);
        }
        for member in 0..2 {
            let has_begun = || bed.text(&out(member)).ends_with('\n');
            bed.until("a line", PATIENCE, has_begun).with_context(|| members.said())?;
        }
        let checkpoint = |options: &[&str]| {
            let words = [&["checkpoint", GANG], options].concat();
            bed.output(members.there(1, bed.holdfast(&words)), PATIENCE)
        };
        let refused = checkpoint(&[])?;
        ensure!(refused.stderr.contains("--outside"), "{}", refused.stderr);
        checkpoint(&["--outside", "close"])?.success().with_context(|| members.said())?;
        drop(outside.stdin.take());
        for front in &mut fronts {
            drop(front.stdin.take());
            ensure!(shell_code(wait(front, PATIENCE)?) == 0, "{}", members.said());
        }
        wait(&mut outside, PATIENCE)?;
        Ok(())
    });
}
