//! A rank holds what was planned, byte by byte.

use std::num::NonZeroUsize;

use data::{deal_rows, micro_batches};
use plan::{Job, Plan};
use tensor::{Account, Dtype};
use train::{ClipMode, Event, LedgerAccount, Recompute, Settings};

use crate::fixture::{Fixture, NUM_ROWS, Opened, Run, SEQ, settings, small};

/// What a rank holds beside its planned bytes: at most four staging buffers while
/// it loads or saves, or the tokens of a step.
const PASSING_BYTES: u64 = 4 * (3 << 19);

/// The plan of a run whose only step takes all rows.
pub(crate) fn plan(fixture: &Fixture, settings: &Settings) -> Plan {
    let opened = Opened::open(&fixture.model_path());
    let rows = (0..settings.ranks).map(|rank| {
        let own = deal_rows(0..NUM_ROWS, settings.ranks, rank);
        let batches = micro_batches(own, settings.micro_batch);
        let lens = batches.into_iter().map(Iterator::count);
        lens.collect()
    });
    Plan::new(&Job {
        model: &opened.model,
        precision: &settings.precision().unwrap(),
        world_size: NonZeroUsize::new(settings.ranks).unwrap(),
        num_threads: 1,
        seq: SEQ,
        steps: vec![rows.collect()],
        evals: Vec::new(),
        clip: settings.clip(0.0),
        logits_room_bytes: settings.logits_room << 20,
        activations_room_bytes: settings.activations_room_bytes(),
    })
}

/// The peak of an account, which is a whole number of bytes; 0 if it was never used.
fn peak_bytes(accounts: &[LedgerAccount], account: Account) -> u64 {
    let mut accounts = accounts.iter();
    let line = accounts.find(|line| line.name == account.name());
    let bytes = line.map_or(0.0, |line| line.peak_mib * f64::from(1 << 20));
    format!("{bytes}").parse().unwrap()
}

#[track_caller]
pub(crate) fn holds_what_was_planned(run: &Run, plan: &Plan) {
    let ledgers = run.events.iter().filter_map(|event| match event {
        Event::Ledger { rank, accounts, .. } => Some((*rank, accounts)),
        _ => None,
    });
    let ledgers: Vec<_> = ledgers.collect();
    assert_eq!(ledgers.len(), plan.ranks.len());
    for (rank, accounts) in ledgers {
        let (planned, outcome) = (&plan.ranks[rank], &run.outcome.ranks[rank]);
        for (account, bytes) in [
            (Account::Weights, planned.weights_bytes),
            (Account::Residuals, planned.residuals_bytes),
            (Account::Moments, planned.moments_bytes),
            (Account::Arena, planned.arena.capacity_bytes),
        ] {
            let found = peak_bytes(accounts, account);
            assert_eq!(found, bytes, "{account} of rank {rank}");
        }
        let (arena, used) = (outcome.arena_bytes, outcome.arena_used_bytes);
        assert_eq!(arena, planned.arena.capacity_bytes);
        assert!(
            used * 100 >= arena * 95,
            "rank {rank} used {used} of {arena}"
        );
        assert!(used <= arena);
        let planned_bytes = planned.resident_bytes() + arena;
        let passing = planned_bytes..=planned_bytes + PASSING_BYTES;
        assert!(
            passing.contains(&outcome.reserved_peak_bytes),
            "rank {rank}"
        );
    }
}

#[test]
fn every_ranks_reservations_are_the_plans_and_its_arena_is_used() {
    for tied in [true, false] {
        let fixture = Fixture::new(&small(tied), Dtype::BF16);
        let rows = fixture.seven_rows();
        for ranks in [1, 2, 3, 8] {
            for (recipe, clip, micro_batch) in [
                ("f32", ClipMode::Off, 4),
                ("bf16", ClipMode::Exact, 2),
                ("bf16", ClipMode::Previous, 7),
                ("bf16-lean", ClipMode::Off, 4),
                ("fp8", ClipMode::Exact, 4),
                ("fp8-lean", ClipMode::Previous, 2),
            ] {
                let recompute = if micro_batch == 2 {
                    Recompute::None
                } else {
                    Recompute::Full
                };
                let settings = Settings {
                    steps: Some(2),
                    recompute,
                    recipe: recipe.to_owned(),
                    clip,
                    ranks,
                    micro_batch,
                    ..settings()
                };
                let run = fixture.train(&settings, &rows);
                holds_what_was_planned(&run, &plan(&fixture, &settings));
            }
        }
    }
}

#[test]
fn a_second_step_takes_no_more_than_the_first() {
    let fixture = Fixture::new(&small(true), Dtype::BF16);
    let rows = fixture.seven_rows();
    let used = |steps| {
        let settings = Settings {
            steps: Some(steps),
            clip: ClipMode::Exact,
            ranks: 2,
            ..settings()
        };
        let ranks = fixture.train(&settings, &rows).outcome.ranks;
        let bytes = ranks
            .iter()
            .map(|rank| (rank.arena_used_bytes, rank.reserved_peak_bytes));
        bytes.collect::<Vec<_>>()
    };
    assert_eq!(used(1), used(4));
}
