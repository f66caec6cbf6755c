//! The collectives: results, failures and mismatches at every small world size.
#![expect(clippy::unwrap_used, reason = "in a test a failure may panic")]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use comm::{CommError, ProcessGroup, RankFailure, ReduceOp, Threads, WindowLayout, run_threads};

const MAX_WORLD_SIZE: usize = 8;
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

/// Runs `rank_main` at every world size; no rank may fail.
#[track_caller]
fn every_world<T: Send>(
    rank_main: impl Fn(&ProcessGroup) -> Result<T, CommError> + Sync,
    check: impl Fn(usize, Vec<T>),
) {
    for world_size in 1..=MAX_WORLD_SIZE {
        let results = run_threads(threads(world_size), |group| rank_main(&group));
        check(world_size, results.unwrap());
    }
}

/// Numbers whose sum depends on the order of adding.
fn number(rank: usize, index: usize) -> f32 {
    let mixed = (rank * 7919 + index * 104_729) % 1009;
    (mixed as f32 - 504.0) * 1.1_f32.powi(i32::try_from(mixed % 60).unwrap())
}

fn contribution(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|index| number(rank, index)).collect()
}

/// Uneven ranges, some empty, that tile `len`.
fn ranges(world_size: usize, len: usize) -> Vec<Range<usize>> {
    let boundary = |rank: usize| len * rank * rank / (world_size * world_size);
    let mut ranges: Vec<_> = (0..world_size)
        .map(|rank| boundary(rank)..boundary(rank + 1))
        .collect();
    ranges[world_size - 1].end = len;
    ranges
}

#[test]
fn all_gather_gives_every_rank_all_bytes_in_rank_order() {
    every_world(
        |group| {
            let rank = group.world().rank();
            group.all_gather(&vec![u8::try_from(rank).unwrap(); rank], "lengths differ")
        },
        |world_size, results| {
            for gathered in results {
                assert_eq!(gathered.len(), world_size);
                for (rank, bytes) in gathered.iter().enumerate() {
                    assert_eq!(bytes, &vec![u8::try_from(rank).unwrap(); rank]);
                }
            }
        },
    );
}

#[test]
fn broadcast_gives_every_rank_the_bytes_of_the_root() {
    every_world(
        |group| {
            let world = group.world();
            let mut seen = Vec::new();
            for root in 0..world.world_size() {
                let mut bytes = format!("from {}", world.rank()).into_bytes();
                group.broadcast(&mut bytes, root, "who")?;
                seen.push(String::from_utf8(bytes).unwrap());
            }
            Ok(seen)
        },
        |world_size, results| {
            let expected: Vec<_> = (0..world_size).map(|root| format!("from {root}")).collect();
            assert!(results.iter().all(|seen| *seen == expected));
        },
    );
}

#[test]
fn a_root_outside_the_world_is_refused() {
    every_world(
        |group| Ok(group.broadcast(&mut Vec::new(), 99, "nobody").is_err()),
        |_, results| assert!(results.into_iter().all(|refused| refused)),
    );
}

#[test]
fn all_reduce_sums_in_rank_order_with_the_same_bits_everywhere() {
    every_world(
        |group| {
            let rank = group.world().rank();
            let mut sums: Vec<f64> = (0..50)
                .map(|index| f64::from(number(rank, index)) / 3.0)
                .collect();
            group.all_reduce_f64(&mut sums, ReduceOp::Sum, "sums")?;
            Ok(sums)
        },
        |world_size, results| {
            for sums in results {
                for (index, sum) in sums.into_iter().enumerate() {
                    let numbers = (0..world_size).map(|rank| f64::from(number(rank, index)) / 3.0);
                    let expected = numbers.reduce(|a, b| a + b).unwrap();
                    assert_eq!(sum.to_bits(), expected.to_bits());
                }
            }
        },
    );
}

#[test]
fn a_maximum_passes_nan_on() {
    every_world(
        |group| {
            let rank = group.world().rank();
            let mut largest = [rank as f64, if rank == 0 { f64::NAN } else { 1.0 }];
            group.all_reduce_f64(&mut largest, ReduceOp::Max, "largest")?;
            Ok(largest)
        },
        |world_size, results| {
            for largest in results {
                assert_eq!(largest[0].to_bits(), ((world_size - 1) as f64).to_bits());
                assert!(largest[1].is_nan());
            }
        },
    );
}

