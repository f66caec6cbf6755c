//! The instructions of a pickle that torch writes (protocol 2), one at a time.

use super::fault::PickleFault;

/// An instruction with its operand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Instruction<'a> {
    /// The version of the language.
    Protocol(u8),
    /// The end.
    Stop,
    /// A mark on the stack, up to which a later one takes.
    Mark,
    None,
    Bool(bool),
    Int(i64),
    Float,
    Text(&'a str),
    EmptyTuple,
    EmptyList,
    EmptyDict,
    /// A tuple of all values above the mark.
    Tuple,
    /// A tuple of so many values.
    TupleOf(usize),
    Append,
    Appends,
    SetItem,
    SetItems,
    /// A global by module and name.
    Global(&'a str, &'a str),
    /// Calls what lies below with the tuple on top.
    Reduce,
    /// Hands a state to what lies below.
    Build,
    /// A storage.
    PersistentId,
    /// Remembers the top value under a number.
    Put(u32),
    /// The value under a number.
    Get(u32),
}

/// A pickle as it is read.
#[derive(Debug, Clone)]
pub(super) struct Program<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Program<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Whether nothing follows.
    pub(super) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub(super) fn broken(&self, reason: &'static str) -> PickleFault {
        PickleFault::Broken {
            reason,
            at: self.at,
        }
    }

    /// Reads the next instruction.
    pub(super) fn next(&mut self) -> Result<Instruction<'a>, PickleFault> {
        use Instruction as I;
        let at = self.at;
        let [code] = self.take()?;
        Ok(match code {
            0x80 => I::Protocol(self.byte()?),
            b'.' => I::Stop,
            b'(' => I::Mark,
            b'N' => I::None,
            0x88 => I::Bool(true),
            0x89 => I::Bool(false),
            b'J' => I::Int(i32::from_le_bytes(self.take()?).into()),
            b'K' => I::Int(self.byte()?.into()),
            b'M' => I::Int(u16::from_le_bytes(self.take()?).into()),
            0x8a => I::Int(self.long()?),
            b'G' => {
                self.take::<8>()?;
                I::Float
            }
            b'X' => {
                let len = u32::from_le_bytes(self.take()?);
                I::Text(self.text(len as usize)?)
            }
            b'U' => {
                let len = self.byte()?;
                I::Text(self.text(len.into())?)
            }
            b')' => I::EmptyTuple,
            b']' => I::EmptyList,
            b'}' => I::EmptyDict,
            b't' => I::Tuple,
            0x85..=0x87 => I::TupleOf(usize::from(code - 0x84)),
            b'a' => I::Append,
            b'e' => I::Appends,
            b's' => I::SetItem,
            b'u' => I::SetItems,
            b'c' => {
                let module = self.line()?;
                I::Global(module, self.line()?)
            }
            b'R' => I::Reduce,
            b'b' => I::Build,
            b'Q' => I::PersistentId,
            b'q' => I::Put(self.byte()?.into()),
            b'r' => I::Put(u32::from_le_bytes(self.take()?)),
            b'h' => I::Get(self.byte()?.into()),
            b'j' => I::Get(u32::from_le_bytes(self.take()?)),
            code => return Err(PickleFault::Instruction { code, at }),
        })
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], PickleFault> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let bytes = rest.first_chunk().ok_or_else(|| self.cut())?;
        self.at += N;
        Ok(*bytes)
    }

    fn byte(&mut self) -> Result<u8, PickleFault> {
        let [byte] = self.take()?;
        Ok(byte)
    }

    fn slice(&mut self, len: usize) -> Result<&'a [u8], PickleFault> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let bytes = rest.get(..len).ok_or_else(|| self.cut())?;
        self.at += len;
        Ok(bytes)
    }

    fn text(&mut self, len: usize) -> Result<&'a str, PickleFault> {
        let bytes = self.slice(len)?;
        std::str::from_utf8(bytes).map_err(|_| self.broken("a text is not UTF-8"))
    }

    /// A whole number of up to 64 bits, sign and all.
    fn long(&mut self) -> Result<i64, PickleFault> {
        let len = self.byte()?;
        let bytes = self.slice(len.into())?;
        let is_negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
        let mut wide = if is_negative { [0xff; 8] } else { [0; 8] };
        match wide.get_mut(..bytes.len()) {
            Some(low) => low.copy_from_slice(bytes),
            None => return Err(self.broken("a number has more than 64 bits")),
        }
        Ok(i64::from_le_bytes(wide))
    }

    fn line(&mut self) -> Result<&'a str, PickleFault> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let len = rest.iter().position(|&byte| byte == b'\n');
        let line = self.text(len.ok_or_else(|| self.cut())?)?;
        self.at += 1;
        Ok(line)
    }

    fn cut(&self) -> PickleFault {
        self.broken("it ends inside an instruction")
    }
}
