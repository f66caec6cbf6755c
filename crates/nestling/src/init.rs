//! Random checkpoints of known shapes.

use std::fs;
use std::path::Path;

use checkpoint::OnWritten;
use serde::Serialize;
use spec::{ModelSpec, Preset};
use tensor::Dtype;

use crate::Error;
use crate::opened::num_cores;

/// What kind of checkpoint to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitOptions {
    /// The element type of the weights.
    pub dtype: Dtype,
    /// Seed of the values.
    pub seed: u64,
    /// Leave the weights as holes: zeros that take no disk.
    pub sparse: bool,
    /// Bytes after which a weight file is followed by the next.
    pub max_file_bytes: u64,
}

/// A shape that [`init`] knows by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PresetLine {
    /// Its name.
    pub name: &'static str,
    /// Whose shape it is.
    pub about: &'static str,
    /// Its distinct parameters, a tied table once.
    pub num_parameters: u64,
}

/// The shapes that [`init`] knows, smallest first.
pub fn presets() -> Vec<PresetLine> {
    let presets = Preset::all().into_iter();
    presets
        .map(|preset| PresetLine {
            name: preset.name,
            about: preset.about,
            num_parameters: preset.spec.num_parameters(),
        })
        .collect()
}

/// Writes a checkpoint of a preset's shape, or of the `config.json` at a path
/// that ends in `.json`; gives its number of parameters.
pub fn init(
    preset: &str,
    out: &Path,
    options: InitOptions,
    on_written: OnWritten<'_>,
) -> Result<u64, Error> {
    let (spec, config_text) = shape(preset)?;
    checkpoint::check_out_dir(out)?;
    let init = checkpoint::init::Init {
        spec: &spec,
        config_text: &config_text,
        dtype: options.dtype,
        seed: options.seed,
        is_sparse: options.sparse,
        max_file_bytes: options.max_file_bytes,
        num_threads: num_cores(),
    };
    checkpoint::init::write(out, &init, on_written)?;
    Ok(spec.num_parameters())
}

/// The shape and the text of its `config.json`.
fn shape(preset: &str) -> Result<(ModelSpec, String), Error> {
    let path = Path::new(preset);
    if path
        .extension()
        .is_some_and(|extension| extension == "json")
    {
        let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
        let spec = ModelSpec::from_config(&text).map_err(|source| Error::Config {
            path: path.to_owned(),
            source,
        })?;
        return Ok((spec, text));
    }
    let preset = Preset::by_name(preset).map_err(Error::Preset)?;
    let config_text = preset.config_json();
    Ok((preset.spec, config_text))
}