#[test]
fn integers_are_summed_and_compared() {
    every_world(
        |group| {
            let mine = group.world().rank() as u64 + 1;
            let mut sum = [mine, u64::MAX];
            let mut wrapped = [u64::MAX];
            let mut max = [mine];
            group.all_reduce_u64(&mut sum, ReduceOp::Sum, "sum")?;
            group.all_reduce_u64(&mut wrapped, ReduceOp::WrappingSum, "wrapped")?;
            group.all_reduce_u64(&mut max, ReduceOp::Max, "max")?;
            Ok((sum, wrapped[0], max[0]))
        },
        |world_size, results| {
            let n = world_size as u64;
            for (sum, wrapped, max) in results {
                assert_eq!((sum, max), ([n * (n + 1) / 2, u64::MAX], n));
                assert_eq!(wrapped, n.wrapping_neg());
            }
        },
    );
}

#[test]
fn reduce_scatter_sums_in_rank_order_at_every_length() {
    for len in [0, 1, 5, 100, 4096, 9001] {
        every_world(
            |group| {
                let world = group.world();
                let ranges = ranges(world.world_size(), len);
                let mut out = vec![f32::NAN; ranges[world.rank()].len()];
                let mine = contribution(world.rank(), len);
                group.reduce_scatter_f32(Some(&mine), &ranges, &mut out, "gradient")?;
                Ok(out)
            },
            |world_size, results| {
                let sums: Vec<f32> = (0..len)
                    .map(|index| {
                        (0..world_size)
                            .map(|rank| number(rank, index))
                            .reduce(|a, b| a + b)
                            .unwrap()
                    })
                    .collect();
                assert_eq!(results.concat(), sums);
            },
        );
    }
}

#[test]
fn scatter_hands_every_rank_its_range_of_the_root_s_bytes() {
    const LEN: usize = 1000;
    every_world(
        |group| {
            let world = group.world();
            let (rank, root) = (world.rank(), world.world_size() / 2);
            let bytes: Vec<u8> = (0..LEN).map(|at| at.to_le_bytes()[0]).collect();
            let lent = if rank == root { &bytes[..] } else { &[] };
            let ranges = ranges(world.world_size(), LEN);
            group.scatter(lent, root, &ranges, "piece", <[u8]>::to_vec)
        },
        |world_size, results| {
            for (range, found) in ranges(world_size, LEN).into_iter().zip(results) {
                let expected: Vec<u8> = range.map(|at| at.to_le_bytes()[0]).collect();
                assert_eq!(found, expected);
            }
        },
    );
}

#[test]
fn a_root_that_lends_too_little_is_refused() {
    let failure = run_threads(threads(2), |group| {
        let bytes = [0_u8; 3];
        let lent = if group.world().rank() == 0 {
            &bytes[..]
        } else {
            &[]
        };
        group.scatter(lent, 0, &[0..2, 2..4], "piece", |_| ())
    });
    let Err(RankFailure::Failed { rank: 0, source }) = failure else {
        panic!("{failure:?}");
    };
    let message = source.to_string();
    assert!(message.contains("what the root lends"), "{message}");
}

#[test]
fn a_rank_without_tokens_contributes_zeros() {
    let len = 777;
    every_world(
        |group| {
            let world = group.world();
            let ranges = ranges(world.world_size(), len);
            let mut out = vec![f32::NAN; ranges[world.rank()].len()];
            let mine = contribution(world.rank(), len);
            let mine = world.rank().is_multiple_of(2).then_some(&mine[..]);
            group.reduce_scatter_f32(mine, &ranges, &mut out, "half of them")?;
            let mut nothing = vec![f32::NAN; out.len()];
            group.reduce_scatter_f32(None, &ranges, &mut nothing, "none of them")?;
            assert!(nothing.iter().all(|&zero| zero == 0.0));
            Ok(out)
        },
        |world_size, results| {
            let sum = |index| {
                (0..world_size)
                    .step_by(2)
                    .map(|rank| number(rank, index))
                    .reduce(|a, b| a + b)
            };
            let sums: Vec<f32> = (0..len).map(|index| sum(index).unwrap()).collect();
            assert_eq!(results.concat(), sums);
        },
    );
}

