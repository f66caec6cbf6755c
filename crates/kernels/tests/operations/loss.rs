//! Cross entropy over a vocabulary in buckets.

use kernels::{Arena, Cpu, IGNORED, RunningMax, Scalar};

use crate::agreement::{Case, Outputs, Under, agrees, narrow};
use crate::inputs::{Random, uneven_cuts};

/// A sum of up to 1000 exponentials in f32, each good to 2^-24 times its argument,
/// which is near 10 wherever the exponential is not next to nothing. Six times
/// the worst seen.
const TOLERANCE: f32 = 4e-6;

const SCALE: f32 = 0.37;

#[derive(Debug, Clone)]
struct CrossEntropy {
    vocabulary: usize,
    num_buckets: usize,
    targets: Vec<u32>,
    logits: Logits,
}

#[derive(Debug, Clone, Copy)]
enum Logits {
    Normal,
    /// All of one value.
    Equal,
    /// +80 or -80.
    Large,
    /// Rising with the row, so that each bucket moves the running maximum.
    Rising,
}

impl CrossEntropy {
    /// The logits of one bucket.
    fn bucket(&self, rows: std::ops::Range<usize>) -> Vec<f32> {
        let mut numbers = Vec::new();
        for token in 0..self.targets.len() {
            let mut random = Random::new(token as u64);
            let all = (0..self.vocabulary).map(|row| match self.logits {
                Logits::Normal => 3.0 * random.normal(),
                Logits::Equal => 2.5,
                Logits::Large => [80.0, -80.0][random.below(2)],
                Logits::Rising => row as f32 / 20.0,
            });
            numbers.extend(all.skip(rows.start).take(rows.len()));
        }
        numbers
    }
}

impl Case for CrossEntropy {
    fn run<D: Under>(&self, device: &D) -> Outputs {
        let targets = &self.targets[..];
        let t = targets.len();
        let mut running = RunningMax {
            max: device.empty(t),
            sum: device.empty(t),
            target: device.empty(t),
        };
        let buckets = uneven_cuts(self.vocabulary, self.num_buckets);
        for rows in &buckets {
            let logits = device.buffer(&self.bucket(rows.clone()));
            let first = rows.start == 0;
            device.cross_entropy(&logits, rows.start, targets, &mut running, first);
        }
        let loss = device.cross_entropy_loss(&running, targets);
        let mut outputs = vec![
            ("max", device.numbers(&running.max)),
            ("sum", device.numbers(&running.sum)),
            ("loss", vec![narrow(loss)]),
        ];
        for rows in &buckets {
            let mut logits = device.buffer(&self.bucket(rows.clone()));
            device.cross_entropy_backward(&mut logits, rows.start, targets, &running, SCALE);
            outputs.push(("dlogits", device.numbers(&logits)));
        }
        outputs
    }
}

#[test]
fn buckets_with_targets_in_each_agree() {
    for vocabulary in [4, 7, 64, 1000] {
        for num_buckets in 1..=4 {
            for t in [1, 9, 65] {
                let mut targets = Random::new(5).ids(t, vocabulary);
                // One in every bucket, where there are tokens enough.
                for (target, rows) in targets.iter_mut().zip(uneven_cuts(vocabulary, num_buckets)) {
                    *target = u32::try_from(rows.end - 1).expect("a small vocabulary");
                }
                let case = CrossEntropy {
                    vocabulary,
                    num_buckets,
                    targets,
                    logits: Logits::Normal,
                };
                agrees(&case, TOLERANCE);
            }
        }
    }
}

#[test]
fn ignored_targets_have_no_loss_and_no_gradient() {
    for targets in [vec![IGNORED; 3], vec![3, IGNORED, 0, IGNORED]] {
        let case = CrossEntropy {
            vocabulary: 10,
            num_buckets: 2,
            targets,
            logits: Logits::Normal,
        };
        agrees(&case, TOLERANCE);
        let outputs = case.run(&Scalar::<f32>::new());
        let gradients = &outputs.last().expect("a gradient for each bucket").1;
        let width = gradients.len() / case.targets.len();
        for (gradient, &target) in gradients.chunks(width).zip(&case.targets) {
            assert_eq!(target == IGNORED, gradient.iter().all(|&g| g == 0.0));
        }
    }
}

#[test]
fn equal_large_and_rising_logits_agree() {
    for logits in [Logits::Equal, Logits::Large, Logits::Rising] {
        for num_buckets in [1, 3] {
            let case = CrossEntropy {
                vocabulary: 133,
                num_buckets,
                targets: vec![0, 132, 50, IGNORED, 4],
                logits,
            };
            agrees(&case, TOLERANCE);
        }
    }
}

#[test]
fn a_logit_that_is_not_finite_makes_the_loss_not_finite() {
    fn check<D: Under>(device: &D, logit: f32, place: usize) {
        let mut logits = Random::new(11).normals(100);
        logits[place] = logit;
        let [max, sum, target] = [1; 3].map(|len| device.empty(len));
        let mut running = RunningMax { max, sum, target };
        device.cross_entropy(&device.buffer(&logits[..50]), 0, &[3], &mut running, true);
        device.cross_entropy(&device.buffer(&logits[50..]), 50, &[3], &mut running, false);
        let loss = device.cross_entropy_loss(&running, &[3]);
        assert!(!loss.is_finite(), "{logit} at {place} gives {loss}");
    }
    for logit in [f32::NAN, f32::INFINITY] {
        for place in [0, 3, 49, 50, 99] {
            check(&Scalar::<f32>::new(), logit, place);
            check(
                &Cpu::new(Arena::new(1 << 20).expect("address space"), 2),
                logit,
                place,
            );
        }
    }
}
