//! Shapes, and tensors without bytes.

use std::fmt;

use crate::Dtype;

/// A shape or dtype that no memory could hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// The product of the dimensions passes 2^64.
    #[error("shape {shape} has more elements than 64 bits can count")]
    TooLarge {
        /// The shape as given.
        shape: Shape,
    },
    /// A sub-byte dtype whose elements do not fill whole bytes.
    #[error("shape {shape} of {dtype} does not fill whole bytes")]
    BrokenByte {
        /// The shape as given.
        shape: Shape,
        /// Its dtype.
        dtype: Dtype,
    },
}

/// Dimensions that a shape holds without memory of its own.
const INLINE_RANK: usize = 4;

/// The dimensions of a tensor, outermost first; empty for a scalar.
///
/// A header of a hundred thousand tensors keeps as many shapes, so the usual
/// ones, of up to four dimensions, take no memory beside themselves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shape(Dims);

/// One shape has one form, or equal shapes would differ: at most
/// [`INLINE_RANK`] dimensions are always held in place, with zeros behind them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Dims {
    Few { rank: u8, dims: [u64; INLINE_RANK] },
    Many(Box<[u64]>),
}

impl Shape {
    /// A shape of these dimensions.
    pub fn new(given: &[u64]) -> Self {
        if given.len() > INLINE_RANK {
            return Self(Dims::Many(given.into()));
        }
        let mut dims = [0; INLINE_RANK];
        let mut rank = 0;
        for (dim, &given) in dims.iter_mut().zip(given) {
            *dim = given;
            rank += 1;
        }
        Self(Dims::Few { rank, dims })
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[u64] {
        match &self.0 {
            Dims::Few { rank, dims } => &dims[..usize::from(*rank)],
            Dims::Many(dims) => dims,
        }
    }

    /// The number of elements; 1 for a scalar, 0 if any dimension is 0.
    pub fn num_elements(&self) -> Result<u64, ShapeError> {
        if self.dims().contains(&0) {
            return Ok(0);
        }
        self.dims()
            .iter()
            .try_fold(1_u64, |product, &dim| product.checked_mul(dim))
            .ok_or_else(|| ShapeError::TooLarge {
                shape: self.clone(),
            })
    }

    /// The outermost dimension: the rows that sharding deals. 1 for a scalar.
    pub fn num_rows(&self) -> u64 {
        self.dims().first().copied().unwrap_or(1)
    }
}

impl Default for Shape {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, dim) in self.dims().iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{dim}")?;
        }
        f.write_str("]")
    }
}

impl From<&[u64]> for Shape {
    fn from(dims: &[u64]) -> Self {
        Self::new(dims)
    }
}

/// A meta tensor: name, dtype and shape without bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMeta {
    /// The name in the checkpoint.
    pub name: String,
    /// The element type.
    pub dtype: Dtype,
    /// The dimensions.
    pub shape: Shape,
}

impl TensorMeta {
    /// Bytes that the elements take, packed.
    pub fn num_bytes(&self) -> Result<u64, ShapeError> {
        let too_large = || ShapeError::TooLarge {
            shape: self.shape.clone(),
        };
        let bits = self
            .shape
            .num_elements()?
            .checked_mul(self.dtype.bits())
            .ok_or_else(too_large)?;
        if !bits.is_multiple_of(8) {
            return Err(ShapeError::BrokenByte {
                shape: self.shape.clone(),
                dtype: self.dtype,
            });
        }
        Ok(bits / 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(dtype: Dtype, dims: &[u64]) -> Result<u64, ShapeError> {
        TensorMeta {
            name: "t".into(),
            dtype,
            shape: dims.into(),
        }
        .num_bytes()
    }

    #[test]
    fn a_scalar_has_one_element_and_an_empty_tensor_none() {
        assert_eq!(bytes(Dtype::F32, &[]), Ok(4));
        assert_eq!(bytes(Dtype::F32, &[0, u64::MAX]), Ok(0));
        assert_eq!(bytes(Dtype::F32, &[u64::MAX, 2, 0]), Ok(0));
    }

    #[test]
    fn a_shape_of_any_rank_keeps_its_dimensions() {
        let dims: Vec<u64> = (0..9).collect();
        for rank in 0..=dims.len() {
            let shape = Shape::new(&dims[..rank]);
            assert_eq!(shape.dims(), &dims[..rank]);
            assert_eq!(shape, shape.clone());
        }
        assert_eq!(Shape::new(&[2, 0, 3]).to_string(), "[2, 0, 3]");
        assert_ne!(Shape::new(&[2]), Shape::new(&[2, 0]));
    }

    #[test]
    fn a_meta_tensor_takes_72_bytes() {
        assert_eq!(size_of::<TensorMeta>(), 72);
    }

    #[test]
    fn overflow_is_an_error() {
        assert!(matches!(
            bytes(Dtype::F32, &[u64::MAX, 2]),
            Err(ShapeError::TooLarge { .. })
        ));
        assert!(matches!(
            bytes(Dtype::F64, &[u64::MAX / 8]),
            Err(ShapeError::TooLarge { .. })
        ));
    }

    #[test]
    fn half_a_byte_is_an_error() {
        assert_eq!(bytes(Dtype::F4, &[2, 3]), Ok(3));
        assert!(matches!(
            bytes(Dtype::F4, &[3]),
            Err(ShapeError::BrokenByte { .. })
        ));
    }
}
