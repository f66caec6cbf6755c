//! How a matrix is cut into tiles: 128 x 128, shorter at its lower and right
//! edges, numbered row tile by row tile.

use std::ops::Range;

/// Rows and columns of a tile.
pub const TILE: usize = 128;

/// A matrix, or a run of whole row tiles of one, cut into tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub cols: usize,
}

/// One tile of a [`Grid`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tile {
    /// Its number, and the place of its scale.
    pub index: usize,
    /// Its rows.
    pub rows: Range<usize>,
    /// Its columns.
    pub cols: Range<usize>,
}

impl Grid {
    /// The number of elements.
    pub fn len(self) -> usize {
        self.rows * self.cols
    }

    /// Whether there are no elements.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Tiles beside each other in a row tile.
    pub fn tiles_per_row(self) -> usize {
        self.cols.div_ceil(TILE)
    }

    /// The number of tiles.
    pub fn num_tiles(self) -> usize {
        self.rows.div_ceil(TILE) * self.tiles_per_row()
    }

    /// Every tile in order.
    pub fn tiles(self) -> impl Iterator<Item = Tile> {
        let per_row = self.tiles_per_row();
        (0..self.num_tiles()).map(move |index| {
            let (row, col) = (index / per_row * TILE, index % per_row * TILE);
            Tile {
                index,
                rows: row..self.rows.min(row + TILE),
                cols: col..self.cols.min(col + TILE),
            }
        })
    }
}

impl Tile {
    /// The places of each of its rows in a plane with rows of `cols` elements.
    pub fn spans(&self, cols: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let Range { start, end } = self.cols;
        let rows = self.rows.clone();
        rows.map(move |row| row * cols + start..row * cols + end)
    }

    /// Its elements of a plane, row by row.
    pub fn gather<T: Copy>(&self, plane: &[T], cols: usize) -> Vec<T> {
        self.spans(cols)
            .flat_map(|span| plane[span].iter().copied())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_hold_every_element_once_at_every_size() {
        for rows in [0, 1, 127, 128, 129, 300] {
            for cols in [1, 64, 128, 136, 257] {
                let grid = Grid { rows, cols };
                let mut seen = vec![0; grid.len()];
                for (tile, number) in grid.tiles().zip(0..) {
                    assert_eq!(tile.index, number);
                    for place in tile.spans(cols).flatten() {
                        seen[place] += 1;
                    }
                }
                assert_eq!(seen, vec![1; grid.len()]);
                assert_eq!(grid.tiles().count(), grid.num_tiles());
            }
        }
    }
}
