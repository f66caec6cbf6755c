//! How the next token is chosen from its logits.

/// Greedy at temperature 0; else a draw from the softmax of the logits over the
/// temperature, among the `top_k` likeliest whose probabilities before them sum
/// to less than `top_p` (nucleus sampling, Holtzman et al. 2020).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 is all.
    pub top_k: usize,
    /// 1 is all.
    pub top_p: f32,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            seed: 0,
        }
    }
}

impl Sampling {
    /// The token to follow, `position` tokens into the sequence.
    pub(crate) fn choose(&self, logits: &[f32], position: usize) -> u32 {
        let chosen = if self.temperature > 0.0 {
            self.draw(logits, position)
        } else {
            argmax(logits)
        };
        u32::try_from(chosen).expect("a vocabulary is smaller than 2^32")
    }

    fn draw(&self, logits: &[f32], position: usize) -> usize {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        if self.top_k > 0 {
            order.truncate(self.top_k);
        }
        let largest = f64::from(logits[order[0]]);
        let temperature = f64::from(self.temperature);
        let weight = |token: &usize| ((f64::from(logits[*token]) - largest) / temperature).exp();
        let total: f64 = order.iter().map(weight).sum();
        let mut before = 0.0;
        order.retain(|token| {
            let keeps = before < f64::from(self.top_p) * total;
            before += weight(token);
            keeps
        });
        let kept: f64 = order.iter().map(weight).sum();
        let mut left = uniform(self.seed, position as u64) * kept;
        for token in &order {
            left -= weight(token);
            if left < 0.0 {
                return *token;
            }
        }
        order[order.len() - 1]
    }
}

fn argmax(logits: &[f32]) -> usize {
    // The first of equals, as other programs do.
    let best = logits
        .iter()
        .enumerate()
        .fold((0, f32::NEG_INFINITY), |best, (index, &logit)| {
            if logit > best.1 { (index, logit) } else { best }
        });
    best.0
}

/// A number in [0, 1) that depends on seed and position only: `SplitMix64`
/// (Steele, Lea & Flood 2014) at a counter.
fn uniform(seed: u64, position: u64) -> f64 {
    let mut bits = seed
        .wrapping_mul(0xd134_2543_de82_ef95)
        .wrapping_add((position + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [0.0, 3.0, 3.0, -1.0];

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        assert_eq!(Sampling::default().choose(&LOGITS, 0), 1);
    }

    #[test]
    fn a_draw_repeats_with_its_seed_and_stays_within_the_top() {
        let sampling = Sampling {
            temperature: 1.0,
            top_k: 2,
            top_p: 1.0,
            seed: 3,
        };
        let draws: Vec<u32> = (0..200).map(|at| sampling.choose(&LOGITS, at)).collect();
        assert_eq!(
            draws,
            (0..200)
                .map(|at| sampling.choose(&LOGITS, at))
                .collect::<Vec<_>>()
        );
        assert!(draws.iter().all(|&token| token == 1 || token == 2));
        assert!(draws.contains(&1) && draws.contains(&2));
    }

    #[test]
    fn a_small_nucleus_is_greedy() {
        let sampling = Sampling {
            temperature: 5.0,
            top_k: 0,
            top_p: 0.01,
            seed: 0,
        };
        assert!((0..50).all(|at| sampling.choose(&LOGITS, at) == 1));
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let sampling = Sampling {
            temperature: 1.0,
            ..Sampling::default()
        };
        let logits = [0.0, (3.0_f32).ln()];
        let ones = (0..4000)
            .filter(|&at| sampling.choose(&logits, at) == 1)
            .count();
        // 3/4 of 4000, five standard deviations of 27.
        assert!((2860..=3140).contains(&ones), "{ones}");
    }
}
