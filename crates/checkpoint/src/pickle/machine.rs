//! The machine that runs a pickle's instructions and nothing else.

use std::collections::HashMap;

use tensor::Shape;

use super::fault::{PickleFault, shown};
use super::globals::Global;
use super::heap::{Heap, Object, Storage, Tensor, Value};
use super::instructions::{Instruction, Program};

/// The deepest that marks may lie upon each other; torch needs three.
const MAX_MARKS: usize = 64;

/// The most dimensions of a tensor.
const MAX_RANK: usize = 64;

type Result<T, E = PickleFault> = std::result::Result<T, E>;

/// What a pickle of weights says.
#[derive(Debug)]
pub(super) struct StateDict<'a> {
    /// By name; all names are different.
    pub(super) tensors: Vec<(&'a str, Tensor)>,
    pub(super) storages: Vec<Storage<'a>>,
}

/// Runs a whole pickle.
pub(super) fn run(bytes: &[u8]) -> Result<StateDict<'_>> {
    let mut program = Program::new(bytes);
    if program.next()? != Instruction::Protocol(2) {
        return Err(program.broken("its protocol is not 2"));
    }
    let mut machine = Machine {
        program,
        wanted: Wanted::find(bytes),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        heap: Heap::default(),
        storages: Vec::new(),
        by_key: HashMap::new(),
        tensors: Vec::new(),
    };
    loop {
        match machine.program.next()? {
            Instruction::Stop => return machine.finish(),
            instruction => machine.step(instruction)?,
        }
    }
}

/// The numbers that a program fetches values under. Torch remembers every value
/// and fetches few; the rest need not be kept.
#[derive(Debug)]
struct Wanted(Vec<u64>);

impl Wanted {
    /// As far as the program can be read; where that ends, the machine will say why.
    fn find(bytes: &[u8]) -> Self {
        // A value is remembered by two bytes or more, and numbers count up.
        let most = bytes.len() / 2 + 1;
        let mut wanted = Self(vec![0; most.div_ceil(64)]);
        let mut program = Program::new(bytes);
        loop {
            match program.next() {
                Ok(Instruction::Get(number)) => {
                    if let Some(word) = wanted.0.get_mut(number as usize / 64) {
                        *word |= 1 << (number % 64);
                    }
                }
                Ok(Instruction::Stop) | Err(_) => return wanted,
                Ok(_) => {}
            }
        }
    }

    fn has(&self, number: u32) -> bool {
        let word = self.0.get(number as usize / 64);
        word.is_some_and(|word| word >> (number % 64) & 1 == 1)
    }
}

struct Machine<'a> {
    program: Program<'a>,
    wanted: Wanted,
    stack: Vec<Value<'a>>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: HashMap<u32, Value<'a>>,
    heap: Heap<'a>,
    storages: Vec<Storage<'a>>,
    by_key: HashMap<&'a str, u32>,
    tensors: Vec<Tensor>,
}

impl<'a> Machine<'a> {
    fn step(&mut self, instruction: Instruction<'a>) -> Result<()> {
        use Instruction as I;
        match instruction {
            I::Protocol(_) | I::Stop => Err(self.program.broken("it begins or ends twice")),
            I::Mark => self.mark(),
            I::None => self.push(Value::None),
            I::Bool(_) => self.push(Value::Bool),
            I::Int(number) => self.push(Value::Int(number)),
            I::Float => self.push(Value::Float),
            I::Text(text) => self.push(Value::Text(text)),
            I::Global(module, name) => self.push(Value::Global(Global::find(module, name)?)),
            I::EmptyTuple => self.push_object(Object::Tuple(Vec::new())),
            I::EmptyList => self.push_object(Object::List(Vec::new())),
            I::EmptyDict => self.push_object(Object::Dict(Vec::new())),
            I::Tuple => {
                let from = self.take_mark()?;
                self.tuple_from(from)
            }
            I::TupleOf(len) => {
                let from = self.stack.len().checked_sub(len);
                let from = from.filter(|&from| from >= self.floor());
                self.tuple_from(from.ok_or_else(|| self.empty())?)
            }
            I::Append => self.append_from(self.stack.len().saturating_sub(1)),
            I::Appends => {
                let from = self.take_mark()?;
                self.append_from(from)
            }
            I::SetItem => self.set_items_from(self.stack.len().saturating_sub(2)),
            I::SetItems => {
                let from = self.take_mark()?;
                self.set_items_from(from)
            }
            I::Reduce => self.reduce(),
            I::Build => self.build(),
            I::PersistentId => self.storage(),
            I::Put(number) => self.put(number),
            I::Get(number) => match self.memo.get(&number) {
                Some(&value) => self.push(value),
                None => Err(self.program.broken("it fetches what it never remembered")),
            },
        }
    }

