//! What is in a checkpoint: units, tensors, dtypes, bytes, ties, problems.

use checkpoint::{Located, inspect_file_with};
use serde::Serialize;
use spec::ModelSpec;

use crate::{Error, ModelPath, OpenModel};

/// One tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TensorLine {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: String,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// Its bytes and those of its scales.
    pub num_bytes: u64,
    /// Its scales, where it is FP8 codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scales: Option<ScalesLine>,
}

/// The scales of FP8 codes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScalesLine {
    /// Their name.
    pub name: String,
    /// Their element type.
    pub dtype: String,
    /// Rows and columns that share one.
    pub block: [u64; 2],
}

/// One unit and its tensors; a file that is no model is one unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnitLine {
    /// Its name.
    pub name: String,
    /// Its parameters.
    pub num_parameters: u64,
    /// Its bytes.
    pub num_bytes: u64,
    /// Its tensors.
    pub tensors: Vec<TensorLine>,
}

/// What is in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inspection {
    /// Distinct parameters, a tied table once.
    pub num_parameters: u64,
    /// Bytes of all tensors.
    pub num_bytes: u64,
    /// Names of one parameter: the table and the head that shares it.
    pub ties: Vec<(String, String)>,
    /// What is odd but not wrong.
    pub warnings: Vec<String>,
    /// Embedding, blocks, head.
    pub units: Vec<UnitLine>,
}

/// Looks into a folder, a single weight file, or `demo`; reads headers only.
pub fn inspect<'a>(model: impl Into<ModelPath<'a>>) -> Result<Inspection, Error> {
    let model = model.into();
    if model.path.is_file() {
        let weights = inspect_file_with(model.path, model.rules.strictness)?;
        return Ok(Inspection {
            warnings: weights.unknown_fields().to_vec(),
            ..of_file(weights.tensors())
        });
    }
    let opened = OpenModel::open(model)?;
    let units: Vec<UnitLine> = opened
        .model
        .units
        .iter()
        .enumerate()
        .map(|(unit, shape)| {
            let params = 0..shape.params.len();
            let located = params.map(|tensor| opened.sources.of(&opened.folder, unit, tensor));
            unit_line(&shape.name, located)
        })
        .collect();
    Ok(Inspection {
        num_parameters: opened.model.spec.num_parameters(),
        num_bytes: units.iter().map(|unit| unit.num_bytes).sum(),
        ties: ties(&opened.model.spec),
        warnings: opened
            .folder
            .warnings()
            .iter()
            .map(ToString::to_string)
            .chain(opened.folder.unknown_fields().iter().cloned())
            .chain(opened.sources.ignored(&opened.folder).map(|ignored| {
                let name = &ignored.meta.name;
                format!("tensor `{name}` is not part of this model and is left out")
            }))
            .collect(),
        units,
    })
}

fn of_file(tensors: &[Located]) -> Inspection {
    let unit = unit_line("file", tensors.iter());
    Inspection {
        num_parameters: unit.num_parameters,
        num_bytes: unit.num_bytes,
        ties: Vec::new(),
        warnings: Vec::new(),
        units: vec![unit],
    }
}

fn unit_line<'a>(name: &str, located: impl Iterator<Item = &'a Located>) -> UnitLine {
    let mut line = UnitLine {
        name: name.to_owned(),
        num_parameters: 0,
        num_bytes: 0,
        tensors: Vec::new(),
    };
    for located in located {
        let meta = &located.meta;
        let scales = located.scales.as_ref();
        let tensor = TensorLine {
            name: meta.name.clone(),
            dtype: meta.dtype.to_string(),
            shape: meta.shape.dims().to_vec(),
            num_bytes: located.num_bytes() + scales.map_or(0, |scales| scales.located.num_bytes()),
            scales: scales.map(|scales| ScalesLine {
                name: scales.located.meta.name.clone(),
                dtype: scales.located.meta.dtype.to_string(),
                block: scales.block,
            }),
        };
        line.num_parameters += meta.shape.num_elements().expect("the header was checked");
        line.num_bytes += tensor.num_bytes;
        line.tensors.push(tensor);
    }
    line
}

fn ties(spec: &ModelSpec) -> Vec<(String, String)> {
    if !spec.tied {
        return Vec::new();
    }
    let table = &spec.units()[0].params[0].name;
    vec![(table.clone(), "lm_head.weight".to_owned())]
}
