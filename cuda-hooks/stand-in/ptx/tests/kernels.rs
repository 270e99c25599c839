//! What nvcc makes of `kernels/*.cu`, run and compared with the same computation in Rust.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::sync::Arc;

use holdfast_ptx::{Fault, FaultKind, Grid, Launch, LaunchError, Module, Program, Progress, TestMemory};

const BASIC: &str = include_str!("kernels/basic.ptx");
const BLOCK: &str = include_str!("kernels/block.ptx");
const MATH: &str = include_str!("kernels/math.ptx");
const DEBUG: &str = include_str!("kernels/debug.ptx");

/// Device addresses of the tests: as high as a real driver's.
const BASE: u64 = 0x7f00_0000_0000;

struct Device {
    program: Program,
    memory: TestMemory,
    next: u64,
    seed: u64,
}

impl Device {
    fn new(text: &str) -> Device {
        let module = Arc::new(Module::parse(text).unwrap());
        let mut next = BASE;
        let addresses: Vec<u64> = module
            .variables
            .iter()
            .map(|v| {
                next = next.next_multiple_of(256) + 256;
                next += v.size;
                next - v.size
            })
            .collect();
        let program = Program::new(Arc::clone(&module), addresses.clone()).unwrap();
        let memory = TestMemory::default();
        for (n, address) in addresses.iter().enumerate() {
            memory.add(*address, program.initial(n).unwrap());
        }
        Device { program, memory, next, seed: 0 }
    }

    fn put<T: Bytes>(&mut self, values: &[T]) -> u64 {
        let address = self.next.next_multiple_of(256) + 256;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.bytes()).collect();
        self.next = address + bytes.len() as u64;
        self.memory.add(address, bytes);
        address
    }

    fn get<T: Bytes>(&self, address: u64, count: usize) -> Vec<T> {
        self.memory.read(address, count * T::SIZE).chunks(T::SIZE).map(T::of).collect()
    }

    fn grid(
        &self,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        parameters: &[u64],
    ) -> Result<Grid, LaunchError> {
        let number = self.program.module.kernel(kernel).expect("kernel");
        let mut bytes = Vec::new();
        for (parameter, value) in self.program.module.functions[number].parameters.iter().zip(parameters) {
            bytes.resize(parameter.offset as usize, 0);
            bytes.extend_from_slice(&value.to_le_bytes()[..parameter.size as usize]);
        }
        let launch =
            Launch { grid, block, shared_bytes: 4096, parameters: bytes, seed: self.seed, resident: 3 };
        Grid::new(self.program.clone(), kernel, launch)
    }

    fn try_run(&self, kernel: &str, blocks: u32, threads: u32, parameters: &[u64]) -> Result<(), Box<Fault>> {
        let mut grid = self.grid(kernel, [blocks, 1, 1], [threads, 1, 1], parameters).unwrap();
        for _ in 0..10_000 {
            if grid.run(&self.memory, 1_000_000)? == Progress::Done {
                return Ok(());
            }
        }
        panic!("{kernel} does not end");
    }

    fn run(&self, kernel: &str, blocks: u32, threads: u32, parameters: &[u64]) {
        if let Err(fault) = self.try_run(kernel, blocks, threads, parameters) {
            panic!("{fault}");
        }
    }
}

trait Bytes: Sized {
    const SIZE: usize;
    fn bytes(&self) -> Vec<u8>;
    fn of(bytes: &[u8]) -> Self;
}

macro_rules! bytes {
    ($($t:ty),+) => {
        $(impl Bytes for $t {
            const SIZE: usize = size_of::<$t>();
            fn bytes(&self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn of(bytes: &[u8]) -> Self {
                <$t>::from_le_bytes(bytes.try_into().unwrap())
            }
        })+
    };
}
bytes!(u8, i16, u16, i32, u32, i64, u64, f32, f64);

/// Values without an order; the same every time.
fn noise(n: u64) -> u64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 31)
}

fn floats(count: usize) -> Vec<f32> {
    (0..count).map(|n| (noise(n as u64) % 20_001) as f32 / 64.0 - 150.0).collect()
}

