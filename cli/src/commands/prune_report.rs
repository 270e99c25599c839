//! What `holdfast prune` says: what goes, what stays and why, in words and as JSON, of one job or of several.

use crate::exit::Failure;
use crate::report;
use holdfast_tiers::stack::Place;
use serde::Serialize;

/// An image that goes.
#[derive(Debug, Serialize)]
pub struct Line {
    /// Name of the job.
    pub job: String,
    /// `local` or an address.
    pub tier: String,
    /// Number of the image.
    pub image: u64,
    /// Bytes.
    pub frees: u64,
}

/// An image that stays though it was named, or though the rules do not keep it.
#[derive(Debug, Serialize)]
pub struct Stays {
    /// Name of the job.
    pub job: String,
    /// `local` or an address.
    pub tier: String,
    /// Number of the image.
    pub image: u64,
    /// Why.
    pub why: String,
}

/// A file that no image needs: what crashes left, and what was kept of the user's files.
#[derive(Debug, Serialize)]
pub struct Leftover {
    /// Name of the job.
    pub job: String,
    /// `local` or an address.
    pub tier: String,
    /// Its name.
    pub file: String,
    /// Bytes.
    pub frees: u64,
}

/// A job whose folder goes.
#[derive(Debug, Serialize)]
pub struct Gone {
    /// Its name.
    pub job: String,
    /// Bytes, beside what is listed.
    pub frees: u64,
}

/// All of it.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Nothing is deleted.
    pub dry_run: bool,
    /// What goes.
    pub removals: Vec<Line>,
    /// What stays.
    pub stays: Vec<Stays>,
    /// What is left of other things.
    pub leftovers: Vec<Leftover>,
    /// Files of restarts that go.
    pub saved: Vec<Leftover>,
    /// Jobs whose folders go.
    pub jobs: Vec<Gone>,
    /// Bytes in all.
    pub freed: u64,
}

impl Report {
    /// What all that is listed makes free.
    pub fn sum(&self) -> u64 {
        let images = self.removals.iter().map(|line| line.frees);
        let files = self.leftovers.iter().chain(&self.saved).map(|line| line.frees);
        images.chain(files).chain(self.jobs.iter().map(|job| job.frees)).sum()
    }

    /// Takes in what another job has.
    pub fn add(&mut self, other: Report) {
        self.removals.extend(other.removals);
        self.stays.extend(other.stays);
        self.leftovers.extend(other.leftovers);
        self.saved.extend(other.saved);
        self.jobs.extend(other.jobs);
        self.freed += other.freed;
    }

    /// Lines about one job, before anything is done. `named`: there are several.
    pub fn text(&self, named: bool) -> String {
        let mut text = String::new();
        let would = if self.dry_run { "would delete" } else { "deleting" };
        let on = |tier: &str| if Place::is_store(tier) { String::new() } else { format!(" from {tier}") };
        let of = |job: &str| if named { format!(" of job {job}") } else { String::new() };
        for Line { job, tier, image, frees } in &self.removals {
            let (on, of, frees) = (on(tier), of(job), report::size(*frees));
            text.push_str(&format!("{would} image {image}{of}{on} ({frees})\n"));
        }
        for Leftover { job, tier, file, frees } in &self.leftovers {
            let (on, of, frees) = (on(tier), of(job), report::size(*frees));
            text.push_str(&format!("{would} {file}{of}{on}, which no image needs ({frees})\n"));
        }
        for Leftover { job, file, frees, .. } in &self.saved {
            text.push_str(&format!("{would} saved/{file}{} ({})\n", of(job), report::size(*frees)));
        }
        for Stays { job, tier, image, why } in &self.stays {
            text.push_str(&format!("image {image}{} on {tier} stays: {why}\n", of(job)));
        }
        for Gone { job, frees } in &self.jobs {
            text.push_str(&format!("{would} job {job} ({})\n", report::size(*frees)));
        }
        text
    }

    /// The last line, or all of it as JSON.
    ///
    /// # Errors
    /// As [`report::print`].
    pub fn finish(&self, json: bool) -> Result<(), Failure> {
        if json {
            return report::print_json("prune", self);
        }
        let would = if self.dry_run { "would free" } else { "freed" };
        report::result(&format!("{would} {} in all\n", report::size(self.freed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_the_job_only_among_several() {
        let (job, tier) = (|| "sim".to_owned(), || Place::Store.to_string());
        let mut report = Report {
            removals: vec![Line { job: job(), tier: "dir=/pfs".into(), image: 3, frees: 2048 }],
            stays: vec![Stays { job: job(), tier: tier(), image: 4, why: "it is needed".into() }],
            leftovers: vec![Leftover { job: job(), tier: tier(), file: ".tmp-a".into(), frees: 1 }],
            saved: vec![Leftover { job: job(), tier: tier(), file: "1-log.tail".into(), frees: 10 }],
            jobs: vec![Gone { job: job(), frees: 100 }],
            ..Report::default()
        };
        assert_eq!(
            report.text(false),
            "deleting image 3 from dir=/pfs (2.0 KiB)\n\
             deleting .tmp-a, which no image needs (1 B)\n\
             deleting saved/1-log.tail (10 B)\n\
             image 4 on local stays: it is needed\n\
             deleting job sim (100 B)\n"
        );
        report.dry_run = true;
        assert!(report.text(true).starts_with("would delete image 3 of job sim from dir=/pfs (2.0 KiB)\n"));
        assert_eq!(report.sum(), 2159);
    }
}
