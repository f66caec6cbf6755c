//! What rounding to FP8 does to a run: counted in every step, logged now and then,
//! and undone for a block that loses too much by it.
//!
//! Scales are taken from what they scale, so nothing saturates; what can be lost are
//! small numbers beside large ones.

use comm::{ProcessGroup, ReduceOp};
use fp8::{Format, Grid, ScaleInv};
use kernels::WeightFormat;
use kernels::fp8::RowCounts;
use model::{OperandCounts, Transformer};
use plan::Formats;

use crate::events::{CodesRecord, LayerRecord, OperandRecord};
use crate::{Event, RankWorld, TrainError};

/// The layers whose weight is in E4M3 codes, in the order of the model.
#[derive(Debug)]
pub(crate) struct Telemetry {
    layers: Vec<(usize, usize)>,
}

/// What rounding did to the operands of one layer, over all ranks.
#[derive(Debug, Clone, Copy, Default)]
struct Operands {
    input: RowCounts,
    gradient: RowCounts,
}

/// Numbers of a [`RowCounts`] that are summed over ranks.
const NUM_SUMS: usize = 3;

impl Telemetry {
    pub(crate) fn new(model: &Transformer, formats: &Formats) -> Self {
        let units = model.units.iter().enumerate();
        let tensors = units.flat_map(|(unit, tensors)| {
            (0..tensors.params.len()).map(move |tensor| (unit, tensor))
        });
        let in_codes = |&(unit, tensor): &(usize, usize)| {
            formats.storage(unit, tensor).weight == WeightFormat::E4m3
        };
        Self {
            layers: tensors.filter(in_codes).collect(),
        }
    }

    /// Takes the counts of a step; gives what is worth an event.
    ///
    /// Blocks in which an operand lost more than `max_underflow` of its numbers compute
    /// with operands as they are from the next step on. Every rank calls this.
    pub(crate) fn step(
        &self,
        model: &Transformer,
        world: &mut RankWorld<'_>,
        own: &[OperandCounts],
        (step, is_logged, max_underflow): (u64, bool, f64),
    ) -> Result<Vec<Event>, TrainError> {
        if self.layers.is_empty() {
            return Ok(Vec::new());
        }
        let operands = self.sum(world.group, own)?;
        let mut events = Vec::new();
        for (&(unit, tensor), operands) in self.layers.iter().zip(&operands) {
            let both = [("input", operands.input), ("gradient", operands.gradient)];
            for (operand, counts) in both {
                let underflow = share(counts);
                if underflow > max_underflow && !std::mem::replace(&mut world.fallen[unit], true) {
                    events.push(Event::Fallback {
                        step,
                        unit: model.units[unit].name.clone(),
                        layer: model.units[unit].params[tensor].name.clone(),
                        operand: operand.to_owned(),
                        underflow,
                    });
                }
            }
        }
        if is_logged {
            let codes = self.codes(world)?;
            let layers = self.layers.iter().zip(operands).zip(codes);
            let layers = layers.map(|((&(unit, tensor), operands), weight)| LayerRecord {
                name: model.units[unit].params[tensor].name.clone(),
                is_rounded: !world.fallen[unit],
                input: record(operands.input),
                gradient: record(operands.gradient),
                weight,
            });
            events.push(Event::Operands {
                step,
                layers: layers.collect(),
            });
        }
        Ok(events)
    }

    /// Adds up the counts of all ranks, some of which may have had no rows.
    fn sum(
        &self,
        group: &ProcessGroup,
        own: &[OperandCounts],
    ) -> Result<Vec<Operands>, TrainError> {
        let mut sums = vec![0_u64; 2 * NUM_SUMS * self.layers.len()];
        let mut largest = vec![0_u64; 2 * self.layers.len()];
        for counts in own {
            let layer = self.layers.binary_search(&(counts.unit, counts.tensor));
            let layer = layer.expect("only codes are rounded for");
            for (side, counts) in [counts.input, counts.gradient].into_iter().enumerate() {
                let at = 2 * layer + side;
                let places = &mut sums[NUM_SUMS * at..NUM_SUMS * (at + 1)];
                // Forward and backward may count apart.
                for (sum, count) in places.iter_mut().zip([
                    counts.num_elements,
                    counts.num_underflowed,
                    counts.num_nan_blocks,
                ]) {
                    *sum += count;
                }
                // Bits of f32 that are not negative are in the order of their numbers.
                largest[at] = largest[at].max(counts.amax.to_bits().into());
            }
        }
        group.all_reduce_u64(&mut sums, ReduceOp::Sum, "operand counts")?;
        group.all_reduce_u64(&mut largest, ReduceOp::Max, "operand maxima")?;
        let counts = sums.chunks_exact(NUM_SUMS).zip(largest);
        let mut counts = counts.map(|(sums, largest)| RowCounts {
            num_elements: sums[0],
            num_underflowed: sums[1],
            num_nan_blocks: sums[2],
            #[expect(clippy::cast_possible_truncation, reason = "the bits of an f32")]
            amax: f32::from_bits(largest as u32),
        });
        let layers = self.layers.iter().map(|_| Operands {
            input: counts.next().unwrap_or_default(),
            gradient: counts.next().unwrap_or_default(),
        });
        Ok(layers.collect())
    }

