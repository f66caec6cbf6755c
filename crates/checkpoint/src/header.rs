//! The header of a safetensors file, read strictly.
//!
//! ```text
//! u64 LE   N            at most 100,000,000, and 8 + N at most the file
//! N bytes  JSON         begins with `{`, ends with `}` and then only spaces
//! rest     data         tiled by the tensors: no hole, overlap or tail
//! ```
//!
//! Nothing in the header is believed: entries go straight into compact records
//! while the JSON streams by, names are compared after their escapes are
//! decoded, arithmetic is checked. Where the reference reader is lenient
//! (duplicates, unknown fields, entries that are arrays, padding other than
//! spaces) this one refuses: two readers that disagree on one file would train
//! on different weights.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tensor::{Dtype, Shape, TensorMeta};

use crate::index::PairsSeed;
use crate::rules::Strictness;

/// The largest header that the format allows.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The most tensors a header may have.
pub(crate) const MAX_TENSORS: usize = 4_000_000;

/// The most pairs that `__metadata__` may have: a header of 100 MB could hold ten
/// million, at ten times its size in memory. Writers put a handful there.
const MAX_METADATA: usize = 100_000;

/// The most dimensions a tensor may have.
const MAX_RANK: usize = 64;

const METADATA: &str = "__metadata__";

/// What is wrong with a header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderFault {
    /// The file ends before its header does.
    #[error("file of {file_bytes} bytes ends inside the header, which needs {needed_bytes}")]
    Truncated {
        /// Bytes in the file.
        file_bytes: u64,
        /// Bytes of length and header.
        needed_bytes: u64,
    },
    /// A length beyond the format's limit.
    #[error("header length {claimed_bytes} is over the limit of {MAX_HEADER_BYTES}")]
    TooLarge {
        /// The length in the file.
        claimed_bytes: u64,
    },
    /// Not UTF-8.
    #[error("header is not UTF-8 at byte {at}")]
    NotUtf8 {
        /// Valid up to here.
        at: usize,
    },
    /// Does not begin with `{`, or something but spaces follows the last `}`.
    #[error("header is not a JSON object followed by spaces")]
    NotAnObject,
    /// Not the JSON of a header.
    #[error("header is not the JSON of a safetensors file: {reason}")]
    NotJson {
        /// What the parser found, and where.
        reason: String,
    },
    /// More tensors than the limit.
    #[error("header has more than {MAX_TENSORS} tensors")]
    TooManyTensors,
    /// More metadata than the limit.
    #[error("header has more than {MAX_METADATA} pairs of metadata")]
    TooMuchMetadata,
    /// A name twice.
    #[error("tensor `{tensor}` appears twice")]
    DuplicateTensor {
        /// The decoded name.
        tensor: String,
    },
    /// A field of a tensor twice.
    #[error("tensor `{tensor}` has field `{field}` twice")]
    DuplicateField {
        /// The tensor.
        tensor: String,
        /// The field.
        field: &'static str,
    },
    /// A field of a tensor that the format does not have.
    #[error("tensor `{tensor}` has an unknown field `{field}`")]
    UnknownField {
        /// The tensor.
        tensor: String,
        /// The field.
        field: String,
    },
    /// A field that every tensor needs.
    #[error("tensor `{tensor}` has no field `{field}`")]
    MissingField {
        /// The tensor.
        tensor: String,
        /// The field.
        field: &'static str,
    },
    /// An empty name, or one with control characters.
    #[error("tensor name {tensor:?} is empty or has control characters")]
    BadName {
        /// The decoded name.
        tensor: String,
    },
    /// A dtype that the format does not have.
    #[error("tensor `{tensor}` has an unknown dtype `{found}`")]
    UnknownDtype {
        /// The tensor.
        tensor: String,
        /// The dtype's name.
        found: String,
    },
    /// More dimensions than the limit.
    #[error("tensor `{tensor}` has more than {MAX_RANK} dimensions")]
    RankTooLarge {
        /// The tensor.
        tensor: String,
    },
    /// A shape that overflows, or whose elements do not fill whole bytes.
    #[error(
        "tensor `{tensor}`: shape {shape} of {dtype} is not a whole number of bytes in 64 bits"
    )]
    BadShape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Shape,
        /// Its dtype.
        dtype: Dtype,
    },
    /// A byte range that does not hold exactly its shape and dtype.
    #[error(
        "tensor `{tensor}`: shape and dtype need {expected_bytes} bytes, its offsets are [{begin}, {end}]"
    )]
    WrongLength {
        /// The tensor.
        tensor: String,
        /// Bytes that shape and dtype call for.
        expected_bytes: u64,
        /// The first offset.
        begin: u64,
        /// The second.
        end: u64,
    },
    /// A tensor that does not begin where the one before it ends.
    #[error("tensor `{tensor}` begins at {begin}, but the data before it end at {expected}")]
    HoleOrOverlap {
        /// The tensor.
        tensor: String,
        /// Where it should begin.
        expected: u64,
        /// Where it begins.
        begin: u64,
    },
    /// The last tensor does not end with the file.
    #[error("the header and its tensors take {expected_bytes} bytes, the file has {found_bytes}")]
    WrongFileLength {
        /// Where the last tensor ends.
        expected_bytes: u64,
        /// Where the file ends.
        found_bytes: u64,
    },
    /// A metadata key twice.
    #[error("metadata key `{key}` appears twice")]
    DuplicateMetadata {
        /// The decoded key, or the name of the whole map.
        key: String,
    },
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name, dtype and shape.
    pub meta: TensorMeta,
    /// Where its bytes begin, counted from the end of the header.
    pub begin: u64,
    /// Where they end.
    pub end: u64,
}

