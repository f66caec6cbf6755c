//! The planes that hold a master, and what goes into them and comes out.
//!
//! A part of a shard lies in two places: the plane that is gathered, in the window,
//! and the rest of its master, which the optimizer keeps. [`Planes`] is both, for a
//! part or for some elements of one.

use fp8::{Format, Fp8Error, Headroom, NestedPlanes, Nesting, Rounding, TILE};
use half::bf16;
use kernels::fp8::{decode_bf16, decode_nested, encode_bf16, encode_nested, quantize_tiles};
use kernels::{Master, WeightFormat, join_master, split_master};
use plan::{MomentFormat, Residual, Storage};
use tensor::{Dtype, cast, cast_mut, narrow, widen};

use crate::TrainError;

/// The planes of consecutive elements of a tensor; where tiles have scales, of whole
/// row tiles.
#[derive(Debug)]
pub(crate) enum Planes<B> {
    /// f32.
    F32(B),
    /// bf16, and sixteen more bits or nothing.
    Bf16 {
        /// Rounded to nearest, ties away from zero, as is right where `low` follows.
        high: B,
        /// i16, or empty.
        low: B,
    },
    /// bf16 and eight more bits.
    Bf16Plus8 { high: B, low: B },
    /// E4M3 codes alone.
    Codes {
        cols: usize,
        headroom: Headroom,
        codes: B,
        scales: B,
    },
    /// A nested master.
    Nested(NestedPlanes<B>),
}

/// Bytes that can be cut in two.
pub(crate) trait Cut: Sized + AsRef<[u8]> + Default {
    /// The first `at` bytes, and the others.
    fn cut(self, at: usize) -> (Self, Self);

    /// Cuts off the first `at` bytes, as far as there are any.
    fn cut_off(&mut self, at: usize) -> Self {
        let all = std::mem::take(self);
        let at = at.min(all.as_ref().len());
        let (first, rest) = all.cut(at);
        *self = rest;
        first
    }
}

