//! Elements on their way from the files of one checkpoint to those of another.
//!
//! The work is cut into pieces of a fixed size that any thread takes in any
//! order. Each thread has its own buffers and file handles, and every byte of the
//! output is written once.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use checkpoint::gguf::{GgufFile, GgufReader};
use checkpoint::{Digest, ExportPlan, Folder, OnWritten, Reader, StagedFiles, unless_stopped};
use tensor::{Account, Dtype, Ledger, Reservation, as_bytes_mut, narrow, widen};

use super::quantize::{Strip, Strips};
use crate::Error;

/// Elements of a piece: 1 MiB of f32, and whole blocks of any type.
pub(super) const PIECE_LEN: usize = 1 << 18;
/// A thread's buffers: as stored, as f32, as written, and a reader's own.
const BUFFERS: u64 = 4;

/// Where tensors come from.
#[derive(Debug)]
pub(super) enum Source<'a> {
    /// A Hugging Face folder.
    Folder(&'a Folder),
    /// A GGUF file.
    Gguf(&'a GgufFile),
}

/// How a tensor gets to its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Move {
    /// Its number in the source.
    pub(super) source: usize,
    /// Its elements.
    pub(super) num_elements: u64,
    /// What happens to it.
    pub(super) way: Way,
}

/// What happens to a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Bytes are copied.
    Copy {
        /// How many.
        num_bytes: u64,
    },
    /// Elements are cast.
    Cast,
    /// Elements are cast, and the rows of each head, in which the two rotary halves
    /// alternate, are put in order: row `2 j + i` becomes row `i d / 2 + j`.
    CastHeads {
        /// Elements of a row.
        row_len: u64,
        /// Rows of a head: `d`.
        head_dim: u64,
    },
    /// Elements become FP8 codes; their scales are the next tensor of the plan.
    Quantize(Strips),
    /// Scales, which are written with their codes.
    Scales,
}

impl Move {
    /// What is never cut but into pieces: how many, and the elements (bytes of a
    /// copy) of each.
    fn runs(&self) -> (u64, u64) {
        match self.way {
            Way::Copy { num_bytes } => (1, num_bytes),
            Way::Cast => (1, self.num_elements),
            Way::Quantize(_) | Way::Scales => (0, 0),
            Way::CastHeads { row_len, .. } => (self.num_elements / row_len.max(1), row_len),
        }
    }

    fn piece_len(&self) -> u64 {
        match self.way {
            Way::Copy { .. } => 4 * PIECE_LEN as u64,
            _ => PIECE_LEN as u64,
        }
    }

    fn num_pieces(&self) -> u64 {
        if let Way::Quantize(strips) = self.way {
            return strips.count();
        }
        let (num_runs, run_len) = self.runs();
        num_runs * run_len.div_ceil(self.piece_len())
    }

    /// A piece by its number.
    fn piece(&self, number: u64) -> Piece {
        let (_, run_len) = self.runs();
        let in_run = run_len.div_ceil(self.piece_len());
        let (run, begin) = (number / in_run, number % in_run * self.piece_len());
        Piece {
            from: run * run_len + begin,
            to: self.target_run(run) * run_len + begin,
            len: usize::try_from(self.piece_len().min(run_len - begin)).expect("pieces are small"),
        }
    }

    fn target_run(&self, run: u64) -> u64 {
        let Way::CastHeads { head_dim, .. } = self.way else {
            return run;
        };
        let (head, row) = (run / head_dim, run % head_dim);
        head * head_dim + row % 2 * (head_dim / 2) + row / 2
    }
}

/// Consecutive elements (bytes of a copy), and where they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    from: u64,
    to: u64,
    len: usize,
}

/// A conversion, ready to run.
pub(super) struct Work<'a> {
    pub(super) out: &'a Path,
    pub(super) plan: &'a ExportPlan,
    pub(super) source: &'a Source<'a>,
    /// In the order of the plan's tensors.
    pub(super) moves: &'a [Move],
    pub(super) ledger: &'a Ledger,
    pub(super) num_threads: usize,
    pub(super) on_written: OnWritten<'a>,
}

