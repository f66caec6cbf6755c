//! What holds for every number of rows, batch, world and seed.

use data::{BatchPlan, Order, deal_rows, micro_batches};
use proptest::prelude::*;

proptest! {
    #[test]
    fn an_order_is_a_permutation(num_rows in 1_u64..3000, seed: u64, epoch in 0_u64..1000) {
        let order = Order::new(num_rows, seed);
        let mut rows: Vec<u64> = (0..num_rows).map(|at| order.row_of(epoch, at)).collect();
        rows.sort_unstable();
        prop_assert!(rows.into_iter().eq(0..num_rows));
    }

    /// Walking an epoch step by step, rank by rank and micro-batch by
    /// micro-batch visits the same rows in the same order at every world size.
    #[test]
    fn an_epoch_is_the_same_at_every_world_size(
        num_rows in 1_u64..200,
        global_batch in 1_u64..40,
        micro_batch in 1_usize..9,
        seed: u64,
    ) {
        let order = Order::new(num_rows, seed);
        let plan = BatchPlan::new(num_rows, global_batch).unwrap();
        let visit = |world_size: usize| {
            let mut visited = Vec::new();
            for step in plan.steps_per_epoch()..2 * plan.steps_per_epoch() {
                let step = plan.step(step);
                for rank in 0..world_size {
                    let rows = deal_rows(step.positions.clone(), world_size, rank);
                    for positions in micro_batches(rows, micro_batch) {
                        visited.extend(positions.map(|at| order.row_of(step.epoch, at)));
                    }
                }
            }
            visited
        };
        let one = visit(1);
        prop_assert_eq!(one.len() as u64, num_rows);
        for world_size in [2, 3, 4, 7, 8] {
            prop_assert_eq!(&visit(world_size), &one);
        }
    }
}
