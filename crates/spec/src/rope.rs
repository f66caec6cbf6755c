//! Rotary position embedding: which kinds there are and their frequencies.
//!
//! With `d` the head size and `j` in `0 .. d/2`:
//!
//! ```text
//! default   f_j = 1 / theta^(2j/d)
//! linear    f_j / factor
//! llama3    wavelength w_j = 2 pi / f_j, original context c
//!           w_j < c / high                    f_j
//!           w_j > c / low                     f_j / factor
//!           between                           (1 - s) f_j / factor + s f_j
//!                                             s = (c / w_j - low) / (high - low)
//! ```
//!
//! All in f32 and in the order of the reference implementation, since an angle
//! is a frequency times a position: at position 100,000 one ulp is 0.006 rad.

use std::f64::consts::PI;

use serde_json::Value;

use crate::SpecError;
use crate::keys::{Keys, rounded};

const DEFAULT_THETA: f64 = 10_000.0;
const KINDS: &str = "\"default\", \"linear\", \"llama3\"";

/// How positions turn into angles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeSpec {
    /// The base of the frequencies.
    pub theta: f64,
    /// What is done to the frequencies for longer contexts.
    pub kind: RopeKind,
}

/// What is done to the frequencies for longer contexts.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum RopeKind {
    /// Nothing.
    Default,
    /// Every frequency is divided by `factor`.
    Linear {
        /// How many times longer the context is.
        factor: f64,
    },
    /// Low frequencies are divided by `factor`, high ones kept, and those
    /// between blended.
    Llama3 {
        /// How many times longer the context is.
        factor: f64,
        /// Wavelengths above `original_max_positions / low_freq_factor` are scaled.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_positions / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// The context length of pre-training.
        original_max_positions: usize,
    },
}

impl RopeSpec {
    /// Frequencies without scaling.
    pub const fn plain(theta: f64) -> Self {
        Self {
            theta,
            kind: RopeKind::Default,
        }
    }

    /// The `head_dim / 2` frequencies.
    pub fn inv_freq(&self, head_dim: usize) -> Vec<f32> {
        (0..head_dim / 2)
            .map(|j| self.kind.scale(self.unscaled(j, head_dim)))
            .collect()
    }

    fn unscaled(&self, j: usize, head_dim: usize) -> f32 {
        let exponent = (2 * j) as f32 / head_dim as f32;
        // The power in f64, rounded once: no `powf` in f32 is the same on
        // every platform.
        let power = f64::from(rounded(self.theta)).powf(f64::from(exponent));
        1.0 / rounded(power)
    }

    /// Reads `rope_parameters` (version 5 of the format) or `rope_theta` and
    /// `rope_scaling` (version 4) from the top of a config.
    pub(crate) fn from_keys(top: &Keys<'_>, max_positions: usize) -> Result<Self, SpecError> {
        refuse_partial(top)?;
        let scaling = match rope_parameters(top)? {
            Some(parameters) => Some(parameters),
            None => top.object("rope_scaling")?,
        };
        let Some(scaling) = scaling else {
            return Ok(Self::plain(
                top.positive("rope_theta")?.unwrap_or(DEFAULT_THETA),
            ));
        };
        refuse_partial(&scaling)?;
        let theta = match scaling.positive("rope_theta")? {
            Some(theta) => theta,
            None => top.positive("rope_theta")?.unwrap_or(DEFAULT_THETA),
        };
        let kind = RopeKind::from_keys(&scaling, top, max_positions)?;
        Ok(Self { theta, kind })
    }
}

impl RopeKind {
    fn scale(&self, freq: f32) -> f32 {
        match *self {
            Self::Default => freq,
            Self::Linear { factor } => freq / rounded(factor),
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_positions,
            } => {
                let context = original_max_positions as f64;
                let wavelength = rounded(2.0 * PI) / freq;
                if wavelength > rounded(context / low_freq_factor) {
                    return freq / rounded(factor);
                }
                if wavelength < rounded(context / high_freq_factor) {
                    return freq;
                }
                let smooth = (rounded(context) / wavelength - rounded(low_freq_factor))
                    / rounded(high_freq_factor - low_freq_factor);
                (1.0 - smooth) * freq / rounded(factor) + smooth * freq
            }
        }
    }

    fn from_keys(
        scaling: &Keys<'_>,
        top: &Keys<'_>,
        max_positions: usize,
    ) -> Result<Self, SpecError> {
        // The older spelling of the same key.
        let key = if scaling.value("rope_type").is_some() {
            "rope_type"
        } else {
            "type"
        };
        match scaling.text(key)? {
            None | Some("default") => kindless(scaling),
            Some("linear") => Ok(Self::Linear {
                factor: required(scaling, "factor")?,
            }),
            Some("llama3") => llama3(scaling, top, max_positions),
            Some(other) => Err(scaling.unsupported(key, &Value::from(other), KINDS)),
        }
    }
}

/// A map that scales but does not say how must not pass for the default kind.
fn kindless(scaling: &Keys<'_>) -> Result<RopeKind, SpecError> {
    let named = scaling.has("rope_type") || scaling.has("type");
    if !named && scaling.value("factor").is_some() {
        return Err(scaling.missing("rope_type"));
    }
    Ok(RopeKind::Default)
}

fn llama3(scaling: &Keys<'_>, top: &Keys<'_>, max_positions: usize) -> Result<RopeKind, SpecError> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let low_freq_factor = required(scaling, "low_freq_factor")?;
    let high_freq_factor = required(scaling, "high_freq_factor")?;
    if high_freq_factor <= low_freq_factor {
        return Err(scaling.bad_value(
            "high_freq_factor",
            "more than `low_freq_factor`",
            &Value::from(high_freq_factor),
        ));
    }
    // The reference lets the key at the top win over the one in the map.
    let original_max_positions = match top.size_or_none(ORIGINAL)? {
        Some(size) => size,
        None => scaling.size_or(ORIGINAL, max_positions)?,
    };
    Ok(RopeKind::Llama3 {
        factor: required(scaling, "factor")?,
        low_freq_factor,
        high_freq_factor,
        original_max_positions,
    })
}

fn required(scaling: &Keys<'_>, key: &str) -> Result<f64, SpecError> {
    scaling.positive(key)?.ok_or_else(|| scaling.missing(key))
}

/// The `rope_parameters` object; nested by layer type, the one of the only type
/// that this family has.
fn rope_parameters<'a>(top: &Keys<'a>) -> Result<Option<Keys<'a>>, SpecError> {
    const KEY: &str = "rope_parameters";
    const LAYER_TYPE: &str = "full_attention";
    let Some(parameters) = top.object(KEY)? else {
        return Ok(None);
    };
    let nested = parameters
        .names()
        .find(|name| parameters.value(name).is_some_and(Value::is_object));
    match nested {
        None => Ok(Some(parameters)),
        Some(LAYER_TYPE) if parameters.names().count() == 1 => parameters.object(LAYER_TYPE),
        Some(name) => Err(parameters.unsupported(
            name,
            parameters.value(name).unwrap_or(&Value::Null),
            "one set of parameters for all layers",
        )),
    }
}

fn refuse_partial(keys: &Keys<'_>) -> Result<(), SpecError> {
    match keys.value("partial_rotary_factor") {
        Some(value) if value.as_f64() != Some(1.0) => {
            Err(keys.unsupported("partial_rotary_factor", value, "1"))
        }
        _ => Ok(()),
    }
}
