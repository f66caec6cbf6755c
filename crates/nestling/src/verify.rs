//! Whether weights are what they should be: against their folder's digests, or
//! against another checkpoint of any layout and dtypes.

use std::collections::BTreeSet;
use std::ops::Range;

use checkpoint::{
    Digest, Folder, Located, MANIFEST_NAME, Manifest, Reader, Weights, inspect_file_with,
    write_atomically,
};
use rayon::prelude::*;
use serde::Serialize;
use tensor::{Dtype, as_bytes, as_bytes_mut, narrow, widen};

use crate::{Error, ModelPath};

/// Elements that a thread compares at once.
const PIECE_LEN: u64 = 128 << 10;

/// How a tensor compares.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Verdict {
    /// The same bytes, or FP8 codes and scales with the same values.
    Same,
    /// The same numbers in different dtypes, the wider ones rounded to the narrower.
    SameRounded {
        /// The dtype that was rounded to.
        to: String,
    },
    /// Not the same.
    Different {
        /// What differs.
        what: String,
    },
    /// Only in the first checkpoint.
    OnlyInFirst,
    /// Only in the second checkpoint, or only in the file of digests.
    OnlyInSecond,
}

/// One tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verified {
    /// Its name.
    pub name: String,
    /// How it compares.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Every tensor of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VerifyReport {
    /// In the order of their names.
    pub tensors: Vec<Verified>,
}

impl VerifyReport {
    /// Whether every tensor is the same, or the same after rounding.
    pub fn is_same(&self) -> bool {
        let mut tensors = self.tensors.iter();
        tensors.all(|tensor| matches!(tensor.verdict, Verdict::Same | Verdict::SameRounded { .. }))
    }
}

/// Compares a model's tensors with the digests that its folder has.
pub fn verify<'a>(model: impl Into<ModelPath<'a>>) -> Result<VerifyReport, Error> {
    let ModelPath { path, rules } = model.into();
    let folder = Folder::open_with(path, rules)?;
    let Some(manifest) = folder.digests()? else {
        return Err(Error::NoDigests {
            folder: path.to_owned(),
        });
    };
    let weights = folder.weights();
    let digests = digests_of(weights)?;
    let mut verdicts: Vec<Verified> = weights
        .tensors()
        .iter()
        .zip(digests)
        .map(|(tensor, found)| Verified {
            name: tensor.meta.name.clone(),
            verdict: match manifest.of(&tensor.meta.name) {
                Some(expected) if expected == found => Verdict::Same,
                Some(expected) => Verdict::Different {
                    what: format!("digest {found}, expected {expected}"),
                },
                None => Verdict::OnlyInFirst,
            },
        })
        .collect();
    let absent = manifest.names().filter(|name| weights.find(name).is_none());
    verdicts.extend(absent.map(|name| Verified {
        name: name.to_owned(),
        verdict: Verdict::OnlyInSecond,
    }));
    verdicts.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(VerifyReport { tensors: verdicts })
}

/// Writes the digests of a model's tensors as they are into its folder; gives
/// their number.
pub fn write_digests<'a>(model: impl Into<ModelPath<'a>>) -> Result<usize, Error> {
    let ModelPath { path, rules } = model.into();
    let folder = Folder::open_with(path, rules)?;
    let tensors = folder.tensors();
    let digests = digests_of(folder.weights())?;
    let names = tensors.iter().map(|tensor| tensor.meta.name.as_str());
    let text = Manifest::text(names.zip(digests));
    write_atomically(&path.join(MANIFEST_NAME), &text)?;
    Ok(tensors.len())
}

/// Compares two checkpoints, folders or single files, tensor by tensor.
pub fn verify_two<'a>(
    first: impl Into<ModelPath<'a>>,
    second: impl Into<ModelPath<'a>>,
) -> Result<VerifyReport, Error> {
    let (first, second) = (open(first.into())?, open(second.into())?);
    let folded: BTreeSet<&str> = folded(&first, &second)
        .chain(folded(&second, &first))
        .collect();
    let tensors = first.tensors().iter().chain(second.tensors());
    let names: BTreeSet<&str> = tensors
        .map(|tensor| tensor.meta.name.as_str())
        .filter(|name| !folded.contains(name))
        .collect();
    let readers = [first.reader()?, second.reader()?];
    let tensors = names.into_iter().map(|name| {
        let verdict = match (first.find(name), second.find(name)) {
            (Some(a), Some(b)) => compare([a, b], &readers)?,
            (Some(_), None) => Verdict::OnlyInFirst,
            _ => Verdict::OnlyInSecond,
        };
        Ok(Verified {
            name: name.to_owned(),
            verdict,
        })
    });
    Ok(VerifyReport {
        tensors: tensors.collect::<Result<_, Error>>()?,
    })
}

