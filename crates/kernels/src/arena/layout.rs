//! Which offset a request gets, and what was held when: plain arithmetic.
//!
//! Best fit over the free ranges below the top, the lowest address among equals,
//! and only where none fits does the top rise. What lies above the top is not a
//! free range, so the capacity never changes where a buffer goes, only whether
//! the top may rise.

use std::collections::BTreeMap;

use super::{ArenaFull, Purpose, PurposePeak};

/// Every block begins at and fills a multiple of this: a cache line, and the
/// widest vector register.
const ALIGN_BYTES: usize = 64;

const NUM_PURPOSES: usize = Purpose::ALL.len();

/// A granted range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    /// Where it begins.
    pub(crate) offset_bytes: usize,
    /// What it fills, a multiple of the alignment.
    pub(crate) filled_bytes: usize,
    /// What for.
    pub(crate) purpose: Purpose,
}

/// The offsets of an arena.
#[derive(Debug)]
pub(crate) struct Layout {
    capacity_bytes: usize,
    /// Free ranges below the top: offset to length. Never two that touch, and
    /// none that touches the top.
    free: BTreeMap<usize, usize>,
    /// The end of the highest live block.
    top_bytes: usize,
    high_water_bytes: usize,
    held: [usize; NUM_PURPOSES],
    peaks: [usize; NUM_PURPOSES],
    live_bytes: usize,
    peak_live_bytes: usize,
    held_at_peak: [usize; NUM_PURPOSES],
}

impl Layout {
    /// Nothing held of `capacity_bytes`.
    pub(crate) fn new(capacity_bytes: usize) -> Self {
        Self {
            capacity_bytes,
            free: BTreeMap::new(),
            top_bytes: 0,
            high_water_bytes: 0,
            held: [0; NUM_PURPOSES],
            peaks: [0; NUM_PURPOSES],
            live_bytes: 0,
            peak_live_bytes: 0,
            held_at_peak: [0; NUM_PURPOSES],
        }
    }

    /// Nothing held, and no limit: for counting.
    pub(crate) fn unbounded() -> Self {
        Self::new(usize::MAX)
    }

    /// Grants a range of at least `bytes`.
    pub(crate) fn take(&mut self, bytes: usize, purpose: Purpose) -> Result<Placed, ArenaFull> {
        let full = ArenaFull {
            asked_bytes: bytes,
            held_bytes: self.live_bytes,
            capacity_bytes: self.capacity_bytes,
            purpose,
        };
        let filled_bytes = bytes.checked_next_multiple_of(ALIGN_BYTES).ok_or(full)?;
        let offset_bytes = match self.best_fit(filled_bytes) {
            Some(offset) => self.carve(offset, filled_bytes),
            None => self.raise_top(filled_bytes).ok_or(full)?,
        };
        self.count(filled_bytes, purpose);
        Ok(Placed {
            offset_bytes,
            filled_bytes,
            purpose,
        })
    }

    /// Takes a granted range back.
    pub(crate) fn give_back(&mut self, placed: &Placed) {
        self.held[placed.purpose as usize] -= placed.filled_bytes;
        self.live_bytes -= placed.filled_bytes;
        if placed.filled_bytes == 0 {
            return;
        }
        let mut start = placed.offset_bytes;
        let mut end = start + placed.filled_bytes;
        if let Some(len) = self.free.remove(&end) {
            end += len;
        }
        if let Some((&before, &len)) = self.free.range(..start).next_back()
            && before + len == start
        {
            self.free.remove(&before);
            start = before;
        }
        if end == self.top_bytes {
            self.top_bytes = start;
        } else {
            self.free.insert(start, end - start);
        }
    }

    /// The smallest free range that holds `bytes`, the lowest of equals.
    fn best_fit(&self, bytes: usize) -> Option<usize> {
        self.free
            .iter()
            .filter(|&(_, &len)| len >= bytes)
            .min_by_key(|&(&offset, &len)| (len, offset))
            .map(|(&offset, _)| offset)
    }

    /// Takes the front of the free range at `offset`.
    fn carve(&mut self, offset: usize, bytes: usize) -> usize {
        if bytes == 0 {
            return offset;
        }
        if let Some(len) = self.free.remove(&offset)
            && len > bytes
        {
            self.free.insert(offset + bytes, len - bytes);
        }
        offset
    }

    fn raise_top(&mut self, bytes: usize) -> Option<usize> {
        let offset = self.top_bytes;
        let top = offset.checked_add(bytes)?;
        if top > self.capacity_bytes {
            return None;
        }
        self.top_bytes = top;
        self.high_water_bytes = self.high_water_bytes.max(top);
        Some(offset)
    }

    fn count(&mut self, bytes: usize, purpose: Purpose) {
        let held = &mut self.held[purpose as usize];
        *held += bytes;
        let peak = &mut self.peaks[purpose as usize];
        *peak = (*peak).max(*held);
        self.live_bytes += bytes;
        if self.live_bytes > self.peak_live_bytes {
            self.peak_live_bytes = self.live_bytes;
            self.held_at_peak = self.held;
        }
    }