impl Cut for &[u8] {
    fn cut(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

impl Cut for &mut [u8] {
    fn cut(self, at: usize) -> (Self, Self) {
        self.split_at_mut(at)
    }
}

impl<B: Cut> Planes<B> {
    /// The planes of `rows` of `cols` elements that rest as `storage` says.
    pub(crate) fn new(storage: Storage, rows: usize, cols: usize, weight: B, rest: B) -> Self {
        let len = rows * cols;
        match (storage.weight, storage.residual) {
            (WeightFormat::F32, _) => Self::F32(weight),
            (WeightFormat::Bf16, Residual::Low8) => Self::Bf16Plus8 {
                high: weight,
                low: rest,
            },
            (WeightFormat::Bf16, _) => Self::Bf16 {
                high: weight,
                low: rest,
            },
            (WeightFormat::E4m3, Residual::Nested(nesting)) => {
                let (codes, scales) = weight.cut(len);
                let (residual, low) = rest.cut(len);
                Self::Nested(nested(nesting, cols, [codes, residual, low, scales]))
            }
            (WeightFormat::E4m3, _) => {
                let (codes, scales) = weight.cut(len);
                Self::Codes {
                    cols,
                    headroom: match storage.moments {
                        MomentFormat::None => Headroom::None,
                        MomentFormat::F32 | MomentFormat::Eight => Headroom::Binade,
                    },
                    codes,
                    scales,
                }
            }
            (WeightFormat::Nested(nesting), _) => {
                let (codes, more) = weight.cut(len);
                let (residual, more) = more.cut(len);
                let (low, scales) = match nesting {
                    Nesting::N16 => more.cut(0),
                    Nesting::N24 => more.cut(len),
                };
                Self::Nested(nested(nesting, cols, [codes, residual, low, scales]))
            }
        }
    }

    /// Cuts off the first elements, at most `len`: whole row tiles, where tiles have
    /// scales.
    pub(crate) fn take(&mut self, len: usize) -> Self {
        match self {
            Self::F32(plane) => Self::F32(plane.cut_off(4 * len)),
            Self::Bf16 { high, low } => Self::Bf16 {
                high: high.cut_off(2 * len),
                low: low.cut_off(2 * len),
            },
            Self::Bf16Plus8 { high, low } => Self::Bf16Plus8 {
                high: high.cut_off(2 * len),
                low: low.cut_off(len),
            },
            Self::Codes {
                cols,
                headroom,
                codes,
                scales,
            } => Self::Codes {
                cols: *cols,
                headroom: *headroom,
                codes: codes.cut_off(len),
                scales: scales.cut_off(scale_len(len, *cols)),
            },
            Self::Nested(planes) => Self::Nested(NestedPlanes {
                cols: planes.cols,
                codes: planes.codes.cut_off(len),
                residual: planes.residual.cut_off(len),
                low: planes.low.as_mut().map(|low| low.cut_off(len)),
                scales: planes.scales.cut_off(scale_len(len, planes.cols)),
            }),
        }
    }

    /// All bytes.
    pub(crate) fn num_bytes(&self) -> usize {
        let len = |plane: &B| plane.as_ref().len();
        match self {
            Self::F32(plane) => len(plane),
            Self::Bf16 { high, low } | Self::Bf16Plus8 { high, low } => len(high) + len(low),
            Self::Codes { codes, scales, .. } => len(codes) + len(scales),
            Self::Nested(planes) => {
                let low = planes.low.as_ref().map_or(0, len);
                len(&planes.codes) + len(&planes.residual) + low + len(&planes.scales)
            }
        }
    }

    /// The planes, to be read.
    pub(crate) fn view(&self) -> Planes<&[u8]> {
        match self {
            Self::F32(plane) => Planes::F32(plane.as_ref()),
            Self::Bf16 { high, low } => Planes::Bf16 {
                high: high.as_ref(),
                low: low.as_ref(),
            },
            Self::Bf16Plus8 { high, low } => Planes::Bf16Plus8 {
                high: high.as_ref(),
                low: low.as_ref(),
            },
            Self::Codes {
                cols,
                headroom,
                codes,
                scales,
            } => Planes::Codes {
                cols: *cols,
                headroom: *headroom,
                codes: codes.as_ref(),
                scales: scales.as_ref(),
            },
            Self::Nested(planes) => Planes::Nested(NestedPlanes {
                cols: planes.cols,
                codes: planes.codes.as_ref(),
                residual: planes.residual.as_ref(),
                low: planes.low.as_ref().map(AsRef::as_ref),
                scales: planes.scales.as_ref(),
            }),
        }
    }

    /// Whether numbers of a file can change on their way through these planes.
    pub(crate) fn rounds(&self, dtype: Dtype) -> bool {
        match (self, dtype) {
            (Self::F32(_), _) | (_, Dtype::BF16) => matches!(self, Self::Codes { .. }),
            (Self::Bf16 { low, .. }, _) => low.as_ref().is_empty(),
            (Self::Bf16Plus8 { .. } | Self::Codes { .. } | Self::Nested(_), _) => true,
        }
    }
}

/// Bytes of the scales of whole row tiles with `len` elements.
fn scale_len(len: usize, cols: usize) -> usize {
    len.div_ceil(TILE * cols) * cols.div_ceil(TILE)
}

fn nested<B>(nesting: Nesting, cols: usize, planes: [B; 4]) -> NestedPlanes<B> {
    let [codes, residual, low, scales] = planes;
    NestedPlanes {
        cols,
        codes,
        residual,
        low: (nesting == Nesting::N24).then_some(low),
        scales,
    }
}

impl Planes<&mut [u8]> {
    /// The plane, if the file's bytes can lie there as they are.
    pub(crate) fn as_stored(&mut self, dtype: Dtype) -> Option<&mut [u8]> {
        match (self, dtype) {
            (Self::F32(plane), Dtype::F32) => Some(plane),
            // The bits below are 0 before a load.
            (Self::Bf16 { high, .. } | Self::Bf16Plus8 { high, .. }, Dtype::BF16) => Some(high),
            _ => None,
        }
    }

    /// Brings stored elements into the planes; `wide` has room for them.
    pub(crate) fn place(
        &mut self,
        dtype: Dtype,
        stored: &[u8],
        wide: &mut [f32],
    ) -> Result<(), PlaceError> {
        if let Some(plane) = self.as_stored(dtype) {
            plane.copy_from_slice(stored);
            return Ok(());
        }
        if let (Self::Nested(planes), Dtype::BF16) = (&mut *self, dtype) {
            encode_bf16(stored, by_ref(planes), Headroom::Binade)?;
            return Ok(());
        }
        let wide = &mut wide[..stored.len() / size_bytes(dtype)];
        widen(dtype, stored, wide)?;
        Ok(self.encode(wide)?)
    }

    /// Brings numbers into the planes, rounded to nearest where they are narrower.
    fn encode(&mut self, wide: &[f32]) -> Result<(), Fp8Error> {
        match self {
            Self::F32(plane) => numbers_mut::<f32>(plane).copy_from_slice(wide),
            Self::Bf16 { high, low: [] } => {
                for (&x, high) in wide.iter().zip(numbers_mut::<bf16>(high)) {
                    *high = bf16::from_bits(fp8::bf16::round_nearest(x));
                }
            }
            Self::Bf16 { high, low } => {
                let halves = numbers_mut::<bf16>(high).iter_mut();
                let halves = halves.zip(numbers_mut::<i16>(low));
                for (&x, (high, low)) in wide.iter().zip(halves) {
                    (*high, *low) = split_master(x);
                }
            }
            Self::Bf16Plus8 { high, low } => {
                let halves = numbers_mut::<bf16>(high).iter_mut().zip(low.iter_mut());
                for (&x, (high, low)) in wide.iter().zip(halves) {
                    let (half, rest) = fp8::bf16::split_plus8(x);
                    (*high, *low) = (bf16::from_bits(half), rest.cast_unsigned());
                }
            }
            Self::Codes {
                cols,
                headroom,
                codes,
                scales,
            } => {
                fp8::refuse_not_finite(wide.iter().copied().enumerate(), *cols)?;
                quantize_tiles(wide, *cols, *headroom, codes, scales);
            }
            Self::Nested(planes) => {
                fp8::refuse_not_finite(wide.iter().copied().enumerate(), planes.cols)?;
                encode_nested(wide, by_ref(planes), Headroom::Binade, Rounding::Nearest);
            }
        }
        Ok(())
    }
}

impl<'a> Planes<&'a mut [u8]> {
    /// The master, to be updated; none of codes alone.
    pub(crate) fn into_master(self) -> Option<Master<&'a mut [u8]>> {
        match self {
            Self::F32(plane) => Some(Master::F32(plane)),
            Self::Bf16 { high, low: [] } => Some(Master::Bf16Alone(high)),
            Self::Bf16 { high, low } => Some(Master::Bf16 { high, low }),
            Self::Bf16Plus8 { high, low } => Some(Master::Bf16Plus8 { high, low }),
            Self::Nested(planes) => Some(Master::Nested(planes)),
            Self::Codes { .. } => None,
        }
    }
}

/// The same planes for a shorter time.
fn by_ref<'s>(planes: &'s mut NestedPlanes<&mut [u8]>) -> NestedPlanes<&'s mut [u8]> {
    NestedPlanes {
        cols: planes.cols,
        codes: planes.codes,
        residual: planes.residual,
        low: planes.low.as_deref_mut(),
        scales: planes.scales,
    }
}

