//! How a shard is written out: every rank writes its own byte ranges into the
//! final files, in the names and dtypes of the source. No gather, no merge.

use checkpoint::{Digest, ExportPlan, Located, StagedFiles};
use fp8::{Grid, ScaleInv, decode_e4m3};
use half::bf16;
use kernels::WeightFormat;
use model::Transformer;
use tensor::{Dtype, Ledger, cast};

use crate::load::num_readers;
use crate::stored::{FrozenSource, each_stored};
use crate::{RankWorld, TrainError};

/// What a rank wrote.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Bytes of tensors.
    pub(crate) num_bytes: u64,
    /// By the number of the tensor in the model, of this rank's ranges.
    pub(crate) digests: Vec<Digest>,
}

/// Writes this rank's part of every tensor; what is not trained is read again from
/// `frozen`.
///
/// # Panics
///
/// If the plan is another model's.
pub(crate) fn export(
    world: &RankWorld<'_>,
    model: &Transformer,
    plan: &ExportPlan,
    files: &StagedFiles,
    frozen: Option<&FrozenSource<'_>>,
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
        frozen,
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
            let slice = &bucket.slices[part.slice];
            let name = &model.units[bucket.unit].params[slice.tensor].name;
            let dtype = plan.located(name).map(|located| located.meta.dtype);
            let limit = match dtype {
                Some(Dtype::F16) => F16_OVERFLOW,
                _ => f32::INFINITY,
            };
            let storage = world.formats.storage(bucket.unit, slice.tensor);
            let plane = &slot[place.clone()];
            let fits = match storage.weight {
                WeightFormat::F32 => all_below(aligned::<f32>(plane).iter().copied(), limit),
                WeightFormat::Bf16 => {
                    let high = aligned::<bf16>(plane).iter();
                    all_below(high.map(|high| high.to_f32()), limit)
                }
                WeightFormat::E4m3 | WeightFormat::Nested(_) => {
                    codes_below(plane, part.rows.len(), slice.cols, limit)
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

/// The same of a plane that begins with codes and ends with the scales of their
/// tiles: a residual is at most half of a code's last place, and a tile that was NaN
/// has the scale NaN.
fn codes_below(plane: &[u8], rows: usize, cols: usize, limit: f32) -> bool {
    let grid = Grid { rows, cols };
    let (codes, scales) = (
        &plane[..grid.len()],
        &plane[plane.len() - grid.num_tiles()..],
    );
    grid.tiles().all(|tile| {
        let scale_inv = ScaleInv::from_e8m0(scales[tile.index]).to_f32();
        let largest = tile.spans(cols).flatten().map(|place| codes[place] & 0x7F);
        let largest = largest.max().unwrap_or(0);
        let half_ulp = if largest == 0 {
            0.0
        } else {
            decode_e4m3(largest) / 16.0
        };
        (decode_e4m3(largest) + half_ulp) * scale_inv < limit
    })
}

/// A plane seen as numbers; parts begin at multiples of 64 bytes.
fn aligned<T: bytemuck::Pod>(plane: &[u8]) -> &[T] {
    cast(plane).expect("parts are aligned and hold whole elements")
}
