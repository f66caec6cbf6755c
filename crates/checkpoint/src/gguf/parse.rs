//! The header of a GGUF file, read strictly.

use std::io::Read;

use tensor::Shape;

use super::GgufTensor;
use super::blocks::BlockType;
use super::cursor::{Cursor, Stop};
use super::fault::GgufFault;
use super::value::{Metadata, NumberType, Numbers, Texts, Value};

/// The largest header that is read. The largest known vocabularies take 12 MB.
pub(super) const MAX_HEADER_BYTES: u64 = 256 << 20;
/// The most keys.
pub(super) const MAX_KEYS: u64 = 1 << 16;
/// The most tensors.
pub(super) const MAX_TENSORS: u64 = 1_000_000;
/// The longest string value: a chat template of 16 MiB is none.
pub(super) const MAX_STRING_BYTES: u64 = 16 << 20;
/// The longest key, and name of a tensor: the format's limits.
const MAX_KEY_BYTES: u64 = (1 << 16) - 1;
const MAX_NAME_BYTES: u64 = 64;
/// How deep arrays may stand in arrays.
pub(super) const MAX_NESTING: u32 = 64;
/// The most dimensions of a tensor.
pub(super) const MAX_RANK: u32 = 4;

const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 20;

const TEXT_CODE: u32 = 8;
const ARRAY_CODE: u32 = 9;

/// What a header says.
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<GgufTensor>,
}

/// Reads the header of a file of `file_bytes` bytes.
pub(super) fn parse(source: impl Read, file_bytes: u64) -> Result<Header, Stop> {
    let mut parser = Parser {
        cursor: Cursor::new(source, file_bytes),
        bytes: Vec::new(),
    };
    let version = parser.version()?;
    let num_tensors = parser.cursor.count()?;
    let num_keys = parser.cursor.count()?;
    let metadata = parser.metadata(num_keys)?;
    let alignment = alignment(&metadata)?;
    refuse_split(&metadata)?;
    let tensors = parser.tensors(num_tensors)?;
    let data_begin = parser.cursor.at().next_multiple_of(alignment);
    let tensors = place(tensors, data_begin, alignment, file_bytes)?;
    Ok(Header {
        version,
        metadata,
        tensors,
    })
}

struct Parser<R> {
    cursor: Cursor<R>,
    /// The string at hand.
    bytes: Vec<u8>,
}

impl<R: Read> Parser<R> {
    fn version(&mut self) -> Result<u32, Stop> {
        let magic = self.cursor.bytes()?;
        if &magic != b"GGUF" {
            return Err(GgufFault::NotGguf { found: magic }.into());
        }
        let version = self.cursor.u32()?;
        match version {
            1..=3 => {
                self.cursor.has_short_counts = version == 1;
                Ok(version)
            }
            found if (1..=3).contains(&found.swap_bytes()) => Err(GgufFault::BigEndian.into()),
            found => Err(GgufFault::Version { found }.into()),
        }
    }

