//! Cuts a process that told its injection area by hand, a number of times: `cut PID CODE SCRATCH [COUNT [PAUSE_MS]]`.
//! For work on this crate without the agent.
#![allow(clippy::unwrap_used, missing_docs)]
use holdfast_image::record::InjectArea;
use holdfast_image::{Addr, PAGE_SIZE};
use holdfast_process::{Adopted, CutOptions, Roster, Target, Tracer, Tracking};
use std::sync::Arc;

struct One(Target);

impl Roster for One {
    fn targets(&self) -> Vec<Target> {
        vec![self.0.clone()]
    }
    fn adopted(&self, _: Adopted) {}
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let hex = |i: usize| u64::from_str_radix(args[i].trim_start_matches("0x"), 16).unwrap();
    let area = InjectArea {
        code: Addr(hex(2)),
        code_len: 65536,
        scratch: Addr(hex(3)),
        scratch_len: 1 << 20,
        shared: Addr(0),
    };
    let tracking = Arc::new(Tracking::new(None));
    let target = Target { pid: args[1].parse().unwrap(), space: 0, area, tracking };
    let roster: Arc<dyn Roster> = Arc::new(One(target));
    let count: u32 = args.get(4).map_or(1, |a| a.parse().unwrap());
    let pause: u64 = args.get(5).map_or(20, |a| a.parse().unwrap());
    let tracer = Tracer::spawn().unwrap();
    for _ in 0..count {
        match tracer.cut(&roster, &CutOptions::default()) {
            Ok(cut) => {
                let pages = cut.dirty.pages().0;
                let runs = cut.dirty.runs();
                let mut hash = 0_u64;
                let mut buffer = vec![0_u8; PAGE_SIZE as usize];
                for run in runs {
                    cut.memory.read(run.start, &mut buffer).unwrap();
                    hash ^= xxhash_rust::xxh3::xxh3_64(&buffer);
                    cut.memory.release(*run);
                }
                let json = args.get(6).is_some();
                eprintln!(
                    "{:?}\n{} runs {pages} pages {hash:x}, {} threads",
                    cut.breakdown,
                    runs.len(),
                    cut.record.threads.len()
                );
                if json {
                    for t in &cut.record.threads {
                        eprintln!(
                            "{} {:?} {:?} {:?}",
                            t.tid,
                            t.wait,
                            t.alt_stack,
                            t.registers[10].cast_signed()
                        );
                    }
                    eprintln!("{:#?}", cut.record.files);
                }
            }
            Err(error) => eprintln!("failed: {error}"),
        }
        std::thread::sleep(std::time::Duration::from_millis(pause));
    }
}
