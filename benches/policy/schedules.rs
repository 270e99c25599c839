//! Accumulate and compress in front of a link: the setting of the paper on accumulated compression (HiPC 2023): a link
//! of 25 GB/s, a codec of 0.08 ms + bytes / 550 GB/s whose temporary buffer is as large as its input, 100 segments of
//! 2 MB, a buffer of 128 MB, ratio 8, unless a table varies one of these.
//!
//! The figures are bytes / (end of the flush - time that the application computes), in which schedules differ, and
//! bytes / end of the flush, which the application sees. "Ensemble" are 20 runs: the first is profiled, for which it
//! compresses each segment by itself, the others obey the plan; all are charged.

use holdfast_tiers::policy::{
    BufferLimits, Choice, CodecCurve, Objective, Plan, Profile, Sample, schedule, transfer_ns,
};

const GB: u64 = 1_000_000_000;
const MB: u64 = 1_000_000;
const RUNS: u64 = 20;

#[derive(Clone, Copy)]
struct Setting {
    count: u64,
    bytes: u64,
    /// Bytes per second that the application makes while it computes.
    made: u64,
    ratio: u64,
    buffer: u64,
    link: u64,
    /// Sizes grow from a quarter to seven quarters.
    grow: bool,
}

const USUAL: Setting = Setting {
    count: 100,
    bytes: 2 * MB,
    made: 100 * GB,
    ratio: 8,
    buffer: 128 * MB,
    link: 25 * GB,
    grow: false,
};

impl Setting {
    fn profile(&self) -> Profile {
        let interval_ns = transfer_ns(self.bytes, self.made);
        let sample = |index| {
            let bytes = if self.grow {
                self.bytes / 4 + self.bytes * 3 * index / (2 * self.count)
            } else {
                self.bytes
            };
            Sample { interval_ns, bytes, compressed: bytes / self.ratio }
        };
        let curve = vec![(1, 80_000), (550 * GB, 80_000 + GB)];
        Profile {
            samples: (0..self.count).map(sample).collect(),
            codec: CodecCurve { curve, temporary_per_mille: 1000 },
            rate: self.link,
        }
    }

    fn limits(&self) -> BufferLimits {
        BufferLimits { buffer: self.buffer, most_together: 64, grain_ns: 500 }
    }
}

/// One row: GB/s of raw, single compression, the plan, and of the ensemble; and by what the ensemble is better than the
/// first two, each by both figures.
fn row(name: &str, setting: &Setting, paper: &str) {
    let (profile, limits) = (setting.profile(), setting.limits());
    let computes: u64 = profile.samples.iter().map(|sample| sample.interval_ns).sum();
    let bytes: u64 = profile.samples.iter().map(|sample| sample.bytes).sum();
    let fixed = |choice| {
        let plan = Plan::of(&profile, &limits, vec![choice; profile.samples.len()]);
        plan.map_or(u64::MAX, |plan| plan.flush_ns)
    };
    let (raw, single) = (fixed(Choice::Raw), fixed(Choice::Compress(1)));
    let plan = schedule(&profile, &limits, Objective::FlushEnd).map_or(u64::MAX, |plan| plan.flush_ns);
    let ensemble = (single + (RUNS - 1) * plan) / RUNS;
    let both = |end: u64| [end - computes, end].map(|ns| ns.max(1) as f64);
    let speeds = |end: u64| both(end).map(|ns| format!("{:.1}", bytes as f64 / ns)).join(" / ");
    let values = [raw, single, plan, ensemble].map(speeds);
    let better = |other: u64| {
        let ratios = both(other).into_iter().zip(both(ensemble)).map(|(other, own)| other / own);
        ratios.map(|ratio| format!("{ratio:.2} x")).collect::<Vec<_>>().join(" / ")
    };
    println!("| {name} | {} | {} | {} | {paper} |", values.join(" | "), better(raw), better(single));
}

fn head(title: &str, varied: &str) {
    println!("\n### {title}, GB/s without / with the time that is computed\n");
    println!("| {varied} | raw | single | plan | ensemble | over raw | over single | the paper's |");
    println!("{}", "| --- ".repeat(8) + "|");
}

/// The choices as letters: U raw, C compressed alone, A and how many together.
fn letters(setting: &Setting) -> String {
    let plan = schedule(&setting.profile(), &setting.limits(), Objective::FlushEnd);
    let choices = plan.map(|plan| plan.choices).unwrap_or_default();
    let letter = |choice: &Choice| match choice {
        Choice::Raw => "U".to_owned(),
        Choice::Compress(1) => "C".to_owned(),
        Choice::Compress(several) => format!("A{several}"),
    };
    let runs = choices.chunk_by(|a, b| a == b);
    runs.map(|run| if run.len() > 1 { format!("{} {}", run.len(), letter(&run[0])) } else { letter(&run[0]) })
        .collect::<Vec<_>>()
        .join(", ")
}

/// Growing frequency: grids and so segments grow with its cube, steps take longer. The paper has no sizes: assumed.
fn migration(hertz: u64) -> Setting {
    let bytes = 62_500 * hertz.pow(3);
    Setting { count: 66, bytes, made: bytes * GB / (25_000 * hertz), grow: true, ..USUAL }
}

/// Prints the tables.
pub fn print() {
    head("Figure 6: migration, 66 segments that grow", "frequency");
    for hertz in 2..=8 {
        let paper = if hertz == 2 { "raw is best; 2.8 over single" } else { "3.2 to 8.3; 1.3 to 1.8" };
        row(&format!("{hertz} Hz"), &migration(hertz), paper);
    }
    println!("\n### Figure 7: the plans of figure 6 (U raw, C compressed, A compressed together)\n");
    (2..=8).for_each(|hertz| println!("* {hertz} Hz: {}", letters(&migration(hertz))));
    head("Figure 8: size of the buffer", "MB");
    for buffer in [64, 128, 256, 512, 1024] {
        let paper = if buffer == 64 { "0.97" } else { "4.1; 2.4 at most" };
        row(&buffer.to_string(), &Setting { buffer: buffer * MB, ..USUAL }, paper);
    }
    for ratio in [4, 8, 28] {
        head(&format!("Figure 9: rate of the application, ratio {ratio}"), "made, GB/s");
        for made in [40, 100, 200, 300, 400] {
            row(&made.to_string(), &Setting { made: made * GB, ratio, ..USUAL }, "2.27 at least");
        }
    }
    head("Figure 10: ratio", "ratio");
    for ratio in [4, 8, 12, 16, 20, 24, 28] {
        row(&ratio.to_string(), &Setting { ratio, ..USUAL }, "3.7");
    }
    // All do the same at the same time: two that share a link have half of it each, whenever one uses it.
    head("Figure 11: processes, of which each two share a link; of each", "processes");
    for count in [1, 2, 4, 8] {
        let setting = Setting { link: USUAL.link / count.min(2), ..USUAL };
        row(&count.to_string(), &setting, "3.6; 4.9; raw falls to 0.43");
    }
}
