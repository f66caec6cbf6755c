//! What it takes to gather and to reduce 64 MiB over the ranks of a host, beside one
//! copy of as many bytes.
//!
//! ```text
//! cargo bench -p comm --bench collectives -- [NUM_RANKS]
//! ```
//!
//! Every rank works on one thread. The time of a round is that of its slowest rank;
//! medians of all rounds in milliseconds, as a line of JSON.
#![expect(clippy::print_stdout, reason = "figures are what a bench is for")]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::time::{Duration, Instant};

use comm::{CommError, ProcessGroup, Threads, Window, WindowLayout, run_threads};

const NUM_BYTES: usize = 64 << 20;
const NUM_FLOATS: usize = NUM_BYTES / size_of::<f32>();
const NUM_ROUNDS: usize = 21;

fn main() {
    let num_ranks = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let num_ranks = num_ranks.unwrap_or(const { NonZeroUsize::new(2).expect("two") });
    let rounds = run_threads(Threads::of(num_ranks), |group| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
        pool.expect("a thread").install(|| measure(&group))
    });
    let rounds = rounds.expect("no rank fails");
    let names = [
        "memcpy",
        "unshard in place",
        "unshard, copied",
        "reduce_scatter",
    ];
    let figures = names.iter().enumerate().map(|(case, name)| {
        let slowest = (0..NUM_ROUNDS).map(|round| {
            let ranks = rounds.iter().map(|rank| rank[round][case]);
            ranks.max().expect("there are ranks")
        });
        let mut slowest: Vec<Duration> = slowest.collect();
        slowest.sort();
        let median = slowest[NUM_ROUNDS / 2].as_secs_f64() * 1e3;
        format!("\"{name}\": {median:.4}")
    });
    println!("{{{}}}", figures.collect::<Vec<_>>().join(", "));
}

/// A rank's times of every round.
fn measure(group: &ProcessGroup) -> Result<Vec<[Duration; 4]>, CommError> {
    let world_size = group.world().world_size();
    let part_bytes = NUM_BYTES / world_size;
    let window = group.window(&WindowLayout {
        slots: vec![vec![part_bytes; world_size]],
    })?;
    window.own_mut(0)?.fill(1);
    let contribution = vec![1.0_f32; NUM_FLOATS];
    let ranges: Vec<Range<usize>> = (0..world_size)
        .map(|rank| rank * NUM_FLOATS / world_size..(rank + 1) * NUM_FLOATS / world_size)
        .collect();
    let mut sum = vec![0.0; ranges[group.world().rank()].len()];
    let (from, mut to) = (vec![1_u8; NUM_BYTES], vec![0_u8; NUM_BYTES]);
    let rounds = (0..NUM_ROUNDS).map(|_| {
        let memcpy = timed(group, || {
            to.copy_from_slice(&from);
            Ok(())
        })?;
        let in_place = timed(group, || publish_and_unshard(&window, world_size, &mut []))?;
        let copied = timed(group, || publish_and_unshard(&window, world_size, &mut to))?;
        let reduced = timed(group, || {
            group.reduce_scatter_f32(Some(&contribution), &ranges, &mut sum, "bench")
        })?;
        Ok([memcpy, in_place, copied, reduced])
    });
    rounds.collect()
}

/// A new generation of every part, and all parts as they lie, or in `out` if it has
/// room for them.
fn publish_and_unshard(
    window: &Window,
    world_size: usize,
    out: &mut [u8],
) -> Result<(), CommError> {
    drop(window.own_mut(0)?);
    let unsharded = window.unshard(0)?;
    let parts = (0..world_size).map(|rank| unsharded.part(rank));
    for (out, part) in out.chunks_mut(NUM_BYTES / world_size).zip(parts) {
        out.copy_from_slice(part);
    }
    Ok(())
}

fn timed(
    group: &ProcessGroup,
    act: impl FnOnce() -> Result<(), CommError>,
) -> Result<Duration, CommError> {
    group.barrier("begin")?;
    let start = Instant::now();
    act()?;
    Ok(start.elapsed())
}
