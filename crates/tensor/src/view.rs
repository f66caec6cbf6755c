//! Bytes seen as numbers, and numbers as bytes: the one place that does it.
//!
//! Files and machines are both little-endian here; a big-endian build would
//! need a swap at this place and is refused at compile time.

use bytemuck::Pod;

#[cfg(target_endian = "big")]
compile_error!("checkpoints are little-endian and are viewed in place");

/// Bytes whose address or length does not fit the number type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes cannot be seen as numbers of {size} bytes: {reason}")]
pub struct NotAligned {
    /// How many bytes there were.
    pub len: usize,
    /// Bytes of one number.
    pub size: usize,
    /// What did not fit.
    pub reason: bytemuck::PodCastError,
}

/// Sees bytes as numbers.
pub fn cast<T: Pod>(bytes: &[u8]) -> Result<&[T], NotAligned> {
    let len = bytes.len();
    bytemuck::try_cast_slice(bytes).map_err(|reason| NotAligned {
        len,
        size: size_of::<T>(),
        reason,
    })
}

/// Sees bytes as numbers that can be written.
pub fn cast_mut<T: Pod>(bytes: &mut [u8]) -> Result<&mut [T], NotAligned> {
    let len = bytes.len();
    bytemuck::try_cast_slice_mut(bytes).map_err(|reason| NotAligned {
        len,
        size: size_of::<T>(),
        reason,
    })
}

/// Sees numbers as their bytes.
pub fn as_bytes<T: Pod>(numbers: &[T]) -> &[u8] {
    bytemuck::cast_slice(numbers)
}

/// Sees numbers as bytes that can be written.
pub fn as_bytes_mut<T: Pod>(numbers: &mut [T]) -> &mut [u8] {
    bytemuck::cast_slice_mut(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_bytes_are_the_same_memory() {
        let numbers = [1.0_f32, -2.0];
        assert_eq!(cast::<f32>(as_bytes(&numbers)), Ok(&numbers[..]));
    }

    #[test]
    fn a_broken_length_is_refused() {
        let numbers = [1.0_f32, -2.0];
        let refused = cast::<f32>(&as_bytes(&numbers)[..7]).unwrap_err();
        assert_eq!((refused.len, refused.size), (7, 4));
    }
}
