//! How a tensor rests: what is gathered, what peers never read, what the optimizer
//! keeps.

use fp8::Nesting;
use fp8::moments::scale_bytes;
use kernels::WeightFormat;

/// How one tensor rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Storage {
    /// The plane that is gathered and multiplied.
    pub weight: WeightFormat,
    /// What the master has beyond it.
    pub residual: Residual,
    /// The optimizer's moments.
    pub moments: MomentFormat,
}

/// What a master has beyond the plane that is gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residual {
    /// Nothing: the plane is the master.
    None,
    /// Sixteen more bits of a bf16: an f32.
    Low16,
    /// Eight more bits of a bf16.
    Low8,
    /// The residuals of a nested master, a plane a byte.
    Nested(Nesting),
}

/// How moments rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MomentFormat {
    /// There are none: the tensor is not trained.
    None,
    /// f32.
    F32,
    /// 8 bits, with scales for each 64 columns.
    Eight,
}

impl Storage {
    /// f32 with f32 moments.
    pub const F32: Self = Self {
        weight: WeightFormat::F32,
        residual: Residual::None,
        moments: MomentFormat::F32,
    };

    /// A tensor that is read and never trained.
    pub fn resting(weight: WeightFormat) -> Self {
        Self {
            weight,
            residual: Residual::None,
            moments: MomentFormat::None,
        }
    }

    /// Whether the optimizer updates it.
    pub fn is_trained(self) -> bool {
        self.moments != MomentFormat::None
    }

    /// Whether the master can only be read and written in whole row tiles.
    pub fn is_tiled(self) -> bool {
        self.weight.is_tiled()
    }

    /// Bytes of the plane that is gathered.
    pub fn weight_bytes(self, rows: usize, cols: usize) -> usize {
        self.weight.num_bytes(rows, cols)
    }

    /// Bytes of the rest of the master.
    pub fn residual_bytes(self, rows: usize, cols: usize) -> usize {
        rows * cols * self.residual.size_bytes()
    }

    /// Bytes of both moments with their scales.
    pub fn moment_bytes(self, rows: usize, cols: usize) -> usize {
        match self.moments {
            MomentFormat::None => 0,
            MomentFormat::F32 => 8 * rows * cols,
            MomentFormat::Eight => 2 * (rows * cols + scale_bytes(rows, cols)),
        }
    }

    /// Bytes of one element over all planes, scales not counted: what is balanced
    /// over ranks.
    pub fn bytes_per_element(self) -> usize {
        let moments = match self.moments {
            MomentFormat::None => 0,
            MomentFormat::F32 => 8,
            MomentFormat::Eight => 2,
        };
        self.weight.size_bytes() + self.residual.size_bytes() + moments
    }
}

impl Residual {
    /// Bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::None => 0,
            Self::Low16 => 2,
            Self::Low8 => 1,
            Self::Nested(nesting) => nesting.size_bytes() - 1,
        }
    }
}
