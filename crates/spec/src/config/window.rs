//! Sliding windows: which blocks have one, and of how many tokens.

use serde_json::Value;

use crate::keys::Keys;
use crate::{Family, SlidingWindow, SpecError};

/// The window of Mistral and of Qwen2 where the config does not have the key.
const DEFAULT: usize = 4096;

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// The window of a family that has one; in any other, an error where the config
/// speaks of one.
pub(super) fn read(
    top: &Keys<'_>,
    family: Family,
    num_layers: usize,
) -> Result<Option<SlidingWindow>, SpecError> {
    match family {
        Family::Mistral => mistral(top, num_layers),
        Family::Qwen2 => qwen2(top, num_layers),
        _ => refuse(top).map(|()| None),
    }
}

pub(super) fn refuse(top: &Keys<'_>) -> Result<(), SpecError> {
    if let Some(window) = top.value("sliding_window")
        && top.flag_or("use_sliding_window", true)?
    {
        return Err(top.unsupported("sliding_window", window, "null"));
    }
    all_are(top, FULL)
}

/// In every block, or in none.
fn mistral(top: &Keys<'_>, num_layers: usize) -> Result<Option<SlidingWindow>, SpecError> {
    let size = size(top)?;
    if size.is_some() && !top.flag_or("use_sliding_window", true)? {
        let supported = "true or null, and a `sliding_window` of null for none";
        return Err(top.unsupported("use_sliding_window", &Value::Bool(false), supported));
    }
    all_are(top, if size.is_some() { SLIDING } else { FULL })?;
    Ok(size.map(|size| SlidingWindow {
        size,
        blocks: vec![true; num_layers],
    }))
}

/// Off unless switched on; then in the blocks that are listed, or else in those
/// behind the first `max_window_layers`.
fn qwen2(top: &Keys<'_>, num_layers: usize) -> Result<Option<SlidingWindow>, SpecError> {
    const DEFAULT_FULL: usize = 28;
    let size = if top.flag_or("use_sliding_window", false)? {
        size(top)?
    } else {
        None
    };
    let num_full = top.count_or("max_window_layers", DEFAULT_FULL)?;
    let blocks = match listed(top, num_layers)? {
        Some(blocks) => blocks,
        None => (0..num_layers)
            .map(|layer| size.is_some() && layer >= num_full)
            .collect(),
    };
    match (size, top.value("layer_types")) {
        _ if !blocks.contains(&true) => Ok(None),
        (Some(size), _) => Ok(Some(SlidingWindow { size, blocks })),
        (None, types) => {
            let supported = "\"full_attention\" only where `use_sliding_window` is off";
            let found = types.unwrap_or(&Value::Null);
            Err(top.unsupported("layer_types", found, supported))
        }
    }
}

fn size(top: &Keys<'_>) -> Result<Option<usize>, SpecError> {
    if top.has("sliding_window") {
        top.size_or_none("sliding_window")
    } else {
        Ok(Some(DEFAULT))
    }
}

fn all_are(top: &Keys<'_>, kind: &str) -> Result<(), SpecError> {
    let Some(types) = top.value("layer_types") else {
        return Ok(());
    };
    let is_kind = |name: &Value| name.as_str() == Some(kind);
    match types.as_array() {
        Some(names) if names.iter().all(is_kind) => Ok(()),
        _ => {
            let supported = format!("\"{kind}\" for each layer");
            Err(top.unsupported("layer_types", types, &supported))
        }
    }
}

/// Whether each block slides, by the list of the config.
fn listed(top: &Keys<'_>, num_layers: usize) -> Result<Option<Vec<bool>>, SpecError> {
    let Some(types) = top.value("layer_types") else {
        return Ok(None);
    };
    let slides = |name: &Value| match name.as_str() {
        Some(FULL) => Some(false),
        Some(SLIDING) => Some(true),
        _ => None,
    };
    let blocks: Option<Vec<bool>> = types
        .as_array()
        .and_then(|names| names.iter().map(slides).collect());
    let Some(blocks) = blocks else {
        let supported = format!("a list of \"{FULL}\" and \"{SLIDING}\"");
        return Err(top.unsupported("layer_types", types, &supported));
    };
    if blocks.len() != num_layers {
        return Err(SpecError::Inconsistent {
            key: "layer_types",
            value: blocks.len() as u64,
            rule: format!("entries for {num_layers} layers"),
        });
    }
    Ok(Some(blocks))
}
