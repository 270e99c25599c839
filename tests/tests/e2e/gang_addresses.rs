//! Restarts on hosts that have other addresses: programs go on with those that they know. Hosts are network namespaces
//! (root).

use crate::gang_tcp::Members;
use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::hosts::Hosts;
use holdfast_tests::sandbox::{PATIENCE, User, as_user_by_root, each_user_by_root, shell_code, wait};

use std::process::{Child, Command, Stdio};

fn on<'a>(members: Members<'a>, hosts: &'a Hosts, which: [usize; 2]) -> Members<'a> {
    Members { hosts: Some((hosts, which)), ..members }
}

/// Both members, with the same options.
fn restart(members: &Members<'_>, options: &[&str]) -> Result<[Child; 2]> {
    members.running([members.restart(0, options)?, members.restart(1, options)?])
}

/// An image while much is on its way, and the death of all.
fn until_dead(members: &Members<'_>, fronts: [Child; 2]) -> Result<()> {
    members.checkpoint()?;
    members.kill(fronts)
}

/// Neither runs; what was said.
fn refused(members: &Members<'_>, options: &[&str]) -> Result<String> {
    for mut front in [members.restart(0, options)?, members.restart(1, options)?] {
        ensure!(shell_code(wait(&mut front, PATIENCE)?) != 0, "it runs: {}", members.said());
    }
    Ok(members.said())
}

fn ip(hosts: &Hosts, host: usize, words: &[&str]) -> Result<()> {
    let namespace = format!("{}-{host}", hosts.name);
    let status = Command::new("ip").args(["-n", &namespace]).args(words).status()?;
    ensure!(status.success(), "ip {words:?} has failed");
    Ok(())
}

/// On two other hosts, then on the first two, each on the other one's.
#[test]
fn programs_go_on_with_the_addresses_that_they_know() {
    each_user_by_root(|bed| {
        let hosts = Hosts::of("4")?;
        let members = Members { bed, kind: "gang", size: "32", hosts: Some((&hosts, [0, 1])) };
        let expected = members.undisturbed()?;
        let mut both = members.start()?;
        members.until_longer(0)?;
        for which in [[2, 3], [1, 0]] {
            until_dead(&members, both)?;
            let members = on(members, &hosts, which);
            both = restart(&members, &[])?;
            ensure!(members.said().contains(" now: of the addresses of its family"), "{}", members.said());
        }
        members.end_right(both, &expected)
    });
}

/// Much is on its way in both directions when it is exchanged.
#[test]
fn members_exchange_their_hosts() {
    as_user_by_root(User::Root, |bed| {
        let hosts = Hosts::up()?;
        let members = Members { bed, kind: "both", size: "24", hosts: Some((&hosts, [0, 1])) };
        let expected = members.undisturbed()?;
        let both = members.start()?;
        members.until_longer(0)?;
        until_dead(&members, both)?;
        let both = restart(&on(members, &hosts, [1, 0]), &[])?;
        members.end_right(both, &expected)
    });
}

#[test]
fn addresses_that_cannot_be_known_are_asked_for_by_name() {
    each_user_by_root(|bed| {
        let hosts = Hosts::of("4")?;
        let members = Members { bed, kind: "pingpong", size: "300", hosts: Some((&hosts, [0, 1])) };
        let expected = members.undisturbed()?;
        let both = members.start()?;
        until_dead(&members, both)?;
        let one_host = on(members, &hosts, [1, 1]);
        let said = refused(&one_host, &[])?;
        ensure!(said.contains("10.77.0.1 and 10.77.0.2 would both be 10.77.0.2"), "{said}");
        let said = refused(&one_host, &["--map-host", "10.77.0.1=10.77.0.9"])?;
        ensure!(said.contains("this host does not have 10.77.0.9; it has 10.77.0.2"), "{said}");
        ip(&hosts, 3, &["addr", "add", "10.77.9.9/24", "dev", "eth0"])?;
        let others = on(members, &hosts, [2, 3]);
        let said = refused(&others, &[])?;
        ensure!(said.contains("10.77.0.2: this host does not have the address"), "{said}");
        // Each member is told of both.
        let both =
            restart(&others, &["--map-host", "10.77.0.1=10.77.0.3", "--map-host", "10.77.0.2=10.77.0.4"])?;
        until_dead(&members, both)?;
        // One host, whose loopback device has an address for one of them; the program knows it by its first one.
        let both =
            restart(&one_host, &["--map-host", "10.77.0.1=127.0.0.2", "--map-host", "10.77.0.2=10.77.0.2"])?;
        members.end_right(both, &expected)
    });
}

