//! How much scratch an operation takes inside, as a function of its shape.
//!
//! The devices that compute and the one that only counts ask the same functions,
//! so that a plan's bytes are the run's. Each operation takes one buffer of
//! [`crate::Purpose::Workspace`] with the given number of elements (none where
//! it is 0) and gives it back at its end.

use crate::{AttentionShape, WeightFormat};

/// Elements of a panel of decoded weights: 1 MiB, half of a common L2 cache.
const PANEL_LEN: usize = 256 * 1024;

/// Rows of an f32 weight that dgrad multiplies at once: a sum over fewer would
/// read and write its output more often.
const IN_PLACE_ROWS: usize = 512;

/// Columns of a decoded panel in forward: more would leave too few rows.
const PANEL_COLS: usize = 1536;

/// The fewest features and tokens that are worth a thread of their own.
const SMALLEST_PART: usize = 64;

/// Parts are whole groups of so many, the width of a vector register.
const GRAIN: usize = 16;

/// How a product's output is dealt into blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// Rows of the output in a block.
    pub(crate) tokens: usize,
    /// Columns of the output in a block.
    pub(crate) features: usize,
    /// How much of the inner dimension is decoded at once.
    pub(crate) inner: usize,
}

/// The blocks of `Device::linear`.
pub(crate) fn forward_blocks(
    t: usize,
    o: usize,
    i: usize,
    format: WeightFormat,
    num_threads: usize,
) -> Blocks {
    let (tokens, features) = token_parts(t, o, num_threads);
    match format {
        WeightFormat::F32 => Blocks {
            tokens,
            features,
            inner: i,
        },
        WeightFormat::Bf16 | WeightFormat::E4m3 | WeightFormat::Nested(_) => {
            let inner = i.min(PANEL_COLS);
            let fitting = (PANEL_LEN / inner.max(1)).max(GRAIN);
            Blocks {
                tokens,
                features: part_of(features, features.div_ceil(fitting)),
                inner,
            }
        }
    }
}

/// The blocks of `Device::linear_dgrad`.
pub(crate) fn dgrad_blocks(
    t: usize,
    o: usize,
    i: usize,
    format: WeightFormat,
    num_threads: usize,
) -> Blocks {
    let (tokens, features) = token_parts(t, i, num_threads);
    let inner = match format {
        WeightFormat::F32 => o.min(IN_PLACE_ROWS),
        WeightFormat::Bf16 | WeightFormat::E4m3 | WeightFormat::Nested(_) => {
            let fitting = PANEL_LEN / features.max(1);
            fitting.clamp(GRAIN, o.max(GRAIN)).min(o)
        }
    };
    Blocks {
        tokens,
        features,
        inner,
    }
}

/// Tokens and features of one thread's block: features are split as far as is
/// worth it, because a weight's decoded rows are then used by one thread only;
/// tokens make up the rest.
fn token_parts(tokens: usize, features: usize, num_threads: usize) -> (usize, usize) {
    let by_feature = divisor(num_threads, features / SMALLEST_PART);
    let by_token = divisor(num_threads / by_feature, tokens / SMALLEST_PART);
    (part_of(tokens, by_token), part_of(features, by_feature))
}

/// The largest divisor of `n` that is at most `limit`, or 1.
fn divisor(n: usize, limit: usize) -> usize {
    (1..=n.min(limit.max(1)))
        .rev()
        .find(|&d| n.is_multiple_of(d))
        .unwrap_or(1)
}

/// One of `num_parts` parts of `len`, in whole grains.
fn part_of(len: usize, num_parts: usize) -> usize {
    len.div_ceil(num_parts.max(1))
        .next_multiple_of(GRAIN)
        .min(len)
}

/// Rows of one block of a weight gradient: the product packs so many columns of
/// its operand in memory of its own, 2 MiB for each thread.
const WGRAD_ROWS: usize = 1024;

/// Rows and columns of a block of a `[rows, cols]` weight gradient: each factor
/// of `num_threads` splits what is longer.
pub(crate) fn wgrad_parts(rows: usize, cols: usize, num_threads: usize) -> (usize, usize) {
    let (mut by_row, mut by_col, mut rest) = (1, 1, num_threads);
    while rest > 1 {
        let factor = (2..=rest)
            .find(|&factor| rest.is_multiple_of(factor))
            .unwrap_or(rest);
        if rows / by_row >= cols / by_col {
            by_row *= factor;
        } else {
            by_col *= factor;
        }
        rest /= factor;
    }
    let part = part_of(rows, by_row);
    (
        part_of(part, part.div_ceil(WGRAD_ROWS)),
        part_of(cols, by_col),
    )
}

/// Whether a product reads its weight once and decodes it on the way.
pub(crate) fn is_streamed(num_tokens: usize, format: WeightFormat) -> bool {
    num_tokens == 1 && !format.is_tiled()
}

