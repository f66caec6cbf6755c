//! `nestling inspect`: what is in a model, from its headers alone, or what it takes
//! to load it.

mod load;

use std::fmt::Write as _;
use std::path::PathBuf;

use nestling::{Inspection, TensorLine, UnitLine, inspect};

use crate::error::CliError;
use crate::format::{Align, count, counted, size, table};
use crate::output::{print, print_json};
use crate::reading::Reading;

use load::LoadFlags;

/// What is in a model.
#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    /// A Hugging Face folder, a .safetensors or .bin file, or `demo`
    model: PathBuf,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    load: LoadFlags,
}

impl Inspect {
    pub(crate) fn run(self) -> Result<(), CliError> {
        let model = self.reading.of(&self.model);
        if self.load.load {
            return self.load.run(model, self.json);
        }
        let inspection = inspect(model)?;
        if self.json {
            return print_json(&inspection);
        }
        print(&to_text(&inspection, self.tensors))
    }
}

fn to_text(inspection: &Inspection, lists_tensors: bool) -> String {
    let tensors = inspection
        .units
        .iter()
        .map(|unit| unit.tensors.len() as u64);
    let mut text = format!(
        "{} in {}, {}\n\n{}",
        counted(inspection.num_parameters, "parameter"),
        counted(tensors.sum(), "tensor"),
        size(inspection.num_bytes),
        unit_table(&inspection.units),
    );
    if lists_tensors {
        text = format!("{text}\n{}", tensor_table(&inspection.units));
    }
    if !(inspection.ties.is_empty() && inspection.warnings.is_empty()) {
        text.push('\n');
    }
    for (table, head) in &inspection.ties {
        let _ = writeln!(text, "tied: {head} is {table}");
    }
    for warning in &inspection.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

fn unit_table(units: &[UnitLine]) -> String {
    use Align::{Left, Right};
    let heads = ["unit", "tensors", "parameters", "size", "dtypes"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(units.iter().map(|unit| {
        vec![
            unit.name.clone(),
            unit.tensors.len().to_string(),
            count(unit.num_parameters),
            size(unit.num_bytes),
            dtypes(unit),
        ]
    }));
    table(&[Left, Right, Right, Right, Left], &rows)
}

/// The different dtypes of a unit, in order.
fn dtypes(unit: &UnitLine) -> String {
    let mut dtypes: Vec<&str> = Vec::new();
    for tensor in &unit.tensors {
        if !dtypes.contains(&tensor.dtype.as_str()) {
            dtypes.push(&tensor.dtype);
        }
    }
    dtypes.join(", ")
}

fn tensor_table(units: &[UnitLine]) -> String {
    use Align::{Left, Right};
    let heads = ["tensor", "dtype", "shape", "size"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let tensors = units.iter().flat_map(|unit| &unit.tensors);
    rows.extend(tensors.map(|tensor| {
        vec![
            tensor.name.clone(),
            described(tensor),
            format!("{:?}", tensor.shape),
            size(tensor.num_bytes),
        ]
    }));
    table(&[Left, Left, Left, Right], &rows)
}

/// A tensor's dtype, and where its elements are codes what scales them.
fn described(tensor: &TensorLine) -> String {
    let dtype = &tensor.dtype;
    match &tensor.scales {
        None => dtype.clone(),
        Some(scales) => {
            let [rows, cols] = scales.block;
            format!("{dtype}, {} per {rows} x {cols}", scales.dtype)
        }
    }
}

#[cfg(test)]
mod tests {
    use nestling::ScalesLine;

    use super::*;

    fn inspection() -> Inspection {
        let tensor = |name: &str, shape: &[u64], dtype: &str, num_bytes| TensorLine {
            name: name.to_owned(),
            dtype: dtype.to_owned(),
            shape: shape.to_vec(),
            num_bytes,
            scales: None,
        };
        Inspection {
            num_parameters: 1030,
            num_bytes: 2072,
            ties: vec![("embed.weight".to_owned(), "lm_head.weight".to_owned())],
            warnings: vec!["not read: old.safetensors".to_owned()],
            units: vec![
                UnitLine {
                    name: "embedding".to_owned(),
                    num_parameters: 1024,
                    num_bytes: 2048,
                    tensors: vec![tensor("embed.weight", &[64, 16], "BF16", 2048)],
                },
                UnitLine {
                    name: "head".to_owned(),
                    num_parameters: 6,
                    num_bytes: 24,
                    tensors: vec![tensor("norm.weight", &[6], "F32", 24)],
                },
            ],
        }
    }

    #[test]
    fn units_come_first_and_problems_last() {
        let expected = "\
1,030 parameters in 2 tensors, 2.0 KiB

unit       tensors  parameters     size  dtypes
embedding        1       1,024  2.0 KiB  BF16
head             1           6     24 B  F32

tied: lm_head.weight is embed.weight
warning: not read: old.safetensors
";
        assert_eq!(to_text(&inspection(), false), expected);
    }

    #[test]
    fn tensors_are_listed_on_request() {
        let expected = "
tensor        dtype  shape        size
embed.weight  BF16   [64, 16]  2.0 KiB
norm.weight   F32    [6]          24 B
";
        assert!(to_text(&inspection(), true).contains(expected));
    }

    #[test]
    fn codes_say_what_scales_them() {
        let mut inspection = inspection();
        let tensor = &mut inspection.units[0].tensors[0];
        tensor.dtype = "F8_E4M3".to_owned();
        tensor.scales = Some(ScalesLine {
            name: "embed.weight_scale_inv".to_owned(),
            dtype: "F32".to_owned(),
            block: [128, 64],
        });
        let text = to_text(&inspection, true);
        assert!(text.contains("F8_E4M3, F32 per 128 x 64"), "{text}");
    }
}