fn bits(value: f32) -> u64 {
    value.to_bits().into()
}

#[test]
fn saxpy() {
    let mut device = Device::new(BASIC);
    let (x, y) = (floats(1000), floats(2000)[1000..].to_vec());
    let (at_x, at_y) = (device.put(&x), device.put(&y));
    device.run("saxpy", 4, 256, &[990, bits(1.7), at_x, at_y]);
    let wanted: Vec<f32> = x
        .iter()
        .zip(&y)
        .enumerate()
        .map(|(n, (x, y))| if n < 990 { 1.7f32.mul_add(*x, *y) } else { *y })
        .collect();
    assert_eq!(device.get::<f32>(at_y, 1000), wanted);
}

#[test]
fn a_struct_is_an_argument() {
    let mut device = Device::new(BASIC);
    let x = floats(300);
    let (at_x, at_y) = (device.put(&x), device.put(&vec![0f32; 300]));
    let mut parameters: Vec<u8> = [at_x, at_y].iter().flat_map(|p| p.to_le_bytes()).collect();
    parameters.extend(0.5f32.to_le_bytes());
    parameters.extend(300i32.to_le_bytes());
    parameters.extend([3i16, -4, 500].iter().flat_map(|s| s.to_le_bytes()));
    parameters.resize(32, 0);
    let launch =
        Launch { grid: [3, 1, 1], block: [128, 1, 1], shared_bytes: 0, parameters, seed: 1, resident: 2 };
    let mut grid = Grid::new(device.program.clone(), "saxpy_struct", launch).unwrap();
    assert_eq!(grid.run(&device.memory, u64::MAX), Ok(Progress::Done));
    let scale = [3f32, -4.0, 500.0];
    let wanted: Vec<f32> = x.iter().enumerate().map(|(n, x)| 0.5f32.mul_add(*x, scale[n % 3])).collect();
    assert_eq!(device.get::<f32>(at_y, 300), wanted);
}

#[test]
fn stores_through_pointers_that_lie_in_memory() {
    let mut device = Device::new(BASIC);
    let rows: Vec<u64> = (0..40).map(|_| device.put(&[0f32; 9])).collect();
    let table = device.put(&rows);
    device.run("through_table", 2, 32, &[table, 40, 9]);
    let (values, offsets) = ([1.0f32, 2.5, -3.0, 0.125], [7f32, -7.0, 100.0]);
    for (i, row) in rows.iter().enumerate() {
        let wanted: Vec<f32> = (0..9).map(|j| values[(i + j) & 3] + offsets[j % 3]).collect();
        assert_eq!(device.get::<f32>(*row, 9), wanted, "row {i}");
    }
}

#[test]
fn a_list_in_memory_is_followed() {
    let mut device = Device::new(BASIC);
    let nodes: Vec<u64> = (0..50).map(|_| device.put(&[0u64, 0])).collect();
    for (n, node) in nodes.iter().enumerate() {
        let next = nodes.get((n + 1) % 50).copied().filter(|_| n != 49).unwrap_or(0);
        let value = noise(n as u64) as u32;
        device.memory.write(*node, &[next.to_le_bytes(), u64::from(value).to_le_bytes()].concat()).unwrap();
    }
    device.run("chase", 1, 1, &[nodes[0], 77]);
    for (n, node) in nodes.iter().enumerate() {
        assert_eq!(device.get::<u32>(node + 8, 2), [(noise(n as u64) as u32).wrapping_add(77), 1]);
    }
}

