//! Which sizes belong together in an operation: said once, for every device
//! that checks them.
//!
//! A size that does not fit is a bug of the caller, so everything here panics.

use std::ops::Range;

use crate::{AttentionShape, Weight};

/// The sizes of a linear layer's call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinearShape {
    /// Tokens.
    pub(crate) t: usize,
    /// Output features.
    pub(crate) o: usize,
    /// Input features.
    pub(crate) i: usize,
}

/// The number of rows of `width` elements in `len` elements.
#[track_caller]
pub(crate) fn rows(len: usize, width: usize) -> usize {
    assert!(
        width > 0 && len.is_multiple_of(width),
        "{len} elements are not rows of {width}"
    );
    len / width
}

/// The number of elements of each of `num_rows` rows.
#[track_caller]
pub(crate) fn width(len: usize, num_rows: usize) -> usize {
    assert!(
        num_rows > 0 && len.is_multiple_of(num_rows),
        "{len} elements are not {num_rows} rows"
    );
    len / num_rows
}

/// Two buffers that go through an operation side by side.
#[track_caller]
pub(crate) fn same(a: usize, b: usize) -> usize {
    assert_eq!(a, b, "buffers of one length are needed");
    a
}

/// Elements `at .. at + len` of a buffer of `buffer` elements.
#[track_caller]
pub(crate) fn span(buffer: usize, at: usize, len: usize) -> Range<usize> {
    let end = at.checked_add(len).filter(|&end| end <= buffer);
    assert!(
        end.is_some(),
        "{len} elements at {at} pass the end of a buffer of {buffer}"
    );
    at..at + len
}

/// Tokens and the vector that each is multiplied by or that is added to each:
/// how many tokens.
#[track_caller]
pub(crate) fn vector<B>(x_tc: usize, weight_c: &Weight<B>) -> usize {
    weight_c.assert_covered();
    assert_eq!(weight_c.rows, 1, "a vector has one row");
    rows(x_tc, weight_c.cols)
}

/// A norm over two buffers side by side: tokens and width.
#[track_caller]
pub(crate) fn norm<B>(
    [x_tc, y_tc]: [usize; 2],
    weight_c: &Weight<B>,
    rstd_t: usize,
) -> (usize, usize) {
    let t = vector(same(x_tc, y_tc), weight_c);
    (same(t, rstd_t), weight_c.cols)
}

/// A layer norm over two buffers side by side, with two statistics of each
/// token: tokens and width.
#[track_caller]
pub(crate) fn layer_norm<B>(
    [x_tc, y_tc]: [usize; 2],
    weight_c: &Weight<B>,
    stats_t2: usize,
) -> (usize, usize) {
    let t = vector(same(x_tc, y_tc), weight_c);
    same(2 * t, stats_t2);
    (t, weight_c.cols)
}

/// Fused rows and what they hold of queries, keys and values: how many elements
/// of each follow one another.
#[track_caller]
pub(crate) fn fused_heads(
    fused: usize,
    group: usize,
    head_dim: usize,
    qkv: [usize; 3],
) -> [usize; 3] {
    let widths = [group * head_dim, head_dim, head_dim];
    let num_keys = rows(fused, (group + 2) * head_dim);
    assert_eq!(
        qkv,
        widths.map(|width| num_keys * width),
        "parts of fused heads"
    );
    widths
}

/// Rows of a table, one for each token id: their width.
#[track_caller]
pub(crate) fn embedding<B>(ids: &[u32], table_vc: &Weight<B>, y_tc: usize) -> usize {
    table_vc.assert_covered();
    same(y_tc, ids.len() * table_vc.cols);
    table_vc.cols
}

/// Gradients of some rows of a table: their width, and where they lie.
#[track_caller]
pub(crate) fn embedding_backward(
    ids: &[u32],
    dy_tc: usize,
    rows_v: Range<usize>,
    grad_vc: usize,
    at: usize,
) -> (usize, Range<usize>) {
    let c = width(dy_tc, ids.len());
    (c, span(grad_vc, at, rows_v.len() * c))
}

/// A linear layer: `x_ti` and `y_to` are lengths.
#[track_caller]
pub(crate) fn linear<B>(x_ti: usize, weight_oi: &Weight<B>, y_to: usize) -> LinearShape {
    weight_oi.assert_covered();
    let (o, i) = (weight_oi.rows, weight_oi.cols);
    let t = rows(x_ti, i);
    assert_eq!(y_to, t * o, "an output of {t} tokens, {o} features");
    LinearShape { t, o, i }
}

/// A weight gradient: the features are what the tokens leave of the lengths.
#[track_caller]
pub(crate) fn wgrad(dy_to: usize, x_ti: usize, num_tokens: usize) -> LinearShape {
    LinearShape {
        t: num_tokens,
        o: width(dy_to, num_tokens),
        i: width(x_ti, num_tokens),
    }
}

/// An attention call: `kv` are the lengths of keys and of values.
#[track_caller]
pub(crate) fn attention(shape: AttentionShape, q_tnh: usize, kv_smh: [usize; 2], lse_tn: usize) {
    let AttentionShape {
        batch,
        num_queries,
        num_keys,
        heads,
        kv_heads,
        head_dim,
        window,
        ..
    } = shape;
    assert!(window != Some(0), "a query sees at least its own key");
    assert!(
        kv_heads > 0 && heads.is_multiple_of(kv_heads),
        "{kv_heads} key heads do not divide {heads} query heads"
    );
    assert!(
        num_queries <= num_keys,
        "{num_queries} queries are not the last of {num_keys} keys"
    );
    assert_eq!(q_tnh, batch * num_queries * heads * head_dim, "queries");
    assert_eq!(lse_tn, batch * num_queries * heads, "log-sum-exp");
    let keys = batch * num_keys * kv_heads * head_dim;
    for len in kv_smh {
        assert!(
            len == keys || (batch == 1 && len > keys),
            "{len} elements of keys or values, not {keys}"
        );
    }
}

/// An attention's backward, where every key is a query too.
#[track_caller]
pub(crate) fn attention_backward(
    shape: AttentionShape,
    qkv: [usize; 3],
    dqkv: [usize; 3],
    lse_tn: usize,
) {
    let [q, k, v] = qkv;
    attention(shape, q, [k, v], lse_tn);
    assert_eq!(
        shape.num_queries, shape.num_keys,
        "every key is a query too"
    );
    let keys = shape.batch * shape.num_keys * shape.kv_heads * shape.head_dim;
    assert_eq!([k, v], [keys; 2], "no more keys and values than there are");
    assert_eq!(qkv, dqkv, "gradients are like what they belong to");
}

/// Logits of each target's token: their number a token.
#[track_caller]
pub(crate) fn logits(logits_tv: usize, targets: &[u32], statistics: [usize; 3]) -> usize {
    assert_eq!(statistics, [targets.len(); 3], "statistics of every token");
    width(logits_tv, targets.len())
}
