//! The values that a pickle makes, each held once, however often it is named.
//!
//! Containers lie in slots and are named by number, so a value costs the same few
//! bytes wherever it stands, and a pickle that names a list a billion times over
//! grows by nothing. A container that was consumed and is not remembered by the
//! program is dropped at once: of a hundred thousand tensors only the tensors stay.
//! Nothing here calls itself, so no depth of nesting can exhaust the stack.

use tensor::{Dtype, Shape};

use super::fault::PickleFault;
use super::globals::Global;

/// The most values that may be held at a time, in containers and on the stack.
pub(super) const MAX_VALUES: usize = 4 << 20;

/// A value, by itself or by the number of its slot.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    None,
    Bool,
    Int(i64),
    Float,
    Text(&'a str),
    Global(Global),
    Storage(u32),
    Tensor(u32),
    Object(u32),
}

/// A container.
#[derive(Debug)]
pub(super) enum Object<'a> {
    Tuple(Vec<Value<'a>>),
    List(Vec<Value<'a>>),
    Dict(Vec<(Value<'a>, Value<'a>)>),
}

impl Object<'_> {
    fn num_values(&self) -> usize {
        1 + match self {
            Self::Tuple(values) | Self::List(values) => values.len(),
            Self::Dict(pairs) => 2 * pairs.len(),
        }
    }
}

/// A storage: elements of one dtype in an entry of the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Storage<'a> {
    pub(super) key: &'a str,
    pub(super) dtype: Dtype,
    pub(super) num_elements: u64,
}

impl Storage<'_> {
    /// The bytes of its entry, if 64 bits can count them.
    pub(super) fn num_bytes(&self) -> Option<u64> {
        let size = self.dtype.size_bytes()? as u64;
        self.num_elements.checked_mul(size)
    }
}

/// A tensor in a storage.
#[derive(Debug, Clone)]
pub(super) struct Tensor {
    pub(super) storage: u32,
    /// Elements of the storage before its first.
    pub(super) offset: u64,
    pub(super) shape: Shape,
    /// Whether its elements lie one after the other in the order of its shape.
    pub(super) is_contiguous: bool,
}

#[derive(Debug)]
struct Slot<'a> {
    object: Object<'a>,
    /// Whether the program remembers it and may name it again.
    is_remembered: bool,
}

/// All containers.
#[derive(Debug, Default)]
pub(super) struct Heap<'a> {
    slots: Vec<Option<Slot<'a>>>,
    free: Vec<u32>,
    num_values: usize,
}

impl<'a> Heap<'a> {
    /// Accounts for `more` values.
    pub(super) fn charge(&mut self, more: usize) -> Result<(), PickleFault> {
        self.num_values += more;
        if self.num_values > MAX_VALUES {
            return Err(PickleFault::TooManyValues { limit: MAX_VALUES });
        }
        Ok(())
    }

    /// Takes back what was accounted for.
    pub(super) fn release(&mut self, fewer: usize) {
        self.num_values = self.num_values.saturating_sub(fewer);
    }

    /// Puts a container in a slot.
    pub(super) fn add(&mut self, object: Object<'a>) -> Result<Value<'a>, PickleFault> {
        self.charge(object.num_values())?;
        let slot = Slot {
            object,
            is_remembered: false,
        };
        if let Some(number) = self.free.pop() {
            self.slots[number as usize] = Some(slot);
            return Ok(Value::Object(number));
        }
        // Below the limit of values, so below 2^32.
        let number = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        self.slots.push(Some(slot));
        Ok(Value::Object(number))
    }

    pub(super) fn remember(&mut self, value: Value<'a>) {
        if let Value::Object(number) = value
            && let Some(Some(slot)) = self.slots.get_mut(number as usize)
        {
            slot.is_remembered = true;
        }
    }

    pub(super) fn get(&self, value: Value<'a>) -> Option<&Object<'a>> {
        let Value::Object(number) = value else {
            return None;
        };
        let slot = self.slots.get(number as usize)?.as_ref()?;
        Some(&slot.object)
    }

    pub(super) fn get_mut(&mut self, value: Value<'a>) -> Option<&mut Object<'a>> {
        let Value::Object(number) = value else {
            return None;
        };
        let slot = self.slots.get_mut(number as usize)?.as_mut()?;
        Some(&mut slot.object)
    }

    /// The values of a tuple.
    pub(super) fn tuple(&self, value: Value<'a>) -> Option<&[Value<'a>]> {
        match self.get(value)? {
            Object::Tuple(values) => Some(values),
            _ => None,
        }
    }

    /// Whether a value is a dictionary of nothing, or nothing itself.
    pub(super) fn is_nothing(&self, value: Value<'a>) -> bool {
        match value {
            Value::None => true,
            _ => matches!(self.get(value), Some(Object::Dict(pairs)) if pairs.is_empty()),
        }
    }

    /// What a value is, in words.
    pub(super) fn kind(&self, value: Value<'a>) -> &'static str {
        match value {
            Value::None => "None",
            Value::Bool => "a truth value",
            Value::Int(_) => "a whole number",
            Value::Float => "a number",
            Value::Text(_) => "a text",
            Value::Global(_) => "a class or function",
            Value::Storage(_) => "a storage",
            Value::Tensor(_) => "a tensor",
            Value::Object(_) => match self.get(value) {
                Some(Object::Dict(_)) => "a dictionary",
                Some(Object::List(_)) => "a list",
                _ => "a tuple",
            },
        }
    }

    /// Drops a value that was consumed, with all in it that nothing else names.
    pub(super) fn drop_consumed(&mut self, value: Value<'a>) {
        let mut consumed = vec![value];
        while let Some(value) = consumed.pop() {
            let Value::Object(number) = value else {
                continue;
            };
            let Some(slot) = self.slots.get_mut(number as usize) else {
                continue;
            };
            let Some(gone) = slot.take_if(|slot| !slot.is_remembered) else {
                continue;
            };
            self.free.push(number);
            self.release(gone.object.num_values());
            match gone.object {
                Object::Tuple(values) | Object::List(values) => consumed.extend(values),
                Object::Dict(pairs) => {
                    consumed.extend(pairs.into_iter().flat_map(|(key, value)| [key, value]));
                }
            }
        }
    }
}
