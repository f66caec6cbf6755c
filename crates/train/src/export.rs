//! How a shard is written out: every rank writes its own byte ranges into the
//! final files, in the names and dtypes of the source. No gather, no merge.

use checkpoint::{Digest, ExportPlan, Located, StagedFiles};
use half::bf16;
use kernels::WeightFormat;
use model::Transformer;
use tensor::{Dtype, Ledger, cast};

use crate::load::num_readers;
use crate::stored::each_stored;
use crate::{RankWorld, TrainError};

/// What a rank wrote.
#[derive(Debug, Default)]
pub struct Written {
    /// Bytes of tensors.
    pub num_bytes: u64,
    /// By the number of the tensor in the model, of this rank's ranges.
    pub digests: Vec<Digest>,
}

/// Writes this rank's part of every tensor.
///
/// # Panics
///
/// If the plan is another model's.
pub fn export(
    world: &RankWorld<'_>,
    model: &Transformer,
    plan: &ExportPlan,
    files: &StagedFiles,
    ledger: &Ledger,
) -> Result<Written, TrainError> {
    let targets: Vec<&Located> = model
        .params()
        .map(|param| {
            let target = plan.located(&param.name);
            target.expect("the plan has every tensor of the model")
        })
        .collect();
    let nothing = || Written {
        num_bytes: 0,
        digests: vec![Digest::default(); targets.len()],
    };
    let threads = each_stored(
        world,
        num_readers(world.sharding.world_size),
        ledger,
        |tensor| targets[tensor].meta.dtype,
        nothing,
        |written, piece| {
            files.write_at(targets[piece.tensor], piece.begin, piece.bytes)?;
            written.num_bytes += piece.bytes.len() as u64;
            written.digests[piece.tensor] += Digest::of(piece.begin, piece.bytes);
            Ok(())
        },
    )?;
    let mut sum = nothing();
    for thread in threads {
        sum.num_bytes += thread.num_bytes;
        let digests = sum.digests.iter_mut().zip(thread.digests);
        digests.for_each(|(sum, digest)| *sum += digest);
    }
    Ok(sum)
}

/// Refuses a state that a file could not hold as numbers: a NaN, an infinity, or
/// what the source's dtype rounds to one.
pub fn check_finite(
    world: &RankWorld<'_>,
    model: &Transformer,
    plan: &ExportPlan,
    step: u64,
) -> Result<(), TrainError> {
    let rank = world.rank;
    for (index, bucket) in world.sharding.buckets.iter().enumerate() {
        let slot = world.window.own(index)?;
        let places = &world.own_layout(index).parts;
        for (part, place) in bucket.runs[rank].parts.iter().zip(places) {
            let tensor = bucket.slices[part.slice].tensor;
            let name = &model.units[bucket.unit].params[tensor].name;
            let dtype = plan.located(name).map(|located| located.meta.dtype);
            let limit = match dtype {
                Some(Dtype::F16) => F16_OVERFLOW,
                _ => f32::INFINITY,
            };
            let plane = &slot[place.clone()];
            let fits = match world.formats.of(bucket.unit, tensor) {
                WeightFormat::F32 => all_below(aligned::<f32>(plane).iter().copied(), limit),
                WeightFormat::Bf16 => {
                    let high = aligned::<bf16>(plane).iter();
                    all_below(high.map(|high| high.to_f32()), limit)
                }
            };
            if !fits {
                return Err(TrainError::WeightNotFinite {
                    step,
                    tensor: name.clone(),
                });
            }
        }
    }
    Ok(())
}

/// The least magnitude that rounds to infinity in f16.
const F16_OVERFLOW: f32 = 65520.0;

/// Whether every magnitude is below the limit; a NaN is not.
fn all_below(mut values: impl Iterator<Item = f32>, limit: f32) -> bool {
    values.all(|value| value.abs() < limit)
}

/// A plane seen as numbers; parts begin at multiples of 64 bytes.
fn aligned<T: bytemuck::Pod>(plane: &[u8]) -> &[T] {
    cast(plane).expect("parts are aligned and hold whole elements")
}
