//! A job of one CUDA program on the stand-in driver, and what tests of it do again and again.
//!
//! Used by the end-to-end tests of CUDA. The program gets none of the faults that the driver is told to have: those are
//! for the process that calls it for the agent.

use crate::restart_chain::kill_program;
use crate::sandbox::{Bed, Ended, PATIENCE, shell_code, wait};
use anyhow::{Context, Result, ensure};
use std::process::{Child, Command};

/// Environment variables.
pub type Variables<'a> = &'a [(&'a str, &'a str)];

/// See the head of the file.
pub struct CudaJob<'a> {
    bed: &'a Bed,
    name: &'a str,
    front: Child,
    pid: i32,
}

fn with_driver<'c>(bed: &Bed, command: &'c mut Command, variables: Variables<'_>) -> Result<&'c mut Command> {
    Ok(command.env("LD_LIBRARY_PATH", bed.kit().stand_in()?).envs(variables.iter().copied()))
}

/// `holdfast ARGUMENTS…` to its end, with the driver.
///
/// # Errors
/// It cannot be started.
pub fn say(bed: &Bed, arguments: &[&str], variables: Variables<'_>) -> Result<Ended> {
    let mut command = bed.holdfast(arguments);
    with_driver(bed, &mut command, variables)?;
    bed.output(command, PATIENCE)
}

impl<'a> CudaJob<'a> {
    /// Starts a program of `tests/programs/cuda`, and waits for its first step.
    ///
    /// # Errors
    /// It does not begin.
    pub fn start(
        bed: &'a Bed,
        name: &'a str,
        program: &str,
        variables: Variables<'_>,
    ) -> Result<CudaJob<'a>> {
        let path = bed.kit().cuda_program(program).to_string_lossy().into_owned();
        let words = ["/usr/bin/env", "STAND_IN_FAULT=", &path, "4"];
        let job = CudaJob::begin(bed, name, &words, variables)?;
        job.lines(2)?;
        Ok(job)
    }

    /// Starts any program.
    ///
    /// # Errors
    /// It does not begin.
    pub fn begin(
        bed: &'a Bed,
        name: &'a str,
        words: &[&str],
        variables: Variables<'_>,
    ) -> Result<CudaJob<'a>> {
        CudaJob::begin_with(bed, name, &[], words, variables)
    }

    /// The same, with options of `run`.
    ///
    /// # Errors
    /// It does not begin.
    pub fn begin_with(
        bed: &'a Bed,
        name: &'a str,
        options: &[&str],
        words: &[&str],
        variables: Variables<'_>,
    ) -> Result<CudaJob<'a>> {
        let mut command = bed.staying_command(name, options, words)?;
        let mut front = with_driver(bed, &mut command, variables)?.spawn()?;
        let pid = bed.wait_live(name, &mut front)?.with_context(|| bed.text("err"))?;
        Ok(CudaJob { bed, name, front, pid })
    }

    /// The program.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits for so many more lines of the program.
    ///
    /// # Errors
    /// They do not come.
    pub fn lines(&self, more: usize) -> Result<()> {
        let count = || self.bed.text("out").lines().count();
        let before = count();
        let failed = || self.bed.text("out").contains("FAIL");
        self.bed.until("more lines", PATIENCE, || count() >= before + more || failed())?;
        ensure!(!failed(), "{}", self.bed.text("out"));
        Ok(())
    }

    /// A checkpoint.
    ///
    /// # Errors
    /// It fails.
    pub fn checkpoint(&self) -> Result<()> {
        say(self.bed, &["checkpoint", self.name], &[])?.success().map(drop)
    }

    /// A checkpoint, as soon as one succeeds: with a short deadline a busy machine may miss it.
    ///
    /// # Errors
    /// None does.
    pub fn checkpoint_at_last(&self) -> Result<()> {
        let mut last = String::new();
        let succeeds = || match self.checkpoint() {
            Ok(()) => true,
            Err(error) => {
                last = format!("{error:#}");
                false
            }
        };
        self.bed.until("a checkpoint", PATIENCE, succeeds).with_context(|| last.clone())
    }

    /// A checkpoint that must fail with this status, say these words, and leave images and program as they are.
    ///
    /// # Errors
    /// It is otherwise.
    pub fn fails(&self, code: i32, words: &[&str]) -> Result<()> {
        let images = self.bed.images(self.name);
        let ended = say(self.bed, &["checkpoint", self.name], &[])?;
        let told = &ended.stderr;
        ensure!(ended.code() == code, "status {}: {told}", ended.code());
        for word in words {
            ensure!(told.contains(word), "{word}: not in {told}");
        }
        ensure!(self.bed.images(self.name) == images, "there is an image");
        Ok(())
    }

    /// Kills everything of the job.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn kill(&mut self) -> Result<()> {
        kill_program(self.pid, &mut self.front)
    }

    /// Restarts it, and waits for the next step.
    ///
    /// # Errors
    /// It does not come to life.
    pub fn restart(&mut self, variables: Variables<'_>) -> Result<()> {
        self.revive(variables)?;
        self.lines(1)
    }

    /// Restarts it.
    ///
    /// # Errors
    /// It does not come to life.
    pub fn revive(&mut self, variables: Variables<'_>) -> Result<()> {
        let mut command = self.bed.restart_command(self.name, &[])?;
        self.front = with_driver(self.bed, &mut command, variables)?.spawn()?;
        self.pid =
            self.bed.wait_live(self.name, &mut self.front)?.with_context(|| self.bed.text("restart.err"))?;
        Ok(())
    }

    /// A restart that must fail with this status and say these words.
    ///
    /// # Errors
    /// It is otherwise.
    pub fn restart_fails(&self, code: i32, variables: Variables<'_>, words: &[&str]) -> Result<()> {
        let ended = say(self.bed, &["restart", self.name], variables)?;
        ensure!(ended.code() == code, "status {}: {}", ended.code(), ended.stderr);
        for word in words {
            ensure!(ended.stderr.contains(word), "{word}: not in {}", ended.stderr);
        }
        self.bed.check_clean(self.name)
    }

    /// Lets it end: every step was made once, and found all as it had to be.
    ///
    /// # Errors
    /// It was otherwise, or something is left behind.
    pub fn ends_well(mut self) -> Result<()> {
        self.bed.may_end()?;
        let code = shell_code(wait(&mut self.front, PATIENCE)?);
        let out = self.bed.text("out");
        let numbers = out.lines().filter_map(|line| line.split_once(' ')?.0.parse::<usize>().ok());
        let steps: Vec<usize> = numbers.collect();
        ensure!(code == 0 && out.ends_with("PASS\n"), "status {code}: {out}{}", self.bed.text("restart.err"));
        ensure!(steps.iter().copied().eq(1..=steps.len()), "{out}");
        self.bed.check_clean(self.name)
    }
}
