//! The planes of a tensor, and where the rows of a part begin in them.

use fp8::TILE;
use fp8::moments::scale_bytes;
use kernels::WeightFormat;
use plan::{MomentFormat, Residual, Storage};

use crate::planes::Cut;

/// One plane of a tensor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plane {
    pub(super) name: &'static str,
    grain: Grain,
}

/// The bytes of a plane that stay together.
#[derive(Debug, Clone, Copy)]
enum Grain {
    /// So many bytes a row.
    Row(usize),
    /// So many bytes a row tile.
    RowTile(usize),
}

impl Plane {
    /// The bytes of the first `rows` rows.
    pub(super) fn num_bytes(self, rows: usize) -> usize {
        match self.grain {
            Grain::Row(bytes) => rows * bytes,
            Grain::RowTile(bytes) => rows.div_ceil(TILE) * bytes,
        }
    }
}

/// The planes of a tensor of `cols` columns, in the order in which they lie: what is
/// gathered, the rest of the master, the moments.
pub(super) fn planes(storage: Storage, cols: usize) -> Vec<Plane> {
    let row = |name, bytes| Plane {
        name,
        grain: Grain::Row(bytes),
    };
    let scales = Plane {
        name: "scales",
        grain: Grain::RowTile(cols.div_ceil(TILE)),
    };
    let mut planes = match storage.weight {
        WeightFormat::F32 => vec![row("weight", 4 * cols)],
        WeightFormat::Bf16 => vec![row("weight", 2 * cols)],
        WeightFormat::E4m3 => vec![row("codes", cols), scales],
        WeightFormat::Nested(nesting) => {
            let mut planes = vec![row("codes", cols)];
            planes.extend(residuals(Residual::Nested(nesting), cols));
            planes.push(scales);
            planes
        }
    };
    planes.extend(residuals(storage.residual, cols));
    match storage.moments {
        MomentFormat::None => {}
        MomentFormat::F32 => planes.extend([row("m", 4 * cols), row("v", 4 * cols)]),
        MomentFormat::Eight => planes.extend([
            row("m", cols),
            row("v", cols),
            row("m_scales", scale_bytes(1, cols)),
            row("v_scales", scale_bytes(1, cols)),
        ]),
    }
    planes
}

/// The planes of what a master has beyond the plane that is gathered.
fn residuals(residual: Residual, cols: usize) -> impl Iterator<Item = Plane> {
    let (count, bytes) = match residual {
        Residual::None => (0, 0),
        Residual::Low16 => (1, 2 * cols),
        Residual::Low8 => (1, cols),
        Residual::Nested(_) => (residual.size_bytes(), cols),
    };
    let names = ["residual", "low"].into_iter().take(count);
    names.map(move |name| Plane {
        name,
        grain: Grain::Row(bytes),
    })
}

/// Cuts the bytes of `rows` rows, which lie in `groups`, into planes.
pub(super) fn split<B: Cut>(
    groups: impl Iterator<Item = B>,
    planes: &[Plane],
    rows: usize,
) -> Vec<B> {
    let mut groups = groups.filter(|group| !group.as_ref().is_empty());
    let mut group = B::default();
    let planes = planes.iter().map(|plane| {
        if group.as_ref().is_empty() {
            group = groups.next().unwrap_or_default();
        }
        group.cut_off(plane.num_bytes(rows))
    });
    planes.collect()
}