/// `Device::linear` and `Device::linear_dgrad` of `num_tokens`: one panel for
/// each thread, large enough for either.
///
/// f32 weights are used where they lie, but for blocks of dgrad that cross segments;
/// a single token streams a weight without tiles.
pub(crate) fn linear_len(
    num_tokens: usize,
    rows: usize,
    cols: usize,
    format: WeightFormat,
    num_threads: usize,
) -> usize {
    if is_streamed(num_tokens, format) {
        return 0;
    }
    let dgrad = dgrad_blocks(num_tokens, rows, cols, format, num_threads);
    let panel = |blocks: Blocks| blocks.features * blocks.inner;
    let for_each_thread = match format {
        WeightFormat::F32 => panel(dgrad).min(PANEL_LEN),
        WeightFormat::Bf16 | WeightFormat::E4m3 | WeightFormat::Nested(_) => {
            let forward = forward_blocks(num_tokens, rows, cols, format, num_threads);
            panel(forward).max(panel(dgrad))
        }
    };
    for_each_thread * num_threads
}

/// Query tokens of an attention tile.
pub(crate) const QUERY_TILE: usize = 64;

/// Key tokens of an attention tile.
pub(crate) const KEY_TILE: usize = 128;

/// `Device::rms_norm_backward`: the weight gradient of each chunk of tokens.
pub(crate) fn rms_norm_backward_len(num_tokens: usize, cols: usize) -> usize {
    num_tokens.div_ceil(NORM_CHUNK) * cols
}

/// `Device::layer_norm_backward`: the same for weight and bias.
pub(crate) fn layer_norm_backward_len(num_tokens: usize, cols: usize) -> usize {
    2 * rms_norm_backward_len(num_tokens, cols)
}

/// Tokens whose part of a norm's weight gradient is summed on its own.
pub(crate) const NORM_CHUNK: usize = 64;

/// `Device::attention`: one score tile for each thread. The rows of a single
/// token's tile are the query heads that share keys.
pub(crate) fn attention_len(shape: &AttentionShape, num_threads: usize) -> usize {
    let rows = match shape.num_queries {
        1 => shape.heads / shape.kv_heads,
        tokens => QUERY_TILE.min(tokens),
    };
    rows * KEY_TILE.min(shape.num_keys) * num_threads
}

/// `Device::attention_backward`: two tiles for each thread, the row sums of
/// `dy * y`, and where query heads share keys each query head's own `dk` and
/// `dv`.
pub(crate) fn attention_backward_len(shape: &AttentionShape, num_threads: usize) -> usize {
    let row_sums = shape.batch * shape.num_queries * shape.heads;
    let partials = if shape.heads == shape.kv_heads {
        0
    } else {
        2 * shape.batch * shape.num_keys * shape.heads * shape.head_dim
    };
    attention_backward_tiles(shape) * num_threads + row_sums + partials
}

/// The two tiles of one thread in `Device::attention_backward`.
pub(crate) fn attention_backward_tiles(shape: &AttentionShape) -> usize {
    2 * QUERY_TILE.min(shape.num_queries) * KEY_TILE.min(shape.num_keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every size up to here, and some that are real.
    fn sizes() -> impl Iterator<Item = usize> {
        (1..40).chain([64, 192, 576, 1536, 7168, 28_672])
    }

    #[test]
    fn blocks_are_never_empty_and_a_panel_stays_small() {
        for (o, i) in sizes().flat_map(|o| sizes().map(move |i| (o, i))) {
            for num_threads in [1, 2, 3, 7, 64] {
                for t in [2, 100, 4096] {
                    let forward = forward_blocks(t, o, i, WeightFormat::Bf16, num_threads);
                    let dgrad = dgrad_blocks(t, o, i, WeightFormat::Bf16, num_threads);
                    for blocks in [forward, dgrad] {
                        assert!(blocks.tokens.min(blocks.features).min(blocks.inner) > 0);
                    }
                    let len = linear_len(t, o, i, WeightFormat::Bf16, num_threads);
                    let most = (PANEL_LEN + GRAIN * PANEL_COLS).max(GRAIN * i);
                    assert!(
                        len <= most * num_threads,
                        "{t} {o} {i} {num_threads}: {len}"
                    );
                }
                let (rows, cols) = wgrad_parts(o, i, num_threads);
                assert!((1..=o.min(WGRAD_ROWS)).contains(&rows) && (1..=i).contains(&cols));
            }
        }
    }

    #[test]
    fn each_thread_gets_features_before_tokens_are_split() {
        let blocks = |o, num_threads| {
            let Blocks {
                tokens, features, ..
            } = forward_blocks(512, o, 576, WeightFormat::F32, num_threads);
            (tokens, features)
        };
        assert_eq!(blocks(1536, 2), (512, 768));
        assert_eq!(blocks(192, 2), (512, 96));
        assert_eq!(blocks(192, 8), (128, 96));
        assert_eq!(blocks(32, 2), (256, 32));
    }
}
