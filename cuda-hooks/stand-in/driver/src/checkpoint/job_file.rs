//! `CUDA_CHECKPOINT_JOB_FILE`: what the driver keeps outside its processes, from driver 590 (CUDA 13.1) on. Called by
//! `process`, one request at a time.
//!
//! Known of it (ai-dynamo/snapshot#57, dynamo#13252, NVIDIA/cuda-checkpoint#43): it is named before CUDA is used; its
//! content is the driver's own, changes while processes are checkpointed, and has to be at the same path for a restore
//! as it was after the last of them was. So here: a checkpoint adds a line that a restore wants to find, and takes away
//! again; what the lines are is the stand-in's own.

use std::path::PathBuf;

use crate::code::{Answer, Code};
use crate::settings::settings;
use crate::system;

/// The first version that has it.
const SINCE: i32 = 13010;

/// That of this process.
pub struct JobFile {
    path: PathBuf,
    line: String,
}

impl JobFile {
    /// Named by the environment; made by the first process that is initialised with it.
    pub fn of_environment() -> std::io::Result<Option<JobFile>> {
        let path = std::env::var_os("CUDA_CHECKPOINT_JOB_FILE").filter(|path| !path.is_empty());
        let Some(path) = path.map(PathBuf::from).filter(|_| settings().version >= SINCE) else {
            return Ok(None);
        };
        std::fs::File::options().append(true).create(true).open(&path)?;
        Ok(Some(JobFile { path, line: String::new() }))
    }

    fn change(&self, act: impl FnOnce(&mut Vec<String>) -> Answer) -> Answer {
        let text = std::fs::read_to_string(&self.path).map_err(|_| Code::OPERATING_SYSTEM)?;
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        act(&mut lines)?;
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&self.path, text).map_err(|_| Code::OPERATING_SYSTEM)
    }

    /// A checkpoint of this process.
    pub fn add(&mut self) -> Answer {
        self.line = format!("{:016x}", system::random());
        self.change(|lines| {
            lines.push(self.line.clone());
            Ok(())
        })
    }

    /// A restore. What the real driver says when the file is another one is not verified.
    pub fn take(&mut self) -> Answer {
        self.change(|lines| {
            let at = lines.iter().position(|line| *line == self.line).ok_or(Code::OPERATING_SYSTEM)?;
            lines.remove(at);
            Ok(())
        })
    }
}
