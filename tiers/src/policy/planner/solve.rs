//! Mean time to the end of an absorbing Markov chain: `(I - Q) x = t`, solved for the state where it begins.
//!
//! Elimination, state by state, in the form of Grassmann, Taksar and Heyman (1985) and Sheskin (1985): where Gauss
//! divides by `1 - q_ss`, this adds up what leaves `s`, which is the same number. Nothing is ever subtracted, so
//! nothing cancels: a probability of 1e-200 is as exact as one of a half, and no pivoting is needed (`I - Q` is an
//! M-matrix). Rows are sparse, and the order of the states keeps them so: see `chain`.
//!
//! Called by the planner alone. Pure. A chain that cannot end has no mean: none.

use std::mem;

/// A chain. Its states are eliminated in their order; `start` is left.
#[derive(Clone, Debug, Default)]
pub(super) struct Chain {
    /// Of each state: where it goes next, with which probability; each of them once.
    pub rows: Vec<Vec<(u32, f64)>>,
    /// The probability that it ends.
    pub ends: Vec<f64>,
    /// How long it is in that state, and how much of it is of a restart.
    pub times: Vec<[f64; 2]>,
    /// Where it begins.
    pub start: usize,
}

/// Means of a chain, from its start to its end.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Mean {
    /// All of it.
    pub time: f64,
    /// Of restarts.
    pub restarting: f64,
}

/// See the head of the file.
pub(super) fn mean(mut chain: Chain) -> Option<Mean> {
    let mut before: Vec<Vec<u32>> = vec![Vec::new(); chain.rows.len()];
    for (from, row) in (0_u32..).zip(&chain.rows) {
        row.iter().for_each(|(to, _)| before[*to as usize].push(from));
    }
    let mut is_gone = vec![false; chain.rows.len()];
    let start = chain.start;
    for state in (0..chain.rows.len()).filter(|state| *state != start) {
        is_gone[state] = true;
        eliminate(&mut chain, state, &mut before, &is_gone)?;
    }
    let Chain { rows, ends, times, .. } = chain;
    // What leads to the start again does not end.
    let others: f64 = rows[start].iter().filter(|(to, _)| *to as usize != start).map(|(_, part)| part).sum();
    let leaves = ends[start] + others;
    let [time, restarting] = times[start].map(|time| time / leaves);
    Some(Mean { time, restarting }).filter(|mean| mean.time.is_finite() && mean.restarting.is_finite())
}

/// What went to a state goes to where it leads, at once.
fn eliminate(chain: &mut Chain, state: usize, before: &mut [Vec<u32>], is_gone: &[bool]) -> Option<()> {
    let row = mem::take(&mut chain.rows[state]);
    let onward = || row.iter().filter(|(to, _)| *to as usize != state);
    let leaves: f64 = chain.ends[state] + onward().map(|(_, part)| part).sum::<f64>();
    let (ends, times) = (chain.ends[state], chain.times[state]);
    for from in mem::take(&mut before[state]) {
        let from_row = from as usize;
        if is_gone[from_row] {
            continue;
        }
        // It may be named twice.
        let Some(at) = chain.rows[from_row].iter().position(|(to, _)| *to as usize == state) else {
            continue;
        };
        if leaves <= 0.0 {
            return None;
        }
        let share = chain.rows[from_row].swap_remove(at).1 / leaves;
        chain.ends[from_row] += share * ends;
        chain.times[from_row].iter_mut().zip(times).for_each(|(sum, time)| *sum += share * time);
        for &(to, part) in onward() {
            match chain.rows[from_row].iter_mut().find(|(there, _)| *there == to) {
                Some((_, sum)) => *sum += share * part,
                None => {
                    chain.rows[from_row].push((to, share * part));
                    before[to as usize].push(from);
                }
            }
        }
    }
    Some(())
}

/// Of a time of this length: the probability that a failure comes in it, and its mean length up to that.
pub(super) fn until_failure(rate: f64, length: f64) -> (f64, f64) {
    let fails = -(-rate * length).exp_m1();
    // (1 - e^-x)/x goes to 1 - x/2 + x^2/6: below this the next term is less than a rounding.
    let x = rate * length;
    let mean = if x < 1e-5 { length * (1.0 - x / 2.0 + x * x / 6.0) } else { fails / rate };
    (fails, mean)
}