impl Work<'_> {
    /// Writes every tensor; gives the digests of what was written, in the plan's order,
    /// and how many elements that are not 0 became 0 in FP8.
    pub(super) fn run(&self) -> Result<(Vec<Digest>, u64), Error> {
        let mut ends = Vec::with_capacity(self.moves.len());
        let mut num_pieces = 0;
        for each in self.moves {
            num_pieces += each.num_pieces();
            ends.push(num_pieces);
        }
        let next = AtomicU64::new(0);
        let work = || -> Result<(Vec<Digest>, u64), Error> {
            let mut porter = Porter::new(self)?;
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number >= num_pieces {
                    porter.files.sync()?;
                    return Ok((porter.digests, porter.num_flushed));
                }
                let tensor = ends.partition_point(|&end| end <= number);
                let before = tensor.checked_sub(1).map_or(0, |before| ends[before]);
                let written = porter.carry(tensor, number - before);
                let asked = written.and_then(|bytes| {
                    let asked = (self.on_written)(bytes);
                    Ok(unless_stopped(asked)?)
                });
                // The others stop at their next piece.
                asked.inspect_err(|_| next.store(num_pieces, Relaxed))?;
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.num_threads.max(1))
                .map(|_| scope.spawn(work))
                .collect();
            let mut sums = vec![Digest::default(); self.moves.len()];
            let mut num_flushed = 0;
            for thread in threads {
                let (digests, flushed) =
                    thread.join().unwrap_or_else(|panic| resume_unwind(panic))?;
                num_flushed += flushed;
                for (sum, digest) in sums.iter_mut().zip(digests) {
                    *sum += digest;
                }
            }
            Ok((sums, num_flushed))
        })
    }
}

/// One thread's files and buffers.
struct Porter<'a> {
    work: &'a Work<'a>,
    reader: AnyReader<'a>,
    files: StagedFiles,
    stored: Vec<f32>,
    wide: Vec<f32>,
    written: Vec<f32>,
    /// Of what this thread wrote, in the order of the plan's tensors.
    digests: Vec<Digest>,
    num_flushed: u64,
    _reservation: Reservation,
}

enum AnyReader<'a> {
    Folder(&'a Folder, Reader),
    Gguf(&'a GgufFile, GgufReader),
}

impl<'a> Porter<'a> {
    fn new(work: &'a Work<'a>) -> Result<Self, Error> {
        let bytes = BUFFERS * GgufReader::MAX_ELEMENT_BYTES * PIECE_LEN as u64;
        let reservation = work.ledger.reserve(Account::Staging, bytes)?;
        let buffer = || vec![0.0; PIECE_LEN];
        Ok(Self {
            work,
            reader: match *work.source {
                Source::Folder(folder) => AnyReader::Folder(folder, folder.open_files()?),
                Source::Gguf(file) => AnyReader::Gguf(file, file.open_data()?),
            },
            files: StagedFiles::open(work.out, work.plan)?,
            stored: buffer(),
            wide: buffer(),
            written: buffer(),
            digests: vec![Digest::default(); work.moves.len()],
            num_flushed: 0,
            _reservation: reservation,
        })
    }

    /// Reads, casts and writes a piece of a tensor; gives the bytes written.
    fn carry(&mut self, tensor: usize, number: u64) -> Result<u64, Error> {
        let each = &self.work.moves[tensor];
        if let Way::Quantize(strips) = each.way {
            return self.quantize(tensor, &strips.strip(number));
        }
        let piece = each.piece(number);
        let target = &self.work.plan.tensors()[tensor];
        if let Way::Copy { .. } = each.way {
            let bytes = &mut as_bytes_mut(&mut self.stored)[..piece.len];
            self.reader.copy(each.source, piece.from, bytes)?;
            self.files.write_at(target, piece.to, bytes)?;
            self.digests[tensor] += Digest::of(piece.to, bytes);
            return Ok(piece.len as u64);
        }
        let wide = &mut self.wide[..piece.len];
        self.reader
            .read(each.source, piece.from, &mut self.stored, wide)?;
        let dtype = target.meta.dtype;
        if overflows(dtype, wide) {
            return Err(Error::Overflow {
                tensor: target.meta.name.clone(),
                dtype,
            });
        }
        let size = size(dtype);
        let bytes = &mut as_bytes_mut(&mut self.written)[..piece.len * size];
        narrow(dtype, wide, bytes).expect("targets are floats");
        let begin = piece.to * size as u64;
        self.files.write_at(target, begin, bytes)?;
        self.digests[tensor] += Digest::of(begin, bytes);
        Ok(bytes.len() as u64)
    }

    /// Writes the codes and the scales of a strip; gives the bytes of both.
    fn quantize(&mut self, tensor: usize, strip: &Strip) -> Result<u64, Error> {
        let [codes_to, scales_to] = [tensor, tensor + 1].map(|at| &self.work.plan.tensors()[at]);
        let source = self.work.moves[tensor].source;
        let wide = &mut self.wide[..strip.len()];
        for (begin, place) in strip.runs() {
            let run = &mut wide[place];
            self.reader.read(source, begin, &mut self.stored, run)?;
            if let Some(at) = run.iter().position(|value| !value.is_finite()) {
                return Err(Error::NotFinite {
                    tensor: codes_to.meta.name.clone(),
                    index: begin + at as u64,
                    value: run[at],
                });
            }
        }
        let codes = &mut as_bytes_mut(&mut self.written)[..wide.len()];
        let (mut scales, flushed) = strip.quantize(wide, codes);
        self.num_flushed += flushed;
        for (begin, place) in strip.runs() {
            let run = &codes[place];
            self.files.write_at(codes_to, begin, run)?;
            self.digests[tensor] += Digest::of(begin, run);
        }
        let begin = 4 * strip.first_scale();
        let scales = as_bytes_mut(&mut scales);
        self.files.write_at(scales_to, begin, scales)?;
        self.digests[tensor + 1] += Digest::of(begin, scales);
        Ok((codes.len() + scales.len()) as u64)
    }
}

impl AnyReader<'_> {
    /// Reads bytes of a tensor of a folder as they are.
    fn copy(&self, tensor: usize, from: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let Self::Folder(folder, reader) = self else {
            unreachable!("tensors of a GGUF file are cast");
        };
        let located = &folder.tensors()[tensor];
        let range = from..from + bytes.len() as u64;
        Ok(reader.read_at(located, range, bytes)?)
    }

    /// Reads elements as f32, by way of `stored`.
    fn read(
        &mut self,
        tensor: usize,
        from: u64,
        stored: &mut [f32],
        wide: &mut [f32],
    ) -> Result<(), Error> {
        match self {
            Self::Gguf(file, reader) => Ok(reader.read(&file.tensors()[tensor], from, wide)?),
            Self::Folder(folder, reader) => {
                let located = &folder.tensors()[tensor];
                let dtype = located.value_dtype();
                let bytes = &mut as_bytes_mut(stored)[..wide.len() * size(dtype)];
                let elements = from..from + wide.len() as u64;
                reader.read_values(located, elements, bytes, false)?;
                widen(dtype, bytes, wide).expect("only floats are cast");
                Ok(())
            }
        }
    }
}

