//! Units, and the parameters in them.

use tensor::Shape;

/// What is unsharded, computed and updated at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// The name in reports: `embedding`, `block 7`, `head`.
    pub name: String,
    /// Its place in the model.
    pub kind: UnitKind,
    /// Its parameters, in the order in which the forward pass uses them.
    pub params: Vec<Param>,
}

impl Unit {
    /// The number of elements of all parameters.
    pub fn num_parameters(&self) -> u64 {
        self.params.iter().map(Param::num_elements).sum()
    }
}

/// A unit's place in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnitKind {
    /// The token table.
    Embedding,
    /// Attention and MLP, counted from 0.
    Block(usize),
    /// The final norm and, unless tied, the output table.
    Head,
}

/// One parameter of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// The tensor's name in a checkpoint.
    pub name: String,
    /// What the unit uses it for.
    pub role: Role,
    /// Output features or tokens; 1 for a vector.
    pub rows: usize,
    /// Input features; the length of a vector.
    pub cols: usize,
    /// Whether the checkpoint holds it with one dimension.
    pub is_vector: bool,
}

impl Param {
    /// The shape in a checkpoint: `[cols]` or `[rows, cols]`.
    pub fn shape(&self) -> Shape {
        if self.is_vector {
            Shape::new(&[self.cols as u64])
        } else {
            Shape::new(&[self.rows as u64, self.cols as u64])
        }
    }

    /// The number of elements.
    pub fn num_elements(&self) -> u64 {
        self.rows as u64 * self.cols as u64
    }
}

/// What a parameter is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Role {
    /// The token table.
    Embedding,
    /// The norm before attention.
    InputNorm,
    /// Its bias.
    InputNormBias,
    /// Query, key and value projections in one: for each key/value head the rows of
    /// its query heads, then of its key, then of its value.
    QueryKeyValue,
    /// Its bias.
    QueryKeyValueBias,
    /// The query projection.
    Query,
    /// Its bias.
    QueryBias,
    /// The key projection.
    Key,
    /// Its bias.
    KeyBias,
    /// The value projection.
    Value,
    /// Its bias.
    ValueBias,
    /// The projection after attention.
    Output,
    /// Its bias.
    OutputBias,
    /// The norm before the MLP.
    PostNorm,
    /// Its bias.
    PostNormBias,
    /// The MLP's gate projection.
    Gate,
    /// Its bias.
    GateBias,
    /// The MLP's up projection; without a gate, its first.
    Up,
    /// Its bias.
    UpBias,
    /// The MLP's down projection.
    Down,
    /// Its bias.
    DownBias,
    /// The norm before the output table.
    FinalNorm,
    /// Its bias.
    FinalNormBias,
    /// The output table.
    LmHead,
}

impl Role {
    /// Whether it is the weight of a norm.
    pub fn is_norm(self) -> bool {
        matches!(self, Self::InputNorm | Self::PostNorm | Self::FinalNorm)
    }

    /// Whether it is a bias.
    pub fn is_bias(self) -> bool {
        matches!(
            self,
            Self::InputNormBias
                | Self::PostNormBias
                | Self::FinalNormBias
                | Self::QueryKeyValueBias
                | Self::QueryBias
                | Self::KeyBias
                | Self::ValueBias
                | Self::OutputBias
                | Self::GateBias
                | Self::UpBias
                | Self::DownBias
        )
    }
}
