//! Random checkpoints of a given shape.
//!
//! Every element is a function of seed, tensor name and its number alone, so any
//! range can be made by anyone:
//!
//! ```text
//! key    mix(seed + mix(fnv1a(name)))
//! u64    mix(key + (n / 2 + 1) * 0x9e3779b97f4a7c15)     n: the element's number
//! a, b   (upper 32 bits + 1/2) / 2^32, lower 32 bits / 2^32
//! value  std * sqrt(-2 ln a) * cos(2 pi b)   n even;  sin for n odd
//! ```
//!
//! with `mix` the finalizer of `SplitMix64` (Steele, Lea & Flood 2014) and the last
//! line the transform of Box & Muller. Norm weights are 1 (0 where checkpoints store
//! them minus one) and biases 0.

use std::f64::consts::TAU;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use half::slice::{HalfBitsSliceExt as _, HalfFloatSliceExt as _};
use half::{bf16, f16};
use spec::{ModelSpec, Param};
use tensor::{Dtype, TensorMeta, as_bytes};

use crate::error::{CheckpointError, Result};
use crate::export::ExportPlan;
use crate::staging::{OnWritten, StagedFiles, Staging, unless_stopped};
use crate::weights::Located;

/// Elements that a thread makes and writes at once: 4 MiB of f32.
const PIECE_LEN: u64 = 1 << 20;

/// What a random checkpoint is made of.
#[derive(Debug, Clone)]
pub struct Init<'a> {
    /// The shape.
    pub spec: &'a ModelSpec,
    /// The text of its `config.json`.
    pub config_text: &'a str,
    /// F32, BF16 or F16.
    pub dtype: Dtype,
    /// Different seeds give different weights.
    pub seed: u64,
    /// Leave the matrices as holes that read as zeros and cost no disk.
    pub is_sparse: bool,
    /// A larger checkpoint is split.
    pub max_file_bytes: u64,
    /// Threads that make numbers.
    pub num_threads: usize,
}

/// The tensors of a model, in the order of the model.
pub fn plan(spec: &ModelSpec, dtype: Dtype) -> Vec<TensorMeta> {
    let units = spec.units();
    let params = units.iter().flat_map(|unit| &unit.params);
    params
        .map(|param| TensorMeta {
            name: param.name.clone(),
            dtype,
            shape: param.shape(),
        })
        .collect()
}

/// Makes the elements of a parameter from number `first` on.
pub fn fill(seed: u64, param: &Param, first: u64, std: f32, out: &mut [f32]) {
    if param.role.is_norm() {
        out.fill(1.0);
    } else if param.role.is_bias() {
        out.fill(0.0);
    } else {
        fill_normal(key(seed, &param.name), first, std, out);
    }
}

fn fill_normal(key: u64, first: u64, std: f32, out: &mut [f32]) {
    let (head, rest) = out.split_at_mut((first % 2).min(out.len() as u64) as usize);
    if let [value] = head {
        *value = pair(key, first / 2, std)[1];
    }
    for (value, number) in rest.chunks_mut(2).zip(first.div_ceil(2)..) {
        value.copy_from_slice(&pair(key, number, std)[..value.len()]);
    }
}

/// Elements `2 * number` and the one after it.
#[expect(
    clippy::cast_possible_truncation,
    reason = "halves of 64 bits, and rounding to f32"
)]
fn pair(key: u64, number: u64, std: f32) -> [f32; 2] {
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    const STEP: f64 = 1.0 / 4_294_967_296.0;
    let bits = mix(key.wrapping_add(number.wrapping_add(1).wrapping_mul(GAMMA)));
    let a = (f64::from((bits >> 32) as u32) + 0.5) * STEP;
    let b = f64::from(bits as u32) * STEP;
    let radius = f64::from(std) * (-2.0 * a.ln()).sqrt();
    let (sin, cos) = (TAU * b).sin_cos();
    [(radius * cos) as f32, (radius * sin) as f32]
}

