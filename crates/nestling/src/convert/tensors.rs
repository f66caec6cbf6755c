//! Which tensors a converted folder has, and where each comes from.

use std::collections::BTreeMap;

use checkpoint::gguf::{BlockType, GgufFile, GgufTensor};
use checkpoint::{Folder, Located};
use spec::ModelSpec;
use tensor::{Dtype, Shape, TensorMeta};

use super::quantize::{SCALES, Strips};
use super::stream::{Move, Way};
use super::{ImportFault, Target};
use crate::Error;

type Moves = (Vec<TensorMeta>, Vec<Move>);

/// Names of a block's tensors: in a GGUF file, in a Hugging Face folder.
const IN_BLOCK: [(&str, &str); 9] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Factors of the rotary frequencies, which a config says in words.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The tensors of a folder under their own names, floats in the target's dtype, or as
/// FP8 codes and scales where `is_coded` says so of a name. Codes of the folder become
/// numbers unless its own dtypes are wanted.
pub(super) fn of_folder(
    folder: &Folder,
    target: Target<'_>,
    is_coded: impl Fn(&str) -> bool,
) -> Result<Moves, Error> {
    let mut metas = Vec::new();
    let mut moves = Vec::new();
    for (source, located) in folder.tensors().iter().enumerate() {
        if target != Target::Source && folder.is_scales(source) {
            continue;
        }
        let num_elements = located.meta.shape.num_elements();
        let num_elements = num_elements.expect("a located tensor's size was checked");
        if is_coded(&located.meta.name) {
            let [codes, scales] = quantized(&located.meta);
            let &[rows, cols] = codes.shape.dims() else {
                unreachable!("the model's matrices have two dimensions");
            };
            for (meta, way) in [
                (codes, Way::Quantize(Strips { rows, cols })),
                (scales, Way::Scales),
            ] {
                let num_elements = match way {
                    Way::Scales => 0,
                    _ => num_elements,
                };
                metas.push(meta);
                moves.push(Move {
                    source,
                    num_elements,
                    way,
                });
            }
            continue;
        }
        let found = located.meta.dtype;
        let dtype = match target {
            Target::Dtype(dtype) if casts(located)? => dtype,
            Target::Fp8(_) if located.scales.is_some() => Dtype::BF16,
            _ => found,
        };
        let way = if dtype == found {
            let num_bytes = located.num_bytes();
            Way::Copy { num_bytes }
        } else {
            Way::Cast
        };
        moves.push(Move {
            source,
            num_elements,
            way,
        });
        metas.push(TensorMeta {
            dtype,
            ..located.meta.clone()
        });
    }
    Ok((metas, moves))
}

/// A matrix as codes, and the scales of its blocks.
fn quantized(meta: &TensorMeta) -> [TensorMeta; 2] {
    let blocks = meta.shape.dims().iter();
    let blocks: Vec<u64> = blocks.map(|dim| dim.div_ceil(fp8::TILE as u64)).collect();
    let codes = TensorMeta {
        dtype: Dtype::F8_E4M3,
        ..meta.clone()
    };
    let scales = TensorMeta {
        name: format!("{}{SCALES}", meta.name),
        dtype: Dtype::F32,
        shape: Shape::new(&blocks),
    };
    [codes, scales]
}

/// Whether a tensor has a dtype to be cast; integers are not, and of floats only
/// those whose elements stand for themselves or have scales.
fn casts(located: &Located) -> Result<bool, Error> {
    let meta = &located.meta;
    match located.value_dtype() {
        Dtype::F32 | Dtype::BF16 | Dtype::F16 => Ok(true),
        Dtype::Bool
        | Dtype::U8
        | Dtype::I8
        | Dtype::I16
        | Dtype::U16
        | Dtype::I32
        | Dtype::U32
        | Dtype::I64
        | Dtype::U64 => Ok(false),
        found => Err(Error::CannotCast {
            tensor: meta.name.clone(),
            found,
        }),
    }
}

