//! Work for several threads, each with scratch of its own.

use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

/// Does each task once, on up to `num_lanes` threads; each lane takes the next
/// task when it is done with one, and has an equal part of `workspace`.
///
/// Which lane does a task is left to chance, so a task's result must not depend
/// on what lies in its scratch.
pub(super) fn run<T: Send>(
    tasks: Vec<T>,
    workspace: &mut [f32],
    num_lanes: usize,
    work: impl Fn(T, &mut [f32]) + Sync,
) {
    let lane_len = workspace.len() / num_lanes;
    let num_lanes = num_lanes.min(tasks.len());
    let queue = Mutex::new(tasks.into_iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    lanes(workspace, lane_len, num_lanes)
        .into_par_iter()
        .with_max_len(1)
        .for_each(|scratch| {
            while let Some(task) = next() {
                work(task, scratch);
            }
        });
}

fn lanes(mut workspace: &mut [f32], lane_len: usize, num_lanes: usize) -> Vec<&mut [f32]> {
    let mut lanes = Vec::with_capacity(num_lanes);
    for _ in 0..num_lanes {
        let (lane, rest) = workspace.split_at_mut(lane_len);
        lanes.push(lane);
        workspace = rest;
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_done_once_with_a_lane_of_its_own() {
        for (num_tasks, num_lanes) in [(0, 1), (1, 3), (5, 2), (40, 3)] {
            let mut done = vec![0; num_tasks];
            let tasks: Vec<_> = done.iter_mut().collect();
            let mut workspace = vec![0.0; 8 * num_lanes];
            run(tasks, &mut workspace, num_lanes, |task, scratch| {
                assert_eq!(scratch.len(), 8);
                *task += 1;
                scratch[0] += 1.0;
            });
            assert_eq!(done, vec![1; num_tasks]);
            let taken: f32 = workspace.iter().sum();
            assert!((taken - num_tasks as f32).abs() < 0.5);
        }
    }
}