    fn push(&mut self, value: Value<'a>) -> Result<()> {
        self.heap.charge(1)?;
        self.stack.push(value);
        Ok(())
    }

    fn push_object(&mut self, object: Object<'a>) -> Result<()> {
        let value = self.heap.add(object)?;
        self.push(value)
    }

    /// What lies below the last mark is out of reach.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Value<'a>> {
        if self.stack.len() <= self.floor() {
            return Err(self.empty());
        }
        self.heap.release(1);
        self.stack.pop().ok_or_else(|| self.empty())
    }

    /// The stack's values from a height on.
    fn pop_from(&mut self, from: usize) -> Vec<Value<'a>> {
        let values = self.stack.split_off(from);
        self.heap.release(values.len());
        values
    }

    fn empty(&self) -> PickleFault {
        self.program.broken("it takes from an empty stack")
    }

    fn mark(&mut self) -> Result<()> {
        if self.marks.len() == MAX_MARKS {
            return Err(self.program.broken("it nests too deep"));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    fn take_mark(&mut self) -> Result<usize> {
        let mark = self.marks.pop();
        mark.ok_or_else(|| self.program.broken("a mark is missing"))
    }

    fn put(&mut self, number: u32) -> Result<()> {
        let top = self.stack.get(self.floor()..).and_then(<[_]>::last);
        let top = *top.ok_or_else(|| self.empty())?;
        if self.wanted.has(number) {
            self.heap.charge(1)?;
            self.heap.remember(top);
            self.memo.insert(number, top);
        }
        Ok(())
    }

    fn tuple_from(&mut self, from: usize) -> Result<()> {
        let values = self.pop_from(from);
        self.push_object(Object::Tuple(values))
    }

    /// The container below the values from a height on.
    fn below(&self, from: usize) -> Result<Value<'a>> {
        let at = from.checked_sub(1).filter(|&at| at >= self.floor());
        let value = at.and_then(|at| self.stack.get(at));
        value.copied().ok_or_else(|| self.empty())
    }

    fn append_from(&mut self, from: usize) -> Result<()> {
        let container = self.below(from)?;
        let more = self.pop_from(from);
        self.heap.charge(more.len())?;
        match self.heap.get_mut(container) {
            Some(Object::List(values)) => values.extend(more),
            _ => return Err(self.program.broken("it appends to what is no list")),
        }
        Ok(())
    }

    fn set_items_from(&mut self, from: usize) -> Result<()> {
        let container = self.below(from)?;
        let values = self.pop_from(from);
        if !values.len().is_multiple_of(2) {
            return Err(self.program.broken("a key has no value"));
        }
        self.heap.charge(values.len())?;
        match self.heap.get_mut(container) {
            Some(Object::Dict(pairs)) => {
                pairs.extend(values.chunks_exact(2).map(|pair| (pair[0], pair[1])));
            }
            _ => {
                return Err(self
                    .program
                    .broken("it sets an item of what is no dictionary"));
            }
        }
        Ok(())
    }

    /// Hands a state to a dictionary, whose tensors it does not change.
    fn build(&mut self) -> Result<()> {
        let state = self.pop()?;
        let target = self.below(self.stack.len())?;
        if !matches!(self.heap.get(target), Some(Object::Dict(_))) {
            return Err(self
                .program
                .broken("it hands a state to what is no dictionary"));
        }
        self.heap.drop_consumed(state);
        Ok(())
    }

    fn reduce(&mut self) -> Result<()> {
        let args = self.pop()?;
        let Value::Global(function) = self.pop()? else {
            return Err(self.program.broken("it calls what is no function"));
        };
        let made = self.call(function, args)?;
        self.heap.drop_consumed(args);
        match made {
            Called::Dict => self.push_object(Object::Dict(Vec::new())),
            Called::Tensor(number) => self.push(Value::Tensor(number)),
        }
    }

    fn call(&mut self, function: Global, args: Value<'a>) -> Result<Called> {
        const MOST: usize = 7;
        let args = self.heap.tuple(args).filter(|args| args.len() <= MOST);
        let Some(args) = args.map(<[_]>::to_vec) else {
            return Err(self
                .program
                .broken("it calls a function without its arguments"));
        };
        match (function, args.as_slice()) {
            (Global::OrderedDict, []) => Ok(Called::Dict),
            (
                Global::RebuildFromType,
                &[
                    Value::Global(of),
                    Value::Global(Global::TensorType),
                    args,
                    _,
                ],
            ) if of != Global::RebuildFromType => self.call(of, args),
            (Global::RebuildParameter, &[Value::Tensor(number), Value::Bool, hooks])
                if self.heap.is_nothing(hooks) =>
            {
                Ok(Called::Tensor(number))
            }
            (Global::RebuildTensor, &[storage, offset, sizes, strides, Value::Bool, hooks]) => {
                self.tensor([storage, offset, sizes, strides], hooks, Value::None)
            }
            (
                Global::RebuildTensor,
                &[storage, offset, sizes, strides, Value::Bool, hooks, more],
            ) => self.tensor([storage, offset, sizes, strides], hooks, more),
            _ => Err(self
                .program
                .broken("it calls a function with other arguments than torch does")),
        }
    }

    fn tensor(
        &mut self,
        args: [Value<'a>; 4],
        hooks: Value<'a>,
        more: Value<'a>,
    ) -> Result<Called> {
        let broken = |reason| self.program.broken(reason);
        let [Value::Storage(storage), Value::Int(offset), sizes, strides] = args else {
            return Err(broken("a tensor is not made of a storage and numbers"));
        };
        if !self.heap.is_nothing(hooks) || !self.heap.is_nothing(more) {
            return Err(broken("a tensor has hooks, or is conjugated or negated"));
        }
        let (Ok(offset), Some(dims), Some(strides)) = (
            u64::try_from(offset),
            self.numbers(sizes),
            self.numbers(strides),
        ) else {
            return Err(broken("a tensor's place is not made of whole numbers"));
        };
        if dims.len() != strides.len() {
            return Err(broken("a tensor has not as many strides as dimensions"));
        }
        let shape = Shape::new(&dims);
        let room = self.storages.get(storage as usize);
        let room = room.map_or(0, |storage| storage.num_elements);
        let extent = extent(&dims, &strides).and_then(|extent| offset.checked_add(extent));
        if shape.num_elements().is_err() || extent.is_none_or(|end| end > room) {
            return Err(broken("a tensor does not lie in its storage"));
        }
        let is_contiguous = is_contiguous(&dims, &strides);
        self.heap.charge(2)?;
        let number = u32::try_from(self.tensors.len()).unwrap_or(u32::MAX);
        self.tensors.push(Tensor {
            storage,
            offset,
            shape,
            is_contiguous,
        });
        Ok(Called::Tensor(number))
    }

    /// A tuple of whole numbers that are not negative.
    fn numbers(&self, value: Value<'a>) -> Option<Vec<u64>> {
        let values = self.heap.tuple(value)?;
        let number = |value: &Value<'_>| match *value {
            Value::Int(number) => u64::try_from(number).ok(),
            _ => None,
        };
        if values.len() > MAX_RANK {
            return None;
        }
        values.iter().map(number).collect()
    }

    /// Finds the storage that a persistent id names.
    fn storage(&mut self) -> Result<()> {
        let id = self.pop()?;
        let &[
            Value::Text("storage"),
            Value::Global(Global::Storage(dtype)),
            Value::Text(key),
            Value::Text(_),
            Value::Int(len),
        ] = self.heap.tuple(id).unwrap_or_default()
        else {
            return Err(self.program.broken("a persistent id is not a storage's"));
        };
        let num_elements = u64::try_from(len)
            .map_err(|_| self.program.broken("a storage has a negative length"))?;
        let storage = Storage {
            key,
            dtype,
            num_elements,
        };
        self.heap.drop_consumed(id);
        if let Some(&number) = self.by_key.get(key) {
            if self.storages.get(number as usize) != Some(&storage) {
                return Err(self
                    .program
                    .broken("a storage is named with two dtypes or lengths"));
            }
            return self.push(Value::Storage(number));
        }
        self.heap.charge(2)?;
        let number = u32::try_from(self.storages.len()).unwrap_or(u32::MAX);
        self.storages.push(storage);
        self.by_key.insert(key, number);
        self.push(Value::Storage(number))
    }

    /// The dictionary that is left when the program stops.
    fn finish(mut self) -> Result<StateDict<'a>> {
        let top = self.pop()?;
        if !self.stack.is_empty() || !self.marks.is_empty() || !self.program.is_at_end() {
            return Err(self.program.broken("something is left over at its end"));
        }
        let Some(Object::Dict(pairs)) = self.heap.get(top) else {
            let found = self.heap.kind(top);
            return Err(PickleFault::NotADict { found });
        };
        let mut tensors = Vec::with_capacity(pairs.len());
        for &(name, value) in pairs {
            tensors.push((self.name(name)?, self.tensor_of(name, value)?));
        }
        tensors.sort_unstable_by_key(|&(name, _)| name);
        if let Some(pair) = tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let tensor = pair[0].0.to_owned();
            return Err(PickleFault::DuplicateTensor { tensor });
        }
        let tensors = tensors.into_iter();
        let tensors = tensors.map(|(name, number)| (name, self.tensors[number as usize].clone()));
        Ok(StateDict {
            tensors: tensors.collect(),
            storages: self.storages,
        })
    }

    fn name(&self, name: Value<'a>) -> Result<&'a str> {
        match name {
            Value::Text(name) if name.is_empty() || name.contains(char::is_control) => {
                let tensor = shown(name);
                Err(PickleFault::BadName { tensor })
            }
            Value::Text(name) => Ok(name),
            _ => Err(self.program.broken("a tensor's name is no text")),
        }
    }

    fn tensor_of(&self, name: Value<'a>, value: Value<'a>) -> Result<u32> {
        match (name, value) {
            (_, Value::Tensor(number)) => Ok(number),
            (Value::Text(name), other) => Err(PickleFault::NotATensor {
                name: shown(name),
                found: self.heap.kind(other),
            }),
            _ => Err(self.program.broken("a tensor's name is no text")),
        }
    }
}

/// What a call made.
enum Called {
    /// A dictionary of nothing.
    Dict,
    /// A tensor, by number.
    Tensor(u32),
}

/// Elements from a tensor's first to behind its last, or `None` past 64 bits.
fn extent(dims: &[u64], strides: &[u64]) -> Option<u64> {
    if dims.contains(&0) {
        return Some(0);
    }
    let mut steps = dims.iter().zip(strides);
    steps.try_fold(1_u64, |sum, (&dim, &stride)| {
        sum.checked_add((dim - 1).checked_mul(stride)?)
    })
}

/// Whether elements lie one after the other in the order of the shape. The stride
/// of a dimension of 1 leads nowhere and may be anything.
fn is_contiguous(dims: &[u64], strides: &[u64]) -> bool {
    if dims.contains(&0) {
        return true;
    }
    let mut expected = 1_u64;
    dims.iter().zip(strides).rev().all(|(&dim, &stride)| {
        let fits = dim == 1 || stride == expected;
        expected = expected.saturating_mul(dim);
        fits
    })
}
