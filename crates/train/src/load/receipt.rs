//! Whether what was read is what arrived.
//!
//! The digests of what was read know the places in the files; the digests of what
//! lies in the planes know the rows that a rank answers for. A range that was
//! never read, read twice, brought to another rank or to other rows, or changed on
//! its way makes the two differ. Where the folder has digests of its own, a file
//! that changed since they were written shows too.

use checkpoint::{Digest, Located, Manifest};
use comm::{ProcessGroup, ReduceOp};

use super::{Origin, PIECE_BYTES, Read, ReadDigests, byte_range, element_range};
use crate::{RankWorld, TrainError};

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
) -> Result<Vec<Digest>, TrainError> {
    let sources = origin.numbered(world.sharding, world.formats);
    let all_ranks = |of: fn(&ReadDigests) -> Digest| {
        let own: Vec<Digest> = read.digests.iter().map(of).collect();
        over_ranks(world.group, &own)
    };
    let arrived = all_ranks(|digests| digests.arrived)?;
    let expected = all_ranks(|digests| digests.expected)?;
    let read = all_ranks(|digests| digests.found)?;
    // One rank reads the folder's own digests; its error stops all.
    let known = match world.group.world().rank() {
        0 => origin.folder.digests()?,
        _ => None,
    };
    let sizes = expected_bytes(world, &sources);
    let digests = read.iter().zip(expected.iter().zip(&arrived));
    for ((source, num_bytes), (&read, (&expected, &arrived))) in
        sources.iter().zip(sizes).zip(digests)
    {
        let name = &source.meta.name;
        let file = || origin.folder.files()[source.file].path.clone();
        if read.num_bytes() != num_bytes {
            return Err(TrainError::NotRead {
                tensor: name.clone(),
                file: file(),
                expected_bytes: num_bytes,
                found_bytes: read.num_bytes(),
            });
        }
        if arrived != expected {
            return Err(TrainError::Arrived {
                tensor: name.clone(),
                file: file(),
                expected,
                found: arrived,
            });
        }
        if let Some(known) = known.as_ref().filter(|_| !world.is_alone()) {
            known.check(name, read, &file())?;
        }
    }
    if let Some(known) = known.as_ref().filter(|_| !world.is_alone()) {
        check_scales(origin, &sources, known)?;
    }
    Ok(read)
}

/// Compares scales with the folder's digests: they are read piece by piece, wherever
/// codes need some, so nobody has the digest of all. There are few of them.
fn check_scales(
    origin: &Origin<'_>,
    sources: &[&Located],
    known: &Manifest,
) -> Result<(), TrainError> {
    let scaled = sources.iter().filter_map(|source| source.scales.as_ref());
    let reader = origin.folder.open_files()?;
    let mut bytes = vec![0; PIECE_BYTES];
    for scales in scaled {
        let located = &scales.located;
        let mut found = Digest::default();
        let num_bytes = located.num_bytes();
        for begin in (0..num_bytes).step_by(PIECE_BYTES) {
            let end = num_bytes.min(begin + PIECE_BYTES as u64);
            let len = usize::try_from(end - begin).expect("a piece is small");
            reader.read_at(located, begin..end, &mut bytes[..len])?;
            found += Digest::of(begin, &bytes[..len]);
        }
        let file = &origin.folder.files()[located.file].path;
        known.check(&located.meta.name, found, file)?;
    }
    Ok(())
}

/// The bytes of every tensor that the ranks of the group answer for: all of them,
/// or its own ranges where a rank is alone.
fn expected_bytes(world: &RankWorld<'_>, sources: &[&Located]) -> Vec<u64> {
    if !world.is_alone() {
        return sources.iter().map(|source| source.num_bytes()).collect();
    }
    let mut bytes = vec![0; sources.len()];
    for bucket in &world.sharding.buckets {
        for part in &bucket.runs[world.rank].parts {
            let slice = &bucket.slices[part.slice];
            let tensor = world.sharding.tensor_number(bucket.unit, slice.tensor);
            let range = byte_range(sources[tensor].meta.dtype, &element_range(part, slice));
            bytes[tensor] += range.end - range.start;
        }
    }
    bytes
}