/// Nothing translates for a program without libholdfast.
#[test]
fn a_static_program_needs_its_addresses() {
    as_user_by_root(User::Ordinary, |bed| {
        let hosts = Hosts::up()?;
        let members = Members { bed, kind: "static pingpong", size: "200", hosts: Some((&hosts, [0, 1])) };
        let expected = members.undisturbed()?;
        let both = members.start()?;
        members.until_longer(0)?;
        let said = "runs without libholdfast, and the program has sockets";
        let checked = bed.output(members.there(0, bed.holdfast(&["check", "g.0"])), PATIENCE)?;
        ensure!(checked.stdout.contains(said), "{} {}", checked.stdout, checked.stderr);
        members.checkpoint()?;
        ensure!(members.said().contains(said), "{}", members.said());
        members.kill(both)?;
        let said = refused(&on(members, &hosts, [1, 0]), &[])?;
        ensure!(said.contains("runs without libholdfast, which would translate"), "{said}");
        members.end_right(restart(&members, &[])?, &expected)
    });
}

/// A job that is no member of a gang, of two processes that are connected.
#[test]
fn a_job_alone_has_its_sockets_at_another_address() {
    each_user_by_root(|bed| {
        let hosts = Hosts::up()?;
        let at = |host| Members { bed, kind: "gang", size: "16", hosts: Some((&hosts, [host, host])) };
        let port = bed.work().join("port").display().to_string();
        let app = App::program("addresses", &["job", "0", &port, "16", "10.77.0.1"]);
        let words = app.words();
        let mut command = bed.holdfast(&["run", "--name", "job", "--"]);
        command.args(&words).env("HOLDFAST_TEST_STAY", bed.stay_file());
        let mut command = at(0).there(0, command);
        command.stdout(bed.create("out")?).stderr(bed.create("err")?);
        let mut front = command.spawn().context("the job")?;
        bed.wait_live("job", &mut front)?;
        bed.until("a line", PATIENCE, || !bed.text("out").is_empty())?;
        bed.output(at(0).there(0, bed.holdfast(&["stop", "job"])), PATIENCE)?.success()?;
        wait(&mut front, PATIENCE)?;
        ip(&hosts, 1, &["addr", "add", "10.77.9.9/24", "dev", "eth0"])?;
        let restart = |options: &[&str]| -> Result<Child> {
            let mut command = bed.holdfast(&["restart"]);
            command.args(options).arg("job");
            let mut command = at(1).there(0, command);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(bed.create("err")?);
            command.spawn().context("the job")
        };
        ensure!(shell_code(wait(&mut restart(&[])?, PATIENCE)?) == 69, "{}", bed.text("err"));
        ensure!(bed.text("err").contains("--map-host 10.77.0.1=NEW"), "{}", bed.text("err"));
        let mut front = restart(&["--map-host", "10.77.0.1=10.77.9.9"])?;
        bed.wait_live("job", &mut front)?;
        bed.may_end()?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(
            code == 0 && bed.text("out").ends_with("PASS\n"),
            "{code}: {}\n{}",
            bed.text("out"),
            bed.text("err")
        );
        Ok(())
    });
}