    fn metadata(&mut self, num_keys: u64) -> Result<Metadata, Stop> {
        if num_keys > MAX_KEYS {
            return Err(GgufFault::TooManyKeys { found: num_keys }.into());
        }
        let least_bytes = self.cursor.count_bytes() + 4 + 1;
        self.cursor
            .check_count(num_keys, least_bytes, || "the metadata".to_owned())?;
        let mut pairs = Vec::new();
        for number in 0..num_keys {
            let what = || format!("key {number}");
            let key = self
                .cursor
                .text(&mut self.bytes, MAX_KEY_BYTES, what)?
                .to_owned();
            let value = self.value(&key)?;
            pairs.push((key, value));
        }
        pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
        match pairs.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            None => Ok(Metadata { pairs }),
            Some(pair) => Err(Stop::Fault(GgufFault::DuplicateKey {
                key: pair[0].0.clone(),
            })),
        }
    }

    fn value(&mut self, key: &str) -> Result<Value, Stop> {
        let code = self.cursor.u32()?;
        match code {
            TEXT_CODE => Ok(Value::Text(self.text(key)?.to_owned())),
            ARRAY_CODE => self.array(key, 1),
            code => {
                let number_type = number_type(key, code)?;
                let mut bytes = [0; 8];
                let bytes = &mut bytes[..number_type.num_bytes()];
                for byte in &mut *bytes {
                    [*byte] = self.cursor.bytes()?;
                }
                check_bools(key, number_type, bytes)?;
                Ok(number_type.value(bytes))
            }
        }
    }

    fn text(&mut self, key: &str) -> Result<&str, Stop> {
        let what = || format!("value of key `{key}`");
        self.cursor.text(&mut self.bytes, MAX_STRING_BYTES, what)
    }

    fn array(&mut self, key: &str, depth: u32) -> Result<Value, Stop> {
        if depth > MAX_NESTING {
            let key = key.to_owned();
            return Err(GgufFault::TooDeep { key }.into());
        }
        let code = self.cursor.u32()?;
        let count = self.cursor.count()?;
        let what = || format!("array of key `{key}`");
        let count_bytes = self.cursor.count_bytes();
        match code {
            TEXT_CODE => {
                self.cursor.check_count(count, count_bytes, what)?;
                let mut texts = Texts::default();
                for _ in 0..count {
                    texts.push(self.text(key)?);
                }
                Ok(Value::Texts(texts))
            }
            ARRAY_CODE => {
                self.cursor.check_count(count, 4 + count_bytes, what)?;
                for _ in 0..count {
                    self.array(key, depth + 1)?;
                }
                Ok(Value::Nested)
            }
            code => {
                let number_type = number_type(key, code)?;
                let size = number_type.num_bytes() as u64;
                self.cursor.check_count(count, size, what)?;
                let mut bytes = Vec::new();
                self.cursor.replace(&mut bytes, count * size)?;
                check_bools(key, number_type, &bytes)?;
                Ok(Value::Numbers(Numbers { number_type, bytes }))
            }
        }
    }

    /// The tensors with their offsets in the data, in the order of the file.
    fn tensors(&mut self, num_tensors: u64) -> Result<Vec<GgufTensor>, Stop> {
        if num_tensors > MAX_TENSORS {
            return Err(GgufFault::TooManyTensors { found: num_tensors }.into());
        }
        let least_bytes = self.cursor.count_bytes() + 4 + 4 + 8;
        self.cursor
            .check_count(num_tensors, least_bytes, || "the tensors".to_owned())?;
        (0..num_tensors).map(|number| self.tensor(number)).collect()
    }

    fn tensor(&mut self, number: u64) -> Result<GgufTensor, Stop> {
        let what = || format!("name of tensor {number}");
        let name = self.cursor.text(&mut self.bytes, MAX_NAME_BYTES, what)?;
        if name.is_empty() {
            return Err(GgufFault::NamelessTensor { number }.into());
        }
        let name = name.to_owned();
        let shape = self.shape(&name)?;
        let num_elements = shape.num_elements().map_err(|_| GgufFault::TooLarge {
            tensor: name.clone(),
        })?;
        let block_type = block_type(&name, self.cursor.u32()?)?;
        let row_len = shape.dims().last().copied().unwrap_or(1);
        if !row_len.is_multiple_of(block_type.block_len()) {
            return Err(Stop::Fault(GgufFault::BrokenBlock {
                tensor: name,
                row_len,
                block_len: block_type.block_len(),
            }));
        }
        Ok(GgufTensor {
            name,
            block_type,
            shape,
            num_elements,
            begin: self.cursor.u64()?,
        })
    }

    fn shape(&mut self, tensor: &str) -> Result<Shape, Stop> {
        let rank = self.cursor.u32()?;
        if rank > MAX_RANK {
            return Err(Stop::Fault(GgufFault::TooManyDims {
                tensor: tensor.to_owned(),
                found: rank,
            }));
        }
        let mut dims = Vec::new();
        for _ in 0..rank {
            dims.push(self.cursor.count()?);
        }
        if dims.contains(&0) {
            let tensor = tensor.to_owned();
            return Err(GgufFault::EmptyDim { tensor }.into());
        }
        dims.reverse();
        Ok(Shape::new(&dims))
    }
}