/// Names of scales whose codes the other checkpoint has too, as codes or as numbers:
/// values are compared, and the scales are part of them. Codes alone may differ where
/// values do not, as 224 at one scale is 448 at half of it.
fn folded<'a>(own: &'a Weights, other: &'a Weights) -> impl Iterator<Item = &'a str> {
    own.tensors().iter().filter_map(|tensor| {
        let scales = tensor.scales.as_ref()?;
        other.find(&tensor.meta.name)?;
        Some(scales.located.meta.name.as_str())
    })
}

/// The weights of a folder or a single file.
fn open(ModelPath { path, rules }: ModelPath<'_>) -> Result<Weights, Error> {
    Ok(if path.is_file() {
        inspect_file_with(path, rules.strictness)?
    } else {
        Folder::open_with(path, rules)?.weights().clone()
    })
}

/// Consecutive ranges of at most `len` that tile `0..num`.
fn pieces(num: u64, len: u64) -> impl Iterator<Item = Range<u64>> + Send {
    (0..num.div_ceil(len)).map(move |piece| piece * len..num.min((piece + 1) * len))
}

fn digests_of(weights: &Weights) -> Result<Vec<Digest>, Error> {
    let reader = weights.reader()?;
    weights
        .tensors()
        .par_iter()
        .map(|tensor| {
            let pieces: Vec<_> = pieces(tensor.num_bytes(), 4 * PIECE_LEN).collect();
            let digests = pieces.into_par_iter().map_init(Vec::new, |buffer, range| {
                read(&reader, tensor, range.clone(), buffer)
                    .map(|bytes| Digest::of(range.start, bytes))
            });
            let digests: Vec<Digest> = digests.collect::<Result<_, Error>>()?;
            Ok(digests.into_iter().sum())
        })
        .collect()
}

/// Reads bytes of a tensor into a buffer that is aligned for any number.
fn read<'a>(
    reader: &Reader,
    tensor: &Located,
    range: Range<u64>,
    buffer: &'a mut Vec<u64>,
) -> Result<&'a [u8], Error> {
    let len = usize::try_from(range.end - range.start).expect("a piece is small");
    buffer.resize(len.div_ceil(8), 0);
    let bytes = &mut as_bytes_mut(buffer)[..len];
    reader.read_at(tensor, range, bytes)?;
    Ok(bytes)
}

/// Compares the tensors of one name.
fn compare(tensors: [&Located; 2], readers: &[Reader; 2]) -> Result<Verdict, Error> {
    let [a, b] = tensors.map(|tensor| &tensor.meta);
    let different = |what| Ok(Verdict::Different { what });
    if a.shape != b.shape {
        return different(format!("shape {} and {}", a.shape, b.shape));
    }
    let Some(rounding) = Rounding::of(tensors) else {
        return different(format!("dtype {} and {}", a.dtype, b.dtype));
    };
    let num_units = rounding.num_units(tensors[0]);
    let pieces: Vec<_> = pieces(num_units, PIECE_LEN).collect();
    let found = pieces
        .into_par_iter()
        .map_init(Buffers::default, |buffers, range| {
            buffers.compare(tensors, readers, rounding, &range)
        })
        .try_reduce(Difference::default, |a, b| Ok(a.and(b)))?;
    if found.num_different > 0 {
        return different(found.describe(num_units, rounding));
    }
    let [first, second] = tensors.map(Located::value_dtype);
    Ok(match rounding {
        Rounding::None => Verdict::Same,
        // Values of codes are what they are.
        Rounding::To(_) if first == second => Verdict::Same,
        Rounding::To(dtype) => Verdict::SameRounded {
            to: dtype.to_string(),
        },
    })
}

/// How two dtypes are made one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rounding {
    /// They are one: bytes are compared.
    None,
    /// Floats of both are rounded to this one.
    To(Dtype),
}

impl Rounding {
    fn of([a, b]: [&Located; 2]) -> Option<Self> {
        const NARROWER: [Dtype; 4] = [Dtype::BF16, Dtype::F16, Dtype::F32, Dtype::F64];
        if a.meta.dtype == b.meta.dtype && a.scales.is_none() && b.scales.is_none() {
            return Some(Self::None);
        }
        let (a, b) = (a.value_dtype(), b.value_dtype());
        let place = |dtype| NARROWER.iter().position(|&known| known == dtype);
        Some(Self::To(NARROWER[place(a)?.min(place(b)?)]))
    }