    /// Looks at the codes of every layer, over all ranks.
    fn codes(&self, world: &RankWorld<'_>) -> Result<Vec<CodesRecord>, TrainError> {
        let mut sums = vec![0_u64; 3 * self.layers.len()];
        let mut largest = vec![0_u64; self.layers.len()];
        for (bucket, shape) in world.sharding.buckets.iter().enumerate() {
            let own = world.window.own(bucket)?;
            let parts = &shape.runs[world.rank].parts;
            for (part, place) in parts.iter().zip(&world.own_layout(bucket).parts) {
                let slice = &shape.slices[part.slice];
                let layer = self.layers.binary_search(&(shape.unit, slice.tensor));
                let Ok(layer) = layer else { continue };
                let grid = Grid {
                    rows: part.rows.len(),
                    cols: slice.cols,
                };
                let amax = count_codes(&own[place.clone()], grid, &mut sums[3 * layer..][..3]);
                largest[layer] = largest[layer].max(amax.to_bits().into());
            }
        }
        let group = world.group;
        group.all_reduce_u64(&mut sums, ReduceOp::Sum, "code counts")?;
        group.all_reduce_u64(&mut largest, ReduceOp::Max, "code maxima")?;
        let records = sums.chunks_exact(3).zip(largest);
        let records = records.map(|(sums, largest)| CodesRecord {
            num_zeros: sums[0],
            num_largest: sums[1],
            num_nans: sums[2],
            #[expect(clippy::cast_possible_truncation, reason = "the bits of an f32")]
            amax: f32::from_bits(largest as u32),
        });
        Ok(records.collect())
    }
}

/// Counts zeros, codes of the largest number and of NaN of row tiles; gives the
/// largest magnitude.
fn count_codes(bytes: &[u8], grid: Grid, counts: &mut [u64]) -> f32 {
    const LARGEST: u8 = 0x7E;
    const NAN: u8 = 0x7F;
    let (codes, scales) = bytes.split_at(grid.len());
    let mut amax = 0.0_f32;
    for tile in grid.tiles() {
        let mut top = 0;
        for span in tile.spans(grid.cols) {
            // Counts of at most 128 codes, in a form that the compiler vectorizes.
            let mut counted = [0_u8; 3];
            for code in &codes[span] {
                let magnitude = code & NAN;
                counted[0] += u8::from(magnitude == 0);
                counted[1] += u8::from(magnitude == LARGEST);
                counted[2] += u8::from(magnitude == NAN);
                top = top.max(if magnitude == NAN { 0 } else { magnitude });
            }
            for (count, counted) in counts.iter_mut().zip(counted) {
                *count += u64::from(counted);
            }
        }
        let scale_inv = ScaleInv::from_e8m0(scales[tile.index]).to_f32();
        amax = amax.max(Format::E4M3.decode(top) * scale_inv);
    }
    amax
}

/// The part of an operand's numbers that became zero.
fn share(counts: RowCounts) -> f64 {
    counts.num_underflowed as f64 / counts.num_elements.max(1) as f64
}

fn record(counts: RowCounts) -> OperandRecord {
    OperandRecord {
        amax: counts.amax,
        underflow: share(counts),
        num_nan_blocks: counts.num_nan_blocks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_counted_under_their_own_scale() {
        // Two tiles beside each other, the second one column wide.
        let grid = Grid { rows: 2, cols: 129 };
        let mut bytes = vec![0x38; grid.len()]; // 1.0
        bytes[0] = 0x80; // -0
        bytes[1] = 0xFE; // -448
        bytes[128] = 0x7F; // NaN
        bytes.extend([127 - 10, 127 + 3]); // 2^-10, 2^3
        let mut counts = [0; 3];
        let amax = count_codes(&bytes, grid, &mut counts);
        assert_eq!(amax.to_bits(), 8.0_f32.to_bits());
        assert_eq!(counts, [1, 1, 1]);
    }
}