#[test]
fn atomics_and_a_global_variable() {
    for seed in [0, 1, 99] {
        let mut device = Device::new(BASIC);
        device.seed = seed;
        let ints = device.put(&[0u32; 10]);
        let (sum, sum64) = (device.put(&[0f32]), device.put(&[0f64]));
        let (most, least) = (device.put(&[0u32]), device.put(&[0i32]));
        device.run("count", 4, 64, &[ints, sum, sum64, most, least]);
        let mut wanted = [0u32; 10];
        (0..256u32).for_each(|i| wanted[i as usize & 7] += i);
        wanted[9] = 256 % 100;
        assert_eq!(device.get::<u32>(ints, 10), wanted);
        assert_eq!((device.get::<f32>(sum, 1), device.get::<f64>(sum64, 1)), (vec![256.0], vec![128.0]));
        assert_eq!(
            device.get::<u32>(most, 1)[0],
            (0..256u32).map(|i| i.wrapping_mul(2_654_435_761)).max().unwrap()
        );
        assert_eq!(device.get::<i32>(least, 1), [5 - 255]);
        let out = device.put(&[0u64]);
        device.run("read_counter", 1, 1, &[out]);
        assert_eq!(device.get::<u64>(out, 1), [768]);
        device.run("read_counter", 1, 1, &[out]);
        assert_eq!(device.get::<u64>(out, 1), [0]);
    }
}

#[test]
fn vectors_in_memory() {
    let mut device = Device::new(BASIC);
    let (floats, bytes) = (floats(256), (0..256).map(|n| noise(n) as u8).collect::<Vec<_>>());
    let (a, b) = (device.put(&floats), device.put(&vec![0f32; 256]));
    let (c, d) = (device.put(&bytes), device.put(&vec![0i16; 128]));
    device.run("vectors", 2, 32, &[a, b, c, d]);
    let wanted: Vec<f32> = floats.chunks(4).flat_map(|v| [v[3], v[2], v[1], v[0]]).collect();
    assert_eq!(device.get::<f32>(b, 256), wanted);
    let wanted: Vec<i16> = bytes
        .chunks(4)
        .flat_map(|v| [(i32::from(v[0] as i8) * i32::from(v[1])) as i16, i16::from(v[2]) - i16::from(v[3])])
        .collect();
    assert_eq!(device.get::<i16>(d, 128), wanted);
}

#[test]
fn wrong_addresses_are_faults_with_their_place() {
    let mut device = Device::new(BASIC);
    let here = device.put(&[0i32; 4]);
    device.run("wild", 1, 1, &[here, 3]);
    let fault = device.try_run("wild", 1, 1, &[here, 4]).unwrap_err();
    let address = here + 16;
    assert!(
        matches!(fault.kind, FaultKind::IllegalAddress { address: at, bytes: 4, .. } if at == address),
        "{fault}"
    );
    assert_eq!((fault.kernel.as_str(), fault.block), ("wild", [0; 3]));
    assert!(fault.text.starts_with("st.global.u32") && fault.line > 10, "{fault}");
    let fault = device.try_run("wild", 1, 1, &[here + 2, 0]).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::MisalignedAddress { .. }), "{fault}");
    let fault = device.try_run("wild", 1, 1, &[0, 0]).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::IllegalAddress { address: 0, .. }), "{fault}");
}

#[test]
fn launches_that_no_device_takes() {
    let device = Device::new(BASIC);
    let parameters = [1, 0, BASE, BASE];
    for (grid, block) in [([0, 1, 1], [1, 1, 1]), ([1, 1, 1], [1025, 1, 1]), ([1, 70_000, 1], [1, 1, 1])] {
        let error = device.grid("saxpy", grid, block, &parameters).unwrap_err();
        assert!(matches!(error, LaunchError::Shape { .. }), "{error}");
    }
    assert!(matches!(
        device.grid("saxpy", [1; 3], [1; 3], &[1]),
        Err(LaunchError::Parameters { wanted: 24, .. })
    ));
}

#[test]
fn a_sum_by_shuffles_and_a_barrier() {
    for seed in [0, 5, 6] {
        let mut device = Device::new(BLOCK);
        device.seed = seed;
        let values: Vec<f32> = (0..5000).map(|n| (noise(n) % 256) as f32).collect(); // their sums are exact
        let (input, output) = (device.put(&values), device.put(&[0f32; 5]));
        device.run("reduce", 5, 96, &[input, output, 5000]);
        let mut wanted = [0f32; 5];
        values.iter().enumerate().for_each(|(n, v)| wanted[n / 96 % 5] += v);
        assert_eq!(device.get::<f32>(output, 5), wanted, "seed {seed}");
    }
}

fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

fn hash64k(words: &[u64], key: u64) -> [u64; 2] {
    let (mut h0, mut h1) = (0u64, 0u64);
    for thread in 0..256u64 {
        h0 = h0.wrapping_add(key);
        h1 ^= !key;
        for i in (thread..4096).step_by(256) {
            let (x, y) = (words[2 * i as usize], words[2 * i as usize + 1]);
            let salt = (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            h0 = h0.wrapping_add(mix(x ^ salt, y ^ key ^ 0xD6E8_FEB8_6659_FD93));
            h1 ^= mix(y.wrapping_add(salt), x ^ !key);
        }
    }
    [mix(h0, 0xA076_1D64_78BD_642F), mix(h1, 0xE703_7ED1_A0B4_28DB)]
}

fn hashes(chunks: u32) {
    let mut device = Device::new(BLOCK);
    let words: Vec<u64> = (0..u64::from(chunks) * 8192).map(noise).collect();
    let (input, output) = (device.put(&words), device.put(&vec![0u64; 2 * chunks as usize]));
    let began = std::time::Instant::now();
    device.run("hash64k", chunks, 256, &[input, output, 12_345]);
    println!("{chunks} chunks of 64 KiB hashed in {:?}", began.elapsed());
    let wanted: Vec<u64> = words.chunks(8192).flat_map(|chunk| hash64k(chunk, 12_345)).collect();
    assert_eq!(device.get::<u64>(output, 2 * chunks as usize), wanted);
}

#[test]
fn chunks_are_hashed_as_by_the_twin() {
    hashes(5);
}

/// The figure of the crate: `cargo test --release -p holdfast-ptx --test kernels -- --ignored --nocapture`.
#[test]
#[ignore = "16 MiB: a measurement"]
fn sixteen_mebibytes_are_hashed() {
    hashes(256);
}

#[test]
fn dynamic_shared_memory() {
    let mut device = Device::new(BLOCK);
    let data = device.put(&(0..200).collect::<Vec<i32>>());
    device.run("reverse", 2, 100, &[data]);
    let wanted: Vec<i32> = (0..100).rev().chain((100..200).rev()).collect();
    assert_eq!(device.get::<i32>(data, 200), wanted);
}

#[test]
fn votes_matches_and_reductions() {
    for seed in [0, 3] {
        let mut device = Device::new(BLOCK);
        device.seed = seed;
        let values: Vec<i32> = (0..64).map(|n| (noise(n) % 7) as i32).collect();
        let (input, output) = (device.put(&values), device.put(&[0u32; 64]));
        device.run("votes", 1, 64, &[input, output]);
        let odds = values.iter().filter(|v| **v & 1 == 1).count() as u32;
        for (i, got) in device.get::<u32>(output, 64).into_iter().enumerate() {
            let warp = &values[i / 32 * 32..i / 32 * 32 + 32];
            let mask = |f: &dyn Fn(i32) -> bool| {
                warp.iter().enumerate().fold(0u32, |m, (n, v)| m | u32::from(f(*v)) << n)
            };
            let all = u32::from(warp.iter().all(|v| *v > 0));
            let any = u32::from(warp.contains(&3));
            let (total, top) = (warp.iter().sum::<i32>() as u32, *warp.iter().max().unwrap() as u32);
            let odd = mask(&|v| v & 1 == 1);
            let same = mask(&|v| v == values[i]);
            let wanted = odd ^ same ^ (all << 1) ^ any ^ (odds << 8) ^ (total << 16) ^ (top << 24);
            assert_eq!(got, wanted, "thread {i}");
        }
    }
}

#[test]
fn a_barrier_that_some_never_reach_is_a_deadlock() {
    let mut device = Device::new(BLOCK);
    let data = device.put(&[0i32; 64]);
    let fault = device.try_run("stuck", 1, 64, &[data]).unwrap_err();
    assert!(
        matches!(&fault.kind, FaultKind::Deadlock(text) if text.starts_with("32 threads wait")),
        "{fault}"
    );
    assert!(fault.text.starts_with("bar.sync"), "{fault}");
}

#[test]
fn races_depend_on_the_seed_and_on_nothing_else() {
    let raced = |seed| {
        let mut device = Device::new(BLOCK);
        device.seed = seed;
        let data = device.put(&[0i32]);
        device.run("raced", 2, 64, &[data]);
        device.get::<i32>(data, 1)[0]
    };
    let all: Vec<i32> = (0..20).map(raced).collect();
    assert_eq!(all, (0..20).map(raced).collect::<Vec<_>>());
    assert_eq!(all[0], 128, "in long slices each thread is alone");
    assert!(all.iter().any(|&n| n < 128), "{all:?}");
}

#[test]
fn a_lock_that_threads_spin_for() {
    for seed in [0, 7] {
        let mut device = Device::new(BLOCK);
        device.seed = seed;
        let (lock, value) = (device.put(&[0i32]), device.put(&[0i32]));
        device.run("locked", 3, 32, &[lock, value]);
        assert_eq!(device.get::<i32>(value, 1), [96]);
    }
}

#[test]
fn calls_direct_and_by_table() {
    let mut device = Device::new(MATH);
    let values: Vec<i32> = (0..30).map(|n| noise(n) as i32 / 1000).collect();
    let (input, output) = (device.put(&values), device.put(&[0i32; 30]));
    device.run("calls", 1, 32, &[input, output, 30]);
    let twice = |a: i32, b: i32| 2 * a + b;
    let nested = |a: i32, b: i32| twice(a, b - a) ^ 0x55;
    let wanted: Vec<i32> = (0..30i32)
        .map(|i| {
            let v = values[i as usize];
            let called = match i % 3 {
                0 => twice(v, i),
                1 => v - i,
                _ => nested(v, i),
            };
            called + nested(i, v) + (f64::from(i) * 1.5) as i32 + 3 + v
        })
        .collect();
    assert_eq!(device.get::<i32>(output, 30), wanted);
}

#[test]
fn a_stencil_of_doubles() {
    let mut device = Device::new(MATH);
    let (w, h, c) = (20usize, 12usize, 0.23f64);
    let grid: Vec<f64> = (0..w * h).map(|n| (noise(n as u64) % 1000) as f64 / 7.0).collect();
    let (input, output) = (device.put(&grid), device.put(&vec![0f64; w * h]));
    let parameters = [input, output, w as u64, h as u64, c.to_bits()];
    let mut launched = device.grid("stencil", [3, 2, 1], [8, 8, 1], &parameters).unwrap();
    assert_eq!(launched.run(&device.memory, u64::MAX), Ok(Progress::Done));
    for (n, got) in device.get::<f64>(output, w * h).into_iter().enumerate() {
        let (x, y) = (n % w, n / w);
        if x == 0 || y == 0 || x == w - 1 || y == h - 1 {
            assert_eq!(got, 0.0);
            continue;
        }
        let mid = grid[n];
        let sum = grid[n - 1] + grid[n + 1] + grid[n - w] + grid[n + w];
        // contracted as nvcc does by default
        let inner = mid.mul_add(mid, c * (-4.0f64).mul_add(mid, sum));
        let other = c.mul_add((-4.0f64).mul_add(mid, sum), mid * mid);
        let wanted = inner.sqrt() / (1.0 + sum.abs());
        let also = other.sqrt() / (1.0 + sum.abs());
        assert!(
            got.to_bits() == wanted.to_bits() || got.to_bits() == also.to_bits(),
            "{got} {wanted} at {n}"
        );
    }
}

#[test]
fn a_switch() {
    let mut device = Device::new(MATH);
    let values: Vec<i32> = (-3..29).map(|n| if n > 12 { n * 1000 } else { n }).collect();
    let (input, output) = (device.put(&values), device.put(&[0i32; 32]));
    device.run("choose", 1, 32, &[input, output]);
    let v = &values;
    let wanted: Vec<i32> = v
        .iter()
        .map(|&x| match x {
            0 => x + 5,
            1 => x * x * 31,
            2 => (x * 77777).count_ones() as i32 - 3,
            3 => (x.leading_zeros() as i32) << 3,
            4 => x.reverse_bits(),
            5 => x ^ v[0],
            6 => x.trailing_zeros() as i32 + 1 + v[2],
            7 => x.checked_div(v[1] + 1).unwrap_or(-1),
            8 => x.checked_rem(v[3] + 2).unwrap_or(x),
            _ => -x,
        })
        .collect();
    assert_eq!(device.get::<i32>(output, 32), wanted);
}

#[test]
fn arrays_in_local_memory() {
    let mut device = Device::new(MATH);
    let values: Vec<i32> = (0..160).map(|n| noise(n) as i32).collect();
    let data = device.put(&values);
    device.run("sorted", 1, 10, &[data]);
    let mut wanted = values;
    wanted.chunks_mut(16).for_each(<[i32]>::sort_unstable);
    assert_eq!(device.get::<i32>(data, 160), wanted);
}

#[test]
fn instructions_of_integers() {
    let mut device = Device::new(MATH);
    let edges = [0u32, 1, 2, 31, 32, 0x7fff_ffff, 0x8000_0000, u32::MAX];
    let pairs: Vec<u32> = (0..200u64)
        .map(|n| if n % 5 == 0 { edges[(noise(n) % 8) as usize] } else { noise(n) as u32 })
        .collect();
    let (input, output) = (device.put(&pairs), device.put(&vec![0u32; 1600]));
    device.run("ints", 1, 100, &[input, output]);
    let got = device.get::<u32>(output, 1600);
    for (n, pair) in pairs.chunks(2).enumerate() {
        let (a, b) = (pair[0], pair[1]);
        let l = u64::from(a) << 32 | u64::from(b);
        let selector = 0x5140 ^ (a & 7);
        let byte = |i: u32| l.rotate_left(32) >> (8 * (selector >> (4 * i) & 7)) & 0xff;
        let permuted = (0..4).fold(0, |word, i| word | byte(i) << (8 * i));
        let wanted = [
            ((u64::from(a) * u64::from(b)) >> 32) as u32,
            ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32,
            permuted as u32,
            ((u64::from(b) << 32 | u64::from(a)) << (a & 31) >> 32) as u32,
            ((u64::from(b) << 32 | u64::from(a)) >> 7) as u32,
            a.checked_div(b).unwrap_or(0),
            if b == 0 { 0 } else { (a as i32).wrapping_rem(b as i32) as u32 },
            (l / u64::from(a | 1)) as u32,
            (l as i64).wrapping_rem(i64::from((b | 1) as i32)) as u32,
            a.abs_diff(b).wrapping_add(3),
            (a & b) | (!a & 0xf0f0_f0f0) | (b ^ 77),
            l.leading_zeros() + l.count_ones(),
            (a as i16 as u32).wrapping_add(b as i8 as u32),
            ((a as i32).min(b as i32) as u32) ^ a.max(b),
            a >> 5 & 0x1ff,
            ((u128::from(l) * u128::from(l)) >> 64) as u32,
        ];
        assert_eq!(got[16 * n..16 * n + 16], wanted, "of {a:#x} {b:#x}");
    }
}

/// What a rounding in one direction may give: at most one step from the nearest, on the right side.
fn rounded(got: f32, exact: f64, up: bool) -> bool {
    let good = if up { f64::from(got) >= exact } else { f64::from(got) <= exact };
    let next = if up { got.next_down() } else { got.next_up() };
    good && (f64::from(got) == exact || if up { f64::from(next) < exact } else { f64::from(next) > exact })
}

#[test]
fn instructions_of_floats() {
    let mut device = Device::new(MATH);
    let pairs = floats(200);
    let (input, output) = (device.put(&pairs), device.put(&vec![0f32; 1600]));
    device.run("floats", 1, 100, &[input, output]);
    let got = device.get::<f32>(output, 1600);
    for (n, pair) in pairs.chunks(2).enumerate() {
        let (a, b, o) = (pair[0], pair[1], &got[16 * n..16 * n + 16]);
        let (x, y) = (f64::from(a), f64::from(b));
        assert!(rounded(o[0], x + y, true), "{a} + {b} = {}", o[0]);
        let towards = |got, exact: f64| rounded(got, exact, exact < 0.0);
        assert!(towards(o[1], x * y), "{a} * {b} = {}", o[1]);
        assert!(rounded(o[2], x / y, false), "{a} / {b} = {}", o[2]);
        assert!(rounded(o[3], x.abs().sqrt(), true), "sqrt {a} = {}", o[3]);
        assert!(rounded(o[4], x * y + x, false), "fma {a} {b} = {}", o[4]);
        assert_eq!(o[5], a.min(b) + a.max(1.0));
        assert_eq!(o[6], a.round_ties_even() + b.floor() + a.ceil() + b.trunc());
        assert_eq!(o[7], a.floor() + b.abs().trunc());
        assert_eq!(o[8], a.clamp(0.0, 1.0));
        assert!(rounded(o[9], x * 1.1, true));
        assert_eq!(o[10], 1.0 / a);
        let near = |got: f32, wanted: f64| (f64::from(got) - wanted).abs() <= 1e-5 * (1.0 + wanted.abs());
        assert!(near(o[11], (x * 0.01).sin() + (y * 0.01).cos()), "{} {a} {b}", o[11]);
        assert!(near(o[12], (x.abs() * 0.01).exp2() + (y.abs() + 1.0).log2()), "{} {a} {b}", o[12]);
        assert!(near(o[13], x.sin()), "sin {a} = {}", o[13]);
        assert_eq!(o[14], (x.abs() / 3.0) as f32);
        assert_eq!(o[15], a.copysign(b));
    }
}

fn half(value: f32) -> u16 {
    // only for values that are halves exactly
    let bits = value.to_bits();
    let sign = bits >> 16 & 0x8000;
    if bits << 1 == 0 { sign as u16 } else { (sign | ((bits >> 13 & 0x3ffff) - (112 << 10)) & 0x7fff) as u16 }
}

#[test]
fn pairs_of_halves() {
    let mut device = Device::new(MATH);
    // small integers: every result is exact
    let values = |from: u64| (0..64).map(|n| (noise(n + from) % 33) as f32 - 16.0).collect::<Vec<_>>();
    let (a, b) = (values(0), values(1000));
    let halves = |v: &[f32]| v.iter().map(|v| half(*v)).collect::<Vec<u16>>();
    let (at_a, at_b) = (device.put(&halves(&a)), device.put(&halves(&b)));
    let (out, wide) = (device.put(&[0u16; 64]), device.put(&[0f32; 32]));
    device.run("halves", 1, 32, &[at_a, at_b, out, wide]);
    let sums: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a * b + a + b).collect();
    let positive = |v: Vec<u16>| v.into_iter().map(|h| if h == 0x8000 { 0 } else { h }).collect::<Vec<_>>();
    assert_eq!(positive(device.get::<u16>(out, 64)), positive(halves(&sums)));
    let wanted: Vec<f32> = (0..32).map(|n| sums[2 * n] + a[2 * n + 1] * b[2 * n + 1]).collect();
    assert_eq!(device.get::<f32>(wide, 32), wanted);
}

#[test]
fn what_is_compiled_for_a_debugger() {
    let mut device = Device::new(DEBUG);
    let out = device.put(&[0u64; 40]);
    device.run("fibonacci", 1, 32, &[out, 40]);
    let (mut a, mut b) = (0u64, 1u64);
    let wanted: Vec<u64> = (0..40)
        .map(|_| {
            (a, b) = (b, a + b);
            b
        })
        .collect();
    assert_eq!(device.get::<u64>(out, 40), wanted);
}