/// Numbers that planes cannot hold.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    #[error("element {index} is {value}, which no scale can hold")]
    NotFinite { index: usize, value: f32 },
    #[error(transparent)]
    NotAFloat(#[from] tensor::NotAFloat),
}

impl From<Fp8Error> for PlaceError {
    fn from(error: Fp8Error) -> Self {
        match error {
            Fp8Error::NotFinite { index, value, .. } => Self::NotFinite { index, value },
            error => unreachable!("planes are cut to fit one another: {error}"),
        }
    }
}

impl<'a> Planes<&'a [u8]> {
    /// The plane, if a file has its very bytes.
    pub(crate) fn stored_as(&self, dtype: Dtype) -> Option<&'a [u8]> {
        match (self, dtype) {
            (Self::F32(plane), Dtype::F32) => Some(plane),
            // The upper part is the nearest bf16.
            (Self::Bf16 { high, .. } | Self::Bf16Plus8 { high, .. }, Dtype::BF16) => Some(high),
            _ => None,
        }
    }

    /// The masters in a file's dtype; `wide` has room for them.
    pub(crate) fn store(
        &self,
        dtype: Dtype,
        wide: &mut [f32],
        stored: &mut [u8],
    ) -> Result<(), TrainError> {
        if let (Self::Nested(planes), Dtype::BF16) = (self, dtype) {
            decode_bf16(planes, stored);
            return Ok(());
        }
        let wide = &mut wide[..stored.len() / size_bytes(dtype)];
        self.decode(wide);
        narrow(dtype, wide, stored)?;
        Ok(())
    }

    /// The masters, row by row.
    pub(crate) fn decode(&self, wide: &mut [f32]) {
        match self {
            Self::F32(plane) => wide.copy_from_slice(numbers(plane)),
            Self::Bf16 { high, low } => {
                let low = numbers::<i16>(low).iter().copied();
                let pairs = numbers::<bf16>(high)
                    .iter()
                    .zip(low.chain(std::iter::repeat(0)));
                for (wide, (&high, low)) in wide.iter_mut().zip(pairs) {
                    *wide = join_master(high, low);
                }
            }
            Self::Bf16Plus8 { high, low } => {
                let pairs = numbers::<bf16>(high).iter().zip(low.iter());
                for (wide, (&high, &low)) in wide.iter_mut().zip(pairs) {
                    *wide = fp8::bf16::join_plus8(high.to_bits(), low.cast_signed());
                }
            }
            Self::Codes {
                cols,
                codes,
                scales,
                ..
            } => {
                let rows = codes.len() / cols;
                let tiled = kernels::fp8::TiledCodes {
                    cols: *cols,
                    codes,
                    scales,
                };
                tiled.decode(0..rows, 0..*cols, wide);
            }
            Self::Nested(planes) => decode_nested(planes, wide),
        }
    }
}

