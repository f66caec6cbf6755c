//! What `quantization_config` says of weights that are FP8 codes.
//!
//! ```text
//! quant_method         blocks of a scale                       who writes it
//! fp8                  weight_block_size, or by its shape      DeepSeek-V3, transformers, vLLM
//! compressed-tensors   block_structure or group_size of the    llm-compressor
//!                      config groups, or by its shape
//! fbgemm_fp8           by its shape: one a row                 transformers
//! modelopt             by its shape: one a tensor              NVIDIA ModelOpt
//! ```
//!
//! Which tensors are codes is said by their dtypes alone, so lists of modules
//! that were or were not converted are not read. Nor is how activations are to be
//! quantized: that is a recipe's to say.

use serde_json::Value;

use crate::SpecError;
use crate::keys::Keys;

const KEY: &str = "quantization_config";

/// How the weights of a checkpoint are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quantization {
    /// Rows and columns of a block with one scale; without them, the shape of the
    /// scales says whether there is one a tensor or one a row.
    pub block: Option<[u64; 2]>,
}

impl Quantization {
    /// Reads the text of a `config.json`; none if its weights are as they are.
    pub fn from_config(json_text: &str) -> Result<Option<Self>, SpecError> {
        Self::read(&Keys::top(&super::parse(json_text)?)?)
    }

    pub(super) fn read(top: &Keys<'_>) -> Result<Option<Self>, SpecError> {
        let Some(keys) = top.object(KEY)? else {
            return Ok(None);
        };
        let method = keys.text("quant_method")?;
        let method = method.ok_or_else(|| keys.missing("quant_method"))?;
        let block = match method {
            "fp8" => {
                only(&keys, "fmt", &["e4m3", "e5m2", "float8_e4m3fn"])?;
                pair(&keys, "weight_block_size")?
            }
            "compressed-tensors" => {
                only(&keys, "format", &["float-quantized", "naive-quantized"])?;
                block_of_groups(&keys)?
            }
            "fbgemm_fp8" => None,
            "modelopt" => {
                only(&keys, "quant_algo", &["FP8"])?;
                None
            }
            _ => {
                let methods = ["fp8", "compressed-tensors", "fbgemm_fp8", "modelopt"];
                return Err(unsupported(&keys, "quant_method", &methods));
            }
        };
        Ok(Some(Self { block }))
    }
}

/// Refuses a text that is there and none of these.
fn only(keys: &Keys<'_>, key: &str, known: &[&str]) -> Result<(), SpecError> {
    match keys.text(key)? {
        Some(found) if !known.contains(&found) => Err(unsupported(keys, key, known)),
        _ => Ok(()),
    }
}

fn unsupported(keys: &Keys<'_>, key: &str, known: &[&str]) -> SpecError {
    let names: Vec<_> = known.iter().map(|name| super::quoted(name)).collect();
    let found = keys.value(key).unwrap_or(&Value::Null);
    keys.unsupported(key, found, &names.join(", "))
}

/// Two sizes in a list.
fn pair(keys: &Keys<'_>, key: &str) -> Result<Option<[u64; 2]>, SpecError> {
    let Some(value) = keys.value(key) else {
        return Ok(None);
    };
    let sizes = value.as_array().map(Vec::as_slice).unwrap_or_default();
    match sizes {
        [rows, cols] => match (rows.as_u64(), cols.as_u64()) {
            (Some(rows @ 1..), Some(cols @ 1..)) => Ok(Some([rows, cols])),
            _ => Err(keys.bad_value(key, TWO_SIZES, value)),
        },
        _ => Err(keys.bad_value(key, TWO_SIZES, value)),
    }
}

const TWO_SIZES: &str = "a list of two whole numbers above 0";

/// The block that all groups of a `compressed-tensors` config have.
fn block_of_groups(keys: &Keys<'_>) -> Result<Option<[u64; 2]>, SpecError> {
    let Some(groups) = keys.object("config_groups")? else {
        return Ok(None);
    };
    let mut blocks = Vec::new();
    for name in groups.names() {
        let group = groups.object(name)?;
        let weights = group.map(|group| group.object("weights")).transpose()?;
        let Some(weights) = weights.flatten() else {
            continue;
        };
        only(&weights, "type", &["float"])?;
        if weights.size_or("num_bits", 8)? != 8 {
            let found = weights.value("num_bits").unwrap_or(&Value::Null);
            return Err(weights.unsupported("num_bits", found, "8"));
        }
        blocks.push(match weights.text("strategy")? {
            Some("block") => pair(&weights, "block_structure")?,
            Some("group") => Some([1, weights.size("group_size")? as u64]),
            Some("tensor" | "channel") | None => None,
            Some(_) => {
                let known = ["tensor", "channel", "group", "block"];
                return Err(unsupported(&weights, "strategy", &known));
            }
        });
    }
    if blocks.windows(2).any(|pair| pair[0] != pair[1]) {
        let found = keys.value("config_groups").unwrap_or(&Value::Null);
        return Err(keys.unsupported("config_groups", found, "groups with equal blocks"));
    }
    Ok(blocks.first().copied().flatten())
}
