//! Text that may only grow so long: a template that repeats itself without end
//! is an error and not all of the memory.

use std::io::{self, Write};

use minijinja::{Error, ErrorKind};

/// Takes text up to a limit.
#[derive(Debug)]
pub(super) struct Bounded {
    bytes: Vec<u8>,
    limit_bytes: usize,
    is_full: bool,
}

impl Bounded {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            bytes: Vec::new(),
            limit_bytes,
            is_full: false,
        }
    }

    /// Whether something was refused.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    pub(super) fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    pub(super) fn into_text(self) -> String {
        String::from_utf8(self.bytes).expect("the engine writes text")
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit_bytes - self.bytes.len() {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The error of a text beyond its limit.
pub(super) fn too_long(limit_bytes: usize) -> Error {
    let limit = limit_bytes >> 20;
    Error::new(
        ErrorKind::InvalidOperation,
        format!("the template writes more than {limit} MiB"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_taken_up_to_the_limit_and_not_beyond() {
        let mut text = Bounded::new(4);
        text.write_all(b"abc").unwrap();
        assert!(text.write_all(b"de").is_err());
        assert!(text.is_full());
        text.write_all(b"d").unwrap();
        assert_eq!(text.into_text(), "abcd");
    }
}
