//! The learning rate of each step.
//!
//! With `k` the step's number from 1, `w` warm-up steps and `n` steps in all:
//!
//! ```text
//! k <= w   lr k / w
//! k >  w   lr f((k - 1 - w) / (n - w))     cosine: f(p) = (1 + cos(pi p)) / 2
//!                                          linear: f(p) = 1 - p      constant: 1
//! ```
//!
//! So the last step still learns, and no step has rate 0 (a warm-up that begins
//! with 0 wastes its first step).

use crate::{ScheduleKind, Settings};

/// The learning rate as a function of the step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRate {
    peak: f64,
    kind: ScheduleKind,
    warmup: u64,
    num_steps: u64,
}

impl LearningRate {
    /// The schedule of a run of `num_steps`.
    pub fn new(settings: &Settings, num_steps: u64) -> Self {
        Self {
            peak: settings.lr,
            kind: settings.schedule,
            warmup: settings.warmup,
            num_steps,
        }
    }

    /// The rate of a step, counted from 1.
    pub fn at(&self, step: u64) -> f64 {
        if step <= self.warmup {
            return self.peak * step as f64 / self.warmup as f64;
        }
        let after = self.num_steps.saturating_sub(self.warmup).max(1);
        let progress = (step - 1 - self.warmup) as f64 / after as f64;
        let factor = match self.kind {
            ScheduleKind::Cosine => f64::midpoint(1.0, (std::f64::consts::PI * progress).cos()),
            ScheduleKind::Linear => 1.0 - progress,
            ScheduleKind::Constant => 1.0,
        };
        self.peak * factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(kind: ScheduleKind, warmup: u64, num_steps: u64) -> Vec<f64> {
        let settings = Settings {
            lr: 1.0,
            schedule: kind,
            warmup,
            ..Settings::default()
        };
        let schedule = LearningRate::new(&settings, num_steps);
        (1..=num_steps).map(|step| schedule.at(step)).collect()
    }

    #[test]
    fn warm_up_rises_to_the_peak_and_a_line_falls_from_it() {
        assert_eq!(
            rates(ScheduleKind::Linear, 2, 6),
            [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
        );
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "the cosine of 0 is exact")]
    fn a_cosine_is_half_way_down_in_the_middle() {
        let rates = rates(ScheduleKind::Cosine, 0, 4);
        assert_eq!(rates[0], 1.0);
        assert!((rates[2] - 0.5).abs() < 1e-15);
        assert!(rates[3] > 0.0);
    }

    #[test]
    fn a_run_shorter_than_its_warm_up_only_rises() {
        assert_eq!(rates(ScheduleKind::Constant, 4, 2), [0.25, 0.5]);
    }
}
