//! Whether what was read is what arrived.
//!
//! The digests of what was read know the places in the files; the digests of what
//! lies in the planes know the rows that a rank answers for. A range that was
//! never read, read twice, brought to another rank or to other rows, or changed on
//! its way makes the two differ. Where the folder has digests of its own, a file
//! that changed since they were written shows too.

use checkpoint::{Digest, Located};
use comm::{ProcessGroup, ReduceOp};
use tensor::{Dtype, Ledger};

use super::{Origin, Read, num_readers};
use crate::stored::each_stored;
use crate::{RankWorld, TrainError};

/// Takes the digest of every tensor of the model, as `dtype_of` stores it, over
/// all ranks.
pub fn shard_digests(
    world: &RankWorld<'_>,
    ledger: &Ledger,
    dtype_of: impl Fn(usize) -> Dtype + Sync,
) -> Result<Vec<Digest>, TrainError> {
    let own = own_digests(world, ledger, dtype_of)?;
    over_ranks(world.group, &own)
}

fn own_digests(
    world: &RankWorld<'_>,
    ledger: &Ledger,
    dtype_of: impl Fn(usize) -> Dtype + Sync,
) -> Result<Vec<Digest>, TrainError> {
    let sharding = world.sharding;
    let threads = each_stored(
        world,
        num_readers(sharding.world_size),
        ledger,
        dtype_of,
        || Read::nothing(sharding),
        |sum, piece| {
            sum.digests[piece.tensor] += Digest::of(piece.begin, piece.bytes);
            Ok(())
        },
    )?;
    let mut sum = Read::nothing(sharding);
    for thread in &threads {
        sum.add(thread);
    }
    Ok(sum.digests)
}

/// The digests of whole tensors, from those of every rank's ranges.
pub(crate) fn over_ranks(
    group: &ProcessGroup,
    digests: &[Digest],
) -> Result<Vec<Digest>, TrainError> {
    let mut parts: Vec<u64> = digests.iter().flat_map(|digest| digest.parts()).collect();
    group.all_reduce_u64(&mut parts, ReduceOp::WrappingSum, "digests")?;
    let (parts, _) = parts.as_chunks();
    Ok(parts
        .iter()
        .map(|&parts| Digest::from_parts(parts))
        .collect())
}

/// Compares what was read with what arrived and with the folder's digests; gives
/// the digest of every tensor.
pub(super) fn check(
    world: &RankWorld<'_>,
    origin: &Origin<'_>,
    read: &Read,
    ledger: &Ledger,
) -> Result<Vec<Digest>, TrainError> {
    let sources = tensors_of(world, origin);
    let read = over_ranks(world.group, &read.digests)?;
    let arrived = shard_digests(world, ledger, |tensor| sources[tensor].meta.dtype)?;
    let known = origin.folder.digests()?;
    for ((source, &read), &arrived) in sources.iter().zip(&read).zip(&arrived) {
        let name = &source.meta.name;
        let file = || origin.folder.files()[source.file].path.clone();
        let num_bytes = source.num_bytes();
        if read.num_bytes() != num_bytes {
            return Err(TrainError::NotRead {
                tensor: name.clone(),
                file: file(),
                expected_bytes: num_bytes,
                found_bytes: read.num_bytes(),
            });
        }
        if arrived != read {
            return Err(TrainError::Arrived {
                tensor: name.clone(),
                file: file(),
                expected: read,
                found: arrived,
            });
        }
        if let Some(known) = &known {
            known.check(name, read, &file())?;
        }
    }
    Ok(read)
}

/// The tensors of the model in the order of their numbers.
fn tensors_of<'a>(world: &RankWorld<'_>, origin: &Origin<'a>) -> Vec<&'a Located> {
    let formats = world.formats;
    let units = 0..world.sharding.num_units();
    let numbered =
        units.flat_map(|unit| (0..formats.num_tensors(unit)).map(move |tensor| (unit, tensor)));
    let Origin {
        folder, sources, ..
    } = *origin;
    numbered
        .map(|(unit, tensor)| sources.of(folder, unit, tensor))
        .collect()
}
