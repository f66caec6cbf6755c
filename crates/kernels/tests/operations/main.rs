//! One test body for every device.
//!
//! A case is a sequence of operations, written once over [`kernels::Device`].
//! [`agreement::agrees`] runs it on the reference in f64 and holds the others
//! against that: the reference in f32 and the fast device within the
//! operation's tolerance, the fast device against itself bit by bit, and the
//! counting device against the fast one's arena byte by byte.
//! `gradients` holds the reference's backwards against finite differences, and
//! `adamw` its update against numbers from `PyTorch`.
//! `noise` measures what rounding to FP8 adds to products.

mod adamw;
mod agreement;
mod attention;
mod embedding;
mod gradients;
mod inputs;
mod linear;
mod loss;
mod noise;
mod pointwise;