/// A whole header.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Header {
    /// The tensors in the order of their bytes.
    pub entries: Vec<Entry>,
    /// The pairs of `__metadata__`, by key.
    pub metadata: Vec<(String, String)>,
    /// Fields of tensors that the format does not have; none where they are errors.
    pub unknown_fields: Option<UnknownFields>,
}

/// Fields of tensors that the format does not have: the first, and how many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownFields {
    /// The first one's tensor.
    pub tensor: String,
    /// Its name.
    pub field: String,
    /// How many there are in all.
    pub count: u64,
}

impl fmt::Display for UnknownFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tensor, field) = (&self.tensor, &self.field);
        write!(f, "tensor `{tensor}` has an unknown field `{field}`")?;
        match self.count - 1 {
            0 => Ok(()),
            more => write!(f, " (and {more} more)"),
        }
    }
}

/// The header's length from a file's first 8 bytes, checked against the file's.
pub fn header_len(prefix: [u8; 8], file_bytes: u64) -> Result<u64, HeaderFault> {
    let claimed_bytes = u64::from_le_bytes(prefix);
    if claimed_bytes > MAX_HEADER_BYTES {
        return Err(HeaderFault::TooLarge { claimed_bytes });
    }
    let needed_bytes = 8 + claimed_bytes;
    if needed_bytes > file_bytes {
        return Err(HeaderFault::Truncated {
            file_bytes,
            needed_bytes,
        });
    }
    Ok(claimed_bytes)
}

/// Reads the JSON of a header that is followed by `data_bytes` of data.
pub fn parse_header(json: &[u8], data_bytes: u64) -> Result<Header, HeaderFault> {
    parse_header_with(json, data_bytes, Strictness::Strict)
}

/// As [`parse_header`], strictly or not.
pub fn parse_header_with(
    json: &[u8],
    data_bytes: u64,
    strictness: Strictness,
) -> Result<Header, HeaderFault> {
    let text = std::str::from_utf8(json).map_err(|error| HeaderFault::NotUtf8 {
        at: error.valid_up_to(),
    })?;
    let text = text.trim_end_matches(' ');
    if !text.starts_with('{') || !text.ends_with('}') {
        return Err(HeaderFault::NotAnObject);
    }
    let mut header = parse_json(text, strictness)?;
    header.check_names()?;
    header.entries.iter().try_for_each(check_length)?;
    header.check_tiling(8 + json.len() as u64, data_bytes)?;
    Ok(header)
}

fn parse_json(text: &str, strictness: Strictness) -> Result<Header, HeaderFault> {
    let mut fault = None;
    let mut json = serde_json::Deserializer::from_str(text);
    let seed = HeaderSeed {
        fault: &mut fault,
        strictness,
    };
    let parsed = seed
        .deserialize(&mut json)
        .and_then(|header| json.end().map(|()| header));
    parsed.map_err(|error| {
        fault.unwrap_or_else(|| HeaderFault::NotJson {
            reason: error.to_string(),
        })
    })
}

impl Header {
    /// Refuses a name that appears twice. After the parse, so that finding
    /// duplicates costs a sort and no set of names.
    fn check_names(&mut self) -> Result<(), HeaderFault> {
        self.entries
            .sort_unstable_by(|a, b| a.meta.name.cmp(&b.meta.name));
        if let Some(name) = first_twin(&self.entries, |entry| &entry.meta.name) {
            return Err(HeaderFault::DuplicateTensor {
                tensor: name.to_owned(),
            });
        }
        self.metadata.sort_unstable();
        if let Some(key) = first_twin(&self.metadata, |pair| &pair.0) {
            return Err(HeaderFault::DuplicateMetadata {
                key: key.to_owned(),
            });
        }
        Ok(())
    }

