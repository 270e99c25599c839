//! Kinds of data that programs hold, generated: fields, particles, narrow numbers, sorted numbers, mostly zero, text.
//!
//! 32 MiB each, always the same.

const LEN: usize = 32 << 20;

/// A cheap generator of numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    /// From 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn f64s(make: impl FnMut(usize) -> f64) -> Vec<u8> {
    (0..LEN / 8).map(make).flat_map(f64::to_le_bytes).collect()
}

/// A plate that is hot at two sides after some hundred steps of diffusion: mostly 0 still.
fn heat() -> Vec<u8> {
    let side = 2048;
    let (mut now, mut next) = (vec![0.0_f64; side * side], vec![0.0_f64; side * side]);
    for step in 0..150 {
        for at in 0..side {
            now[at] = 100.0;
            now[at * side] = 50.0;
        }
        // What is farther from the sides than there were steps is 0 anyway.
        let reach = (step + 3).min(side - 1);
        for y in 1..side - 1 {
            for x in 1..if y <= reach { side - 1 } else { reach } {
                let at = y * side + x;
                let around = now[at - 1] + now[at + 1] + now[at - side] + now[at + side];
                next[at] = now[at] + 0.2 * (around - 4.0 * now[at]);
            }
        }
        std::mem::swap(&mut now, &mut next);
    }
    now.into_iter().flat_map(f64::to_le_bytes).collect()
}

/// A wave that spreads from a corner of a cube: a shell of it is not 0.
fn shell() -> Vec<u8> {
    let side = 160_usize;
    f64s(|at| {
        let place = [at % side, at / side % side, at / side / side];
        let distance = place.iter().map(|&n| (n * n) as f64).sum::<f64>().sqrt() - 90.0;
        if distance.abs() > 12.0 { 0.0 } else { (-distance * distance / 30.0).exp() * (distance * 0.7).sin() }
    })
}

fn particles() -> Vec<u8> {
    let mut random = Random(7);
    f64s(|_| random.unit() * 100.0)
}

/// Particles in the order of the cells that they are in: what is near is stored near.
fn sorted_particles() -> Vec<u8> {
    let mut random = Random(8);
    f64s(|at| (at / 64) as f64 * 0.002 + random.unit() * 0.01)
}

/// Numbers of four bytes that are held in eight.
fn narrow() -> Vec<u8> {
    let mut random = Random(9);
    f64s(|at| f64::from(((at as f32) * 0.001).sin() + random.unit() as f32 * 0.01))
}

fn narrow_field() -> Vec<u8> {
    let mut random = Random(13);
    let value = |at: usize| ((at as f32) * 0.0003).sin() + random.unit() as f32 * 0.001;
    (0..LEN / 4).map(value).flat_map(f32::to_le_bytes).collect()
}

fn sorted_integers() -> Vec<u8> {
    let (mut random, mut last) = (Random(10), 0_i64);
    let step = |_| {
        last += (random.next() % 1000) as i64;
        last
    };
    (0..LEN / 8).map(step).flat_map(i64::to_le_bytes).collect()
}

/// Seven of eight numbers are 0: the data of a paper on compressed checkpoints.
fn mostly_zero() -> Vec<u8> {
    let mut random = Random(11);
    f64s(|_| if random.next().is_multiple_of(8) { random.unit() } else { 0.0 })
}

/// Words of a small language with pointers between them, as in the heap of an interpreter.
fn heap() -> Vec<u8> {
    let mut random = Random(12);
    let words: [&[u8; 8]; 5] = [b"holdfast", b"ckpoints", b"programs", b"restarts", b"the next"];
    let one = |at: usize| match random.next() % 4 {
        0 => *words[(random.next() % 5) as usize],
        1 => (0x7f3a_1000_0000_u64 + (random.next() % 4096) * 48).to_le_bytes(),
        2 => (random.next() % 64).to_le_bytes(),
        _ => ((at as u64) << 4).to_le_bytes(),
    };
    (0..LEN / 8).flat_map(one).collect()
}

fn noise() -> Vec<u8> {
    let mut random = Random(14);
    (0..LEN / 8).flat_map(|_| random.next().to_le_bytes()).collect()
}

/// All of them, with their names.
pub fn all() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("heat in a plate (mostly 0)", heat()),
        ("wave shell in a cube", shell()),
        ("random particles", particles()),
        ("particles sorted by cell", sorted_particles()),
        ("f32 values held in f64", narrow()),
        ("f32 field", narrow_field()),
        ("sorted int64", sorted_integers()),
        ("random, 7/8 zero", mostly_zero()),
        ("heap of an interpreter", heap()),
        ("noise", noise()),
    ]
}