    pub(crate) fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    pub(crate) fn high_water_bytes(&self) -> usize {
        self.high_water_bytes
    }

    pub(crate) fn live_bytes(&self) -> usize {
        self.live_bytes
    }

    pub(crate) fn peak_live_bytes(&self) -> usize {
        self.peak_live_bytes
    }

    /// Bytes by purpose when most was held.
    pub(crate) fn held_at_peak(&self) -> Vec<PurposePeak> {
        lines(&self.held_at_peak)
    }

    /// The most of each purpose, each at its own moment.
    pub(crate) fn peak_by_purpose(&self) -> Vec<PurposePeak> {
        lines(&self.peaks)
    }
}

/// One line for each purpose that holds anything.
fn lines(bytes: &[usize; NUM_PURPOSES]) -> Vec<PurposePeak> {
    Purpose::ALL
        .into_iter()
        .zip(bytes)
        .filter(|&(_, &bytes)| bytes > 0)
        .map(|(purpose, &bytes)| PurposePeak { purpose, bytes })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One request, or the return of the live block that a number picks.
    #[derive(Debug, Clone)]
    enum Act {
        Take(usize, Purpose),
        GiveBack(usize),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let purpose = prop::sample::select(Purpose::ALL.to_vec());
        let act = prop_oneof![
            (0..5000_usize, purpose).prop_map(|(bytes, purpose)| Act::Take(bytes, purpose)),
            any::<usize>().prop_map(Act::GiveBack),
        ];
        prop::collection::vec(act, 0..200)
    }

    /// Does what fits, and gives every block that was granted, live or not.
    fn run(layout: &mut Layout, acts: &[Act]) -> (Vec<Placed>, Vec<Placed>) {
        let (mut granted, mut live) = (Vec::new(), Vec::new());
        for act in acts {
            match *act {
                Act::Take(bytes, purpose) => {
                    if let Ok(placed) = layout.take(bytes, purpose) {
                        assert_disjoint(&live, &placed);
                        granted.push(placed);
                        live.push(placed);
                    }
                }
                Act::GiveBack(pick) if !live.is_empty() => {
                    layout.give_back(&live.swap_remove(pick % live.len()));
                }
                Act::GiveBack(_) => {}
            }
            let held: usize = live.iter().map(|placed| placed.filled_bytes).sum();
            assert_eq!(layout.live_bytes(), held);
        }
        (granted, live)
    }

    #[track_caller]
    fn assert_disjoint(live: &[Placed], new: &Placed) {
        let end = |placed: &Placed| placed.offset_bytes + placed.filled_bytes;
        for old in live.iter().filter(|old| old.filled_bytes > 0) {
            let apart = end(old) <= new.offset_bytes || end(new) <= old.offset_bytes;
            assert!(apart || new.filled_bytes == 0, "{old:?} overlaps {new:?}");
        }
    }

    proptest! {
        #[test]
        fn live_blocks_never_overlap_and_all_comes_back(acts in acts()) {
            let mut layout = Layout::new(64 << 10);
            let (_, live) = run(&mut layout, &acts);
            prop_assert!(layout.high_water_bytes() <= layout.capacity_bytes());
            prop_assert!(layout.peak_live_bytes() <= layout.high_water_bytes());
            for placed in &live {
                layout.give_back(placed);
            }
            prop_assert_eq!((layout.live_bytes(), layout.top_bytes), (0, 0));
            prop_assert!(layout.free.is_empty());
        }

        #[test]
        fn a_dry_run_places_everything_where_the_run_does(acts in acts()) {
            let mut dry = Layout::unbounded();
            let (expected, _) = run(&mut dry, &acts);
            let mut layout = Layout::new(dry.high_water_bytes());
            let (granted, _) = run(&mut layout, &acts);
            prop_assert_eq!(granted, expected);
            prop_assert_eq!(layout.high_water_bytes(), dry.high_water_bytes());
        }

        #[test]
        fn what_was_held_at_the_peak_adds_up_to_it(acts in acts()) {
            let mut layout = Layout::unbounded();
            run(&mut layout, &acts);
            let sum: usize = layout.held_at_peak().iter().map(|line| line.bytes).sum();
            prop_assert_eq!(sum, layout.peak_live_bytes());
            for line in layout.held_at_peak() {
                let most = layout.peak_by_purpose();
                let most = most.iter().find(|most| most.purpose == line.purpose);
                prop_assert!(most.is_some_and(|most| most.bytes >= line.bytes));
            }
        }
    }

    #[test]
    fn a_request_beyond_the_capacity_says_what_is_held() {
        let mut layout = Layout::new(256);
        layout.take(100, Purpose::UnitInput).unwrap();
        let full = layout.take(200, Purpose::Logits).unwrap_err();
        assert_eq!((full.asked_bytes, full.held_bytes), (200, 128));
        let text = full.to_string();
        assert!(text.starts_with("no room for 200 bytes of logits: 128 of 256"));
        assert!(layout.take(usize::MAX, Purpose::Logits).is_err());
        assert!(layout.take(128, Purpose::Logits).is_ok());
    }

    #[test]
    fn the_smallest_hole_that_fits_is_taken() {
        let mut layout = Layout::unbounded();
        let sizes = [256, 64, 128, 64, 128, 64];
        let blocks = sizes.map(|bytes| layout.take(bytes, Purpose::Activation).unwrap());
        for hole in [0, 2, 4] {
            layout.give_back(&blocks[hole]);
        }
        let placed = layout.take(100, Purpose::Activation).unwrap();
        assert_eq!(placed.offset_bytes, blocks[2].offset_bytes);
        layout.give_back(&blocks[1]);
        let placed = layout.take(320, Purpose::Activation).unwrap();
        assert_eq!(placed.offset_bytes, 0);
    }

    /// The buffers of a training step in the order of a decoder that recomputes
    /// each block: forward, then each block again with its backward.
    struct Step {
        layout: Layout,
        tokens: usize,
    }

    const WIDTH: usize = 576;
    const KV_WIDTH: usize = 192;
    const MLP: usize = 1536;
    const VOCABULARY: usize = 49_152;
    const BLOCKS: usize = 30;

    impl Step {
        fn take(&mut self, len: usize, purpose: Purpose) -> Placed {
            self.layout.take(4 * len, purpose).unwrap()
        }

        fn activation(&mut self, width: usize) -> Placed {
            self.take(self.tokens * width, Purpose::Activation)
        }

        fn drop(&mut self, placed: impl IntoIterator<Item = Placed>) {
            for placed in placed {
                self.layout.give_back(&placed);
            }
        }

        fn workspace(&mut self, len: usize) {
            let placed = self.take(len, Purpose::Workspace);
            self.drop([placed]);
        }

        /// What a block's forward leaves for its backward.
        fn forward(&mut self) -> Vec<Placed> {
            let mut kept = vec![self.activation(WIDTH), self.activation(1)];
            kept.extend([WIDTH, KV_WIDTH, KV_WIDTH].map(|width| self.activation(width)));
            kept.extend([self.activation(WIDTH), self.activation(9)]);
            self.workspace(2 * 64 * 128);
            kept.extend([WIDTH, WIDTH, 1, MLP, MLP].map(|width| self.activation(width)));
            kept
        }

        fn backward(&mut self, mut kept: Vec<Placed>) {
            let block = 2 * WIDTH * (WIDTH + KV_WIDTH) + 3 * WIDTH * MLP + 2 * WIDTH;
            let gradient = self.take(block, Purpose::Gradient);
            let dy = self.activation(MLP);
            let [up, gate] = [kept.pop().unwrap(), kept.pop().unwrap()];
            let dx = self.activation(WIDTH);
            self.drop([dy, up, gate, dx]);
            let qkv = [WIDTH, KV_WIDTH, KV_WIDTH].map(|width| self.activation(width));
            self.workspace(4 * 64 * 128 + self.tokens * (9 + 2 * WIDTH));
            self.drop(kept);
            let dx = self.activation(WIDTH);
            self.drop(qkv);
            self.drop([dx]);
            let shard = self.take(block / 2, Purpose::GradientShard);
            self.drop([gradient, shard]);
        }

        fn head(&mut self) -> Placed {
            let tied = self.take(VOCABULARY * WIDTH / 2, Purpose::TiedGradient);
            let dx = self.activation(WIDTH);
            let normed = self.activation(WIDTH);
            for _ in 0..2 * VOCABULARY / 7168 {
                let logits = self.take(self.tokens * 7168, Purpose::Logits);
                let gradient = self.take(7168 * WIDTH, Purpose::Gradient);
                self.drop([logits, gradient]);
            }
            self.drop([dx, normed]);
            tied
        }

        fn run(&mut self) {
            let mut inputs = Vec::new();
            for _ in 0..BLOCKS {
                inputs.push(self.take(self.tokens * WIDTH, Purpose::UnitInput));
                let kept = self.forward();
                let after = self.activation(MLP);
                self.drop(kept);
                self.drop([after]);
            }
            let tied = self.head();
            for input in inputs.into_iter().rev() {
                let kept = self.forward();
                self.backward(kept);
                self.drop([input]);
            }
            self.drop([tied]);
        }
    }

    /// Fragmentation that a step may cost.
    const MOST_WASTE: f64 = 0.05;

    #[test]
    fn a_training_step_wastes_less_than_a_twentieth() {
        for tokens in [128, 512, 2048, 8192] {
            let mut step = Step {
                layout: Layout::unbounded(),
                tokens,
            };
            step.run();
            let first = step.layout.high_water_bytes();
            step.run();
            let layout = step.layout;
            assert_eq!(
                layout.high_water_bytes(),
                first,
                "{tokens} tokens, second step"
            );
            let waste = first as f64 / layout.peak_live_bytes() as f64 - 1.0;
            assert!(
                waste < MOST_WASTE,
                "{tokens} tokens: {waste:.3} of the peak"
            );
        }
    }
}