#[test]
fn sizes_that_do_not_fit_are_refused_by_name() {
    every_world(
        |group| {
            let world = group.world();
            let ranges = vec![0..3; world.world_size()];
            let refused =
                group.reduce_scatter_f32(Some(&[0.0; 2]), &ranges, &mut [0.0; 3], "short");
            assert!(matches!(
                refused,
                Err(CommError::SizeMismatch {
                    expected: 3,
                    found: 2,
                    ..
                })
            ));
            let refused = group.reduce_scatter_f32(None, &ranges, &mut [0.0; 4], "long");
            assert!(matches!(
                refused,
                Err(CommError::SizeMismatch {
                    what: "the output",
                    ..
                })
            ));
            let refused = group.reduce_scatter_f32(None, &[], &mut [], "nobody");
            assert!(matches!(refused, Err(CommError::SizeMismatch { .. })));
            let layout = WindowLayout {
                slots: vec![vec![1; world.world_size() + 1]],
            };
            assert!(matches!(
                group.window(&layout),
                Err(CommError::SizeMismatch { .. })
            ));
            Ok(())
        },
        |_, _| {},
    );
}

/// All calls that wait for peers, by name.
type Blocking = (&'static str, Call);

type Call = fn(&ProcessGroup) -> Result<(), CommError>;

fn blocking_calls() -> Vec<Blocking> {
    vec![
        ("barrier", |group| group.barrier("x")),
        ("all_gather", |group| group.all_gather(b"x", "x").map(drop)),
        ("broadcast", |group| group.broadcast(&mut vec![1], 0, "x")),
        ("all_reduce_f64", |group| {
            group.all_reduce_f64(&mut [1.0], ReduceOp::Sum, "x")
        }),
        ("all_reduce_u64", |group| {
            group.all_reduce_u64(&mut [1], ReduceOp::Max, "x")
        }),
        ("reduce_scatter_f32", |group| {
            let world = group.world();
            let mut ranges = vec![0..0; world.world_size()];
            ranges[world.rank()] = 0..0;
            group.reduce_scatter_f32(None, &ranges, &mut [], "x")
        }),
        ("window", |group| {
            group.window(&WindowLayout::default()).map(drop)
        }),
    ]
}

#[test]
fn a_rank_that_dies_ends_every_call_of_the_others_with_its_error() {
    for (name, call) in blocking_calls() {
        for world_size in 2..=4 {
            for victim in 0..world_size {
                let start = Instant::now();
                let failure = run_threads(threads(world_size), |group| {
                    group.barrier("start").map_err(|error| error.to_string())?;
                    if group.world().rank() == victim {
                        return Err(format!("the disk of rank {victim} is full"));
                    }
                    let noticed = call(&group).unwrap_err();
                    match &noticed {
                        CommError::PeerFailed { rank, .. } => assert_eq!(*rank, victim, "{name}"),
                        other => panic!("{name}: {other}"),
                    }
                    assert!(call(&group).is_err(), "nothing works after a failure");
                    Err::<(), _>(noticed.to_string())
                });
                match failure.unwrap_err() {
                    RankFailure::Failed { rank, source } => {
                        assert_eq!(rank, victim);
                        assert_eq!(source, format!("the disk of rank {victim} is full"));
                    }
                    other => panic!("{name}: {other}"),
                }
                assert!(start.elapsed() < PROMPT, "{name}");
            }
        }
    }
}

#[test]
fn a_panic_is_reported_with_its_rank_and_message() {
    let failure = run_threads(threads(3), |group| {
        assert!(group.world().rank() != 1, "an index was wrong");
        group.barrier("never").map_err(|error| error.to_string())
    });
    match failure.unwrap_err() {
        RankFailure::Panicked { rank, message } => {
            assert_eq!((rank, message.as_str()), (1, "an index was wrong"));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_rank_may_end_the_run_with_a_message() {
    let failure = run_threads(threads(2), |group| {
        if group.world().rank() == 1 {
            group.fail("interrupted");
            return Ok(());
        }
        match group.barrier("step") {
            Err(CommError::PeerFailed {
                collective,
                rank: 1,
                message,
            }) => {
                assert_eq!(collective, "barrier `step`");
                assert_eq!(message, "interrupted");
                Ok::<_, CommError>(())
            }
            other => panic!("{other:?}"),
        }
    });
    assert!(matches!(failure, Err(RankFailure::Ended { rank: 1, .. })));
}

#[test]
fn who_calls_something_else_is_told_at_once() {
    let calls = blocking_calls();
    for (here, (_, first)) in calls.iter().enumerate() {
        for (there, (_, second)) in calls.iter().enumerate() {
            let start = Instant::now();
            let failure = run_threads(threads(3), |group| {
                let call = if group.world().rank() == 2 {
                    second
                } else {
                    first
                };
                call(&group)
            });
            match failure {
                Ok(_) => assert_eq!(here, there),
                Err(RankFailure::Failed {
                    source:
                        CommError::Mismatch {
                            here: a, there: b, ..
                        },
                    ..
                }) => {
                    assert!(here != there && a != b, "{a} and {b}");
                }
                Err(other) => panic!("{other:?}"),
            }
            assert!(start.elapsed() < PROMPT);
        }
    }
}

#[test]
fn a_mismatch_does_not_wait_for_ranks_that_are_late() {
    let gave_up = Barrier::new(3);
    let failure = run_threads(threads(3), |group| {
        let outcome = match group.world().rank() {
            0 => group.barrier("a"),
            1 => group.barrier("b"),
            _ => Ok(()),
        };
        gave_up.wait();
        outcome
    });
    assert!(matches!(
        failure,
        Err(RankFailure::Failed {
            source: CommError::Mismatch { .. },
            ..
        })
    ));
}

#[test]
fn other_names_sizes_and_operations_are_mismatches() {
    let pairs: [[Call; 2]; 4] = [
        [|group| group.barrier("load"), |group| group.barrier("save")],
        [
            |group| group.all_reduce_f64(&mut [0.0; 2], ReduceOp::Sum, "loss"),
            |group| group.all_reduce_f64(&mut [0.0; 3], ReduceOp::Sum, "loss"),
        ],
        [
            |group| group.all_reduce_u64(&mut [0; 2], ReduceOp::Sum, "tokens"),
            |group| group.all_reduce_u64(&mut [0; 2], ReduceOp::Max, "tokens"),
        ],
        [
            |group| {
                group
                    .window(&WindowLayout {
                        slots: vec![vec![1, 2]],
                    })
                    .map(drop)
            },
            |group| {
                group
                    .window(&WindowLayout {
                        slots: vec![vec![2, 1]],
                    })
                    .map(drop)
            },
        ],
    ];
    for pair in pairs {
        let failure = run_threads(threads(2), |group| pair[group.world().rank()](&group));
        assert!(matches!(
            failure,
            Err(RankFailure::Failed {
                source: CommError::Mismatch { .. },
                ..
            })
        ));
    }
}

#[test]
fn a_deadline_names_the_call_and_who_is_missing() {
    let gave_up = Barrier::new(3);
    let failure = run_threads(threads(3), |group| {
        group.set_deadline(Duration::from_millis(30));
        let outcome = match group.world().rank() {
            1 => Ok(()),
            _ => group.barrier("step 7"),
        };
        gave_up.wait();
        outcome
    });
    match failure.unwrap_err() {
        RankFailure::Failed {
            source:
                CommError::Deadline {
                    collective,
                    missing,
                    rank,
                    ..
                },
            rank: failed,
        } => {
            assert_eq!(collective, "barrier `step 7`");
            assert!(missing.contains(&1), "{missing:?}");
            assert_eq!(rank, failed);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn threads_of_one_rank_take_turns() {
    let results = run_threads(threads(2), |group| {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        group.all_gather(b"four threads", "turns").unwrap();
                    }
                });
            }
        });
        Ok::<_, CommError>(())
    });
    assert_eq!(results.unwrap().len(), 2);
}
