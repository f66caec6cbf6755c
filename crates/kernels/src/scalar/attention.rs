//! Attention by its definition: the softmax over all scores of a query, one
//! query and head at a time.

use super::float::Float;
use super::larger;
use crate::alibi::{alibi_bias, alibi_position, alibi_slopes};
use crate::{AttentionShape, ScoreBias};

/// One query head of one query token: where its numbers lie.
struct Query {
    /// First element of the head in queries, outputs and their gradients.
    q: usize,
    /// The token and head in `lse_tn`.
    tn: usize,
    /// First element of the head in each key and value that is seen.
    keys: Vec<usize>,
    /// What is added to the score of each.
    biases: Vec<f32>,
}

fn queries(shape: AttentionShape) -> impl Iterator<Item = Query> {
    let AttentionShape {
        batch,
        num_queries,
        num_keys,
        heads,
        kv_heads,
        head_dim,
        ..
    } = shape;
    let slopes = match shape.bias {
        ScoreBias::None => vec![0.0; heads],
        ScoreBias::Alibi => alibi_slopes(heads),
    };
    let group = heads / kv_heads;
    (0..batch * num_queries * heads).map(move |tn| {
        let (token, head) = (tn / heads, tn % heads);
        let (sequence, query) = (token / num_queries, token % num_queries);
        let seen = shape.seen(query);
        let element =
            |key: usize| ((sequence * num_keys + key) * kv_heads + head / group) * head_dim;
        Query {
            q: tn * head_dim,
            tn,
            keys: seen.clone().map(element).collect(),
            biases: seen
                .map(|key| alibi_bias(slopes[head], alibi_position(key)))
                .collect(),
        }
    })
}

/// Softmax of the scaled scores of one query, and their log-sum-exp.
fn softmax<F: Float>(q: &[F], k: &[F], query: &Query) -> (Vec<F>, F) {
    let scale = score_scale(q.len());
    let keys = query.keys.iter().zip(&query.biases);
    let scores: Vec<F> = keys
        .map(|(&key, &bias)| (dot(q, &k[key..key + q.len()]) + bias.into()) * scale)
        .collect();
    let max = scores
        .iter()
        .copied()
        .fold(F::from(f32::NEG_INFINITY), larger);
    let exps = scores.iter().map(|&score| (score - max).exp());
    let sum: F = exps.clone().sum();
    (exps.map(|exp| exp / sum).collect(), max + sum.ln())
}

fn score_scale<F: Float>(head_dim: usize) -> F {
    F::nearest(1.0 / (head_dim as f64).sqrt())
}

fn dot<F: Float>(a: &[F], b: &[F]) -> F {
    a.iter().zip(b).map(|(&a, &b)| a * b).sum()
}

/// `y += factor * x`.
fn add_scaled<F: Float>(factor: F, x: &[F], y: &mut [F]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y += factor * x;
    }
}

pub(super) fn forward<F: Float>(
    [q, k, v]: [&[F]; 3],
    shape: AttentionShape,
    y: &mut [F],
    lse: &mut [F],
) {
    let h = shape.head_dim;
    y.fill(0.0.into());
    for query in queries(shape) {
        let at = query.q;
        let (weights, log_sum) = softmax(&q[at..at + h], k, &query);
        lse[query.tn] = log_sum;
        for (&key, &weight) in query.keys.iter().zip(&weights) {
            add_scaled(weight, &v[key..key + h], &mut y[at..at + h]);
        }
    }
}

/// With `p` the softmax weights and `dp_j = dy . v_j`:
///
/// ```text
/// dv_j += p_j dy       ds_j = p_j (dp_j - sum_i p_i dp_i)
/// dq   += ds_j k_j / sqrt(h)       dk_j += ds_j q / sqrt(h)
/// ```
pub(super) fn backward<F: Float>(
    [q, k, v]: [&[F]; 3],
    dy: &[F],
    shape: AttentionShape,
    [dq, dk, dv]: [&mut [F]; 3],
) {
    let h = shape.head_dim;
    let scale: F = score_scale(h);
    for gradient in [&mut *dq, &mut *dk, &mut *dv] {
        gradient.fill(0.0.into());
    }
    for query in queries(shape) {
        let (at, keys) = (query.q, &query.keys);
        let (q, dy) = (&q[at..at + h], &dy[at..at + h]);
        let (weights, _) = softmax(q, k, &query);
        let dp = keys.iter().map(|&key| dot(dy, &v[key..key + h]));
        let mean: F = dp.clone().zip(&weights).map(|(dp, &p)| dp * p).sum();
        for ((&key, &p), dp) in keys.iter().zip(&weights).zip(dp) {
            let ds = p * (dp - mean) * scale;
            add_scaled(p, dy, &mut dv[key..key + h]);
            add_scaled(ds, &k[key..key + h], &mut dq[at..at + h]);
            add_scaled(ds, q, &mut dk[key..key + h]);
        }
    }
}