/// The tensors of a model, from a GGUF file. `has_rotary_pairs` says that rows of
/// queries and keys alternate between the rotary halves.
pub(super) fn of_gguf(
    file: &GgufFile,
    spec: &ModelSpec,
    dtype: Dtype,
    has_rotary_pairs: bool,
) -> Result<Moves, ImportFault> {
    let mut named = by_name(file)?;
    let mut metas = Vec::new();
    let mut moves = Vec::new();
    let units = spec.units();
    for param in units.iter().flat_map(|unit| &unit.params) {
        let name = &param.name;
        let source = named
            .remove(name)
            .ok_or_else(|| ImportFault::MissingTensor {
                tensor: name.clone(),
            })?;
        let found = &file.tensors()[source];
        if found.shape != param.shape() {
            return Err(ImportFault::WrongShape {
                tensor: found.name.clone(),
                expected: param.shape(),
                found: found.shape.clone(),
            });
        }
        let is_rotary = name.contains(".q_proj.") || name.contains(".k_proj.");
        let way = if has_rotary_pairs && is_rotary {
            Way::CastHeads {
                row_len: if param.is_vector {
                    1
                } else {
                    param.cols as u64
                },
                head_dim: spec.head_dim as u64,
            }
        } else {
            Way::Cast
        };
        moves.push(Move {
            source,
            num_elements: found.num_elements,
            way,
        });
        metas.push(TensorMeta {
            name: name.clone(),
            dtype,
            shape: param.shape(),
        });
    }
    match named.into_values().next() {
        None => Ok((metas, moves)),
        Some(source) => Err(unknown(&file.tensors()[source])),
    }
}

/// Numbers of tensors by their names in a Hugging Face folder.
fn by_name(file: &GgufFile) -> Result<BTreeMap<String, usize>, ImportFault> {
    let mut named = BTreeMap::new();
    for (number, tensor) in file.tensors().iter().enumerate() {
        if tensor.name == ROPE_FACTORS {
            continue;
        }
        let name = hugging_face_name(&tensor.name).ok_or_else(|| unknown(tensor))?;
        if named.insert(name.clone(), number).is_some() {
            return Err(ImportFault::TwinTensors { tensor: name });
        }
    }
    Ok(named)
}

fn unknown(tensor: &GgufTensor) -> ImportFault {
    ImportFault::UnknownTensor {
        tensor: tensor.name.clone(),
    }
}

fn hugging_face_name(name: &str) -> Option<String> {
    let (stem, kind) = name.rsplit_once('.')?;
    if !matches!(kind, "weight" | "bias") {
        return None;
    }
    let stem = match stem {
        "token_embd" => "model.embed_tokens".to_owned(),
        "output_norm" => "model.norm".to_owned(),
        "output" => "lm_head".to_owned(),
        _ => {
            let (block, part) = stem.strip_prefix("blk.")?.split_once('.')?;
            let (_, part) = IN_BLOCK.iter().find(|(known, _)| *known == part)?;
            format!("model.layers.{block}.{part}")
        }
    };
    Some(format!("{stem}.{kind}"))
}

/// The dtype that weights of a file are written in when none is asked for.
pub(super) fn natural_dtype(tensors: &[GgufTensor]) -> Dtype {
    let mut matrices = tensors
        .iter()
        .filter(|tensor| tensor.shape.dims().len() > 1);
    let has = |block_type| {
        let mut matrices = matrices.clone();
        matrices.any(|tensor| tensor.block_type == block_type)
    };
    if has(BlockType::F32) {
        return Dtype::F32;
    }
    if matrices.all(|tensor| tensor.block_type == BlockType::F16) {
        Dtype::F16
    } else {
        Dtype::BF16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_family() {
        let name = |name| hugging_face_name(name).unwrap_or_default();
        assert_eq!(
            name("blk.12.attn_q.bias"),
            "model.layers.12.self_attn.q_proj.bias"
        );
        assert_eq!(name("output.weight"), "lm_head.weight");
        for odd in ["blk.1.attn_q", "blk.1.ffn_gate_inp.weight", "output", "v.w"] {
            assert_eq!(name(odd), "");
        }
    }
}
