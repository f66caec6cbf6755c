//! How text becomes batches.
//!
//! Lines of JSON are turned into token ids and a mask of the tokens that count
//! in the loss ([`Document`]), cut into rows of one length in a file that every
//! rank can read ([`Prepared`], [`Rows`]), and dealt to steps, ranks and
//! micro-batches in an order that does not depend on the world ([`Order`],
//! [`BatchPlan`]).
//!
//! ```text
//! Source -> Record -> Document -> rows in a file -> Order -> BatchPlan -> deal_rows -> micro_batches
//!  file      a line    ids+mask      ids+targets    shuffle    steps        ranks
//! ```
//!
//! This crate opens data and tokenizer files, never model weights.

mod batch;
mod chat;
mod digest;
mod document;
mod error;
mod input;
mod order;
mod prepare;
mod record;
mod rows;
mod sample;
mod special;
mod stream;
mod tokenizer;

pub use batch::{BatchPlan, RunLength, Step, deal_rows, micro_batches, num_steps};
pub use chat::{ChatTemplate, Message, Rendered};
pub use document::Document;
pub use error::{DataError, Result};
pub use input::Source;
pub use order::Order;
pub use prepare::{Counts, Prepared, Settings};
pub use record::Record;
pub use rows::{IGNORED, RowLen, Rows};
pub use sample::{Piece, Sample};
pub use stream::StreamDecoder;
pub use tokenizer::{Parts, Token, Tokenizer, end_ids};