/// Rounds stored numbers to what planes like these hold of them; both are rows of
/// the same elements.
pub(crate) fn round_like(
    planes: &Planes<&mut [u8]>,
    dtype: Dtype,
    stored: &mut [u8],
    wide: &mut [f32],
) -> Result<(), TrainError> {
    let len = stored.len() / size_bytes(dtype);
    let wide = &mut wide[..len];
    widen(dtype, stored, wide)?;
    match planes {
        Planes::F32(_) => {}
        Planes::Bf16 { .. } => {
            for x in &mut *wide {
                *x = fp8::bf16::widen(fp8::bf16::round_nearest(*x));
            }
        }
        Planes::Bf16Plus8 { .. } => {
            for x in &mut *wide {
                let (high, low) = fp8::bf16::split_plus8(*x);
                *x = fp8::bf16::join_plus8(high, low);
            }
        }
        Planes::Codes { cols, headroom, .. } => {
            let rounded = fp8::quantize_tiles(wide, *cols, Format::E4M3, *headroom);
            wide.copy_from_slice(&rounded.decode_tiles(*cols, Format::E4M3));
        }
        Planes::Nested(like) => {
            let mut scratch = NestedPlanes::zeros(len / like.cols, like.cols, like.nesting());
            encode_nested(wide, scratch.as_mut(), Headroom::Binade, Rounding::Nearest);
            decode_nested(&scratch.as_ref(), wide);
        }
    }
    narrow(dtype, wide, stored)?;
    Ok(())
}

/// Bytes of a stored number.
fn size_bytes(dtype: Dtype) -> usize {
    dtype.size_bytes().expect("sources are whole-byte floats")
}

/// A plane seen as numbers; parts begin at multiples of 64 bytes, and pieces of them
/// at whole elements.
fn numbers<T: bytemuck::Pod>(plane: &[u8]) -> &[T] {
    cast(plane).expect("parts are aligned and hold whole elements")
}

fn numbers_mut<T: bytemuck::Pod>(plane: &mut [u8]) -> &mut [T] {
    cast_mut(plane).expect("parts are aligned and hold whole elements")
}
