//! The steps, with a thread of this process that answers as libholdfast's service thread does, or does not.
#![allow(clippy::unwrap_used)]

use super::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

const LIMITS: Limits = Limits { drain: Duration::from_secs(20), data: Duration::from_secs(20) };
/// Never waits.
const NONE: Limits = Limits { drain: Duration::ZERO, data: Duration::ZERO };

/// A process with blocks, which is this one, and what it was asked for.
struct Bed {
    area: &'static CudaArea,
    data: &'static CudaData,
    asked: Arc<Mutex<Vec<u64>>>,
    over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Bed {
    /// `results`: what comes of the commands, one by one; then all succeed.
    fn new(results: &'static [u64]) -> Bed {
        let mut bed = Bed::silent();
        let (data, asked, over) = (bed.data, Arc::clone(&bed.asked), Arc::clone(&bed.over));
        bed.thread = Some(thread::spawn(move || {
            let mut results = results.iter();
            while !over.load(SeqCst) {
                let number = data.asked.load(SeqCst);
                if number == data.done.load(SeqCst) {
                    thread::yield_now();
                    continue;
                }
                let command = data.command.load(SeqCst);
                asked.lock().push(command);
                let result = results.next().copied().unwrap_or(0);
                match (command, result) {
                    (CudaData::COMMAND_LEAVE, 0) => data.state.store(CudaData::AWAY, SeqCst),
                    (CudaData::COMMAND_RETURN, 0) => data.state.store(CudaData::RESIDENT, SeqCst),
                    _ => {}
                }
                data.result.store(result, SeqCst);
                data.done.store(number, SeqCst);
            }
        }));
        bed
    }

    /// One that answers nothing.
    fn silent() -> Bed {
        let area: &CudaArea = Box::leak(Box::new(CudaArea::new()));
        let data: &CudaData = Box::leak(Box::new(CudaData::new()));
        data.owner.store(CudaData::BY_LIBRARY, SeqCst);
        data.block_count.store(1, SeqCst);
        data.block_bytes.store(2 << 20, SeqCst);
        data.figures[CudaFigure::DIRTY_BYTES].store(65_536, SeqCst);
        area.data.store(std::ptr::from_ref(data).addr() as u64, SeqCst);
        Bed { area, data, asked: Arc::default(), over: Arc::default(), thread: None }
    }

    fn gates(&self) -> Closed {
        let pid = i32::try_from(std::process::id()).unwrap();
        let hooks = Hooks::at(pid, std::ptr::from_ref(self.area).addr() as u64);
        Closed::close(vec![hooks], Duration::ZERO).unwrap()
    }

    fn is_open(&self) -> bool {
        self.area.closed.load(SeqCst) == 0
    }

    fn asked(&self) -> Vec<u64> {
        self.asked.lock().clone()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        self.thread.take().map(thread::JoinHandle::join);
    }
}

/// Without a keeper.
fn leave(gates: Closed, limits: Limits) -> Result<Held, String> {
    Held::leave(gates, limits, &mut |_| unreachable!("no keeper has anything"))
}

const DRAIN: u64 = CudaData::COMMAND_DRAIN;
const LEAVE: u64 = CudaData::COMMAND_LEAVE;
const RETURN: u64 = CudaData::COMMAND_RETURN;

#[test]
fn content_leaves_and_returns_behind_the_gate() {
    let bed = Bed::new(&[]);
    let held = leave(bed.gates(), LIMITS).unwrap();
    assert_eq!(bed.asked(), [DRAIN, LEAVE]);
    assert!(!bed.is_open());
    let mut figures = CudaStop { lock_ns: 7, ..CudaStop::default() };
    held.back(&mut figures).unwrap();
    assert_eq!(bed.asked(), [DRAIN, LEAVE, RETURN]);
    assert!(bed.is_open());
    assert_eq!((figures.lock_ns, figures.data_bytes, figures.dirty_bytes), (7, 2 << 20, 65_536));
    assert!(figures.leave_ns > 0 && figures.return_ns > 0);
    // Dropped, it is the same.
    drop(leave(bed.gates(), LIMITS).unwrap());
    assert_eq!(bed.asked()[3..], [DRAIN, LEAVE, RETURN]);
    assert!(bed.is_open());
    // What is about to end stays as it is.
    leave(bed.gates(), LIMITS).unwrap().ending();
    assert_eq!(bed.asked().len(), 8);
    assert!(!bed.is_open() && bed.data.state.load(SeqCst) == CudaData::AWAY);
}

#[test]
fn without_blocks_nothing_is_asked() {
    let bed = Bed::silent();
    bed.data.owner.store(CudaData::BY_DRIVER, SeqCst);
    let mut figures = CudaStop::default();
    leave(bed.gates(), NONE).unwrap().back(&mut figures).unwrap();
    assert_eq!(figures, CudaStop::default());
    assert!(bed.is_open() && bed.data.asked.load(SeqCst) == 0);
}

#[test]
fn what_fails_is_undone_and_said() {
    for (results, words) in [
        (&[2][..], "its work on devices: out of memory (error 2)"),
        (&[0, 700], "copying its device memory to the host: error 700"),
        (&[0, CudaData::FAULT_SYSTEM | 12], "Cannot allocate memory"),
        (&[0, CudaData::FAULT_COMMAND], "libholdfast does not do that now"),
    ] {
        let bed = Bed::new(results);
        let told = leave(bed.gates(), LIMITS).unwrap_err();
        assert!(told.contains(words) && told.starts_with("process "), "{told}");
        assert_eq!(bed.data.command.load(SeqCst), RETURN);
        assert!(bed.is_open(), "{told}");
    }
}

#[test]
fn no_answer_calls_the_command_off() {
    let bed = Bed::silent();
    let told = leave(bed.gates(), NONE).unwrap_err();
    assert!(told.contains("was not done in time"), "{told}");
    assert_eq!((bed.data.command.load(SeqCst), bed.data.asked.load(SeqCst)), (RETURN, 2));
    assert!(bed.is_open(), "nothing is away");
}

#[test]
fn what_cannot_come_back_keeps_the_gate_closed() {
    // Four tries; then the thread has to open it by itself.
    let bed = Bed::new(&[0, 0, 2, 2, 2, 2]);
    let held = leave(bed.gates(), LIMITS).unwrap();
    let told = held.back(&mut CudaStop::default()).unwrap_err();
    assert!(told.contains("the device has no free memory") && told.contains("CUDA calls wait"), "{told}");
    assert!(!bed.is_open());
    assert_eq!(bed.data.arguments[0].load(SeqCst), CudaData::OPENS_GATE);
    // One failure is made up for.
    let bed = Bed::new(&[0, 0, 2]);
    leave(bed.gates(), LIMITS).unwrap().back(&mut CudaStop::default()).unwrap();
    assert_eq!(bed.asked(), [DRAIN, LEAVE, RETURN, RETURN]);
    assert!(bed.is_open());
    // What is damaged is not tried again.
    let bed = Bed::new(&[0, 0, CudaData::FAULT_DAMAGED]);
    let told = leave(bed.gates(), LIMITS).unwrap().back(&mut CudaStop::default()).unwrap_err();
    assert!(told.contains("something has overwritten it") && !bed.is_open(), "{told}");
    assert_eq!(bed.asked(), [DRAIN, LEAVE, RETURN]);
}

#[test]
fn what_the_driver_does_not_resume_is_left_to_the_thread() {
    let bed = Bed::silent();
    bed.data.state.store(CudaData::AWAY, SeqCst);
    let gates = bed.gates();
    let hooks = gates.hooks().to_vec();
    gates.ending();
    Held::of_image(hooks, LIMITS).leave_to_thread();
    assert_eq!(
        (bed.data.command.load(SeqCst), bed.data.arguments[0].load(SeqCst)),
        (RETURN, CudaData::OPENS_GATE)
    );
    assert!(!bed.is_open());
}

#[test]
fn an_image_has_its_content_restored() {
    let bed = Bed::new(&[]);
    let gates = bed.gates();
    bed.data.state.store(CudaData::AWAY, SeqCst);
    let hooks = gates.hooks().to_vec();
    gates.ending();
    Held::of_image(hooks, LIMITS).back(&mut CudaStop::default()).unwrap();
    assert_eq!(bed.asked(), [RETURN]);
    assert!(bed.is_open() && bed.data.state.load(SeqCst) == CudaData::RESIDENT);
}

#[test]
fn a_process_that_has_ended_needs_nothing() {
    let bed = Bed::silent();
    let hooks = Hooks::at(i32::MAX, 4096);
    let gone = Owned { hooks, pid: i32::MAX, data: std::ptr::from_ref(bed.data).addr() as u64 };
    assert_eq!(Owned::all(&[gone], Step::Leave, Duration::ZERO), Ok(()));
    assert_eq!(gone.back(Duration::ZERO, None, false), Ok(()));
    assert_eq!(Owned::of(&Hooks::at(i32::MAX, 4096)), None);
}

/// Taken when all work is done, before the program unmaps it; and the process's memory says with what it belongs.
#[test]
fn what_a_keeper_has_is_taken_between_drain_and_leave() {
    let bed = Bed::new(&[]);
    bed.data.owner.store(CudaData::BY_KEEPER, SeqCst);
    let own = i32::try_from(std::process::id()).unwrap();
    let figures = CudaStop { hash_ns: 5, dirty_bytes: 131_072, ..CudaStop::default() };
    let mut keep = |pids: &[i32]| {
        assert_eq!((pids, bed.asked()), (&[own][..], vec![DRAIN]));
        Ok(Some(Kept { seals: BTreeMap::from([(own, 77)]), figures, spare: Box::new(Asked::default()) }))
    };
    bed.data.figures[CudaFigure::DIRTY_BYTES].store(0, SeqCst);
    let held = Held::leave(bed.gates(), LIMITS, &mut keep).unwrap();
    assert_eq!(bed.asked(), [DRAIN, LEAVE]);
    assert_eq!(held.kept(), [own]);
    assert!(held.is_sealed(own, 77) && !held.is_sealed(own, 78) && !held.is_sealed(own + 1, 77));
    let mut noted = CudaStop::default();
    held.back(&mut noted).unwrap();
    assert_eq!((noted.hash_ns, noted.dirty_bytes, noted.data_bytes), (5, 131_072, 2 << 20));
    // What fails is undone.
    let told = Held::leave(bed.gates(), LIMITS, &mut |_| Err("the keeper has ended".into())).unwrap_err();
    assert_eq!(told, "the keeper has ended");
    assert!(bed.is_open() && !bed.asked()[3..].contains(&LEAVE));
}

/// Counts what it is asked for.
#[derive(Clone, Debug, Default)]
struct Asked(Arc<Mutex<Vec<&'static str>>>);

impl Spare for Asked {
    fn ready(&self) -> Result<(), String> {
        self.0.lock().push("ready");
        Ok(())
    }
    fn over(&self) {
        self.0.lock().push("over");
    }
}

fn kept(bed: &Bed, spare: &Asked) -> Held {
    let own = i32::try_from(std::process::id()).unwrap();
    bed.data.owner.store(CudaData::BY_KEEPER, SeqCst);
    let mut keep = |_: &[i32]| {
        let (seals, figures) = (BTreeMap::from([(own, 1)]), CudaStop::default());
        Ok(Some(Kept { seals, figures, spare: Box::new(spare.clone()) }))
    };
    Held::leave(bed.gates(), LIMITS, &mut keep).unwrap()
}

/// Before each try a keeper is made to answer; it is over when content is back everywhere, and not before.
#[test]
fn what_a_keeper_had_is_held_until_it_is_back() {
    let bed = Bed::new(&[0, 0, CudaData::FAULT_KEEPER]);
    let spare = Asked::default();
    kept(&bed, &spare).back(&mut CudaStop::default()).unwrap();
    assert_eq!(*spare.0.lock(), ["ready", "ready", "over"]);
    let bed = Bed::new(&[0, 0, 2, 2, 2, 2]);
    let spare = Asked::default();
    kept(&bed, &spare).back(&mut CudaStop::default()).unwrap_err();
    assert_eq!(*spare.0.lock(), ["ready"; 4]);
}

#[test]
fn what_a_keeper_had_that_has_ended_is_adopted() {
    let bed = Bed::new(&[]);
    bed.data.owner.store(CudaData::BY_KEEPER, SeqCst);
    Held::leave(bed.gates(), LIMITS, &mut |_| Ok(None)).unwrap().back(&mut CudaStop::default()).unwrap();
    assert_eq!(bed.asked(), [DRAIN, CudaData::COMMAND_ADOPT, LEAVE, RETURN]);
}
