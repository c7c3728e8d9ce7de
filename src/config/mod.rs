//! Layers of configuration in, one validated [`desired::Desired`] out. All validation is here.
//!
//! [`layers`] reads what people wrote and remembers where; [`profile`] is what we know about an
//! operating system; [`resolve`] joins both with the facts and the matrix; [`load`] does it all.

pub mod desired;
mod driver;
pub mod error;
pub mod file;
pub mod keys;
pub mod layers;
pub mod load;
pub mod place;
pub mod profile;
mod repositories;
pub mod resolve;
mod template;
pub mod values;