    /// Puts the tensors in the order of their bytes and demands that they tile
    /// the data exactly.
    fn check_tiling(&mut self, header_bytes: u64, data_bytes: u64) -> Result<(), HeaderFault> {
        let place = |entry: &Entry| (entry.begin, entry.end);
        self.entries.sort_unstable_by(|a, b| {
            let by_place = place(a).cmp(&place(b));
            by_place.then_with(|| a.meta.name.cmp(&b.meta.name))
        });
        let mut expected = 0;
        for entry in &self.entries {
            if entry.begin != expected {
                return Err(HeaderFault::HoleOrOverlap {
                    tensor: entry.meta.name.clone(),
                    expected,
                    begin: entry.begin,
                });
            }
            expected = entry.end;
        }
        if expected != data_bytes {
            return Err(HeaderFault::WrongFileLength {
                expected_bytes: header_bytes.saturating_add(expected),
                found_bytes: header_bytes.saturating_add(data_bytes),
            });
        }
        Ok(())
    }
}

/// Demands that a tensor's range holds exactly its shape and dtype.
fn check_length(entry: &Entry) -> Result<(), HeaderFault> {
    let &Entry {
        ref meta,
        begin,
        end,
    } = entry;
    let tensor = || meta.name.clone();
    let Some(expected_bytes) = strict_bytes(meta.dtype, &meta.shape) else {
        return Err(HeaderFault::BadShape {
            tensor: tensor(),
            shape: meta.shape.clone(),
            dtype: meta.dtype,
        });
    };
    if end.checked_sub(begin) != Some(expected_bytes) {
        return Err(HeaderFault::WrongLength {
            tensor: tensor(),
            expected_bytes,
            begin,
            end,
        });
    }
    Ok(())
}

/// Bytes of a tensor, or `None` where its dimensions overflow even if one of
/// them is 0: whether that is an error must not depend on their order.
fn strict_bytes(dtype: Dtype, shape: &Shape) -> Option<u64> {
    let bits = shape
        .dims()
        .iter()
        .try_fold(dtype.bits(), |bits, &dim| bits.checked_mul(dim.max(1)))?;
    if shape.dims().contains(&0) {
        return Some(0);
    }
    bits.is_multiple_of(8).then_some(bits / 8)
}

fn first_twin<T>(sorted: &[T], name: impl Fn(&T) -> &str) -> Option<&str> {
    sorted
        .windows(2)
        .find(|pair| name(&pair[0]) == name(&pair[1]))
        .map(|pair| name(&pair[0]))
}

/// Leaves the fault in a slot, since an error that passes through serde is only
/// text.
fn stop<E: serde::de::Error>(slot: &mut Option<HeaderFault>, fault: HeaderFault) -> E {
    *slot = Some(fault);
    E::custom("stopped")
}

struct HeaderSeed<'a> {
    fault: &'a mut Option<HeaderFault>,
    strictness: Strictness,
}

impl HeaderSeed<'_> {
    fn metadata<'de, A: MapAccess<'de>>(
        &mut self,
        map: &mut A,
        pairs: &mut Vec<(String, String)>,
    ) -> Result<(), A::Error> {
        let mut is_over = false;
        let outcome = map.next_value_seed(PairsSeed {
            pairs,
            most: MAX_METADATA,
            is_over: &mut is_over,
        });
        match outcome {
            Err(_) if is_over => Err(stop(self.fault, HeaderFault::TooMuchMetadata)),
            outcome => outcome,
        }
    }
}

impl<'de> DeserializeSeed<'de> for HeaderSeed<'_> {
    type Value = Header;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Header, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed<'_> {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Header, A::Error> {
        let mut header = Header::default();
        let mut has_metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                if std::mem::replace(&mut has_metadata, true) {
                    return Err(stop(
                        self.fault,
                        HeaderFault::DuplicateMetadata { key: name },
                    ));
                }
                self.metadata(&mut map, &mut header.metadata)?;
                continue;
            }
            if header.entries.len() == MAX_TENSORS {
                return Err(stop(self.fault, HeaderFault::TooManyTensors));
            }
            if name.is_empty() || name.contains(char::is_control) {
                return Err(stop(self.fault, HeaderFault::BadName { tensor: name }));
            }
            let entry = map.next_value_seed(EntrySeed {
                name,
                fault: &mut *self.fault,
                strictness: self.strictness,
                unknown: &mut header.unknown_fields,
            })?;
            header.entries.push(entry);
        }
        header.entries.shrink_to_fit();
        Ok(header)
    }
}