fn key(seed: u64, name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(seed.wrapping_add(mix(hash)))
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Writes a random checkpoint to `out`.
pub fn write(out: &Path, init: &Init<'_>, on_written: OnWritten<'_>) -> Result<()> {
    if !matches!(init.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) {
        return Err(CheckpointError::InitDtype { found: init.dtype });
    }
    let plan = ExportPlan::new(&plan(init.spec, init.dtype), init.max_file_bytes)?;
    let mut staging = if init.is_sparse {
        Staging::create_sparse(out, &plan, &[])?
    } else {
        Staging::create(out, &plan, &[])?
    };
    staging.add_text("config.json", init.config_text)?;
    let units = init.spec.units();
    let params: Vec<_> = units.iter().flat_map(|unit| &unit.params).collect();
    let pieces = pieces(&params, init.is_sparse);
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        let mut writer = PieceWriter::open(out, &plan, init)?;
        while let Some(piece) = pieces.get(next.fetch_add(1, Relaxed)) {
            let (param, tensor) = (params[piece.tensor], &plan.tensors()[piece.tensor]);
            let written = writer.write(param, tensor, piece);
            let asked = written.and_then(|bytes| unless_stopped(on_written(bytes)));
            // The others stop at their next piece.
            asked.inspect_err(|_| next.store(pieces.len(), Relaxed))?;
        }
        writer.files.sync()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..init.num_threads.max(1))
            .map(|_| scope.spawn(work))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })?;
    staging.commit()
}

/// Consecutive elements of one tensor.
struct Piece {
    tensor: usize,
    first: u64,
    len: usize,
}

fn pieces(params: &[&Param], is_sparse: bool) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (tensor, param) in params.iter().enumerate() {
        if is_sparse && !param.is_vector {
            continue;
        }
        let num_elements = param.num_elements();
        let mut first = 0;
        while first < num_elements {
            let len = PIECE_LEN.min(num_elements - first);
            let len_here = usize::try_from(len).expect("a piece is small");
            pieces.push(Piece {
                tensor,
                first,
                len: len_here,
            });
            first += len;
        }
    }
    pieces
}

/// One thread's buffers and files.
struct PieceWriter<'a> {
    init: &'a Init<'a>,
    files: StagedFiles,
    numbers: Vec<f32>,
    halves: Vec<u16>,
}

impl<'a> PieceWriter<'a> {
    fn open(out: &Path, plan: &ExportPlan, init: &'a Init<'a>) -> Result<Self> {
        Ok(Self {
            init,
            files: StagedFiles::open(out, plan)?,
            numbers: Vec::new(),
            halves: Vec::new(),
        })
    }

    /// Writes a piece and says how many bytes it has.
    fn write(&mut self, param: &Param, tensor: &Located, piece: &Piece) -> Result<u64> {
        let std = self.init.spec.initializer_range;
        self.numbers.resize(piece.len, 0.0);
        fill(self.init.seed, param, piece.first, std, &mut self.numbers);
        if param.role.is_norm() {
            // Such as compute with 1, whatever is added to what is stored.
            self.numbers.fill(1.0 - self.init.spec.norm_offset());
        }
        let size = match self.init.dtype {
            Dtype::F32 => 4,
            dtype => {
                self.round(dtype);
                2
            }
        };
        let bytes = match size {
            4 => as_bytes(&self.numbers),
            _ => as_bytes(&self.halves),
        };
        self.files.write_at(tensor, piece.first * size, bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Rounds the numbers to a dtype of 16 bits.
    fn round(&mut self, dtype: Dtype) {
        self.halves.resize(self.numbers.len(), 0);
        let halves = self.halves.as_mut_slice();
        if dtype == Dtype::BF16 {
            let halves = halves.reinterpret_cast_mut::<bf16>();
            halves.convert_from_f32_slice(&self.numbers);
        } else {
            let halves = halves.reinterpret_cast_mut::<f16>();
            halves.convert_from_f32_slice(&self.numbers);
        }
    }
}