/// Bytes of an element that is cast.
fn size(dtype: Dtype) -> usize {
    dtype.size_bytes().expect("only whole-byte floats are cast")
}

/// Whether a finite number would become an infinity.
fn overflows(dtype: Dtype, wide: &[f32]) -> bool {
    // The least magnitudes that round to infinity: half a step past the largest number.
    let limit = match dtype {
        Dtype::F16 => 65520.0,
        Dtype::BF16 => f32::from_bits(0x7f7f_8000),
        _ => return false,
    };
    wide.iter()
        .any(|value| value.is_finite() && value.abs() >= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element of the target is written by exactly one piece.
    #[track_caller]
    fn covers(each: &Move) {
        let (num_runs, run_len) = each.runs();
        let mut pieces: Vec<_> = (0..each.num_pieces())
            .map(|number| each.piece(number))
            .collect();
        pieces.sort_by_key(|piece| piece.to);
        let mut end = 0;
        for piece in pieces {
            assert_eq!(piece.to, end);
            end += piece.len as u64;
        }
        assert_eq!(end, num_runs * run_len);
    }

    fn moved(num_elements: u64, way: Way) -> Move {
        Move {
            source: 0,
            num_elements,
            way,
        }
    }

    #[test]
    fn pieces_cover_a_tensor_once() {
        const LEN: u64 = PIECE_LEN as u64;
        for len in [0, 1, LEN - 1, LEN, LEN + 1, 5 * LEN] {
            covers(&moved(len, Way::Cast));
            covers(&moved(len, Way::Copy { num_bytes: 2 * len }));
            for (rows, head_dim) in [(8, 4), (6, 6), (2, 2)] {
                let way = Way::CastHeads {
                    row_len: len,
                    head_dim,
                };
                covers(&moved(rows * len, way));
            }
        }
    }

    #[test]
    fn rows_that_alternate_become_halves() {
        let way = Way::CastHeads {
            row_len: 1,
            head_dim: 6,
        };
        let each = moved(12, way);
        let targets: Vec<_> = (0..12).map(|run| each.target_run(run)).collect();
        assert_eq!(targets, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
    }

    #[test]
    fn a_finite_number_never_becomes_an_infinity() {
        assert!(!overflows(Dtype::F16, &[65519.9, -65519.9]));
        assert!(overflows(Dtype::F16, &[-65520.0]));
        assert!(!overflows(Dtype::F16, &[f32::INFINITY, f32::NAN]));
        assert!(overflows(Dtype::BF16, &[f32::MAX]));
        assert!(!overflows(Dtype::BF16, &[3.38e38]));
        assert!(!overflows(Dtype::F32, &[f32::MAX]));
    }
}