struct EntrySeed<'a> {
    name: String,
    fault: &'a mut Option<HeaderFault>,
    strictness: Strictness,
    unknown: &'a mut Option<UnknownFields>,
}

impl<'de> DeserializeSeed<'de> for EntrySeed<'_> {
    type Value = Entry;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Entry, D::Error> {
        json.deserialize_map(self)
    }
}

/// The three fields of a tensor, as far as they were seen.
#[derive(Default)]
struct Fields {
    dtype: Option<Dtype>,
    shape: Option<Shape>,
    offsets: Option<[u64; 2]>,
}

impl<'de> Visitor<'de> for EntrySeed<'_> {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Entry, A::Error> {
        let mut fields = Fields::default();
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "dtype" => {
                    self.once("dtype", fields.dtype.as_ref())?;
                    fields.dtype = Some(self.dtype(&map.next_value::<String>()?)?);
                }
                "shape" => {
                    self.once("shape", fields.shape.as_ref())?;
                    fields.shape = Some(self.shape(map.next_value_seed(DimsSeed)?)?);
                }
                "data_offsets" => {
                    self.once("data_offsets", fields.offsets.as_ref())?;
                    fields.offsets = Some(map.next_value()?);
                }
                _ if self.strictness == Strictness::Lax => {
                    map.next_value::<IgnoredAny>()?;
                    self.note(field);
                }
                _ => {
                    let tensor = self.name;
                    return Err(stop(
                        self.fault,
                        HeaderFault::UnknownField { tensor, field },
                    ));
                }
            }
        }
        fields
            .into_entry(self.name)
            .map_err(|fault| stop(self.fault, fault))
    }
}

impl EntrySeed<'_> {
    fn dtype<E: serde::de::Error>(&mut self, found: &str) -> Result<Dtype, E> {
        found.parse().map_err(|_| {
            let (tensor, found) = (self.name.clone(), found.to_owned());
            stop(self.fault, HeaderFault::UnknownDtype { tensor, found })
        })
    }

    fn shape<E: serde::de::Error>(&mut self, shape: Option<Shape>) -> Result<Shape, E> {
        shape.ok_or_else(|| {
            let tensor = self.name.clone();
            stop(self.fault, HeaderFault::RankTooLarge { tensor })
        })
    }

    fn note(&mut self, field: String) {
        let tensor = &self.name;
        let unknown = self.unknown.get_or_insert_with(|| UnknownFields {
            tensor: tensor.clone(),
            field,
            count: 0,
        });
        unknown.count += 1;
    }

    fn once<T, E: serde::de::Error>(
        &mut self,
        field: &'static str,
        before: Option<&T>,
    ) -> Result<(), E> {
        if before.is_none() {
            return Ok(());
        }
        let tensor = self.name.clone();
        Err(stop(
            self.fault,
            HeaderFault::DuplicateField { tensor, field },
        ))
    }
}

impl Fields {
    fn into_entry(self, tensor: String) -> Result<Entry, HeaderFault> {
        let (dtype, shape, [begin, end]) = match (self.dtype, self.shape, self.offsets) {
            (Some(dtype), Some(shape), Some(offsets)) => (dtype, shape, offsets),
            (None, _, _) => return Err(missing(tensor, "dtype")),
            (_, None, _) => return Err(missing(tensor, "shape")),
            (_, _, None) => return Err(missing(tensor, "data_offsets")),
        };
        let name = tensor;
        let meta = TensorMeta { name, dtype, shape };
        Ok(Entry { meta, begin, end })
    }
}

fn missing(tensor: String, field: &'static str) -> HeaderFault {
    HeaderFault::MissingField { tensor, field }
}

/// A shape, or `None` if it has more dimensions than the limit.
struct DimsSeed;

impl<'de> DeserializeSeed<'de> for DimsSeed {
    type Value = Option<Shape>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for DimsSeed {
    type Value = Option<Shape>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut dims = [0; MAX_RANK];
        let mut rank = 0;
        while let Some(next) = list.next_element()? {
            match dims.get_mut(rank) {
                Some(dim) => *dim = next,
                None => return Ok(None),
            }
            rank += 1;
        }
        Ok(Some(Shape::new(&dims[..rank])))
    }
}
