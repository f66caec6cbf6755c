//! The tensor of every parameter: a config and a folder brought together.

use std::collections::BTreeSet;

use spec::{ModelSpec, Param, Unit};
use tensor::{Dtype, TensorMeta};

use crate::error::{CheckpointError, Result};
use crate::folder::Folder;
use crate::rules::Strictness;
use crate::scales;
use crate::weights::Located;

const HEAD_NAME: &str = "lm_head.weight";

/// Which tensor of a folder each parameter of a model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    /// By unit and parameter, numbers of tensors in the folder.
    units: Vec<Vec<usize>>,
    /// Numbers of tensors that are left out on purpose, in order.
    ignored: Vec<usize>,
    /// Those of them that nobody knows, let pass where reading is lax.
    unexpected: Vec<usize>,
}

impl Sources {
    pub(crate) fn resolve(folder: &Folder, spec: &ModelSpec) -> Result<Self> {
        let units = spec.units();
        refuse_missing(folder, &units)?;
        let mut is_used = vec![false; folder.tensors().len()];
        let mut resolved = Vec::with_capacity(units.len());
        for unit in &units {
            let mut numbers = Vec::with_capacity(unit.params.len());
            for param in &unit.params {
                let number = checked(folder, param)?;
                is_used[number] = true;
                if let Some(scales) = &folder.tensors()[number].scales {
                    is_used[scales.number] = true;
                }
                numbers.push(number);
            }
            resolved.push(numbers);
        }
        let unused = (0..is_used.len()).filter(|&number| !is_used[number]);
        let (mut ignored, unexpected): (Vec<_>, Vec<_>) =
            unused.partition(|&number| is_ignored(&folder.tensors()[number].meta.name, spec));
        if folder.strictness() == Strictness::Lax {
            ignored.extend_from_slice(&unexpected);
            ignored.sort_unstable();
        } else if let Some(&first) = unexpected.first() {
            return Err(CheckpointError::UnexpectedTensors {
                folder: folder.path().to_owned(),
                num_unexpected: unexpected.len(),
                first: folder.tensors()[first].meta.name.clone(),
            });
        }
        Ok(Self {
            units: resolved,
            ignored,
            unexpected,
        })
    }

    /// The tensor of parameter `param` of unit `unit`, both counted as in
    /// [`ModelSpec::units`].
    pub fn of<'a>(&self, folder: &'a Folder, unit: usize, param: usize) -> &'a Located {
        &folder.tensors()[self.units[unit][param]]
    }

    /// The tensors that are left out on purpose.
    pub fn ignored<'a>(&self, folder: &'a Folder) -> impl Iterator<Item = &'a Located> {
        self.ignored.iter().map(|&number| &folder.tensors()[number])
    }

    /// Those of them that do not belong to the model at all, which only lax reading
    /// leaves out.
    pub fn unexpected<'a>(&self, folder: &'a Folder) -> impl ExactSizeIterator<Item = &'a Located> {
        let numbers = self.unexpected.iter();
        numbers.map(|&number| &folder.tensors()[number])
    }

    /// What an export of this model holds: the tensors in use, in the folder's
    /// order, under their names and in their dtypes; bf16 where those were FP8 codes,
    /// whose scales are left out.
    pub fn exported(&self, folder: &Folder) -> Vec<TensorMeta> {
        let scales = folder.tensors().iter();
        let scales = scales.filter_map(|tensor| Some(tensor.scales.as_ref()?.number));
        let scales: BTreeSet<usize> = scales.collect();
        let tensors = folder.tensors().iter().enumerate();
        tensors
            .filter(|(number, _)| {
                self.ignored.binary_search(number).is_err() && !scales.contains(number)
            })
            .map(|(_, tensor)| TensorMeta {
                dtype: match tensor.scales {
                    Some(_) => Dtype::BF16,
                    None => tensor.meta.dtype,
                },
                ..tensor.meta.clone()
            })
            .collect()
    }
}

fn refuse_missing(folder: &Folder, units: &[Unit]) -> Result<()> {
    let missing: Vec<_> = units
        .iter()
        .flat_map(|unit| &unit.params)
        .filter(|param| folder.find(&param.name).is_none())
        .collect();
    let Some(first) = missing.first() else {
        return Ok(());
    };
    let hint = if first.name == HEAD_NAME {
        " (the config does not set tie_word_embeddings, so the head needs a table of its own)"
    } else {
        ""
    };
    Err(CheckpointError::MissingTensors {
        folder: folder.path().to_owned(),
        num_missing: missing.len(),
        first: first.name.clone(),
        hint,
    })
}

/// The number of a parameter's tensor, with the right shape and a dtype that
/// can be trained.
fn checked(folder: &Folder, param: &Param) -> Result<usize> {
    let number = folder
        .weights()
        .position(&param.name)
        .expect("missing tensors were refused before");
    let tensor = &folder.tensors()[number];
    let file = || folder.files()[tensor.file].path.clone();
    let expected = param.shape();
    if tensor.meta.shape != expected {
        return Err(CheckpointError::WrongShape {
            tensor: param.name.clone(),
            file: file(),
            expected: Box::new(expected),
            found: Box::new(tensor.meta.shape.clone()),
        });
    }
    if !matches!(
        tensor.value_dtype(),
        Dtype::F32 | Dtype::BF16 | Dtype::F16 | Dtype::F64
    ) {
        return Err(CheckpointError::WrongDtype {
            tensor: param.name.clone(),
            file: file(),
            found: tensor.meta.dtype,
        });
    }
    Ok(number)
}

/// Tensors that old writers saved and nobody reads: rotary tables, which are
/// computed from the config, attention's mask value, the second name of a tied table,
/// and how to quantize what is no weight.
fn is_ignored(name: &str, spec: &ModelSpec) -> bool {
    name.ends_with("rotary_emb.inv_freq")
        || name.ends_with("masked_bias")
        || scales::is_of_activations(name)
        || (spec.tied && name == HEAD_NAME)
}