fn number_type(key: &str, code: u32) -> Result<NumberType, GgufFault> {
    NumberType::of_code(code).ok_or_else(|| GgufFault::UnknownValueType {
        key: key.to_owned(),
        code,
    })
}

fn check_bools(key: &str, number_type: NumberType, bytes: &[u8]) -> Result<(), GgufFault> {
    if number_type != NumberType::Bool {
        return Ok(());
    }
    match bytes.iter().find(|&&byte| byte > 1) {
        None => Ok(()),
        Some(&found) => Err(GgufFault::BadBool {
            key: key.to_owned(),
            found,
        }),
    }
}

fn block_type(tensor: &str, code: u32) -> Result<BlockType, GgufFault> {
    let Some(name) = BlockType::name_of_code(code) else {
        return Err(GgufFault::UnknownType {
            tensor: tensor.to_owned(),
            code,
        });
    };
    BlockType::of_code(code).ok_or_else(|| GgufFault::UnsupportedType {
        tensor: tensor.to_owned(),
        found: name,
    })
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufFault> {
    let Some(value) = metadata.get(ALIGNMENT_KEY) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    match *value {
        Value::Unsigned(found) if found.is_power_of_two() && found <= MAX_ALIGNMENT => Ok(found),
        Value::Unsigned(found) => Err(GgufFault::BadAlignment {
            found: found.to_string(),
        }),
        ref other => Err(GgufFault::BadAlignment {
            found: other.kind().to_owned(),
        }),
    }
}

fn refuse_split(metadata: &Metadata) -> Result<(), GgufFault> {
    match metadata.get("split.count").and_then(Value::as_u64) {
        Some(count) if count > 1 => Err(GgufFault::Split { count }),
        _ => Ok(()),
    }
}

/// Checks that the tensors tile the data, and counts their offsets from the
/// start of the file.
fn place(
    mut tensors: Vec<GgufTensor>,
    data_begin: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<Vec<GgufTensor>, GgufFault> {
    refuse_twins(&tensors)?;
    tensors.sort_by_key(|tensor| tensor.begin);
    let (mut expected, mut end) = (0_u64, data_begin);
    for tensor in &mut tensors {
        if tensor.begin != expected {
            return Err(GgufFault::Misplaced {
                tensor: tensor.name.clone(),
                expected,
                found: tensor.begin,
            });
        }
        // No more than 4 bytes an element, so only this product can be too large.
        let num_blocks = tensor.num_elements / tensor.block_type.block_len();
        let num_bytes = num_blocks.checked_mul(tensor.block_type.block_bytes());
        tensor.begin += data_begin;
        end = num_bytes
            .and_then(|num_bytes| tensor.begin.checked_add(num_bytes))
            .ok_or_else(|| GgufFault::TooLarge {
                tensor: tensor.name.clone(),
            })?;
        if end > file_bytes {
            return Err(GgufFault::PastEnd {
                tensor: tensor.name.clone(),
                end,
                file_bytes,
            });
        }
        // The file's size is far below the end of u64, so this cannot pass it.
        expected = (end - data_begin).next_multiple_of(alignment);
    }
    match file_bytes.checked_sub(data_begin + expected) {
        None | Some(0) => Ok(tensors),
        Some(num_bytes) => Err(GgufFault::Tail {
            num_bytes: num_bytes + (data_begin + expected - end),
        }),
    }
}

fn refuse_twins(tensors: &[GgufTensor]) -> Result<(), GgufFault> {
    let mut names: Vec<_> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(GgufFault::DuplicateTensor {
            tensor: pair[0].to_owned(),
        }),
    }
}
