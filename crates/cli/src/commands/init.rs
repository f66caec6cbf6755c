//! `nestling init`: random checkpoints of known shapes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nestling::{Dtype, Error, InitOptions, PresetLine, init, presets};
use serde_json::json;

use crate::error::CliError;
use crate::format::{Align, count, counted, size, table};
use crate::output::{print, print_json};
use crate::progress;
use crate::stop::Stop;

/// Write a random checkpoint of a known shape.
#[derive(Debug, clap::Args)]
pub(crate) struct Init {
    /// A shape that --list names, or the path of a config.json
    #[arg(required_unless_present = "list")]
    preset: Option<String>,
    /// The folder to write; it must be empty or not there
    #[arg(long, value_name = "DIR", required_unless_present = "list")]
    out: Option<PathBuf>,
    /// Seed of the values
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Element type of the weights
    #[arg(long, default_value = "bf16")]
    dtype: WeightDtype,
    /// Leave matrices as holes: zeros that take no disk
    #[arg(long)]
    sparse: bool,
    /// MB (10^6 bytes) after which a weight file is followed by the next
    #[arg(long, value_name = "MB", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    max_file_size: u64,
    /// List the shapes that have a name
    #[arg(long)]
    list: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Element types that random weights come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum WeightDtype {
    Bf16,
    F32,
    F16,
}

impl WeightDtype {
    fn dtype(self) -> Dtype {
        match self {
            Self::Bf16 => Dtype::BF16,
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
        }
    }

    fn num_bytes(self) -> u64 {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

impl Init {
    pub(crate) fn run(self) -> Result<ExitCode, CliError> {
        match (&self.preset, &self.out) {
            (Some(preset), Some(out)) if !self.list => return self.write(preset, out),
            _ if self.json => print_json(&presets()),
            _ => print(&preset_table(&presets())),
        }
        .map(|()| ExitCode::SUCCESS)
    }

    fn write(&self, preset: &str, out: &Path) -> Result<ExitCode, CliError> {
        let known = presets()
            .into_iter()
            .find(|line| line.name.eq_ignore_ascii_case(preset));
        let num_bytes = known.map(|line| line.num_parameters * self.dtype.num_bytes());
        let bar = progress::bytes("writing", num_bytes);
        let stop = Stop::writing_to(out)?;
        let written = init(preset, out, self.options(), &|bytes| {
            bar.inc(bytes);
            stop.asked()
        });
        bar.finish_and_clear();
        let num_parameters = match written {
            Err(Error::StoppedWriting) => return Ok(stop.ended()),
            written => written?,
        };
        let num_bytes = num_parameters * self.dtype.num_bytes();
        if self.json {
            return print_json(&json!({
                "path": out.display().to_string(),
                "num_parameters": num_parameters,
                "num_bytes": num_bytes,
            }))
            .map(|()| ExitCode::SUCCESS);
        }
        print(&format!(
            "{preset}: {}, {} of weights in {}\n",
            counted(num_parameters, "parameter"),
            size(num_bytes),
            out.display(),
        ))
        .map(|()| ExitCode::SUCCESS)
    }

    fn options(&self) -> InitOptions {
        InitOptions {
            dtype: self.dtype.dtype(),
            seed: self.seed,
            sparse: self.sparse,
            max_file_bytes: self.max_file_size * 1_000_000,
        }
    }
}

fn preset_table(presets: &[PresetLine]) -> String {
    use Align::{Left, Right};
    let heads = ["preset", "parameters", "in bf16", "shape of"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(presets.iter().map(|preset| {
        vec![
            preset.name.to_owned(),
            count(preset.num_parameters),
            size(preset.num_parameters * 2),
            preset.about.to_owned(),
        ]
    }));
    table(&[Left, Right, Right, Left], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_listed_with_their_size() {
        let preset = PresetLine {
            name: "135m",
            about: "SmolLM2 135M",
            num_parameters: 134_515_008,
        };
        let expected = "\
preset   parameters    in bf16  shape of
135m    134,515,008  256.6 MiB  SmolLM2 135M
";
        assert_eq!(preset_table(&[preset]), expected);
    }
}
