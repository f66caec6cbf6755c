//! The window: generations hold under any schedule, and nobody waits in vain.
#![expect(clippy::unwrap_used, reason = "in a test a failure may panic")]

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use comm::{CommError, RankFailure, Threads, Window, WindowLayout, run_threads};

/// Longer than any test may take: who needs it, hangs.
const LONG: Duration = Duration::from_mins(1);
/// How soon the others must notice a failure.
const PROMPT: Duration = Duration::from_secs(20);

fn threads(world_size: usize) -> Threads {
    Threads {
        deadline: LONG,
        ..Threads::of(NonZeroUsize::new(world_size).unwrap())
    }
}

/// A small generator of schedules: the same seed, the same schedule.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % limit).unwrap()
    }
}

fn stamp(slot: usize, rank: usize, generation: usize) -> u8 {
    u8::try_from((slot * 31 + rank * 7 + generation * 13) % 251).unwrap()
}

fn layout(random: &mut Random, world_size: usize) -> WindowLayout {
    let num_slots = 1 + random.below(4);
    let mut ranks = || (0..world_size).map(|_| random.below(200)).collect();
    WindowLayout {
        slots: (0..num_slots).map(|_| ranks()).collect(),
    }
}

/// Writes the next generation of a slot, with pauses anywhere.
fn write(
    window: &Window,
    random: &mut Random,
    slot: usize,
    rank: usize,
    generation: usize,
) -> Result<(), CommError> {
    let mut own = window.own_mut(slot)?;
    for byte in own.iter_mut() {
        *byte = stamp(slot, rank, generation);
        if random.below(40) == 0 {
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// Reads all parts of a slot twice; they must be of `generation` both times.
fn read(
    window: &Window,
    random: &mut Random,
    slot: usize,
    world_size: usize,
    generation: usize,
) -> Result<(), CommError> {
    let unsharded = window.unshard(slot)?;
    for _ in 0..2 {
        for rank in 0..world_size {
            let expected = if generation == 0 {
                0
            } else {
                stamp(slot, rank, generation)
            };
            let part = unsharded.part(rank);
            assert_eq!(part.len(), window.part_bytes(slot, rank));
            assert!(
                part.iter().all(|&byte| byte == expected),
                "a part of another generation"
            );
        }
        if random.below(3) == 0 {
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// Every rank goes its own way through the slots, as long as each rank writes
/// the slots in the same order.
fn random_schedule(seed: u64) {
    let mut random = Random(seed);
    let world_size = 1 + random.below(8);
    let layout = layout(&mut random, world_size);
    let num_slots = layout.slots.len();
    let writes: Vec<usize> = (0..random.below(12))
        .map(|_| random.below(num_slots as u64))
        .collect();
    run_threads(threads(world_size), |group| {
        let rank = group.world().rank();
        let mut random = Random(seed ^ (rank as u64 + 1) << 40);
        let window = group.window(&layout)?;
        let mut generations = vec![0; num_slots];
        for &slot in &writes {
            for _ in 0..random.below(3) {
                let slot = random.below(num_slots as u64);
                read(&window, &mut random, slot, world_size, generations[slot])?;
            }
            generations[slot] += 1;
            write(&window, &mut random, slot, rank, generations[slot])?;
        }
        for (slot, &generation) in generations.iter().enumerate() {
            read(&window, &mut random, slot, world_size, generation)?;
            let expected = if generation == 0 {
                0
            } else {
                stamp(slot, rank, generation)
            };
            assert!(window.own(slot)?.iter().all(|&byte| byte == expected));
        }
        Ok::<_, CommError>(())
    })
    .unwrap();
}

#[test]
fn thousands_of_random_schedules_never_show_a_half_written_part() {
    for seed in 0..3000 {
        random_schedule(seed);
    }
}

#[test]
fn parts_are_aligned_and_lie_apart() {
    let layout = WindowLayout {
        slots: vec![vec![1, 65, 0], vec![64, 3, 129]],
    };
    run_threads(threads(3), |group| {
        let window = group.window(&layout)?;
        let mut ends = Vec::new();
        for slot in 0..2 {
            let unsharded = window.unshard(slot)?;
            for rank in 0..3 {
                let part = unsharded.part(rank).as_ptr_range();
                assert!(part.start.addr().is_multiple_of(64));
                ends.push(part);
            }
        }
        ends.sort_by_key(|part| part.start.addr());
        assert!(ends.windows(2).all(|pair| pair[0].end <= pair[1].start));
        Ok::<_, CommError>(())
    })
    .unwrap();
}

#[test]
fn a_rank_that_would_wait_for_itself_is_told_at_once() {
    let layout = WindowLayout {
        slots: vec![vec![4], vec![4]],
    };
    run_threads(threads(1), |group| {
        let window = group.window(&layout)?;
        let held = |result: Result<(), CommError>| {
            matches!(result, Err(CommError::SlotHeld { slot: 0, .. }))
        };
        {
            let _unsharded = window.unshard(0)?;
            assert!(held(window.own_mut(0).map(drop)));
            assert!(window.own(0).is_ok() && window.unshard(0).is_ok());
            assert!(window.own_mut(1).is_ok());
        }
        {
            let _own = window.own(0)?;
            assert!(held(window.own_mut(0).map(drop)));
        }
        let _own = window.own_mut(0)?;
        assert!(held(window.own_mut(0).map(drop)));
        assert!(held(window.unshard(0).map(drop)));
        assert!(held(window.own(0).map(drop)));
        assert!(matches!(
            window.own(2),
            Err(CommError::NoSuchSlot {
                slot: 2,
                num_slots: 2
            })
        ));
        Ok::<_, CommError>(())
    })
    .unwrap();
}

#[test]
fn windows_do_not_share_generations_or_memory() {
    let layout = WindowLayout {
        slots: vec![vec![8; 2]],
    };
    run_threads(threads(2), |group| {
        let first = group.window(&layout)?;
        let second = group.window(&layout)?;
        first.own_mut(0)?.fill(1);
        assert_eq!(second.unshard(0)?.part(0), [0; 8]);
        assert_eq!(first.unshard(0)?.part(1), [1; 8]);
        drop(first);
        assert_eq!(second.unshard(0)?.part(1), [0; 8]);
        Ok::<_, CommError>(())
    })
    .unwrap();
}

#[test]
fn a_rank_that_dies_ends_every_wait_on_a_slot() {
    let layout = WindowLayout {
        slots: vec![vec![16; 3]],
    };
    for victim in 0..3 {
        for waits_to_write in [false, true] {
            for dies_writing in [false, true] {
                let start = Instant::now();
                let failure = run_threads(threads(3), |group| {
                    let window = group.window(&layout).map_err(|error| error.to_string())?;
                    if group.world().rank() == victim {
                        if dies_writing {
                            let mut own = window.own_mut(0).map_err(|error| error.to_string())?;
                            own.fill(1);
                            panic!("out of ideas");
                        }
                        return Err("out of luck".to_owned());
                    }
                    // What dies writing has let the others in; the next wait fails.
                    let outcome = window.own_mut(0).map(drop).and_then(|()| {
                        if waits_to_write {
                            window.own_mut(0).map(drop)
                        } else {
                            window.unshard(0).map(drop)
                        }
                    });
                    match outcome {
                        Err(CommError::PeerFailed { rank, .. }) if rank == victim => Ok(()),
                        other => panic!("{other:?}"),
                    }
                });
                match failure.unwrap_err() {
                    RankFailure::Failed { rank, source } => {
                        assert_eq!((rank, source.as_str()), (victim, "out of luck"));
                    }
                    RankFailure::Panicked { rank, message } => {
                        assert_eq!((rank, message.as_str()), (victim, "out of ideas"));
                    }
                    other => panic!("{other:?}"),
                }
                assert!(start.elapsed() < PROMPT);
            }
        }
    }
}

#[test]
fn a_slot_that_a_rank_never_writes_is_a_deadline_that_names_it() {
    let layout = WindowLayout {
        slots: vec![vec![16; 2]],
    };
    let failure = run_threads(threads(2), |group| {
        let window = group.window(&layout)?;
        if group.world().rank() == 0 {
            group.set_deadline(Duration::from_millis(30));
            window.own_mut(0).map(drop)
        } else {
            group.barrier("elsewhere")
        }
    });
    match failure.unwrap_err() {
        RankFailure::Failed {
            rank: 0,
            source:
                CommError::Deadline {
                    collective,
                    missing,
                    ..
                },
        } => assert_eq!((collective.as_str(), missing), ("write of slot 0", vec![1])),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_window_costs_only_the_pages_that_are_written() {
    // 1 TiB of address space: more than any test machine has.
    let layout = WindowLayout {
        slots: vec![vec![1 << 40], vec![1 << 12]],
    };
    run_threads(threads(1), |group| {
        let window = group.window(&layout)?;
        window.own_mut(1)?.fill(7);
        assert_eq!(window.own(1)?[4095], 7);
        Ok::<_, CommError>(())
    })
    .unwrap();
}