    /// What is compared at once: elements, or bytes of equal dtypes.
    fn num_units(self, tensor: &Located) -> u64 {
        match self {
            Self::None => tensor.num_bytes(),
            Self::To(_) => {
                let elements = tensor.meta.shape.num_elements();
                elements.expect("the header was checked")
            }
        }
    }
}

/// What differs in a range.
#[derive(Debug, Clone, Copy, Default)]
struct Difference {
    num_different: u64,
    /// The largest difference of two numbers.
    largest: f64,
}

impl Difference {
    fn and(self, other: Self) -> Self {
        Self {
            num_different: self.num_different + other.num_different,
            largest: self.largest.max(other.largest),
        }
    }

    fn describe(self, num_units: u64, rounding: Rounding) -> String {
        let Self {
            num_different,
            largest,
        } = self;
        match rounding {
            Rounding::None => format!("{num_different} of {num_units} bytes"),
            Rounding::To(dtype) => format!(
                "{num_different} of {num_units} elements after rounding to {dtype}, the largest difference is {largest:e}"
            ),
        }
    }
}

/// A thread's buffers.
#[derive(Debug, Default)]
struct Buffers {
    stored: Vec<u64>,
    wide: Vec<f32>,
    rounded: [Vec<u64>; 2],
}

impl Buffers {
    fn compare(
        &mut self,
        tensors: [&Located; 2],
        readers: &[Reader; 2],
        rounding: Rounding,
        range: &Range<u64>,
    ) -> Result<Difference, Error> {
        let Self {
            stored,
            wide,
            rounded,
        } = self;
        let Rounding::To(dtype) = rounding else {
            let [first, second] = rounded;
            let first = read(&readers[0], tensors[0], range.clone(), first)?;
            let second = read(&readers[1], tensors[1], range.clone(), second)?;
            let differ = first.iter().zip(second).filter(|(a, b)| a != b);
            return Ok(Difference {
                num_different: differ.count() as u64,
                largest: 0.0,
            });
        };
        let len = usize::try_from(range.end - range.start).expect("a piece is small");
        wide.resize(len, 0.0);
        let mut num_overflowing = 0;
        let size = dtype.size_bytes().expect("floats are whole bytes");
        for ((tensor, reader), rounded) in tensors.iter().zip(readers).zip(&mut *rounded) {
            let stored_as = tensor.value_dtype();
            let num_bytes = stored_as.size_bytes().expect("floats are whole bytes") * len;
            stored.resize(num_bytes.div_ceil(8), 0);
            let bytes = &mut as_bytes_mut(stored)[..num_bytes];
            reader.read_values(tensor, range.clone(), bytes, false)?;
            widen(stored_as, bytes, wide).map_err(train::TrainError::from)?;
            num_overflowing += overflowing(dtype, wide);
            rounded.resize((len * size).div_ceil(8), 0);
            let rounded = &mut as_bytes_mut(rounded)[..len * size];
            narrow(dtype, wide, rounded).map_err(train::TrainError::from)?;
        }
        let [first, second] = rounded;
        let [first, second] = [&*first, &*second].map(|words| &as_bytes(words)[..len * size]);
        let mut found = differences(dtype, first, second, wide)?;
        if num_overflowing > 0 {
            found = found.and(Difference {
                num_different: num_overflowing,
                largest: f64::INFINITY,
            });
        }
        Ok(found)
    }
}

/// Counts finite numbers that rounding makes infinite: those are not the same.
fn overflowing(dtype: Dtype, wide: &[f32]) -> u64 {
    let limit = match dtype {
        Dtype::F16 => 65520.0,
        // The largest bf16 and half its last place.
        Dtype::BF16 => f32::from_bits(0x7f7f_8000),
        _ => f32::INFINITY,
    };
    let too_large = wide
        .iter()
        .filter(|value| value.is_finite() && value.abs() >= limit);
    too_large.count() as u64
}

/// Counts the elements that differ.
fn differences(
    dtype: Dtype,
    first: &[u8],
    second: &[u8],
    wide: &mut [f32],
) -> Result<Difference, Error> {
    if first == second {
        return Ok(Difference::default());
    }
    let size = dtype.size_bytes().expect("floats are whole bytes");
    let mut other = vec![0.0; wide.len()];
    widen(dtype, first, wide).map_err(train::TrainError::from)?;
    widen(dtype, second, &mut other).map_err(train::TrainError::from)?;
    let bits = first.chunks_exact(size).zip(second.chunks_exact(size));
    let numbers = wide.iter().zip(&other);
    let differ = bits.zip(numbers).filter(|((a, b), _)| a != b);
    Ok(differ.fold(Difference::default(), |sum, (_, (a, b))| {
        sum.and(Difference {
            num_different: 1,
            largest: (f64::from(*a) - f64::from(*b)).abs(),
        })
    }))
}
