//! What a conversion refuses.

/// Why numbers cannot become codes without a lie.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Fp8Error {
    /// A NaN or an infinity among weights: no scale holds it.
    #[error("element {index} (row {row}, column {col}) is {value}, which no scale can hold")]
    NotFinite {
        /// Its place, row by row, counted in the numbers that were given.
        index: usize,
        /// Its row.
        row: usize,
        /// Its column.
        col: usize,
        /// What it is.
        value: f32,
    },
    /// A plane whose length does not fit the matrix.
    #[error("{plane}: a matrix of {rows} x {cols} needs {expected} bytes, there are {found}")]
    WrongLength {
        /// Which plane.
        plane: &'static str,
        /// The matrix's rows.
        rows: usize,
        /// The matrix's columns.
        cols: usize,
        /// Bytes that it needs.
        expected: usize,
        /// Bytes that there are.
        found: usize,
    },
}
