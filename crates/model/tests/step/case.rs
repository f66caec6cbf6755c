//! The tiny models and tokens of `testdata/llama.py` and `testdata/families.py`.

use model::{MicroBatch, Transformer};
use safetensors::SafeTensors;
use spec::{ModelSpec, Param};

/// Rows of the batch, and tokens of a row.
pub(crate) const ROWS: usize = 4;
pub(crate) const SEQ: usize = 12;

/// Targets of the batch: two in three tokens.
pub(crate) const NUM_TARGETS: u64 = 32;

/// A tiny model and what `PyTorch` makes of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    config: &'static str,
    golden: &'static [u8],
}

macro_rules! case {
    ($name:literal) => {
        Case {
            name: $name,
            config: include_str!(concat!("../../testdata/", $name, ".json")),
            golden: include_bytes!(concat!("../../testdata/", $name, ".safetensors")),
        }
    };
}

/// One block, a table of its own for the head, plain rotary positions.
pub(crate) const BLOCK: Case = case!("block");
/// Two blocks with all biases, a tied table, `linear` rotary positions.
pub(crate) const TIED: Case = case!("tied_biases_linear");
/// Two blocks that share one key/value head, `llama3` rotary positions.
pub(crate) const UNTIED: Case = case!("untied_llama3");

/// A sliding window in every block.
pub(crate) const MISTRAL: Case = case!("mistral");
/// Biases on query, key and value, and a window in the second block.
pub(crate) const QWEN2: Case = case!("qwen2");
/// Norms stored minus one, scaled embeddings, a GELU gate.
pub(crate) const GEMMA: Case = case!("gemma");
/// One key/value head, attention and MLP in parallel under one layer norm.
pub(crate) const FALCON_7B: Case = case!("falcon_7b");
/// Groups of heads, attention and MLP in parallel under a norm each.
pub(crate) const FALCON_40B: Case = case!("falcon_40b");
/// Groups of heads under one norm.
pub(crate) const FALCON_11B: Case = case!("falcon_11b");
/// Linear biases, a key/value head for each query head, attention before the MLP.
pub(crate) const FALCON_RW: Case = case!("falcon_rw");
/// A key/value head for each query head, in parallel.
pub(crate) const FALCON_OWN_HEADS: Case = case!("falcon_own_heads");

pub(crate) const CASES: [Case; 11] = [
    BLOCK,
    TIED,
    UNTIED,
    MISTRAL,
    QWEN2,
    GEMMA,
    FALCON_7B,
    FALCON_40B,
    FALCON_11B,
    FALCON_RW,
    FALCON_OWN_HEADS,
];

impl Case {
    pub(crate) fn model(&self) -> Transformer {
        Transformer::new(ModelSpec::from_config(self.config).unwrap())
    }

    /// The mean loss.
    pub(crate) fn loss(&self) -> f64 {
        let file = SafeTensors::deserialize(self.golden).unwrap();
        let bytes = file.tensor("loss").unwrap().data();
        f64::from_le_bytes(bytes.try_into().unwrap())
    }

    /// The gradient of the mean loss by a parameter.
    pub(crate) fn gradient(&self, name: &str) -> Vec<f32> {
        self.f32s(&format!("grad.{name}"))
    }

    /// The logits of each row's last token.
    pub(crate) fn last_logits(&self) -> Vec<f32> {
        self.f32s("last_logits")
    }

    /// The number of gradients.
    pub(crate) fn num_gradients(&self) -> usize {
        let file = SafeTensors::deserialize(self.golden).unwrap();
        let names = file.names().into_iter();
        names.filter(|name| name.starts_with("grad.")).count()
    }

    fn f32s(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(self.golden).unwrap();
        let bytes = file.tensor(name).unwrap().data();
        let numbers = bytes.chunks_exact(4);
        numbers
            .map(|number| f32::from_le_bytes(number.try_into().unwrap()))
            .collect()
    }
}

/// `count` numbers below 4096, from a name.
fn hashed(name: &str, count: usize) -> impl Iterator<Item = u16> {
    let key = name.bytes().fold(0x811c_9dc5_u32, |key, byte| {
        (key ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    (0..).take(count).map(move |number: u32| {
        let mut x = key.wrapping_add(number.wrapping_mul(2_654_435_761));
        x ^= x >> 15;
        x = x.wrapping_mul(2_246_822_519);
        x ^= x >> 13;
        u16::try_from(x >> 20).unwrap()
    })
}

/// Multiples of 2^-12 between -1/2 and 1/2; 1 more for a norm.
pub(crate) fn weight(param: &Param) -> Vec<f32> {
    let middle = if param.role.is_norm() { 1.0 } else { 0.0 };
    let count = param.rows * param.cols;
    hashed(&param.name, count)
        .map(|number| (f32::from(number) - 2048.0) / 4096.0 + middle)
        .collect()
}

/// Rows of any tokens and rows of few; no target at every third token.
pub(crate) fn batch(vocab: usize) -> MicroBatch {
    let vocab = u32::try_from(vocab).unwrap();
    let ids: Vec<u32> = hashed("tokens", ROWS * SEQ)
        .enumerate()
        .map(|(at, number)| {
            let id = u32::from(number) % vocab;
            if at / SEQ % 2 == 1 { id % 7 } else { id }
        })
        .collect();
    let targets = (0..ids.len()).map(|at| match at % SEQ % 3 {
        2 => kernels::IGNORED,
        _ => ids[at + 1],
    });
    MicroBatch::new(SEQ, ids.clone(), targets.collect())
}

/// The batch as micro-batches of so many rows each.
pub(crate) fn micro_batches(vocab: usize, rows: &[usize]) -> Vec<MicroBatch> {
    let batch = batch(vocab);
    let mut at = 0;
    let micro = rows.iter().map(|rows| {
        let here = at..at + rows * SEQ;
        at = here.end;
        MicroBatch::new(
            SEQ,
            batch.ids[here.clone()].to_vec(),
            batch.targets[here].to_vec(),
        )
    });
    micro.collect()
}
