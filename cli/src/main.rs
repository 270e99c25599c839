//! The binary `holdfast`: the commands and the agent. Glue only; the substance is in the libraries.
//!
//! * [`args`]: the command line. [`commands`]: one file per command. [`exit`]: exit codes and failures.
//! * [`front`]: what `run` and `restart` are while the program runs. [`agent`]: the process that makes the images.
//! * [`cuda`]: the process that calls the CUDA driver. [`client`], [`link`]: how they talk; [`pidfile`]: what is known
//!   when they cannot. [`settings`], [`config`], [`tiers`], [`names`], [`program`], [`protected`], [`mpi`], [`report`],
//!   [`completion`], [`inspect`], [`last_run`], [`leftover`], [`levels`], [`listening`], [`measured`], [`planned`],
//!   [`same_run`], [`saved`]: the rest. [`gang`]: several hosts; [`rsh`]: commands on them.
#![forbid(unsafe_code)]

mod agent;
mod args;
mod cascade;
mod client;
mod commands;
mod completion;
mod config;
mod cuda;
mod demand;
mod earlier;
mod entries;
mod exit;
mod file_system;
mod front;
mod front_link;
mod gang;
mod helper;
mod html;
mod inherited_fds;
mod inspect;
mod job_lock;
mod keeper;
mod last_restart;
mod last_run;
mod leftover;
mod levels;
mod listening;
mod log;
mod log_tier;
mod measured;
mod mpi;
mod names;
mod new_settings;
mod page_server;
mod pidfile;
mod planned;
mod prefetcher;
mod program;
mod protected;
mod report;
mod rsh;
mod same_run;
mod saved;
mod serve;
mod settings;
mod sharing;
mod stream_server;
mod table;
mod tiers;
mod user_command;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use exit::{Exit, Failure};
use front::supervise::Ending;
use std::io::Write;
use std::process::ExitCode;

/// A panic anywhere ends the process. In an agent that lived on without one of its threads the program might stay
/// stopped; without an agent it goes on.
fn abort_at_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

fn main() -> ExitCode {
    abort_at_panics();
    if let Some(ending) = rsh::client::under_its_name() {
        return ExitCode::from(ending.exit());
    }
    match completion::answer(Cli::command) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return usage(&error),
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    report::set_volume(cli.quiet, cli.verbose);
    match run(&cli) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(ending)) => ExitCode::from(ending.exit()),
        Err(failure) => {
            for line in failure.message.lines() {
                report::warn(line);
            }
            if cli.command.is_json() {
                report::print_json_error(failure.exit, &failure.message);
            }
            ExitCode::from(failure.exit as u8)
        }
    }
}

/// Help and version are no errors, and neither is a reader of them that has seen enough.
fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render();
    if error.use_stderr() {
        let _ = write!(std::io::stderr(), "{text}");
        // Which command it would have been is not known: not that of a program, at least.
        if std::env::args_os()
            .skip(1)
            .take_while(|word| word != "--" && word != "run")
            .any(|word| word == "--json")
        {
            report::print_json_error(Exit::Usage, text.to_string().trim_end());
        }
        return ExitCode::from(Exit::Usage as u8);
    }
    let _ = write!(std::io::stdout(), "{text}");
    ExitCode::SUCCESS
}

fn run(cli: &Cli) -> Result<Option<Ending>, Failure> {
    let root = cli.store.as_deref();
    match &cli.command {
        Command::Run(args) => return commands::run::run(args, root).map(Some),
        Command::Restart(args) if args.all_lost => commands::restart_lost::run(root),
        Command::Restart(args) => return commands::restart::run(args, root).map(Some),
        Command::Checkpoint(args) => commands::checkpoint::run(args, root),
        Command::Rollback(args) => commands::rollback::run(args, root),
        Command::Set(args) => commands::set::run(args, root),
        Command::Kill(args) => commands::kill::run(args, root),
        Command::Rm(args) => commands::prune::run(&args.prune(), root),
        Command::Stop(args) => commands::checkpoint::run(&args.checkpoint(), root),
        Command::Logs { job, follow } => commands::logs::run(job, *follow, root),
        Command::Check { program, json } => commands::check::run(program, *json, root),
        Command::List { job, tier: None, json } => commands::list::run(job.as_deref(), *json, root),
        Command::List { job, tier: Some(tier), json } => {
            commands::tier_list::run(job.as_deref(), tier, *json)
        }
        Command::Show { image, json } => commands::show::run(image, *json, root),
        Command::Streams(args) => commands::streams::run(args),
        Command::Cat(args) => commands::cat::run(args, root),
        Command::Report { job, output } => commands::report::run(job, output, root),
        Command::Plan(args) => commands::plan::run(args, root),
        Command::Watch { job, json } => commands::watch::run(job, *json, root),
        Command::Verify(args) => commands::verify::run(args, root),
        Command::Sync(args) => commands::sync::run(args, root),
        Command::Fetch(args) if args.manifest => commands::look::run(args, root),
        Command::Fetch(args) => commands::fetch::run(args, root),
        Command::Prune(args) => commands::prune::run(args, root),
        Command::Export(args) if args.veloc => commands::veloc::export::run(args, root),
        Command::Import(args) if args.veloc => commands::veloc::import::run(args, root),
        Command::Export(args) => commands::export::run(args, root),
        Command::Import(args) => commands::import::run(args, root),
        Command::Doctor { job, json } => commands::doctor::run(job.as_deref(), *json, root),
        Command::Completions { shell } => commands::completions::run(*shell),
        Command::Rsh { words } => return Ok(Some(rsh::client::run(words))),
        Command::RshServer => rsh::server::run(),
        Command::Agent(args) => agent::run(args, root),
        Command::Pages(args) => page_server::run(args, root),
        Command::Meet(args) => commands::meet::run(args, root),
        Command::Prefetch(args) => prefetcher::run(args),
        Command::Cuda(args) => cuda::caller::run(args),
        Command::Man { folder } => commands::man::run(folder),
        Command::Serve(args) => match &args.listen {
            Some(listen) => stream_server::server::run(args, listen),
            None => serve::run(args, root),
        },
        Command::Keeper(args) => keeper::process::run(args),
        Command::Probe(args) => keeper::probe::run(args),
        Command::Faults { failing } => {
            let points = if *failing { holdfast_sys::fault::FAILING } else { holdfast_sys::fault::POINTS };
            report::print(&format!("{}\n", points.join("\n")))
        }
    }
    .map(|()| None)
}
